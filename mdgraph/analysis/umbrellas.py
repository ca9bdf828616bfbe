"""Windows with static biases, joined by MBAR (DOI 10.1063/1.2978177) into a profile."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mdgraph.analysis.free_energies import (
    FreeEnergyProfile,
    ProfileGrid,
    profile_of_weights,
    sum_by_bin,
)
from mdgraph.errors import InputError

OVERLAP: Final = 0.03
"""Overlap of two windows below which errors are large; DOI 10.1007/s10822-015-9840-9."""

_BLOCK: Final = 5
"""Decorrelated samples in a block of the bootstrap."""

_ITERATIONS: Final = 30
_CHANGE: Final = 1e-6
"""kT, of free energies at the end of iterations."""


@dataclass(frozen=True)
class StaticBias:
    """A bias that does not change with time, in the units of COLVAR.

    Attributes:
        kind: harmonic, U = sum k/2 (s - centre)^2; lower or upper, the same beyond the wall; or
            linear, U = sum k (s - centre).
        variables: names.
        periods: of each variable; None for one that is not periodic.
        centre: of each variable, or the wall.
        stiffness: k of each variable, kJ/mol by its unit, squared unless it is linear.
    """

    kind: str
    variables: tuple[str, ...]
    periods: tuple[float | None, ...]
    centre: tuple[float, ...]
    stiffness: tuple[float, ...]

    def energy(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """kJ/mol of samples, (n, d) to (n,)."""
        total = np.zeros(len(values))
        for column, period, centre, stiffness in zip(
            values.T, self.periods, self.centre, self.stiffness, strict=True
        ):
            change = column - centre
            if period is not None:
                change = change - period * np.round(change / period)
            if self.kind == "linear":
                total += stiffness * change
                continue
            if self.kind != "harmonic":
                change = np.clip(change, *((0.0, None) if self.kind == "upper" else (None, 0.0)))
            total += 0.5 * stiffness * change**2
        return total


@dataclass(frozen=True, eq=False)
class UmbrellaWindow:
    """Decorrelated samples of a window.

    Attributes:
        name: for sentences.
        centre: where it samples, one number a variable of its bias.
        values: (n, d) float64, of the variables of the profile, in order of time.
        energies: (windows, n) float64, bias of every window at each sample, kT.
    """

    name: str
    centre: tuple[float, ...]
    values: NDArray[np.float64]
    energies: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class JoinedWindows:
    """What MBAR makes of windows.

    Attributes:
        profile: of the unbiased system.
        free_energies: (windows,) float64, of the biased systems, kT, the first one 0.
        overlap: (windows, windows) float64, its rows of sum 1.
        links: pairs of windows that connect all of them with the largest overlaps, each with its
            overlap.
    """

    profile: FreeEnergyProfile
    free_energies: NDArray[np.float64]
    overlap: NDArray[np.float64]
    links: list[tuple[int, int, float]]


def _pymbar() -> Any:
    """The package pymbar, without what it prints about JAX when it is imported."""
    logging.getLogger("pymbar").setLevel(logging.ERROR)
    try:
        import pymbar
    except ImportError as error:
        raise InputError(
            "Umbrella windows are joined by pymbar, which is not installed; install it with: "
            "pip install 'mdgraph[free-energy]'"
        ) from error
    return pymbar


def join_windows(
    windows: Sequence[UmbrellaWindow],
    grid: ProfileGrid,
    kt: float,
    resamples: int = 100,
    seed: int = 0,
) -> JoinedWindows:
    """Solves MBAR for windows, and makes the profile of the unbiased system.

    The bootstrap draws blocks of consecutive samples within each window, and solves MBAR again
    for each resample, by Newton's method from the solution of all samples.

    Args:
        windows: one or more.
        grid: the bins.
        kt: kJ/mol.
        resamples: number of bootstrap resamples; 0 gives no errors.
        seed: of the draws.

    Raises:
        InputError: pymbar is absent, windows do not overlap, or none has two samples.
    """
    _check_connected(windows)
    counts = np.array([len(window.values) for window in windows])
    if counts.max() < 2:
        raise InputError("No window has two independent samples; run longer.")
    energies = np.concatenate([window.energies for window in windows], axis=1)
    solved = _pymbar().MBAR(energies, counts, solver_protocol="robust")
    solution = np.asarray(solved.f_k, dtype=np.float64)
    overlap = np.ones((1, 1))  # which pymbar does not give for one window
    if len(windows) > 1:
        overlap = np.asarray(solved.compute_overlap()["matrix"], dtype=np.float64)
    links = _links(overlap)
    state = _Equations(energies, counts)
    numbers = grid.numbers(np.concatenate([window.values for window in windows]))
    inside, places = numbers >= 0, np.maximum(numbers, 0)

    def sums(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        return sum_by_bin(places, np.where(inside, weights, 0.0), grid.size)

    generator = np.random.default_rng(seed)
    ones = np.ones(energies.shape[1])
    drawn = []
    for _ in range(resamples):
        copies = np.concatenate([_draw_blocks(count, generator) for count in counts])
        drawn.append(sums(state.weights(state.solve(solution, copies), copies)))
    starts = np.concatenate([[0], np.cumsum(counts)])
    halves = []
    for first in (True, False):
        copies = np.zeros(energies.shape[1])
        for start, count in zip(starts, counts, strict=False):
            middle = start + count // 2
            copies[start:middle] = first
            copies[middle : start + count] = not first
        part = _Equations(energies[:, copies > 0], _half_counts(counts, first=first))
        half = part.solve(solution, np.ones(int(copies.sum())))
        weights = np.zeros(energies.shape[1])
        weights[copies > 0] = part.weights(half, np.ones(int(copies.sum())))
        halves.append(profile_of_weights(sums(weights), grid, kt))
    blocks = counts.sum() / _BLOCK
    profile = FreeEnergyProfile(
        grid=grid,
        kt=kt,
        values=profile_of_weights(sums(state.weights(solution, ones)), grid, kt),
        resamples=profile_of_weights(np.array(drawn), grid, kt) if resamples else None,
        halves=tuple(halves),
        scale=math.sqrt(blocks / max(blocks - len(windows), 1.0)),
    )
    return JoinedWindows(profile, solution - solution[0], overlap, links)


def _half_counts(counts: NDArray[np.int64], *, first: bool) -> NDArray[np.int64]:
    return counts // 2 if first else counts - counts // 2


class _Equations:
    """The equations of MBAR for samples that count several times or not at all."""

    def __init__(self, energies: NDArray[np.float64], counts: NDArray[np.int64]) -> None:
        self._lowest = energies.min(0)
        self._factors = np.exp(self._lowest - energies)
        self._counts = counts

    def solve(self, start: NDArray[np.float64], copies: NDArray[np.float64]) -> NDArray[np.float64]:
        """Free energies of the windows in kT, the first one 0, by Newton's method.

        Args:
            start: (windows,) float, near the solution.
            copies: (n,) float, how often each sample counts.
        """
        values = start - start[0]
        for _ in range(_ITERATIONS):
            shares = self._factors / (self._counts * np.exp(values) @ self._factors)
            shares *= np.exp(values)[:, None] * self._counts[:, None]  # of windows, sum 1
            expected = shares @ copies
            curvature = np.diag(expected) - (shares * copies) @ shares.T
            change = np.zeros(len(values))
            change[1:] = np.linalg.lstsq(
                curvature[1:, 1:], (self._counts - expected)[1:], rcond=None
            )[0]
            change *= min(1.0, 2.0 / max(np.abs(change).max(), 1e-300))
            values = values + change
            if np.abs(change).max() < _CHANGE:
                break
        return values

    def weights(
        self, values: NDArray[np.float64], copies: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Weights of the samples in the unbiased system, (n,) float64, up to a factor."""
        mixture = np.log(self._counts * np.exp(values - values.max()) @ self._factors)
        logarithms = self._lowest - mixture
        return copies * np.exp(logarithms - logarithms.max())


def _draw_blocks(count: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """How often each of consecutive samples is drawn, in blocks that go round the end."""
    length = min(_BLOCK, count)
    starts = generator.integers(0, count, math.ceil(count / length))
    places = (starts[:, None] + np.arange(length)).ravel()[:count] % count
    return np.bincount(places, minlength=count).astype(np.float64)


def _check_connected(windows: Sequence[UmbrellaWindow]) -> None:
    """Raises InputError if windows, in groups, share no energies, so that MBAR has no solution.

    Two windows share some if the difference of their biases is as large in a sample of one as in
    a sample of the other.
    """
    count = len(windows)
    gaps = np.zeros((count, count))  # kT
    for one in range(count):
        for other in range(one):
            own, far = (
                windows[place].energies[other] - windows[place].energies[one]
                for place in (one, other)
            )
            gaps[one, other] = gaps[other, one] = max(0.0, own.min() - far.max())
    for one, other, negative in _links(-gaps):
        if negative < 0.0:
            raise InputError(
                f"Windows {windows[one].name} and {windows[other].name} do not overlap, and no "
                "others connect them, so that nothing tells the free energy between them; add "
                "windows in between."
            )


def _links(overlap: NDArray[np.float64]) -> list[tuple[int, int, float]]:
    """The pairs of the tree that connects all windows by the largest overlaps."""
    inside, outside = [0], list(range(1, len(overlap)))
    symmetric = np.minimum(overlap, overlap.T)
    links = []
    while outside:
        part = symmetric[np.ix_(inside, outside)]
        one, other = np.unravel_index(part.argmax(), part.shape)
        links.append((inside[one], outside[other], float(part[one, other])))
        inside.append(outside.pop(int(other)))
    return links
