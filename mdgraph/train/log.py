"""The log of a training: one CSV row a validation, which survives the death of the process."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from mdgraph.io.files import AppendedFile
from mdgraph.train.progress import Progress

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
"""Of training frames, means over the steps since the last row."""


class TrainingLog:
    """Appends rows; a process that is not the first of several writes nothing."""

    def __init__(self, path: Path, progress: Progress, writes: bool) -> None:
        self._file = AppendedFile(path, progress.log_bytes) if writes else None
        if not progress.log_bytes:
            self._append(LOG_COLUMNS, progress)

    def append(
        self,
        progress: Progress,
        epoch: float,
        learning_rate: float,
        errors: Mapping[str, Any],
        waiting: float,
    ) -> None:
        """Writes a row of what is known at a validation."""
        sums, steps = progress.sums, max(1.0, progress.sums[6])
        row = [progress.step, epoch, progress.seconds, learning_rate, sum(sums[:3]) / steps]
        row += [1e3 * (sums[4] / steps) ** 0.5, 1e3 * (sums[3] / steps) ** 0.5]
        row += [
            errors.get(name.removeprefix("validation_"), np.nan)
            for name in LOG_COLUMNS
            if name.startswith("validation_")
        ]
        self._append([f"{value:.6g}" for value in [*row, waiting]], progress)

    def _append(self, texts: Sequence[str], progress: Progress) -> None:
        if self._file is not None:
            row = (",".join(texts) + "\n").encode()
            self._file.append(row)
            progress.log_bytes += len(row)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file is not None:
            self._file.close()
