"""Progress: what a training remembers beside its tensors, and its checkpoint on the disk."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import TypeAdapter
from torch import Tensor

from mdgraph.errors import FileError
from mdgraph.io.files import write_atomically
from mdgraph.io.tensor_files import TensorFileError, read_tensors, serialized
from mdgraph.models import TensorNetConfig
from mdgraph.train.terms import TERMS

CHECKPOINT: Final = "checkpoint.safetensors"
SPLIT: Final = "split.json"
FORMAT: Final = 3
_KEY: Final = "mdgraph-training"
_NETWORK: Final = "mdgraph-network"
_REMEMBERED: Final = 20

_FEW: Final = 5
"""Losses of which a median is the usual one."""


@dataclass
class Progress:
    """Where a training stands.

    Attributes:
        step: steps done.
        steps_per_epoch: of which an epoch has so many.
        factor: on the learning rate, by plateaus and a rollback.
        rollbacks: how often a spike was rolled back from.
        halvings: how often the batch did not fit and was halved.
        shares: of which the common batch has one `batch` each: processes at the start.
        best: lowest score on validation.
        best_step: where it was found.
        waiting: validations since then; `plateau` since the rate last fell.
        start: loss before the first step.
        losses: of the last intervals between two looks.
        sums: of the totals since the last validation.
        seconds: of training so far.
        log_bytes: length of the log.
        course: hash of what must not change when a training is resumed.
        chosen: what of the configuration is in it, by keys with dots.
    """

    step: int = 0
    steps_per_epoch: int = 0
    factor: float = 1.0
    rollbacks: int = 0
    halvings: int = 0
    shares: int = 1
    best: float = float("inf")
    best_step: int = 0
    waiting: int = 0
    plateau: int = 0
    start: float = float("inf")
    losses: list[float] = field(default_factory=list)
    sums: list[float] = field(default_factory=lambda: [0.0] * (2 * len(TERMS) + 1))
    seconds: float = 0.0
    log_bytes: int = 0
    course: str = ""
    chosen: dict[str, Any] = field(default_factory=dict)

    def is_spike(self, loss: float, factor: float) -> bool:
        """Whether a mean loss is not finite or far beyond the usual, at first that at the start."""
        usual = float(np.median(self.losses)) if len(self.losses) >= _FEW else self.start
        return not np.isfinite(loss) or loss > factor * usual

    def remember(self, loss: float, totals: list[float]) -> None:
        """Takes note of an interval that went well."""
        self.losses = [*self.losses, loss][-_REMEMBERED:]
        self.sums = [one + other for one, other in zip(self.sums, totals, strict=True)]

    def judge(self, score: float) -> bool:
        """Takes note of a score on validation; whether it is the best."""
        better = score < self.best
        if better:
            self.best, self.best_step = score, self.step
        self.waiting = 0 if better else self.waiting + 1
        self.plateau = 0 if better else self.plateau + 1
        return better

    def copy(self) -> "Progress":
        """Independent of this one."""
        return Progress(**json.loads(json.dumps(asdict(self))))


@dataclass(frozen=True)
class Checkpoint:
    """What a training goes on from.

    Attributes:
        tensors: on the host, by name.
        progress: where it stands.
        network: of the potential.
    """

    tensors: dict[str, Tensor]
    progress: Progress
    network: TensorNetConfig


_PROGRESS: Final = TypeAdapter(Progress)


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Writes everything that a resumed training needs, whole; copies from the device."""
    about = {"format": FORMAT, **asdict(checkpoint.progress)}
    metadata = {_KEY: json.dumps(about), _NETWORK: checkpoint.network.model_dump_json()}
    content = serialized(checkpoint.tensors, metadata)
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def read_checkpoint(path: Path) -> Checkpoint:
    """Reads what `write_checkpoint` wrote.

    Raises:
        FileError: there is none, or it is damaged or of another version.
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


def read_progress(path: Path) -> Progress:
    """Where the training of a checkpoint stands; raises as `read_checkpoint` does."""
    return read_checkpoint(path).progress
