"""Statistics of time series: independent samples, where equilibrium begins, and round trips."""

import math
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

_STARTS: Final = 20
"""Candidates for the start of equilibrium, evenly spaced over the first 95 % of a series."""

_LONGEST: Final = 5000
"""Rows that are looked at for the start; of longer series, every so many."""


def independent_samples(series: ArrayLike) -> float:
    """How many independent samples have the information of a series, from 1 to its length.

    The length divided by 1 + 2 sum of autocorrelations, as far as sums of two neighbors are
    positive, which may not grow. DOI 10.1214/ss/1177011137. Autocorrelations about the mean of the
    series are too small by the variance of this mean, which is what the sum says, so that it is
    repeated.

    Args:
        series: (n,) float, evenly spaced in time.
    """
    values = np.asarray(series, dtype=np.float64)
    count = len(values)
    change = values - values.mean() if count else values
    if count < 2 or np.abs(change).max() <= 1e-12 * np.abs(values).max():
        return float(count)
    covariance = np.fft.irfft(np.abs(np.fft.rfft(change, 2 * count)) ** 2)[:count]
    correlation = covariance / covariance[0]
    inefficiency, longest = 0.0, count
    for _ in range(5):
        share = min(inefficiency / count, 0.9)
        lifted = correlation + (1.0 - correlation) * share
        pairs = lifted[: count // 2 * 2].reshape(-1, 2).sum(1)[:longest]
        negative = np.flatnonzero(pairs <= 0.0)
        pairs = np.minimum.accumulate(pairs[: negative[0]] if len(negative) else pairs)
        inefficiency = max(2.0 * float(pairs.sum()) - 1.0, 1.0)
        longest = math.ceil(1.5 * inefficiency)
    return max(count / inefficiency, 1.0)


def series_coordinates(
    values: NDArray[np.float64], periods: tuple[float | None, ...]
) -> NDArray[np.float64]:
    """Variables as series without jumps: cosine and sine of periodic ones.

    Args:
        values: (n, d) float.
        periods: of each variable, None for one that is not periodic.

    Returns:
        (n, c) float64.
    """
    columns = []
    for column, period in zip(values.T, periods, strict=True):
        if period is None:
            columns.append(column)
        else:
            angle = 2.0 * math.pi / period * column
            columns += [np.cos(angle), np.sin(angle)]
    return np.stack(columns, axis=1)


def fewest_independent(series: NDArray[np.float64]) -> float:
    """Independent samples of the slowest of several series, (n, c); see `independent_samples`."""
    return min(independent_samples(column) for column in series.T)


def equilibrated_start(series: NDArray[np.float64]) -> int:
    """Row at which equilibrium begins: what is left then has the most independent samples.

    DOI 10.1021/acs.jctc.5b00784.

    Args:
        series: (n, c) float, evenly spaced in time.
    """
    stride = max(1, len(series) // _LONGEST)
    thin = series[::stride]
    starts = sorted({int(0.95 * len(thin) * part / _STARTS) for part in range(_STARTS)})
    return stride * max(starts, key=lambda start: (fewest_independent(thin[start:]), -start))


def round_trips(
    values: NDArray[np.float64], ends: tuple[float, float], period: float | None = None
) -> int:
    """How often a variable goes from one end to the other one and back.

    A variable is at an end once it is at or beyond it. A periodic one, whose ends have two sides,
    is there within a tenth of the distance between the ends.

    Args:
        values: (n,) float, in order of time.
        ends: the two ends, the lower one first.
        period: of the variable; None for one that is not periodic.
    """
    low, high = ends
    if period is None:
        at = np.where(values <= low, -1, np.where(values >= high, 1, 0))
    else:
        near = 0.1 * abs((high - low + 0.5 * period) % period - 0.5 * period)
        distance = [np.abs((values - end + 0.5 * period) % period - 0.5 * period) for end in ends]
        at = np.where(distance[0] <= near, -1, np.where(distance[1] <= near, 1, 0))
    visited = at[at != 0]
    changes = int(np.count_nonzero(np.diff(visited)))
    return changes // 2
