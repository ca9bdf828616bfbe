"""Which frames make up each step: a pure function of the seed and the step."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Sampler:
    """Epochs of batches of one shape each; a remainder that fills no batch waits for the next.

    Attributes:
        rows: of each shape, the rows of its table that are trained on.
        sizes: of each shape, frames in a batch of all processes together.
        seed: of all shuffling.
    """

    rows: tuple[NDArray[np.int64], ...]
    sizes: tuple[int, ...]
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch."""
        return sum(len(rows) // size for rows, size in zip(self.rows, self.sizes, strict=True))

    def epoch(self, number: int) -> list[tuple[int, NDArray[np.int64]]]:
        """Shape and rows of each batch of an epoch."""
        generator = np.random.default_rng([self.seed, number])
        batches = []
        for shape, (rows, size) in enumerate(zip(self.rows, self.sizes, strict=True)):
            order = generator.permutation(rows)
            batches += [
                (shape, order[start : start + size])
                for start in range(0, len(rows) // size * size, size)
            ]
        return [batches[place] for place in generator.permutation(len(batches))]
