"""Means, variances and errors of correlated series, on the device."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LEVELS: Final = 32
"""Blocks of 1, 2, 4, ... samples; a run that fills the longest has four thousand million."""

FEWEST: Final = 8
"""Blocks from which an error is taken; their scatter leaves it a quarter uncertain."""


@dataclass(frozen=True, eq=False)
class Blocked:
    """What blocks of doubling length tell; L levels, `...` the shape of a sample.

    Attributes:
        samples: how many there were.
        mean: (...) float64.
        variance: (...) float64, of single samples, with samples - 1.
        length: (L,) int64, samples a block, of levels with two blocks at least.
        errors: (L, ...) float64, standard error of the mean from the blocks of each level.
        spreads: (L, ...) float64, standard error of these errors.
        level: (...) int64, the level chosen, -1 where no blocks were long and many enough.
    """

    samples: int
    mean: NDArray[np.float64]
    variance: NDArray[np.float64]
    length: NDArray[np.int64]
    errors: NDArray[np.float64]
    spreads: NDArray[np.float64]
    level: NDArray[np.int64]

    @property
    def error(self) -> NDArray[np.float64]:
        """(...) float64, error of the mean: of the chosen level, else the largest of all."""
        if len(self.length) == 0:
            return np.full(self.mean.shape, np.nan)
        chosen = np.take_along_axis(self.errors, self.level.clip(min=0)[None], 0)[0]
        return np.where(self.level >= 0, chosen, self.errors.max(0))


class BlockAverages:
    """Running mean and variance of a series and of its blocks.

    Blocks of length 2^l collect the samples themselves and are whole whenever 2^l divides
    their number, so all levels advance in the same few operations and no block waits for
    another. Means and sums of squares are updated by Welford's recurrence, about the first
    sample. DOI 10.1063/1.457480.
    """

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        self._first = zeros(*shape)
        self._partial, self._mean, self._squares = (zeros(LEVELS, *shape) for _ in range(3))
        lengths = 2 ** torch.arange(LEVELS, device=device)
        self._lengths = lengths.reshape(-1, *[1] * len(shape))

    def tensors(self) -> dict[str, Tensor]:
        """The buffers, by name, all zero before the first sample."""
        return {
            "first": self._first,
            "partial": self._partial,
            "mean": self._mean,
            "squares": self._squares,
        }

    def add_(self, values: Tensor, samples: Tensor, due: Tensor) -> None:
        """Adds a sample; static shapes, does not sync.

        Args:
            values: (...) float64.
            samples: () int64, how many were added before.
            due: () bool, whether this one counts.
        """
        self._first.copy_(torch.where(due & (samples == 0), values, self._first))
        self._partial += torch.where(due, values - self._first, 0.0)
        number = samples + 1
        whole = due & (number % self._lengths == 0)
        blocks = self._partial / self._lengths
        change = torch.where(whole, blocks - self._mean, 0.0)
        self._mean += change / (number // self._lengths).clamp(min=1)
        self._squares += change * (blocks - self._mean)
        self._partial.masked_fill_(whole, 0.0)

    def read(self, samples: int) -> Blocked:
        """Errors from the blocks of each level, and the level to take; reads the device.

        It is the first whose length B fulfils B^3 > 2 n (e_B / e_1)^4 with n samples and
        errors e, which balances what is left of correlations against the scatter of few
        blocks, and that has `FEWEST` blocks. DOI 10.1103/PhysRevE.83.066706.
        """
        mean, squares = self._mean.cpu().numpy(), self._squares.cpu().numpy()
        length = 2 ** np.arange(LEVELS)
        count = samples // length
        used = count >= 2
        length, squares, count = length[used], squares[used], count[used]
        count = count.reshape(-1, *[1] * (squares.ndim - 1))
        errors = np.sqrt(squares / (count * (count - 1.0)))
        spreads = errors / np.sqrt(2.0 * (count - 1.0))
        level = np.full(mean.shape[1:], -1)
        if len(length):
            ratio = errors / np.where(errors[0] > 0.0, errors[0], 1.0)
            enough = length.reshape(count.shape) ** 3.0 > 2.0 * samples * ratio**4
            enough &= count >= FEWEST
            level = np.where(enough.any(0), enough.argmax(0), -1)
        variance = squares[0] / (samples - 1) if len(length) else np.full(mean.shape[1:], np.nan)
        centre = mean[0] + self._first.cpu().numpy()
        return Blocked(samples, centre, variance, length, errors, spreads, level)
