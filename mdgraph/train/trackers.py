"""Rows of the log in other programs too: TensorBoard's files, or a run of Weights & Biases."""

import hashlib
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Protocol

from mdgraph.errors import InputError
from mdgraph.train.configuration import TrainConfig

_PACKAGES: Final = {"tensorboard": "tensorboard", "wandb": "wandb"}


class Tracker(Protocol):
    """Takes numbers by name at a step."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Hands them on."""
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


def open_trackers(config: TrainConfig, folder: Path, course: str, step: int) -> list[Tracker]:
    """Those of the configuration; a resumed training goes on with its own records.

    Args:
        config: `also_log`.
        folder: of the potential, below which their files lie.
        course: hash of the training, which names its run.
        step: from which it goes on.

    Raises:
        InputError: one does not start, such as W&B without a key.
    """
    kinds: dict[str, Callable[..., Tracker]] = {"tensorboard": _TensorBoard, "wandb": _WandB}
    found = []
    for name in config.also_log:
        try:
            found.append(kinds[name](config, folder, course, step))
        except Exception as error:  # of another program, with errors of its own
            raise InputError(
                f"also_log asks for {name}, which does not start ({error}); mend that, or leave "
                "it out: log.csv is written anyway."
            ) from error
    return found


class _TensorBoard:
    def __init__(self, config: TrainConfig, folder: Path, course: str, step: int) -> None:
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
    def __init__(self, config: TrainConfig, folder: Path, course: str, step: int) -> None:
        import wandb

        self._run: Any = wandb.init(
            project="mdgraph",
            name=config.name or folder.resolve().name,
            # Of a name it would not take every character.
            id=hashlib.sha256(f"{folder.resolve().name} {course}".encode()).hexdigest()[:16],
            dir=str(folder),
            config=config.model_dump(mode="json"),
            resume="allow",
        )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()
