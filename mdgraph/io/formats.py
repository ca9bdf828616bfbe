"""Trajectories by the suffix of their file: H5MD or extended XYZ."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from mdgraph.errors import InputError
from mdgraph.io.extxyz import ExtendedXYZReader, ExtendedXYZWriter
from mdgraph.io.h5md import H5MDReader, H5MDWriter
from mdgraph.io.trajectories import Frame, TrajectoryReader, TrajectoryWriter
from mdgraph.system import System

__all__ = [
    "Frame",
    "TrajectoryReader",
    "TrajectoryWriter",
    "create_trajectory",
    "read_trajectory",
    "resume_trajectory",
    "resuming_trajectory",
]

H5MD_SUFFIXES: Final = (".h5", ".h5md", ".hdf5")
EXTENDED_XYZ_SUFFIXES: Final = (".extxyz", ".xyz")


def create_trajectory(path: str | Path, system: System) -> TrajectoryWriter:
    """Creates a trajectory without frames.

    Args:
        path: a file that does not exist yet; `.h5`, `.h5md` or `.hdf5` for H5MD,
            `.extxyz` or `.xyz` for extended XYZ.
        system: its atoms, masses and periodic directions hold for all frames.

    Raises:
        InputError: another suffix.
        FileError: the file exists already, or the disk refused.
    """
    return _writer(Path(path)).create(Path(path), system)


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
    return _writer(Path(path)).resume(Path(path), last_step, system)


def resuming_trajectory(
    path: str | Path, last_step: int, system: System, *, keeps_open: bool = True
) -> AbstractContextManager[tuple[Callable[[], TrajectoryWriter], TrajectoryReader]]:
    """Checks all that `resume_trajectory` needs; see `TrajectoryWriter.resuming`."""
    return _writer(Path(path)).resuming(Path(path), last_step, system, keeps_open=keeps_open)


def read_trajectory(path: str | Path) -> TrajectoryReader:
    """Opens a trajectory that mdgraph wrote: finished, being written, or left by a killed run.

    Raises:
        InputError: a suffix of another format.
        FileError: the file cannot be read.
    """
    path = Path(path)
    return H5MDReader(path) if _is_h5md(path) else ExtendedXYZReader(path)


def _writer(path: Path) -> type[H5MDWriter] | type[ExtendedXYZWriter]:
    return H5MDWriter if _is_h5md(path) else ExtendedXYZWriter


def _is_h5md(path: Path) -> bool:
    suffix = path.suffix.lower()
    if suffix not in H5MD_SUFFIXES + EXTENDED_XYZ_SUFFIXES:
        raise InputError(
            f"The trajectory {path} has the unknown suffix '{suffix}'; choose one of "
            f"{', '.join(H5MD_SUFFIXES + EXTENDED_XYZ_SUFFIXES)}."
        )
    return suffix in H5MD_SUFFIXES
