"""Metadynamics: the sum of hills, and weights of samples that were biased by it."""

import itertools
import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

_CUTOFF: Final = 6.25
"""Of PLUMED's kernels, in half a squared distance in sigmas; beyond it they are zero."""

_MOST_TERMS: Final = 4_000_000
"""Hills times points that are in memory together."""

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
        total = np.zeros(len(points))
        step = max(1, _MOST_TERMS // max(len(points), 1))
        for start in range(0, len(self.heights), step):
            part = slice(start, start + step)
            total -= self.heights[part] @ self._kernels(points, part)
        return total

    def _kernels(self, points: NDArray[np.float64], part: slice) -> NDArray[np.float64]:
        """Values of hills of height 1 at points, (hills, n)."""
        squares = np.zeros((len(self.heights[part]), len(points)))
        for axis, period in enumerate(self.periods):
            change = points[:, axis] - self.centers[part, axis, None]
            if period is not None:
                change -= period * np.round(change / period)
            squares += (change / self.sigmas[part, axis, None]) ** 2
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
        times, offsets = [-math.inf], [0.0]
        for start, end in itertools.pairwise(ends.tolist()):
            step = max(1, _MOST_TERMS // len(points))
            for first in range(start, end, step):
                part = slice(first, min(first + step, end))
                total += self.heights[part] @ self._kernels(points, part)
            above, below = total / kt, (1.0 - self.tempering) * total / kt
            times.append(float(self.times[end - 1]))
            offsets.append(kt * float(_log_sum(above) - _log_sum(below)))
        return np.array(times), np.array(offsets)


def _log_sum(values: NDArray[np.float64]) -> float:
    highest = values.max()
    return float(highest + np.log(np.exp(values - highest).sum()))


def log_weights(
    hills: HillSum,
    biases: NDArray[np.float64],
    times: NDArray[np.float64],
    points: NDArray[np.float64],
    kt: float,
) -> NDArray[np.float64]:
    """Logarithms of the weights of samples by the bias that each had, less c(t): (V - c) / kT.

    Args:
        hills: all of them.
        biases: (n,) float, bias of the samples at their times, kJ/mol.
        times: (n,) float, ps.
        points: (m, d) float, evenly spaced over the domain of the variables of the hills.
        kt: kJ/mol.
    """
    at, offsets = hills.offsets(points, kt)
    at[0] = min(0.0, at[1]) if len(at) > 1 else 0.0
    return (biases - np.interp(times, at, offsets)) / kt
