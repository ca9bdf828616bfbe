"""Converts trajectories: to formats of other programs, some frames or atoms, whole molecules.

Frames are read, changed and written one at a time, so memory does not grow with their number.
"""

import dataclasses
import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from ase import Atoms
from ase import units as ase_units
from ase.io.trajectory import Trajectory
from ase.stress import voigt_6_to_full_3x3_stress
from numpy.typing import NDArray
from tqdm import tqdm

from mdgraph.errors import FileError, InputError, MDGraphError, printable
from mdgraph.io import hdf5
from mdgraph.io.ase_format import atoms_of
from mdgraph.io.files import (
    disk_failures,
    readable_file,
    refuse_existing,
    replacing,
    write_atomically,
)
from mdgraph.io.formats import FORMATS, create_trajectory, format_of, read_trajectory
from mdgraph.io.structures import recorded_names
from mdgraph.io.topology import Molecules, wrap_positions, write_pdb
from mdgraph.io.trajectories import VECTORS, Frame, FrameContents, TrajectoryReader
from mdgraph.system import System, Topology, lower_triangular

_logger = logging.getLogger(__name__)

_SAME: Final = 1e-5
"""A; positions nearer than this are those of the same frame, in any precision."""

_LARGEST_STEP: Final = 2**31
"""DCD and XTC have 32 bits for the number of a step."""

_XTC_HEADER: Final = 92
"""Bytes before the compressed coordinates of a frame; their number is the last of these."""

_UNEVEN: Final = 1e-3
"""Largest deviation from even times, in intervals between frames."""


class JoinedTrajectory(TrajectoryReader):
    """Frames of one or more trajectories in a row, with steps and times that go on.

    If a trajectory begins with the last frame of the one before, that frame is left out.
    """

    def __init__(self, paths: Sequence[Path], frame_interval_fs: float | None = None) -> None:
        """Opens the files.

        Args:
            paths: files that mdgraph wrote, or `.traj` of ASE.
            frame_interval_fs: fs between frames of `.traj` files without times.

        Raises:
            InputError: they have other atoms than the first one, or a `.traj` has no times.
            FileError: a file cannot be read or holds no frames.
        """
        self.path = paths[0]
        self._readers: list[TrajectoryReader] = []
        self._skips: list[int] = []
        self._offsets: list[tuple[int, float]] = []
        steps: list[NDArray[np.int64]] = []
        try:
            for path in paths:
                self._readers.append(reader := _open_trajectory(path, frame_interval_fs))
                if not len(reader):
                    raise FileError(f"{path} holds no frames; give a trajectory with frames.")
                self._add(reader, steps)
        except MDGraphError:
            self.close()
            raise
        self.steps = np.concatenate(steps)
        self._ends = np.cumsum([len(part) for part in steps])

    def _add(self, reader: TrajectoryReader, steps: list[NDArray[np.int64]]) -> None:
        """Appends the steps of a reader, and finds its offsets and whether its start repeats."""
        if not steps:
            self.numbers, self.masses, self.pbc = reader.numbers, reader.masses, reader.pbc
            self.has_constraints = reader.has_constraints
            self._skips.append(0)
            self._offsets.append((0, 0.0))
            steps.append(reader.steps)
            return
        if not np.array_equal(reader.numbers, self.numbers) or not (reader.pbc == self.pbc).all():
            raise InputError(
                f"{reader.path} has other atoms or periodic directions than {self.path}; join "
                "trajectories of the same atoms in the same order."
            )
        before, first = self._readers[-2], reader[0]
        last = _shift(before[-1], *self._offsets[-1])
        end_step, end_time = self._end(before)
        repeats = np.allclose(first.positions, last.positions, rtol=0, atol=_SAME)
        if first.step >= end_step:
            offset = (0, 0.0)
        else:
            offset = (end_step - first.step, end_time - first.time_fs)
        skip = int(repeats and first.step + offset[0] == last.step)
        if first.step + offset[0] <= last.step and not skip:
            following = reader[1] if len(reader) > 1 else None
            interval = 1 if following is None else following.step - first.step
            time = 1.0 if following is None else following.time_fs - first.time_fs
            offset = (last.step + interval - first.step, last.time_fs + time - first.time_fs)
        if skip:
            _logger.info("%s begins with the last frame of %s.", reader.path, before.path)
        self._skips.append(skip)
        self._offsets.append(offset)
        steps.append(reader.steps[skip:] + offset[0])

    def _end(self, reader: TrajectoryReader) -> tuple[int, float]:
        """Step and time at the end of the run of a trajectory, fs."""
        last, end = reader[-1], reader.path.with_name("end.extxyz")
        if reader.path.stem == "trajectory" and end.is_file():
            with read_trajectory(end) as frames:
                if len(frames) and frames.steps[-1] >= last.step:
                    last = frames[-1]
        steps, time = self._offsets[-1]
        return last.step + steps, last.time_fs + time

    def _read(self, index: int) -> Frame:
        part = int(np.searchsorted(self._ends, index, side="right"))
        begin = int(self._ends[part - 1]) if part else 0
        frame = self._readers[part][index - begin + self._skips[part]]
        return _shift(frame, *self._offsets[part])

    def system(self, index: int = -1) -> System:
        """The system at one frame, with names and bonds of topology.pdb beside the first file."""
        return super().system(index).replace(topology=self._topology)

    @cached_property
    def _topology(self) -> Topology | None:
        return recorded_names(self.path, self.numbers)

    def close(self) -> None:
        """Closes the files; closing twice is harmless."""
        for reader in self._readers:
            reader.close()


def _open_trajectory(path: Path, frame_interval_fs: float | None) -> TrajectoryReader:
    """The reader of a file by its suffix."""
    if frame_interval_fs is not None and not 0.0 < frame_interval_fs < math.inf:
        raise InputError(f"--frame-interval-fs is {frame_interval_fs:g}; give a time above 0.")
    if path.suffix.lower() == ".traj":
        return ASETrajectoryReader(path, frame_interval_fs)
    if frame_interval_fs is not None:
        raise InputError(
            f"{path} has times of its own; leave out --frame-interval-fs, which is for .traj."
        )
    if path.suffix.lower() in (".dcd", ".xtc"):
        raise InputError(
            f"{path}: DCD and XTC are written and not read, as they hold no elements; give the "
            "folder of the run that it was written from (with --select 'element O' for the atoms "
            "of a part of it), or a trajectory as .h5md, .extxyz or .traj."
        )
    if format_of(path) is None:
        raise InputError(
            f"{path} is not a trajectory by its name; give the folder of a run, or a trajectory as "
            ".h5md, .extxyz or .traj."
        )
    return read_trajectory(path)


def _shift(frame: Frame, steps: int, time_fs: float) -> Frame:
    return dataclasses.replace(frame, step=frame.step + steps, time_fs=frame.time_fs + time_fs)


class ASETrajectoryReader(TrajectoryReader):
    """Reads `.traj` files of ASE.

    A frame has a step and a time if its `info` has them, as in files that mdgraph wrote. Of other
    files, frames count as steps, and the caller gives the time between them.

    Attributes:
        has_constraints: whether ASE's constraints act on atoms.
    """

    def __init__(self, path: Path, frame_interval_fs: float | None = None) -> None:
        """Opens a file.

        Args:
            path: the file.
            frame_interval_fs: fs between frames of a file without times.

        Raises:
            InputError: the file has no times and none are given, or both are.
            FileError: the file cannot be read.
        """
        self.path = path
        self._interval = frame_interval_fs
        readable_file(path, "a trajectory")
        with self._failures():
            self._file: Any = Trajectory(str(path.absolute()), "r")
        try:
            with self._failures():
                self._read_header()
            self._check_interval()
        except (FileError, InputError):
            self.close()
            raise

    def _read_header(self) -> None:
        count = len(self._file)
        first = self._file[0] if count else Atoms()
        self.numbers = first.numbers.astype(np.int64)
        self.masses, self.pbc = first.get_masses(), first.pbc.copy()
        self.has_constraints = bool(first.constraints)
        self._has_times = "time_fs" in first.info
        self.steps = np.arange(count)
        if self._has_times:
            infos = (self._file.backend[index].get("info") for index in range(count))
            self.steps = np.array([int(info["step"]) for info in infos], dtype=np.int64)

    def _check_interval(self) -> None:
        if len(self) and self._has_times and self._interval is not None:
            raise InputError(f"{self.path} has times of its own; leave out --frame-interval-fs.")
        if len(self) > 1 and not self._has_times and self._interval is None:
            raise InputError(
                f"{self.path} says nothing of time; give the time between its frames, such as "
                "--frame-interval-fs 10."
            )

    def _read(self, index: int) -> Frame:
        with self._failures(index):
            atoms: Atoms = self._file[index]
            if not np.array_equal(atoms.numbers, self.numbers) or (atoms.pbc != self.pbc).any():
                raise ValueError("it has other atoms or periodic directions than the first")
            return self._frame(index, atoms)

    def _frame(self, index: int, atoms: Atoms) -> Frame:
        # What constraints take from forces is part of the forces.
        results: dict[str, Any] = {} if atoms.calc is None else atoms.calc.results
        moves, info, nothing = atoms.has("momenta"), atoms.info, float("nan")
        kinetic_energy = atoms.get_kinetic_energy() if moves else nothing
        temperature = atoms.get_temperature() if moves else nothing
        stress = results.get("stress")
        if stress is not None and np.shape(stress) == (6,):
            stress = voigt_6_to_full_3x3_stress(stress)
        time = float(info["time_fs"]) if self._has_times else index * (self._interval or 0.0)
        return Frame(
            step=int(self.steps[index]),
            time_fs=time,
            positions=atoms.positions,
            velocities=atoms.get_velocities() * ase_units.fs if moves else None,
            forces=np.array(results.get("forces", np.full((len(atoms), 3), nothing))),
            energy=float(results.get("energy", nothing)),
            kinetic_energy=float(info.get("kinetic_energy", kinetic_energy)),
            temperature=float(info.get("temperature", temperature)),
            cell=np.array(atoms.cell),
            stress=stress,
        )

    @contextmanager
    def _failures(self, index: int | None = None) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # ASE's reader raises errors of any class
            part = f"frame {index} of {self.path}" if index is not None else str(self.path)
            raise FileError(
                f"Cannot read {part} as a trajectory of ASE ({error}); copy the file again."
            ) from error

    def close(self) -> None:
        """Closes the file; closing twice is harmless."""
        self._file.close()


class _FrameWriter(Protocol):
    """What a format needs for conversions; each TrajectoryWriter has it."""

    def append(self, frame: Frame) -> None:
        """Writes one frame."""

    def close(self) -> None:
        """Closes the file."""


@dataclass(frozen=True)
class _Clock:
    """Steps and times of frames, as DCD and XTC count them.

    Attributes:
        timestep_fs: fs a step.
        first: step of the first frame.
        interval: steps between frames.
    """

    timestep_fs: float
    first: int
    interval: int

    @classmethod
    def of(cls, trajectory: TrajectoryReader, frames: range) -> "_Clock":
        """The clock of some frames, by the first two of them."""
        start = trajectory[frames[0]]
        if len(frames) == 1:
            timestep = start.time_fs / start.step if start.step else 1.0
            return cls(timestep, start.step % _LARGEST_STEP, 1)
        second = trajectory[frames[1]]
        interval, time = second.step - start.step, (second.time_fs - start.time_fs) or 1.0
        if start.step + len(frames) * interval < _LARGEST_STEP:
            return cls(time / interval, start.step, interval)
        return cls(time, min(round(start.time_fs / time), _LARGEST_STEP - len(frames) - 1), 1)


class _OpenMMWriter:
    """Writes DCD or XTC with OpenMM, in its orientation: a along x, b in the plane of x and y."""

    def __init__(self, path: Path, system: System, clock: _Clock) -> None:
        from openmm.app import DCDFile, Topology, XTCFile, element

        self._path, self._name = path, path.suffix[1:].upper()
        self._periodic = bool(system.pbc.any()) and system.volume > 0.0
        topology = Topology()
        residue = topology.addResidue("UNL", topology.addChain())
        for _ in range(len(system)):
            topology.addAtom("X", element.hydrogen, residue)
        if self._periodic:
            topology.setUnitCellDimensions((1.0, 1.0, 1.0))
        self._file = path.open("r+b") if self._name == "DCD" else None
        self._clock, self._count, self._start = clock, 0, 0.0
        self._even, self._size = True, 0
        self._writer = (DCDFile if self._file else XTCFile)(
            self._file or str(path), topology, 1e-3 * clock.timestep_fs, clock.first, clock.interval
        )

    def append(self, frame: Frame) -> None:
        """Writes one frame.

        Raises:
            InputError: the format cannot hold it.
            FileError: not all of it was written.
        """
        from openmm import Vec3, unit

        positions, vectors = frame.positions, None
        if self._periodic:
            box, rotation = lower_triangular_cell(
                frame.cell, f"The cell of step {frame.step}", self._name
            )
            positions = positions @ rotation
            vectors = [Vec3(*row) for row in (0.1 * box).tolist()] * unit.nanometers
        try:
            self._writer.writeModel(0.1 * positions, periodicBoxVectors=vectors)
        except ValueError as error:
            raise InputError(
                f"The frame of step {frame.step} does not fit into {self._name} ({error}); write "
                "another format, or use --wrap."
            ) from error
        if self._file is None:
            self._size = _end_of_xtc_frame(self._path, self._size)
        interval = self._clock.timestep_fs * self._clock.interval
        if self._count == 0:
            self._start = frame.time_fs
        late = frame.time_fs - self._start - self._count * interval
        self._even &= abs(late) <= _UNEVEN * interval
        self._count += 1

    def close(self) -> None:
        """Closes the file, and warns of times that it does not hold."""
        if self._file is not None:
            self._file.close()
        if not self._even:
            _logger.warning(
                "The frames are not evenly spaced, and %s holds one interval for all: its times "
                "are not those of the run",
                self._name,
            )


def _end_of_xtc_frame(path: Path, begin: int) -> int:
    """Bytes up to the end of the last frame of an XTC file, which begins at a byte.

    Raises FileError for a file that ends within it: OpenMM says nothing of a full disk.
    """
    with path.open("rb") as file:
        file.seek(begin)
        header = file.read(_XTC_HEADER)
        size = file.seek(0, os.SEEK_END)
    # Numbers are big-endian; few atoms are not compressed.
    atoms = int.from_bytes(header[52:56], "big")
    length = 56 + 12 * atoms
    if atoms > 9:
        length = _XTC_HEADER + (int.from_bytes(header[88:92], "big") + 3) // 4 * 4
    if len(header) < 56 or size < begin + length:
        raise FileError(
            f"Cannot write {path}: not all of a frame came to the disk; free some space, or raise "
            "the limit of the size of a file."
        )
    return size


def lower_triangular_cell(
    cell: NDArray[np.float64], subject: str, format_name: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A cell with a along x and b in the plane of x and y, and the rotation that leads there.

    Args:
        cell: (3, 3), A, one vector in each row.
        subject: of the error, such as "The cell of step 5".
        format_name: of the error.

    Returns:
        The cell (3, 3) and a rotation (3, 3), both float64: vectors r become `r @ rotation`. A
        cell that has this form is returned as it is, with no rotation.

    Raises:
        InputError: the cell is left-handed.
    """
    if np.linalg.det(cell) < 0.0:
        raise InputError(
            f"{subject} is left-handed, and {format_name} holds right-handed cells alone; write "
            ".h5md, .extxyz or .traj."
        )
    return lower_triangular(cell)


class _ASEWriter:
    """Writes ASE's .traj."""

    def __init__(self, path: Path, system: System, clock: _Clock) -> None:
        self._system = system
        self._file: Any = Trajectory(str(path), "w")

    def append(self, frame: Frame) -> None:
        """Writes one frame."""
        self._file.write(atoms_of(self._system, frame))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


_OTHER_FORMATS: Final[dict[str, Callable[[Path, System, _Clock], _FrameWriter]]] = {
    ".traj": _ASEWriter,
    ".dcd": _OpenMMWriter,
    ".xtc": _OpenMMWriter,
}
"""Formats by suffix that no run writes."""


def _writer(path: Path, system: System, clock: _Clock, start: Frame) -> _FrameWriter:
    """The writer of a temporary file, by its suffix, for vectors that the first frame holds."""
    if path.suffix.lower() in _OTHER_FORMATS:
        return _OTHER_FORMATS[path.suffix.lower()](path, system, clock)
    path.unlink()
    missing = {
        "velocities": start.velocities is None,
        "forces": bool(np.isnan(start.forces).all()),
    }
    fields = tuple(name for name in VECTORS if not missing.get(name))
    return create_trajectory(path, system, FrameContents(fields))


def topology_beside(target: Path) -> Path | None:
    """The PDB file for names of atoms, such as run.dcd.pdb; None for formats with elements."""
    h5md = format_of(target) is FORMATS["h5md"]
    nameless = h5md or target.suffix.lower() in (".dcd", ".xtc")
    return target.with_name(f"{target.name}.pdb") if nameless else None


def check_target(target: Path, sources: Sequence[Path], *, overwrite: bool) -> None:
    """Checks that a conversion may write its files.

    Raises:
        InputError: the suffix is of no format, or the file is one of the sources.
        FileError: a file exists and may not be replaced.
    """
    suffixes = [suffix for entry in FORMATS.values() for suffix in entry.suffixes]
    if target.suffix.lower() not in (*suffixes, *_OTHER_FORMATS):
        raise InputError(
            f"Trajectories are written as {', '.join([*suffixes, *_OTHER_FORMATS])}, not as "
            f"'{printable(target.name, 200)}'; end its name in one of these."
        )
    for source in sources:
        if target.exists() and source.exists() and target.samefile(source):
            raise InputError(f"{target} is read itself; give the new file another name.")
    for path in (target, topology_beside(target)):
        if path is not None:
            refuse_existing(path, overwrite=overwrite, option=True)


def frames_between(count: int, first: int, last: int, stride: int) -> range:
    """Indices of every `stride`-th frame from `first` to `last`, both of them included.

    Args:
        count: number of frames.
        first: index from 0 on; negative ones count from the end.
        last: likewise.
        stride: at least 1.

    Raises:
        InputError: there are no such frames.
    """
    for frame in (first, last):
        if not -count <= frame < count:
            raise InputError(
                f"There is no frame {frame}: there are {count}, from 0 to {count - 1}, and "
                "negative numbers count from the end; give other --first and --last."
            )
    if stride < 1:
        raise InputError(f"--stride is {stride}; give 1 or more.")
    frames = range(first % count, last % count + 1, stride)
    if not frames:
        raise InputError(
            f"Frame {first % count} (--first) comes after frame {last % count} (--last); swap them."
        )
    return frames


def convert_trajectory(
    trajectory: TrajectoryReader,
    target: Path,
    *,
    first: int = 0,
    last: int = -1,
    stride: int = 1,
    atoms: Sequence[int] | None = None,
    whole: bool = False,
    wrap: bool = False,
    overwrite: bool = False,
) -> tuple[Frame, Frame, int]:
    """Writes frames of a trajectory to a file of another format.

    Args:
        trajectory: the frames; names and bonds are those of its `system(0)`.
        target: the file; its suffix selects the format. Formats without names of atoms get a PDB
            file beside them, see `topology_beside`.
        first: index of the first frame; negative ones count from the end.
        last: index of the last frame, which is included.
        stride: distance of frames.
        atoms: indices of the atoms to write, ascending; None for all. Energies, temperatures and
            stresses, which are of all atoms, are left out otherwise.
        whole: whether each molecule is put together, around its first atom.
        wrap: whether atoms are put into the cell; with `whole`, centres of molecules.
        overwrite: whether existing files are replaced.

    Returns:
        The first and the last frame, and the number of frames that were written.

    Raises:
        InputError: a wrong argument, or a left-handed cell for DCD or XTC.
        FileError: a file cannot be read or written; no file is changed then.
    """
    check_target(target, [trajectory.path], overwrite=overwrite)
    frames = frames_between(len(trajectory), first, last, stride)
    start = trajectory.system(0)
    molecules = _molecules(start) if whole else None
    system = start if atoms is None else start.select(atoms)

    def changed(frame: Frame) -> Frame:
        positions = frame.positions
        if molecules is not None:
            positions = molecules.whole(positions, frame.cell, trajectory.pbc)
        if wrap and molecules is not None:
            positions = molecules.wrap(positions, frame.cell, trajectory.pbc)
        elif wrap:
            positions = wrap_positions(positions, frame.cell, trajectory.pbc)
        frame = dataclasses.replace(frame, positions=positions)
        return frame if atoms is None else _part(frame, atoms)

    ends: list[Frame] = []
    with replacing(target, new=not overwrite) as (temporary, finish):
        with _names_target(temporary, target), disk_failures(target, "write"):
            clock = _Clock.of(trajectory, frames)
            with (
                closing(_writer(temporary, system, clock, trajectory[frames[0]])) as writer,
                tqdm(frames, "trajectory", unit="frame", disable=None) as bar,
            ):
                for index in bar:
                    frame = changed(trajectory[index])
                    if index == frames[0]:
                        ends.append(frame)
                        system = system.replace(positions=frame.positions, cell=frame.cell)
                    writer.append(frame)
                ends.append(frame)
            if wrap and format_of(target) is FORMATS["h5md"]:
                with hdf5.open_to_write(temporary, new=False) as (file, _):
                    file["particles/all/position"].attrs["wrapping"] = "wrapped into the cell"
        # First, as a full disk would leave a trajectory without names.
        topology = topology_beside(target)
        if topology is not None:
            write_atomically(topology, lambda path: write_pdb(path, system), new=not overwrite)
        finish()
    return ends[0], ends[-1], len(frames)


def _molecules(system: System) -> Molecules:
    """The molecules of a system; the log says by which bonds."""
    molecules = Molecules.of(system)
    origin, count = molecules.bonds.origin, len(molecules.finite)
    _logger.info("Bonds are %s: %d molecules.", origin, count)
    endless = int((~molecules.finite)[molecules.labels].sum())
    if endless:
        _logger.warning(
            "%d atoms are in networks of bonds through the cell, which have no whole form; they "
            "stay as they are",
            endless,
        )
    return molecules


def _part(frame: Frame, atoms: Sequence[int]) -> Frame:
    """A frame with some of the atoms, without what belongs to all of them."""
    nothing = float("nan")
    return dataclasses.replace(
        frame.select(atoms),
        energy=nothing,
        kinetic_energy=nothing,
        temperature=nothing,
        stress=None,
    )


@contextmanager
def _names_target(temporary: Path, target: Path) -> Iterator[None]:
    """Names the target in errors about the temporary file."""
    try:
        yield
    except (FileError, InputError) as error:
        raise type(error)(str(error).replace(str(temporary), str(target))) from error
