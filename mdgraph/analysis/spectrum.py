"""The velocity spectrum: which frequencies the motion of each element has."""

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from mdgraph.engine.observables import AutocorrelationResult, ObservableResult
from mdgraph.engine.observables.base import Row
from mdgraph.units import SPEED_OF_LIGHT

Array = NDArray[np.float64]

LONGEST_INTERVAL: Final = 4.0
"""fs between frames: at 4 fs the highest frequency is 4,170/cm, just above that of any bond."""

_PADDING: Final = 4
"""Length of the transform over that of the window, for a smooth line."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SpectrumResult(ObservableResult):
    """Power spectrum of velocities, weighted by mass.

    Attributes:
        elements: symbols.
        wavenumber: (K,) float64, 1/cm.
        resolution: 1/cm, width at half height of a sharp line.
        total: (K,) float64, cm; it integrates to 1.
        parts: (E, K) float64, cm, shares of the elements, which add up to the total.
    """

    kind: ClassVar[str] = "velocity spectrum"
    elements: tuple[str, ...]
    wavenumber: Array
    resolution: float
    total: Array
    parts: Array

    def rows(self, system: int | None = None) -> list[Row]:
        """See ObservableResult; a row for each wavenumber, a column for each element."""
        return [
            {
                "wavenumber_per_cm": float(wavenumber),
                "total_cm": float(self.total[place]),
                **{
                    f"{symbol}_cm": float(part[place])
                    for symbol, part in zip(self.elements, self.parts, strict=True)
                },
            }
            for place, wavenumber in enumerate(self.wavenumber)
        ]


def velocity_spectrum(result: AutocorrelationResult, masses: Array) -> SpectrumResult:
    """The cosine transform of the velocity autocorrelation, with a Hann window.

    S(f) is proportional to the integral of m <v(0) . v(t)> cos(2 pi f t), summed over atoms. Lags
    are evenly spaced by at most `LONGEST_INTERVAL`. DOI 10.1103/PhysRev.188.1407.

    Args:
        result: of one system.
        masses: (E,) amu, sum of the masses of the atoms of each element.
    """
    known = np.isfinite(result.value[0]).any(axis=1)
    reached = result.origins > 0
    lag = result.lag[reached]
    value = result.value[0][known][:, reached] * masses[known, None]
    count, interval = len(lag), float(lag[1] - lag[0])
    window = np.cos(0.5 * np.pi * np.arange(count) / count) ** 2
    size = 2 * _PADDING * count
    windowed = np.zeros((len(value), size))
    windowed[:, :count] = value * window
    windowed[:, size - count + 1 :] = windowed[:, count - 1 : 0 : -1]  # even in time
    power = np.fft.rfft(windowed, axis=1).real
    wavenumber: Array = np.fft.rfftfreq(size, interval).astype(np.float64) / SPEED_OF_LIGHT
    total = power.sum(0)
    area = np.trapezoid(total, wavenumber)
    return SpectrumResult(
        samples=result.samples,
        every=result.every,
        elements=tuple(np.array(result.elements)[known].tolist()),
        wavenumber=wavenumber,
        resolution=float(1.0 / (count * interval * SPEED_OF_LIGHT)),
        total=total / area,
        parts=power / area,
    )
