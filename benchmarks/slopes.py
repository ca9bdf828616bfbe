"""Slopes of what should be constant, with their errors."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FEWEST_BLOCKS = 4
MOST_BLOCKS = 32


@dataclass(frozen=True)
class Drift:
    """kT/ns a degree of freedom."""

    slope: float
    starts_error: float
    blocks_error: float

    @property
    def bound(self) -> float:
        return abs(self.slope) + 2.0 * float(np.fmax(self.starts_error, self.blocks_error))


def drift(time: NDArray[np.float64], energy: NDArray[np.float64]) -> Drift:
    """Slopes of (samples, starts) energies over time; in the units of energy over time."""
    slopes = np.polyfit(time, energy - energy[0], 1)[0]
    starts = len(slopes)
    scatter = slopes.std(ddof=1) / np.sqrt(starts) if starts > 1 else np.nan
    blocks = min(MOST_BLOCKS, len(time))
    errors = np.full(starts, np.nan)
    if blocks >= FEWEST_BLOCKS:
        size = len(time) // blocks
        used = size * blocks
        times = time[:used].reshape(blocks, size).mean(1)
        means = (energy - energy[0])[:used].reshape(blocks, size, starts).mean(1)
        slope, start = np.polyfit(times, means, 1)
        rest = means - start - slope * times[:, None]
        spread = ((times - times.mean()) ** 2).sum()
        errors = np.sqrt((rest**2).sum(0) / (blocks - 2) / spread)
    return Drift(float(slopes.mean()), float(scatter), float(np.sqrt((errors**2).sum()) / starts))
