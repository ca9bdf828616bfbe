"""LastGood: where a training goes back to after a spike, or when a batch did not fit."""

import logging

import torch

from mdgraph.errors import MDGraphError
from mdgraph.train.processes import Processes
from mdgraph.train.progress import Progress
from mdgraph.train.step import TrainingStep

logger = logging.getLogger(__name__)


class LastGood:
    """The last state whose loss was looked at and found good.

    Attributes:
        tensors: of the step, on the host.
    """

    def __init__(self, step: TrainingStep, progress: Progress) -> None:
        """Takes the state at hand; syncs."""
        self._step = step
        self.take(progress)

    def take(self, progress: Progress) -> None:
        """Takes the state at hand in place of the last; syncs."""
        self.tensors, self._progress = self._step.snapshot(), progress.copy()

    def with_half_the_rate(self, spiked: Progress, loss: float) -> Progress:
        """Goes back from a spike of the loss.

        Raises:
            MDGraphError: it has done so before.
        """
        where = f"The mean loss of the steps before {spiked.step} is {loss:.4g}"
        if spiked.rollbacks:
            raise MDGraphError(
                f"{where}, after one rollback already; lower learning_rate or look at the data "
                "with 'mdgraph data check'."
            )
        self._progress.rollbacks += 1
        self._progress.factor *= 0.5
        logger.warning(
            "%s; it goes on from step %d with half the learning rate.", where, self._progress.step
        )
        return self._restored()

    def with_half_the_batch(self, largest: int, processes: Processes) -> Progress:
        """Goes back to where memory sufficed, and lets go of all graphs.

        Batches of all shapes are halved, since the graphs of others may hold what is missing.

        Args:
            largest: frames in the largest batch.
            processes: that share the training.

        Raises:
            MDGraphError: one frame cannot be halved, nor a batch on one of several processes.
        """
        if largest == 1:
            raise MDGraphError(
                "One frame does not fit into the device's memory; train a smaller network."
            )
        if processes.count > 1:
            # The others wait within their step.
            raise MDGraphError(
                f"A batch does not fit into the device's memory of process {processes.rank}; "
                "lower batch, batch_atoms or batch_edges."
            )
        self._progress.halvings += 1
        self._step.forget_graphs()
        torch.cuda.empty_cache()
        return self._restored()

    def _restored(self) -> Progress:
        self._step.restore_(self.tensors)
        return self._progress.copy()
