"""Registry of trajectory formats by word and suffix: H5MD, extended XYZ, and formats of yours.

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
from mdgraph.io.trajectories import (
    WHOLE,
    Frame,
    FrameContents,
    TrajectoryReader,
    TrajectoryWriter,
)
from mdgraph.system import System

__all__ = [
    "FORMATS",
    "Frame",
    "FrameContents",
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
        word: name of the format, as in `--trajectory h5md`.
        suffixes: file suffixes in lower case; files of a run get the first one.
        writer: class, or `module.Class` to import it on first use.
        reader: likewise.
        read_by_ase: whether ASE reads structures from such files; otherwise `reader` does.
        takes_contents: whether `create` and `resuming` of the writer take `contents`, with which
            frames hold some vectors alone, or float32.
    """

    word: str
    suffixes: tuple[str, ...]
    writer: type[TrajectoryWriter] | str
    reader: Callable[[Path], TrajectoryReader] | str
    read_by_ase: bool = False
    takes_contents: bool = False

    def load_writer(self) -> type[TrajectoryWriter]:
        """The writer class."""
        return _load(self.writer)

    def load_reader(self) -> Callable[[Path], TrajectoryReader]:
        """The reader class."""
        return _load(self.reader)


def _load(name: Any) -> Any:
    if not isinstance(name, str):
        return name
    module, _, member = name.rpartition(".")
    return getattr(import_module(module), member)


FORMATS: Final[dict[str, TrajectoryFormat]] = {}
"""Every format by its word."""


def register(new: TrajectoryFormat) -> None:
    """Adds a format, which all commands can then write and read.

    Raises:
        InputError: its word or one of its suffixes belongs to another format.
    """
    for entry in FORMATS.values():
        clashes = {entry.word, *entry.suffixes} & {new.word, *new.suffixes}
        if clashes:
            raise InputError(
                f"There is a trajectory format with {name_some(sorted(clashes))} already; choose "
                "another word or suffix."
            )
    FORMATS[new.word] = new


def format_word(word: Any) -> str:
    """Returns the word of a format; for any other value raises a ValueError with all words."""
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
        (".h5md", ".h5", ".hdf5"),
        "mdgraph.io.h5md.H5MDWriter",
        "mdgraph.io.h5md.H5MDReader",
        takes_contents=True,
    )
)
register(
    TrajectoryFormat(
        "extxyz",
        (".extxyz", ".xyz"),
        "mdgraph.io.extxyz.ExtendedXYZWriter",
        "mdgraph.io.extxyz.ExtendedXYZReader",
        read_by_ase=True,
        takes_contents=True,
    )
)


def create_trajectory(
    path: str | Path, system: System, contents: FrameContents = WHOLE
) -> TrajectoryWriter:
    """Creates a trajectory without frames.

    Args:
        path: a file that does not exist yet. Its suffix selects the format: `.h5md`, `.h5` or
            `.hdf5` for H5MD, `.extxyz` or `.xyz` for extended XYZ.
        system: defines the atoms, masses and periodic directions of all frames.
        contents: what frames hold of each atom: some vectors alone, or float32.

    Raises:
        InputError: another suffix, or contents that the format does not take.
        FileError: the file exists already, or the disk refused.
    """
    trajectory_format = _format_by_suffix(Path(path))
    options = _contents_option(trajectory_format, contents)
    return trajectory_format.load_writer().create(Path(path), system, **options)


def _contents_option(
    trajectory_format: TrajectoryFormat, contents: FrameContents
) -> dict[str, FrameContents]:
    """The argument of a writer; raises InputError if it does not take the contents."""
    if contents == WHOLE:
        return {}
    if not trajectory_format.takes_contents:
        raise InputError(
            f"Frames in {trajectory_format.word} hold all vectors in float64; save all, or choose "
            "the format h5md."
        )
    return {"contents": contents}


def resume_trajectory(path: str | Path, last_step: int, system: System) -> TrajectoryWriter:
    """Opens the trajectory of an interrupted run to go on after a checkpoint.

    Frames after `last_step` and a half-written last frame are removed; the run writes them
    again.

    Args:
        path: the trajectory.
        last_step: the step of the checkpoint.
        system: the system that the trajectory was created with.

    Raises:
        InputError: a suffix of another format.
        FileError: the file cannot be read, is the trajectory of another system, or the disk
            refused; the file is then unchanged.
    """
    return _format_by_suffix(Path(path)).load_writer().resume(Path(path), last_step, system)


def resuming_trajectory(
    path: str | Path,
    last_step: int,
    system: System,
    *,
    keeps_open: bool = True,
    contents: FrameContents = WHOLE,
) -> AbstractContextManager[tuple[Callable[[], TrajectoryWriter], TrajectoryReader]]:
    """Runs the checks of `resume_trajectory`; see `TrajectoryWriter.resuming`."""
    trajectory_format = _format_by_suffix(Path(path))
    options: dict[str, Any] = _contents_option(trajectory_format, contents)
    return trajectory_format.load_writer().resuming(
        Path(path), last_step, system, keeps_open=keeps_open, **options
    )


def read_trajectory(path: str | Path) -> TrajectoryReader:
    """Opens a trajectory that mdgraph wrote: finished, being written, or left by a killed run.

    Raises:
        InputError: a suffix of another format.
        FileError: the file cannot be read.
    """
    path = Path(path)
    return _format_by_suffix(path).load_reader()(path)
