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

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Sampler:
    """Epochs of batches of one shape each; frames that fill no batch are left to later epochs.

    Attributes:
        rows: for each shape, rows of its table that are training frames.
        sizes: for each shape, frames in a batch of all processes together.
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


class BatchPlan:
    """Batches of each shape, as large as memory allows.

    Attributes:
        batches: static buffers, one for each shape.
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
        """Allocates the buffers.

        Args:
            store: holds the frames.
            trained: training frames.
            config: `batch`, or `batch_atoms` and `batch_edges`, each for one share of the common
                batch.
            processes: they take equal parts of it.
            progress: number of shares, which any number of processes may compute, and of
                halvings of the batch.

        Raises:
            InputError: there are more processes than frames of any shape, or a common batch
                cannot be shared out evenly.
        """
        self._processes = processes
        shares, halvings = progress.shares, progress.halvings
        rows = tuple(store.rows_of(shape, trained) for shape in range(len(store.shapes)))
        sizes: list[int] = []
        self.batches: list[Batch] = []
        for shape, own in zip(store.shapes, rows, strict=True):
            frames = config.frames_a_step(shape.atoms, shape.slots[0])
            common = max(1, min(frames, len(own) // shares)) * shares
            common = max(1, common >> halvings)
            if not len(own):
                common = processes.count
            elif common % processes.count:
                raise InputError(
                    f"The common batch has {common} frames, as the training was begun by "
                    f"{shares} processes; {processes.count} cannot share them evenly, so resume "
                    "with a number that divides them."
                )
            sizes.append(common)
            self.batches.append(store.batch(len(self.batches), common // processes.count))
            self.batches[-1].share = common / max(1, frames * shares >> halvings)
        self.sampler = Sampler(rows, tuple(sizes), config.seed)
        places = zip(rows, self.sampler.sizes, strict=True)
        unused = sum(len(own) for own, size in places if len(own) < size)
        if unused and processes.first:
            logger.warning(
                "%d frames are not trained on: too few others have their size for %d processes.",
                unused,
                processes.count,
            )
        if not self.sampler.steps_per_epoch:
            raise InputError(
                f"{processes.count} processes have fewer frames of each shape than they are; "
                "start fewer."
            )
        lines = [
            f"{size} of {shape.atoms} x {shape.slots[0]}"
            for shape, own, size in zip(store.shapes, rows, sizes, strict=True)
            if len(own) >= size
        ]
        logger.info("Frames a step, each of atoms x neighbors with padding: %s.", name_some(lines))

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
