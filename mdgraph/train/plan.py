"""BatchPlan: which frames make up each step, a pure function of the seed and the step."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mdgraph.errors import InputError, name_some
from mdgraph.train.batches import Batch
from mdgraph.train.config import TrainConfig
from mdgraph.train.distributed import Processes
from mdgraph.train.frames import FrameStore
from mdgraph.train.progress import Progress


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


logger = logging.getLogger(__name__)


class BatchPlan:
    """Batches for what fits.

    Attributes:
        batches: static buffers, one a shape.
        sampler: of the batches of all processes together.
    """

    def __init__(
        self,
        store: FrameStore,
        trained: NDArray[np.int64],
        config: TrainConfig,
        processes: Processes,
        progress: Progress,
    ) -> None:
        """Allocates.

        Args:
            store: frames.
            trained: those to train on.
            config: `batch`, or `batch_atoms` and `batch_edges`, each for one share of the common
                batch.
            processes: which take equal parts of it.
            progress: how many shares there are, whoever computes them, and how often the batch
                was halved.

        Raises:
            InputError: there are more processes than frames of any shape, or a common batch
                cannot be shared out evenly.
        """
        self._processes = processes
        shares, halvings = progress.shares, progress.halvings
        rows = tuple(store.rows_of(shape, trained) for shape in range(len(store.shapes)))
        sizes: list[int] = []
        self.batches: list[Batch] = []
        for shape, held in zip(store.shapes, rows, strict=True):
            wanted = config.frames_a_step(shape.atoms, shape.slots[0])
            common = max(1, min(wanted, len(held) // shares)) * shares
            common = max(1, common >> halvings)
            if not len(held):
                common = processes.count
            elif common % processes.count:
                raise InputError(
                    f"The common batch has {common} frames, as the training was begun by "
                    f"{shares} processes; {processes.count} cannot share them evenly, so resume "
                    "with a number that divides them."
                )
            sizes.append(common)
            self.batches.append(store.batch(len(self.batches), common // processes.count))
            self.batches[-1].share = common / max(1, wanted * shares >> halvings)
        self.sampler = Sampler(rows, tuple(sizes), config.seed)
        places = zip(rows, self.sampler.sizes, strict=True)
        left = sum(len(held) for held, size in places if len(held) < size)
        if left and processes.first:
            logger.warning(
                "%d frames are not trained on: too few others have their size for %d processes.",
                left,
                processes.count,
            )
        if not self.sampler.steps_per_epoch:
            raise InputError(
                f"{processes.count} processes have fewer frames of each shape than they are; "
                "start fewer."
            )
        taken = [
            f"{size} of {shape.atoms} x {shape.slots[0]}"
            for shape, held, size in zip(store.shapes, rows, sizes, strict=True)
            if len(held) >= size
        ]
        logger.info("Frames a step, each of atoms x neighbors with padding: %s.", name_some(taken))

    @property
    def largest(self) -> int:
        """Frames in the largest batch of this process."""
        return max(map(len, self.batches))

    def upcoming(self, step: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Shape and own rows of every batch from a step on, without end."""
        rank, count = self._processes.rank, self._processes.count
        epoch, skipped = divmod(step, self.sampler.steps_per_epoch)
        while True:
            for shape, rows in self.sampler.epoch(epoch)[skipped:]:
                size = len(rows) // count
                yield shape, rows[rank * size : (rank + 1) * size]
            epoch, skipped = epoch + 1, 0
