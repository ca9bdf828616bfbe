"""Metadynamics: the sum of hills, and weights of samples that were biased by it."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

_CUTOFF: Final = 6.25
"""Of PLUMED's kernels, in half a squared distance in sigmas; beyond it they are zero."""

_MOST_TERMS: Final = 4_000_000
"""Hills times points that are in memory together."""

_SPARSEST: Final = 4
"""Points of a grid over those asked for, up to which all of them are computed."""

_TIMES: Final = 400
"""Times at which c(t) is computed."""


@dataclass(frozen=True, eq=False)
class HillSum:
    """Gaussian hills in the order in which they were deposited.

    Attributes:
        names: of the variables.
        domains: ends of each variable; None for one that is not periodic.
        times: (hills,) float64, ps.
        centers: (hills, d) float64.
        sigmas: (hills, d) float64.
        heights: (hills,) float64, kJ/mol, as in HILLS: those of well-tempered metadynamics are
            times gamma / (gamma - 1).
        bias_factor: gamma; 1 for ordinary metadynamics.
        stretched: whether kernels are cut at a distance and stretched to end there at zero.
    """

    names: tuple[str, ...]
    domains: tuple[tuple[float, float] | None, ...]
    times: NDArray[np.float64]
    centers: NDArray[np.float64]
    sigmas: NDArray[np.float64]
    heights: NDArray[np.float64]
    bias_factor: float = 1.0
    stretched: bool = False

    @property
    def periods(self) -> tuple[float | None, ...]:
        """Of each variable; None for one that is not periodic."""
        return tuple(None if ends is None else ends[1] - ends[0] for ends in self.domains)

    @property
    def tempering(self) -> float:
        """The bias by minus the free energy, 1 - 1/gamma; 1 for ordinary metadynamics."""
        return 1.0 if self.bias_factor <= 1.0 else 1.0 - 1.0 / self.bias_factor

    def before(self, time: float) -> "HillSum":
        """The hills of earlier times."""
        return self._part(self.times < time)

    def _part(self, part: NDArray[np.bool_]) -> "HillSum":
        return HillSum(
            self.names,
            self.domains,
            self.times[part],
            self.centers[part],
            self.sigmas[part],
            self.heights[part],
            self.bias_factor,
            self.stretched,
        )

    def free_energy(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Minus the sum of the hills at points, (n, d) to (n,) kJ/mol, up to a constant.

        F(s) = -sum_i h_i exp(-sum_d (s_d - c_id)^2 / (2 sigma_id^2)), with the nearest images of
        periodic variables. DOI 10.1073/pnas.202427399, 10.1103/PhysRevLett.100.020603.
        """
        return -self._sum(_Points.of(points), slice(0, len(self.heights)))

    def mean_from(self, time: float) -> "HillSum":
        """Hills whose sum is the mean of the sums of these from a time (ps) on to the last hill.

        Hills that keep their height let the sum fluctuate for ever, by as much as they are high;
        its mean converges. DOI 10.1103/PhysRevE.81.055701.
        """
        length = float(self.times[-1]) - time
        if length <= 0.0:
            return self
        shares = np.minimum((self.times[-1] - self.times) / length, 1.0)
        return replace(self, heights=self.heights * shares)

    def _sum(self, points: "_Points", part: slice) -> NDArray[np.float64]:
        """The sum of some of the hills at points, (n,) kJ/mol."""
        if self.stretched or points.axes is None:
            total = np.zeros(len(points.values))
            for some in _slices(part, len(points.values)):
                total += self.heights[some] @ self._kernels(points.values, some)
            return total
        # A Gaussian is the product of its factors, and so the sum on a grid one of matrices.
        shape = [len(axis) for axis in points.axes]
        grid = np.zeros((math.prod(shape[:-1]), shape[-1]))
        for some in _slices(part, max(grid.shape)):
            *others, last = (
                np.exp(-0.5 * self._squares(values, axis, some))
                for axis, values in enumerate(points.axes)
            )
            rows = self.heights[some, None]
            for factors in others:
                rows = (rows[:, :, None] * factors[:, None]).reshape(len(rows), -1)
            grid += rows.T @ last
        return grid.reshape(shape)[points.places]

    def _squares(self, values: NDArray[np.float64], axis: int, part: slice) -> NDArray[np.float64]:
        """Squares of the distances from hills to values of a variable, in sigmas, (hills, n)."""
        change = values - self.centers[part, axis, None]
        period = self.periods[axis]
        if period is not None:
            change -= period * np.round(change / period)
        return np.asarray((change / self.sigmas[part, axis, None]) ** 2)

    def _kernels(self, points: NDArray[np.float64], part: slice) -> NDArray[np.float64]:
        """Values of hills of height 1 at points, (hills, n)."""
        squares = np.zeros((len(self.heights[part]), len(points)))
        for axis, values in enumerate(points.T):
            squares += self._squares(values, axis, part)
        values = np.exp(-0.5 * squares)
        if self.stretched:
            end = math.exp(-_CUTOFF)
            values = np.where(0.5 * squares < _CUTOFF, (values - end) / (1.0 - end), 0.0)
        return values

    def bias(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """The bias of all hills at points, (n, d) to (n,) kJ/mol."""
        return -self.tempering * self.free_energy(points)

    def offsets(
        self, points: NDArray[np.float64], kt: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The energy c(t) that the bias V has added on average; DOI 10.1021/jp504920s.

        exp(c/kT) = int exp(-F_t/kT) ds / int exp(-(F_t + V_t)/kT) ds, where -F_t is the sum of the
        hills so far, without a factor.

        Args:
            points: (n, d) float, evenly spaced over the domain of the variables.
            kt: kJ/mol.

        Returns:
            Times (ps) and c (kJ/mol) after the hills of each, (times,) float64.
        """
        ends = np.unique(np.linspace(0, len(self.heights), _TIMES + 1).astype(int))
        total = np.zeros(len(points))
        at = _Points.of(points)
        times, offsets = [-math.inf], [0.0]
        for start, end in itertools.pairwise(ends.tolist()):
            total += self._sum(at, slice(start, end))
            above, below = total / kt, (1.0 - self.tempering) * total / kt
            times.append(float(self.times[end - 1]))
            offsets.append(kt * float(_log_sum(above) - _log_sum(below)))
        return np.array(times), np.array(offsets)


@dataclass(frozen=True, eq=False)
class _Points:
    """Points, and of those of a grid its axes and the places on them.

    Attributes:
        values: (n, d) float64.
        axes: values along each variable; None unless the points fill most of their grid.
        places: of the points on each axis, (n,) int64.
    """

    values: NDArray[np.float64]
    axes: tuple[NDArray[np.float64], ...] | None = None
    places: tuple[NDArray[np.int64], ...] = ()

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> "_Points":
        axes, places = zip(
            *(np.unique(column, return_inverse=True) for column in values.T), strict=True
        )
        if math.prod(map(len, axes)) > _SPARSEST * len(values):
            return cls(values)
        return cls(values, axes, places)


def _slices(part: slice, width: int) -> Iterator[slice]:
    """Parts of some hills that fit into memory with so many numbers each."""
    step = max(1, _MOST_TERMS // max(width, 1))
    for start in range(part.start, part.stop, step):
        yield slice(start, min(start + step, part.stop))


def _log_sum(values: NDArray[np.float64]) -> float:
    highest = values.max()
    return float(highest + np.log(np.exp(values - highest).sum()))


def log_weights(
    offsets: tuple[NDArray[np.float64], NDArray[np.float64]],
    biases: NDArray[np.float64],
    times: NDArray[np.float64],
    kt: float,
) -> NDArray[np.float64]:
    """Logarithms of the weights of samples by the bias that each had, less c(t): (V - c) / kT.

    Args:
        offsets: of the hills, as `HillSum.offsets` gives them.
        biases: (n,) float, bias of the samples at their times, kJ/mol.
        times: (n,) float, ps.
        kt: kJ/mol.
    """
    at, energies = offsets
    at = at.copy()
    at[0] = min(0.0, at[1]) if len(at) > 1 else 0.0
    return (biases - np.interp(times, at, energies)) / kt
