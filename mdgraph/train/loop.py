"""The training loop: steps, validation, checkpoints, rollback after a spike, and early stopping."""

import contextlib
import logging
import signal
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn, Self

import torch

from mdgraph.errors import MDGraphError
from mdgraph.signals import HeldSignals, is_caught
from mdgraph.train.batches import BatchPlan
from mdgraph.train.config import TrainConfig
from mdgraph.train.distributed import Processes
from mdgraph.train.evaluation import score, table
from mdgraph.train.losses import loss_at_start
from mdgraph.train.optimizers import controls_at
from mdgraph.train.progress import (
    CHECKPOINT,
    Checkpoint,
    Progress,
    TrainingLog,
    check_trackers,
    training_state,
    write_checkpoint,
)
from mdgraph.train.report import write_potential
from mdgraph.train.setup import fixed_tensors, prepare
from mdgraph.train.step import TrainingStep

logger = logging.getLogger(__name__)


class Rollback:
    """The last state with a good loss, to which a training can go back.

    Attributes:
        tensors: of the step, on the host.
    """

    def __init__(self, step: TrainingStep, progress: Progress) -> None:
        """Saves the current state; syncs."""
        self._step = step
        self.take(progress)

    def take(self, progress: Progress) -> None:
        """Saves the current state in place of the last one; syncs."""
        self.tensors, self._progress = self._step.snapshot(), progress.copy()

    def with_half_the_rate(self, spiked: Progress, loss: float) -> Progress:
        """Goes back after a spike of the loss.

        Raises:
            MDGraphError: the training went back once before.
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
            "%s; it continues from step %d with half the learning rate.", where, self._progress.step
        )
        return self._restore()

    def with_half_the_batch(self, largest: int, processes: Processes) -> Progress:
        """Goes back after memory ran out, and frees all graphs.

        Batches of all shapes are halved, since graphs of other shapes may hold the missing memory.

        Args:
            largest: frames in the largest batch.
            processes: that share the training.

        Raises:
            MDGraphError: the batch is a single frame, or several processes share the training.
        """
        if largest == 1:
            raise MDGraphError(
                "One frame does not fit into the device's memory; train a smaller network."
            )
        if processes.count > 1:
            # The other processes wait within their step.
            raise MDGraphError(
                f"A batch does not fit into the device's memory of process {processes.rank}; "
                "lower batch, batch_atoms or batch_edges."
            )
        self._progress.halvings += 1
        self._step.forget_graphs()
        torch.cuda.empty_cache()
        return self._restore()

    def _restore(self) -> Progress:
        self._step.restore_(self.tensors)
        return self._progress.copy()


_STOP_INTERVAL: Final = 20
"""Steps between two looks, on GPUs, whether another process got a signal; each look syncs."""


class Stopping:
    """Defers signals within its block; `end` raises the deferred one.

    With one process a second signal acts at once. With several, all further signals are deferred
    too: a batch system sends one to every process, and torchrun, which gets it as well, sends it
    again. SIGTERM stays deferred after an error of a process, so that the error is printed before
    torchrun ends the rest. Ignored signals stay ignored, and outside the main thread, where Python
    handles no signals, none is deferred.
    """

    def __init__(self, step: TrainingStep, processes: Processes) -> None:
        """Defers nothing yet."""
        self._step, self._processes = step, processes
        self._number: signal.Signals | None = None
        self._signals = HeldSignals()

    def is_due(self, step: int) -> bool:
        """Whether any process got a signal; all stop after the same step.

        With several processes on GPUs it syncs at every 20th step, and is False at others.
        """
        if self._processes.count == 1:
            return self._number is not None
        requests = self._step.stop_requests
        return (step % _STOP_INTERVAL == 0 or not requests.is_cuda) and bool(requests > 0.0)

    def end(self) -> NoReturn:
        """Raises the deferred signal, or SIGTERM if another process got one."""
        self._signals.give_back()
        self._signals.cancel()
        signal.raise_signal(self._number or signal.SIGTERM)
        raise KeyboardInterrupt  # what the signal does may let this process live

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._number = signal.Signals(number)
        self._step.stops = True
        if self._processes.count == 1:
            self._signals.give_back()
            if is_caught(number):  # validations take long; the last checkpoint is whole
                self._signals.deliver_later(number)

    def __enter__(self) -> Self:
        self._signals.take(self._note)
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        self._signals.cancel()
        if kind is not None and self._processes.count > 1:
            self._signals.keep(signal.SIGTERM)
        self._signals.give_back()
        if kind is None and self._number is not None and self._processes.count == 1:
            self.end()


WORKSPACES: Final = ":4096:2"
"""Of cuBLAS: where weights, their means and moments take 12 MB, those of a step are partial results
of sums over atoms; 8 MiB hold 21 of the largest product, 384 by 256 weights."""

_BEST: Final = "best"
"""Name, in a checkpoint, of the weights that did best on validation."""

_LOSS_INTERVAL: Final = 200
"""Steps between two readings of the loss, each of which syncs."""


@dataclass(frozen=True)
class TrainingOutcome:
    """How a training ended.

    Attributes:
        folder: of the potential.
        metrics: contents of metrics.json; empty on all but the first process.
        steps: number of steps done.
    """

    folder: Path
    metrics: dict[str, Any]
    steps: int


def train(config: TrainConfig, *, resume: bool = False, quiet: bool = False) -> TrainingOutcome:
    """Trains a potential and writes its folder.

    Args:
        config: all options; `out` exists if the training is resumed.
        resume: go on from the checkpoint in `out`, to the same weights as without a stop.
        quiet: no progress bar.

    Raises:
        FileError, InputError, CheckpointError: the data, split or potential cannot be used.
        MDGraphError: the loss was not finite or spiked twice.
    """
    return Training(config, resume, quiet).run()


class Training:
    """A training under way; see `train`."""

    def __init__(self, config: TrainConfig, resume: bool, quiet: bool) -> None:
        check_trackers(config)
        self._prepared = prepared = prepare(config, resume, quiet)
        self.config, self.folder, self.processes = config, prepared.folder, prepared.processes
        self.potential, self.parts, self.store = prepared.potential, prepared.parts, prepared.store
        self.quiet = quiet or not self.processes.first
        checkpoint, dataset = prepared.checkpoint, prepared.dataset
        before = None if checkpoint is None else checkpoint.progress
        self.progress = training_state(config, dataset, before, self.processes.count)
        self._plan_batches()
        self.step = TrainingStep(
            self.potential, prepared.weights, config, self.plan.batches, self.processes
        )
        # With keep: last the best weights are not needed.
        self._best = self.step.snapshot()["average"] if config.keep == "best" else None
        if checkpoint is not None:
            self.step.restore_(checkpoint.tensors)
            self._best = checkpoint.tensors.get(_BEST)
        self._good = Rollback(self.step, self.progress)
        if checkpoint is None:
            if self.processes.first:
                logger.info("The loss before the first step is computed.")
            start = loss_at_start(config, self.potential, self.store, self.parts.train)
            self.progress.start = self.processes.broadcast_first(start, self.step.totals.device)
            self._save()

    def _plan_batches(self) -> None:
        """Chooses batches, and with them the number of steps.

        If epochs give the length and batches differ from those before, the number of steps done
        is scaled to the same share of the training.
        """
        progress, config = self.progress, self.config
        self.plan = BatchPlan(self.store, self.parts.train, config, self.processes, progress)
        steps = self.plan.sampler.steps_per_epoch
        if config.epochs is not None and progress.steps_per_epoch not in (0, steps):
            before = progress.steps_per_epoch
            progress.step = round(progress.step * steps / before)
            progress.best_step = round(progress.best_step * steps / before)
        progress.steps_per_epoch = steps
        self.total = config.steps or max(1, round((config.epochs or 0.0) * steps))

    def run(self) -> TrainingOutcome:
        """Trains to the end and writes the potential."""
        first = self.processes.first
        log = TrainingLog(self.config, self.folder, self.progress, writes=first, quiet=self.quiet)
        with log as self._log, Stopping(self.step, self.processes) as self._stopping:
            log.begin_at(self.progress.step, self.total)
            while not self._is_finished():
                # Within the handler the error would keep the tensors of the step alive.
                fits = True
                try:
                    self._steps()
                except torch.OutOfMemoryError:
                    fits = False
                if not fits:
                    self._halve()
        return self._finish()

    def _is_finished(self) -> bool:
        patience = self.config.patience
        if patience is not None and self.progress.waiting >= patience:
            return True
        return self.progress.step >= self.total

    def _steps(self) -> None:
        """Steps until the end, or until a rollback."""
        config, progress = self.config, self.progress
        validations = {
            round(self.total * number / config.validations)
            for number in range(1, config.validations + 1)
        }
        upcoming = self.store.stream(self.plan.upcoming(progress.step))
        with contextlib.closing(upcoming):
            for shape, rows in upcoming:
                self.store.fill_(self.plan.batches[shape], shape, rows)
                controls = controls_at(config, progress.step, self.total, progress.factor)
                self.step.run(shape, controls)
                progress.step += 1
                self._log.step()
                due = progress.step in validations
                saved = due or progress.step % config.checkpoint_interval == 0
                if saved or progress.step % _LOSS_INTERVAL == 0:
                    if not self._check_loss():
                        return
                    if due:
                        self._validate()
                    if saved:
                        self._save()
                if self._stopping.is_due(progress.step):
                    self._stop()
                if self._is_finished():
                    return

    def _check_loss(self) -> bool:
        """Reads the loss; returns False after a rollback."""
        loss, totals = self.step.losses()
        if not self.progress.is_spike(loss, self.config.spike):
            self.step.totals.zero_()
            self.progress.remember(loss, totals)
            return True
        self.progress = self._good.with_half_the_rate(self.progress, loss)
        self._log.begin_at(self.progress.step, self.total)
        return False

    def _stop(self) -> NoReturn:
        """Writes a checkpoint of the current step and ends; a resumed training gives the same bits.

        After a spike of the loss no checkpoint is written: a resumed training meets it again.
        """
        loss, _ = self.step.losses()
        if not self.progress.is_spike(loss, self.config.spike):
            self._save()
        self.step.leave_group()
        self._stopping.end()

    def _halve(self) -> None:
        self.progress = self._good.with_half_the_batch(self.plan.largest, self.processes)
        self._plan_batches()
        self.step.batches = self.plan.batches
        self._log.begin_at(self.progress.step, self.total)
        logger.warning(
            "A batch does not fit into the device's memory; the largest is halved to %d frames, "
            "and so are all others.",
            self.plan.largest,
        )

    def _validate(self) -> None:
        progress, config = self.progress, self.config
        dataset, held_out = self._prepared.dataset, self.parts.validation
        with self.step.with_weights(self.step.average):
            scores = score(self.potential, self.store, dataset, held_out, config.loss)
        errors = table(scores, dataset)
        better = progress.judge(
            self.processes.broadcast_first(scores.loss, self.step.totals.device)
        )
        if better and self._best is not None:
            self._best = self.step.snapshot()["average"]
        if config.schedule == "plateau" and progress.plateau >= config.plateau_patience:
            least = config.final_learning_rate / config.learning_rate
            progress.factor = max(least, progress.factor * config.plateau_factor)
            progress.plateau = 0
        rate = controls_at(config, progress.step, self.total, progress.factor).learning_rate
        epoch = progress.step / self.plan.sampler.steps_per_epoch
        self._log.append(progress, epoch, rate, errors, self.store.waited)

    def _save(self) -> None:
        self._good.take(self.progress)
        if self.processes.first:
            tensors = self._good.tensors | fixed_tensors(self.potential, self.step.parameters)
            if self._best is not None:
                tensors[_BEST] = self._best
            checkpoint = Checkpoint(tensors, self.progress, self.potential.config)
            write_checkpoint(self.folder / CHECKPOINT, checkpoint)

    def _finish(self) -> TrainingOutcome:
        self.step.leave_group()
        self.step.weights.copy_(self.step.average if self._best is None else self._best)
        metrics: dict[str, Any] = {}
        if self.processes.first:
            if self.config.refit and self.config.references != "none":
                self._prepared.fit_references()
            metrics = write_potential(self._prepared, self.progress)
        self._prepared.dataset.close()
        self._prepared.labels.close()
        return TrainingOutcome(self.folder, metrics, self.progress.step)
