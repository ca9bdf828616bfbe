"""The log of a training: one CSV row a validation, which survives the death of the process."""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from tqdm import tqdm

from mdgraph.errors import FileError
from mdgraph.io.files import AppendedFile, disk_failures
from mdgraph.train.configuration import TrainConfig
from mdgraph.train.progress import Progress
from mdgraph.train.terms import TERMS
from mdgraph.train.trackers import Tracker, open_trackers

logger = logging.getLogger(__name__)

LOG_COLUMNS: Final = (
    "step",
    "epoch",
    "seconds",
    "learning_rate",
    "loss",
    "train_force_rmse_meV_per_A",
    "train_energy_rmse_meV_per_atom",
    "validation_force_rmse_meV_per_A",
    "validation_force_mae_meV_per_A",
    "validation_energy_rmse_meV_per_atom",
    "validation_energy_mae_meV_per_atom",
    "waiting_share",
)
"""Of training frames, and of the time, means over the steps since the last row."""


class TrainingLog:
    """Rows in log.csv and in trackers, and the bar; only the first of several processes writes."""

    def __init__(
        self, config: TrainConfig, folder: Path, progress: Progress, *, writes: bool, quiet: bool
    ) -> None:
        """Goes on after the rows of the progress.

        Args:
            config: `also_log`.
            folder: of the potential.
            progress: where the training stands.
            writes: whether this process does.
            quiet: no bar, and no lines where there is no terminal for one.

        Raises:
            FileError: the rows are not there, or others than were written; nothing has changed.
        """
        path, self._size = folder / "log.csv", progress.log_bytes
        self._file = AppendedFile(path, self._size, cut=False) if writes else None
        self._trackers: list[Tracker] = []
        if self._file is not None:
            try:
                _check_rows(path, self._size)
                self._trackers = open_trackers(config, folder, progress.course, progress.step)
                self._file.cut()
            except BaseException:
                self._file.close()
                raise
        self._bar = tqdm(unit="step", disable=quiet or None, mininterval=1.0)
        self._says, self._total = writes and not quiet, 0
        self._clock, self._waited = time.perf_counter(), 0.0
        if not self._size:
            self._append(LOG_COLUMNS, progress)

    def begin_at(self, step: int, total: int) -> None:
        """Sets the bar to a step of so many."""
        self._total = total
        self._bar.reset(total)
        self._bar.update(step)

    def step(self) -> None:
        """Moves the bar."""
        self._bar.update()

    def append(
        self,
        progress: Progress,
        epoch: float,
        learning_rate: float,
        errors: Mapping[str, Any],
        waited: float,
    ) -> None:
        """Writes a row of what is known at a validation, and begins new means.

        Args:
            progress: changed: its time, means and length of the log.
            epoch: of the step.
            learning_rate: of the step.
            errors: on the held-out frames, see `evaluation.table`.
            waited: s, for data, since the log was opened.
        """
        now = time.perf_counter()
        waiting = (waited - self._waited) / max(1e-9, now - self._clock)
        progress.seconds += now - self._clock
        self._clock, self._waited = now, waited
        sums, steps = progress.sums, max(1.0, progress.sums[-1])
        row = [
            progress.step,
            epoch,
            progress.seconds,
            learning_rate,
            sum(sums[: len(TERMS)]) / steps,
        ]
        squares = dict(zip(TERMS, sums[len(TERMS) :], strict=False))
        row += [1e3 * (squares[name] / steps) ** 0.5 for name in ("forces", "energy")]
        row += [
            errors.get(name.removeprefix("validation_"), np.nan)
            for name in LOG_COLUMNS
            if name.startswith("validation_")
        ]
        row.append(waiting)
        self._append([f"{value:.6g}" for value in row], progress)
        for tracker in self._trackers:
            tracker.write(progress.step, dict(zip(LOG_COLUMNS[1:], row[1:], strict=True)))
        progress.sums = [0.0] * len(sums)
        held_out = ", ".join(
            f"{errors[f'{name}_rmse_{unit}']:.4g} {unit.replace('_per_', '/')}"
            for name, unit in (("force", "meV_per_A"), ("energy", "meV_per_atom"))
            if f"{name}_rmse_{unit}" in errors
        )
        text = f"held out {held_out}; waiting for data {waiting:.1%}"
        self._bar.set_postfix_str(text)
        if self._bar.disable and self._says:
            # Nobody looks at a bar in the file that a batch system makes of it.
            logger.info("Step %d of %d: %s", progress.step, self._total, text)

    def _append(self, texts: Sequence[str], progress: Progress) -> None:
        if self._file is not None:
            row = (",".join(texts) + "\n").encode()
            self._file.append(row)
            self._file.sync()  # before the checkpoint that counts on it
            self._size += len(row)
            progress.log_bytes = self._size  # that of a progress gone back to may be older

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close()
        for tracker in self._trackers:
            tracker.close()
        if self._file is not None:
            self._file.close()


def _check_rows(path: Path, size: int) -> None:
    """Raises FileError unless the first bytes of a log are rows as a training writes them."""
    with disk_failures(path, "read"), path.open("rb") as file:
        lines = file.read(size).decode("latin-1").splitlines(keepends=True)
    last = [0.0] * len(LOG_COLUMNS)
    for place, line in enumerate(lines):
        row = _numbers(line) if place else last
        # Steps may fall where larger batches took over; epochs and seconds do not.
        ascend = row is not None and row[1] >= last[1] and row[2] >= last[2]
        if not ascend or not (place or line == ",".join(LOG_COLUMNS) + "\n"):
            raise FileError(
                f"{path} is damaged: its line {place + 1} is not what the training wrote; put "
                "back the original."
            )
        last = row or last


def _numbers(line: str) -> list[float] | None:
    """Those of a row, or None where it is none."""
    try:
        row = [float(field) for field in line.split(",")]
    except ValueError:
        return None
    whole = line.endswith("\n") and len(row) == len(LOG_COLUMNS)
    return row if whole and all(map(math.isfinite, row[:4])) and row[0] >= 0.0 else None
