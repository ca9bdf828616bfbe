"""Trajectory formats by word and suffix: H5MD, extended XYZ, and what a module of yours registers.

A format is one file: a subclass of `TrajectoryWriter` and one of `TrajectoryReader`
(`mdgraph/io/trajectories.py`), and a call of `register`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from mdgraph.errors import InputError, name_some
from mdgraph.io.trajectories import Frame, TrajectoryReader, TrajectoryWriter
from mdgraph.system import System

__all__ = [
    "FORMATS",
    "Frame",
    "TrajectoryFormat",
    "TrajectoryReader",
    "TrajectoryWriter",
    "create_trajectory",
    "read_trajectory",
    "register",
    "resume_trajectory",
    "resuming_trajectory",
]


@dataclass(frozen=True)
class TrajectoryFormat:
    """A file format of trajectories.

    Attributes:
        word: chooses it, as in `--trajectory h5md`.
        suffixes: of its files, lower case, the first of which is that of a run's trajectory.
        writer: class, or `module.Class` where that is imported when it is needed.
        reader: likewise.
        read_by_ase: whether ASE reads structures from such files; else the reader does.
    """

    word: str
    suffixes: tuple[str, ...]
    writer: type[TrajectoryWriter] | str
    reader: Callable[[Path], TrajectoryReader] | str
    read_by_ase: bool = False

    def load_writer(self) -> type[TrajectoryWriter]:
        """The class that writes it."""
        return _load(self.writer)

    def load_reader(self) -> Callable[[Path], TrajectoryReader]:
        """The class that reads it."""
        return _load(self.reader)


def _load(name: Any) -> Any:
    if not isinstance(name, str):
        return name
    module, _, member = name.rpartition(".")
    return getattr(import_module(module), member)


FORMATS: Final[dict[str, TrajectoryFormat]] = {}
"""Every format by its word."""


def register(new: TrajectoryFormat) -> None:
    """Adds a format, which all commands then write and read.

    Raises:
        InputError: its word or one of its suffixes belongs to another format.
    """
    for other in FORMATS.values():
        clashes = {other.word, *other.suffixes} & {new.word, *new.suffixes}
        if clashes:
            raise InputError(
                f"There is a trajectory format with {name_some(sorted(clashes))} already; choose "
                "another word or suffix."
            )
    FORMATS[new.word] = new


def known_format(word: Any) -> str:
    """The word of a format; raises ValueError that lists the words for anything else."""
    if not isinstance(word, str) or word not in FORMATS:
        *others, last = (f"'{name}'" for name in FORMATS)
        raise ValueError(f"it should be {', '.join(others)} or {last}")
    return word


def format_of(path: Path) -> TrajectoryFormat | None:
    """The format whose suffix a file has; None for another suffix."""
    suffix = path.suffix.lower()
    return next((entry for entry in FORMATS.values() if suffix in entry.suffixes), None)


def _format_by_suffix(path: Path) -> TrajectoryFormat:
    trajectory_format = format_of(path)
    if trajectory_format is None:
        suffixes = [suffix for entry in FORMATS.values() for suffix in entry.suffixes]
        raise InputError(
            f"The trajectory {path} has the unknown suffix '{path.suffix.lower()}'; choose one of "
            f"{', '.join(suffixes)}."
        )
    return trajectory_format


register(
    TrajectoryFormat(
        "h5md",
        (".h5", ".h5md", ".hdf5"),
        "mdgraph.io.h5md.H5MDWriter",
        "mdgraph.io.h5md.H5MDReader",
    )
)
register(
    TrajectoryFormat(
        "extxyz",
        (".extxyz", ".xyz"),
        "mdgraph.io.extxyz.ExtendedXYZWriter",
        "mdgraph.io.extxyz.ExtendedXYZReader",
        read_by_ase=True,
    )
)


def create_trajectory(path: str | Path, system: System) -> TrajectoryWriter:
    """Creates a trajectory without frames.

    Args:
        path: a file that does not exist yet; its suffix says the format, `.h5`, `.h5md` or
            `.hdf5` for H5MD, `.extxyz` or `.xyz` for extended XYZ.
        system: its atoms, masses and periodic directions hold for all frames.

    Raises:
        InputError: another suffix.
        FileError: the file exists already, or the disk refused.
    """
    return _format_by_suffix(Path(path)).load_writer().create(Path(path), system)


def resume_trajectory(path: str | Path, last_step: int, system: System) -> TrajectoryWriter:
    """Opens the trajectory of an interrupted run to go on after a checkpoint.

    Frames after `last_step` and a half-written last frame are dropped, so that the run
    writes them again and none is doubled or lost.

    Args:
        path: the trajectory.
        last_step: the step of the checkpoint that the run goes on from.
        system: the system that the trajectory was created with.

    Raises:
        InputError: a suffix of another format.
        FileError: the file cannot be read, is the trajectory of another system, or the disk
            refused; the file is then as it was.
    """
    return _format_by_suffix(Path(path)).load_writer().resume(Path(path), last_step, system)


def resuming_trajectory(
    path: str | Path, last_step: int, system: System, *, keeps_open: bool = True
) -> AbstractContextManager[tuple[Callable[[], TrajectoryWriter], TrajectoryReader]]:
    """Checks all that `resume_trajectory` needs; see `TrajectoryWriter.resuming`."""
    return (
        _format_by_suffix(Path(path))
        .load_writer()
        .resuming(Path(path), last_step, system, keeps_open=keeps_open)
    )


def read_trajectory(path: str | Path) -> TrajectoryReader:
    """Opens a trajectory that mdgraph wrote: finished, being written, or left by a killed run.

    Raises:
        InputError: a suffix of another format.
        FileError: the file cannot be read.
    """
    path = Path(path)
    return _format_by_suffix(path).load_reader()(path)
