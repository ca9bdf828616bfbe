"""Progress of a training: its checkpoint, log and trackers (TensorBoard, Weights & Biases)."""

import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final, Protocol, Self

import numpy as np
from pydantic import Field, TypeAdapter
from torch import Tensor
from tqdm import tqdm

from mdgraph.data import Dataset
from mdgraph.errors import FileError, InputError, name_some
from mdgraph.io.files import AppendedFile, disk_failures, write_atomically
from mdgraph.io.tensor_files import TensorFileError, read_tensors, serialize
from mdgraph.models import TensorNetConfig
from mdgraph.train.config import TERMS, TrainConfig
from mdgraph.units import duration_text

logger = logging.getLogger(__name__)

CHECKPOINT: Final = "checkpoint.safetensors"
SPLIT: Final = "split.json"
FORMAT: Final = 3
_KEY: Final = "mdgraph-training"
_NETWORK: Final = "mdgraph-network"
_REMEMBERED: Final = 20

_FEW: Final = 5
"""Fewest losses whose median is the usual loss."""


@dataclass
class Progress:
    """State of a training beside its tensors.

    Attributes:
        step: steps done.
        steps_per_epoch: steps in an epoch.
        factor: on the learning rate, from plateaus and a rollback.
        rollbacks: number of rollbacks after a spike of the loss.
        halvings: number of times the batch did not fit into memory and was halved.
        shares: number of processes at the start; the common batch is that many times `batch`.
        lowest: lowest loss on validation. Checkpoints of 0.1.0 have `best`, another measure, which
            is not read: the next validation counts as the best so far.
        best_step: its step.
        lowest_later: lowest loss of the validations since then.
        last: loss of the last validation.
        waiting: validations since the best; `plateau` counts since the rate last fell.
        start: loss before the first step.
        losses: of the last intervals between two readings of the loss.
        sums: of the totals since the last validation.
        seconds: of training so far.
        log_bytes: length of the log.
        settings_hash: of settings and data that must not change when a training is resumed.
        settings: those of the configuration, by keys with dots.
    """

    step: int = 0
    steps_per_epoch: int = 0
    factor: float = 1.0
    rollbacks: int = 0
    halvings: int = 0
    shares: int = 1
    lowest: float = float("inf")
    best_step: int = 0
    lowest_later: float = float("inf")
    last: float = float("inf")
    waiting: int = 0
    plateau: int = 0
    start: float = float("inf")
    losses: list[float] = field(default_factory=list)
    sums: list[float] = field(default_factory=lambda: [0.0] * (2 * len(TERMS) + 1))
    seconds: float = 0.0
    log_bytes: int = 0
    settings_hash: Annotated[str, Field(alias="course")] = ""
    settings: Annotated[dict[str, Any], Field(alias="chosen")] = field(default_factory=dict)

    def is_spike(self, loss: float, factor: float) -> bool:
        """Whether a mean loss is not finite or `factor` times the usual one, at first `start`."""
        usual = float(np.median(self.losses)) if len(self.losses) >= _FEW else self.start
        return not np.isfinite(loss) or loss > factor * usual

    def remember(self, loss: float, totals: list[float]) -> None:
        """Records an interval without a spike."""
        self.losses = [*self.losses, loss][-_REMEMBERED:]
        self.sums = [before + own for before, own in zip(self.sums, totals, strict=True)]

    def judge(self, loss: float) -> bool:
        """Records a loss on validation; returns whether it is the lowest."""
        better = loss < self.lowest
        if better:
            self.lowest, self.best_step = loss, self.step
        self.lowest_later = float("inf") if better else min(self.lowest_later, loss)
        self.last = loss
        self.waiting = 0 if better else self.waiting + 1
        self.plateau = 0 if better else self.plateau + 1
        return better

    def copy(self) -> "Progress":
        """Independent of this one."""
        return Progress(**json.loads(json.dumps(asdict(self))))


@dataclass(frozen=True)
class Checkpoint:
    """What a training resumes from.

    Attributes:
        tensors: on the host, by name.
        progress: its state.
        network: of the potential.
    """

    tensors: dict[str, Tensor]
    progress: Progress
    network: TensorNetConfig


_PROGRESS: Final = TypeAdapter(Progress)


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Writes a checkpoint atomically."""
    about = {"format": FORMAT, **_PROGRESS.dump_python(checkpoint.progress, by_alias=True)}
    metadata = {_KEY: json.dumps(about), _NETWORK: checkpoint.network.model_dump_json()}
    content = serialize(checkpoint.tensors, metadata)
    write_atomically(path, content)


def read_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint that `write_checkpoint` wrote.

    Raises:
        FileError: there is none, it is damaged, or it is of another version.
    """
    if not path.exists():
        raise FileError(f"{path.parent} holds no training to resume; start it without --resume.")
    try:
        tensors, metadata = read_tensors(path, "the checkpoint of a training")
        record: Any = json.loads(metadata[_KEY])
        version = record.pop("format")
        if version != FORMAT:
            raise FileError(f"{path} has format {version}, and this mdgraph reads {FORMAT}.")
        network = TensorNetConfig.model_validate_json(metadata[_NETWORK])
        return Checkpoint(tensors, _PROGRESS.validate_python(record), network)
    except (
        TensorFileError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
    ) as error:
        raise FileError(f"{path} is damaged; start the training anew in another folder.") from error


_PACKAGES: Final = {"tensorboard": "tensorboard", "wandb": "wandb"}


class Tracker(Protocol):
    """Records numbers by name at a step."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Records the numbers of a step."""
        ...

    def close(self) -> None:
        """Ends the record."""
        ...


def check_trackers(config: TrainConfig) -> None:
    """Raises InputError for one whose package is not installed."""
    for name in config.also_log:
        if find_spec(_PACKAGES[name]) is None:
            raise InputError(
                f"also_log asks for {name}, which is not installed; install it with "
                f"pip install 'mdgraph[{name}]', or leave it out: log.csv is written anyway."
            )


def open_trackers(
    config: TrainConfig, folder: Path, settings_hash: str, step: int
) -> list[Tracker]:
    """Trackers of the configuration; a resumed training continues its own records.

    Args:
        config: `also_log`.
        folder: of the potential, below which their files lie.
        settings_hash: of the training, which names its run.
        step: from which it goes on.

    Raises:
        InputError: one does not start, such as W&B without a key.
    """
    classes: dict[str, Callable[..., Tracker]] = {"tensorboard": _TensorBoard, "wandb": _WandB}
    trackers = []
    for name in config.also_log:
        try:
            trackers.append(classes[name](config, folder, settings_hash, step))
        except Exception as error:  # of another program, with errors of its own
            raise InputError(
                f"also_log asks for {name}, which does not start ({error}); mend that, or leave "
                "it out: log.csv is written anyway."
            ) from error
    return trackers


class _TensorBoard:
    def __init__(self, config: TrainConfig, folder: Path, settings_hash: str, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # What was written beyond the checkpoint is written again.
        self._writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _WandB:
    def __init__(self, config: TrainConfig, folder: Path, settings_hash: str, step: int) -> None:
        import wandb

        self._run: Any = wandb.init(
            project="mdgraph",
            name=config.name or folder.resolve().name,
            # Of a name it would not take every character.
            id=hashlib.sha256(f"{folder.resolve().name} {settings_hash}".encode()).hexdigest()[:16],
            dir=str(folder),
            config=config.model_dump(mode="json"),
            resume="allow",
        )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


_PLACES: Final = {
    *("out", "device", "eager", "resident", "data", "split", "name", "also_log", "baseline")
}
"""Keys that do not shape the weights; a baseline does by the labels that it leaves."""

_FREE: Final = _PLACES | {"batch", "batch_atoms", "batch_edges", "checkpoint_interval", "patience"}
"""Keys that may change when a training is resumed; batches may be shared out anew."""


def training_hash(config: TrainConfig, dataset: Dataset) -> str:
    """SHA-256 of everything that shapes the weights: the configuration and the data."""
    return _hash(config, dataset, _PLACES)


def training_state(
    config: TrainConfig, dataset: Dataset, checkpoint: Progress | None, shares: int
) -> Progress:
    """The state that a training starts from: that of its checkpoint, or a new one.

    Args:
        config: of the training.
        dataset: of the training.
        checkpoint: state of a training that is resumed.
        shares: of a new training, see `Progress`.

    Raises:
        InputError: the training was begun with other settings or data; names what changed.
    """
    settings_hash, settings = _hash(config, dataset, _FREE), _settings(config)
    if checkpoint is None:
        return Progress(shares=shares, settings_hash=settings_hash, settings=settings)
    if checkpoint.settings_hash == settings_hash:
        return checkpoint
    names = dict(zip(_settings(config, by_alias=True), settings, strict=True))
    before = {names.get(key, key): value for key, value in checkpoint.settings.items()}
    changes = [
        f"{key} was {before.get(key)!r} and is {settings.get(key)!r}"
        for key in before | settings
        if before.get(key) != settings.get(key)
    ]
    text = name_some(changes) if changes else "the data are others"
    if not before:
        text = "the configuration or the data are others"  # an older checkpoint knows no more
    raise InputError(
        f"The training in {config.out} was begun otherwise: {text}; resume with its train.yaml, "
        "or start anew in another folder."
    )


def _hash(config: TrainConfig, dataset: Dataset, free: set[str]) -> str:
    # Without defaults and by the oldest names, so that a later mdgraph with more options or other
    # names still knows the training.
    chosen = config.model_dump_json(exclude=free, exclude_defaults=True, by_alias=True)
    return hashlib.sha256((chosen + dataset.sha256()).encode()).hexdigest()


def _settings(config: TrainConfig, by_alias: bool = False) -> dict[str, Any]:
    """Values that shape the weights, by keys with dots, as JSON has them."""
    settings: dict[str, Any] = {}
    items = list(config.model_dump(mode="json", exclude=_FREE, by_alias=by_alias).items())
    while items:
        key, value = items.pop(0)
        if isinstance(value, dict):
            items = [(f"{key}.{name}", inner) for name, inner in value.items()] + items
        else:
            settings[key] = value
    return settings


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
"""Those of training frames, and the share of the time, are means since the last row."""


_FIRST_LINE: Final = 5.0
"""s of steps before the first line of progress, without a terminal."""

_LINES_APART: Final = 60.0
"""s without such a line or a validation, after which there is one."""


class TrainingLog:
    """Rows of log.csv and of trackers, and the progress bar; the first process alone writes."""

    def __init__(
        self, config: TrainConfig, folder: Path, progress: Progress, *, writes: bool, quiet: bool
    ) -> None:
        """Goes on after the rows of the progress.

        Args:
            config: `also_log`.
            folder: of the potential.
            progress: state of the training.
            writes: whether this process writes.
            quiet: no bar, and no lines in place of a bar without a terminal.

        Raises:
            FileError: rows are missing or were changed; the file is left as it is.
        """
        path, self._size = folder / "log.csv", progress.log_bytes
        self._file = AppendedFile(path, self._size, cut=False) if writes else None
        self._trackers: list[Tracker] = []
        if self._file is not None:
            try:
                _check_rows(path, self._size)
                self._trackers = open_trackers(
                    config, folder, progress.settings_hash, progress.step
                )
                self._file.cut()
            except BaseException:
                self._file.close()
                raise
        self._bar = tqdm(unit="step", disable=quiet or None, mininterval=1.0)
        self._says, self._total = writes and not quiet, 0
        self._step = self._start = 0
        self._time_from(0)
        self._clock, self._waited = time.perf_counter(), 0.0
        if not self._size:
            self._append(LOG_COLUMNS, progress)

    def begin_at(self, step: int, total: int) -> None:
        """Sets the bar to a step of so many, and times the steps from it on."""
        self._total = total
        self._step = self._start = step
        self._time_from(step)
        self._bar.reset(total)
        self._bar.update(step)
        if self._says:
            logger.info("Steps begin: %d of %d are done.", step, total)

    def step(self) -> None:
        """Moves the bar, or logs a line now and then where there is none."""
        self._step += 1
        self._bar.update()
        if self._step == self._start + 1:
            self._time_from(self._step)  # kernels are compiled within the first step
        elif time.perf_counter() >= self._next_line:
            self._log_line()

    def _time_from(self, step: int) -> None:
        self._first, self._began = step, time.perf_counter()
        self._next_line = self._began + _FIRST_LINE

    def _log_line(self, results: str = "") -> None:
        """In a file, as batch systems write it, a bar is of no use."""
        now, texts = time.perf_counter(), [results] if results else []
        self._next_line = now + _LINES_APART
        if self._first < self._step < self._total:
            step_time = (now - self._began) / (self._step - self._first)
            texts.append(f"{duration_text(step_time * (self._total - self._step))} left")
        if texts and self._bar.disable and self._says:
            logger.info("Step %d of %d: %s", self._step, self._total, "; ".join(texts))

    def append(
        self,
        progress: Progress,
        epoch: float,
        learning_rate: float,
        errors: Mapping[str, Any],
        waited: float,
    ) -> None:
        """Writes a row after a validation, and begins new means.

        Args:
            progress: its time, means and length of the log change.
            epoch: of the step.
            learning_rate: of the step.
            errors: on the held-out frames, see `evaluation.table`.
            waited: s that steps waited for data, since the log was opened.
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
        self._log_line(text)

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
    """Raises FileError unless the first bytes of a log are rows that a training wrote."""
    with disk_failures(path, "read"), path.open("rb") as file:
        lines = file.read(size).decode("latin-1").splitlines(keepends=True)
    last = [0.0] * len(LOG_COLUMNS)
    for place, line in enumerate(lines):
        row = _numbers(line) if place else last
        # Larger batches make the number of steps smaller; epochs and seconds only grow.
        ascend = row is not None and row[1] >= last[1] and row[2] >= last[2]
        if not ascend or not (place or line == ",".join(LOG_COLUMNS) + "\n"):
            raise FileError(
                f"{path} is damaged: its line {place + 1} is not what the training wrote; put "
                "back the original."
            )
        last = row or last


def _numbers(line: str) -> list[float] | None:
    """Numbers of a row, or None if it is no row of a log."""
    try:
        row = [float(field) for field in line.split(",")]
    except ValueError:
        return None
    whole = line.endswith("\n") and len(row) == len(LOG_COLUMNS)
    return row if whole and all(map(math.isfinite, row[:4])) and row[0] >= 0.0 else None
