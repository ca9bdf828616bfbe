"""Results of correlations over time, and the diffusion that they tell."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mdgraph.engine.online.results import Result, Row
from mdgraph.errors import InputError


@dataclass(frozen=True, eq=False, kw_only=True)
class CorrelationResult(Result):
    """A function of W lags for E elements in S systems.

    Attributes:
        column: name of the value with its unit.
        elements: symbols.
        lag: (W,) float64, fs.
        origins: (W,) int64, origins averaged.
        value: (S, E, W) float64; NaN for an element that a system lacks and for a lag that
            was not reached.
    """

    column: ClassVar[str]
    elements: tuple[str, ...]
    lag: NDArray[np.float64]
    origins: NDArray[np.int64]
    value: NDArray[np.float64]

    def rows(self, system: int | None = None) -> list[Row]:
        """See Result; a lag of an element of a system each."""
        return [
            {
                "system": one,
                "element": element,
                "lag_fs": float(self.lag[place]),
                self.column: float(self.value[one, number, place]),
                "origins": int(self.origins[place]),
            }
            for one in (range(len(self.value)) if system is None else [system])
            for number, element in enumerate(self.elements)
            for place in np.flatnonzero(np.isfinite(self.value[one, number]))
        ]

    def running_diffusion(self) -> NDArray[np.float64]:
        """D(lag), (S, E, W) float64, A^2/fs; of both results the same function of time."""
        raise NotImplementedError

    def diffusion(self, begin: float, end: float) -> NDArray[np.float64]:
        """Mean of D(lag) from `begin` to `end` fs, (S, E) float64, A^2/fs.

        Raises:
            InputError: no lag that was reached lies between them.
        """
        inside = (self.lag >= begin) & (self.lag <= end) & (self.origins > 0)
        if not inside.any():
            raise InputError(
                f"No lag between {begin:g} and {end:g} fs was reached; the window ends at "
                f"{self.lag[self.origins > 0].max():g} fs."
            )
        mean: NDArray[np.float64] = self.running_diffusion()[..., inside].mean(-1)
        return mean


@dataclass(frozen=True, eq=False, kw_only=True)
class DisplacementResult(CorrelationResult):
    """Mean squared displacements, A^2; by Einstein, D = d/dt MSD / 6."""

    kind: ClassVar[str] = "mean squared displacement"
    column: ClassVar[str] = "msd_A2"

    def running_diffusion(self) -> NDArray[np.float64]:
        """See CorrelationResult; slopes by central differences."""
        found = np.full(self.value.shape, np.nan)
        reached = int((self.origins > 0).sum())
        if reached > 1:
            value, lag = self.value[..., :reached], self.lag[:reached]
            found[..., :reached] = np.gradient(value, lag, axis=-1) / 6.0
        return found


@dataclass(frozen=True, eq=False, kw_only=True)
class AutocorrelationResult(CorrelationResult):
    """Velocity autocorrelations, A^2/fs^2; by Green and Kubo, D is their integral / 3."""

    kind: ClassVar[str] = "velocity autocorrelation"
    column: ClassVar[str] = "vacf_A2_per_fs2"

    def running_diffusion(self) -> NDArray[np.float64]:
        """See CorrelationResult; integrals by the trapezoidal rule."""
        steps = 0.5 * np.diff(self.lag) * (self.value[..., 1:] + self.value[..., :-1])
        start = np.zeros_like(self.value[..., :1])
        return np.concatenate([start, np.cumsum(steps, axis=-1)], axis=-1) / 3.0
