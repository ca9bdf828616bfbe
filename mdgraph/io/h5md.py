"""Trajectories in HDF5 with the H5MD layout (doi:10.1016/j.cpc.2014.01.018), version 1.1.

The file is written in HDF5's single-writer multiple-reader mode and flushed a frame, so it
can be read while the run goes on and after the process was killed; in HDF5's ordinary mode
a killed writer leaves a file that never opens again. That mode allows no new objects, so
all are made beforehand. The step number of a frame is written after everything else of it
has reached the operating system: the length of `step` counts the frames that are whole.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

import h5py
import numpy as np

from mdgraph.errors import FileError
from mdgraph.io.files import disk_failure, refuse_existing, sync_file, write_atomically
from mdgraph.io.frames import Frame, TrajectoryReader, TrajectoryWriter
from mdgraph.system import System

_ELEMENTS: Final = {
    "positions": ("particles/all/position", "Angstrom"),
    "velocities": ("particles/all/velocity", "Angstrom fs-1"),
    "forces": ("particles/all/force", "eV Angstrom-1"),
    "cell": ("particles/all/box/edges", "Angstrom"),
    "energy": ("observables/potential_energy", "eV"),
    "kinetic_energy": ("observables/kinetic_energy", "eV"),
    "temperature": ("observables/temperature", "K"),
    "stress": ("observables/stress", "eV Angstrom-3"),
}
"""Field of a frame: its H5MD element and unit."""

_CREATOR: Final = ("mdgraph", "layout 1")
"""Changes with the layout, so that a reader knows which files it understands."""

_STEP: Final = "particles/all/position/step"
_TIME: Final = "particles/all/position/time"
_LIBRARY_VERSIONS: Final = ("v110", "v110")  # the oldest format with this mode, for old readers
_CHUNK_BYTES: Final = 1 << 14
_ERRORS: Final = (OSError, RuntimeError)
"""What h5py raises where the library fails."""


class H5MDWriter(TrajectoryWriter):
    """Appends frames to an H5MD file."""

    def __init__(self, path: Path, system: System) -> None:
        super().__init__(path, system, last_step=None)
        self._file = _open_to_append(path)
        self._step = self._file[_STEP]
        self._time = self._file[_TIME]
        self._values = {
            name: self._file[element]["value"]
            for name, (element, _) in _ELEMENTS.items()
            if element in self._file
        }
        if len(self._step):
            self.last_step = int(self._step[-1])

    @classmethod
    def create(cls, path: Path, system: System) -> Self:
        """Creates a file without frames."""
        refuse_existing(path)
        write_atomically(path, lambda temporary: _lay_out(temporary, system).close())
        return cls(path, system)

    @classmethod
    def resume(cls, path: Path, last_step: int, system: System) -> Self:
        """Opens a file after dropping what comes after `last_step`."""
        with H5MDReader(path) as reader:
            reader.check_holds(system)

            def copy(temporary: Path) -> None:
                with _lay_out(temporary, system) as file:
                    reader.copy_frames(file, last_step)

            write_atomically(path, copy)
        return cls(path, system)

    def _write(self, frame: Frame) -> None:
        index = len(self._step)
        stress = np.full((3, 3), np.nan) if frame.stress is None else frame.stress
        try:
            for name, dataset in self._values.items():
                _put(dataset, index, stress if name == "stress" else getattr(frame, name))
            _put(self._time, index, frame.time_fs)
            self._file.flush()
            _put(self._step, index, frame.step)
            self._file.flush()
        except _ERRORS as error:
            self._abandon()
            raise _failure(self.path, "write", error) from error

    def _abandon(self) -> None:
        """Lets go of a file that the disk refuses to take more of.

        HDF5 keeps what it could not write, fails again at every attempt to close and brings
        the process down at its end. Once its descriptor leads nowhere it closes in peace,
        and the file is as after a kill: whole up to the frame before.
        """
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, self._file.id.get_vfd_handle())
        os.close(nowhere)
        self.close()

    def sync(self) -> None:
        """Waits until all frames would survive a loss of power."""
        try:
            sync_file(self.path)
        except OSError as error:
            raise disk_failure(self.path, "write", error) from error

    def close(self) -> None:
        """Closes the file; closing twice is harmless."""
        try:
            self._file.close()
        except _ERRORS as error:
            raise _failure(self.path, "close", error) from error


class H5MDReader(TrajectoryReader):
    """Reads what `H5MDWriter` wrote, also while it writes and after it was killed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = _open_to_read(path)
        try:
            about = self._file["h5md/creator"].attrs
            creator = about["name"], about["version"]
            particles = self._file["particles/all"]
            self.numbers = particles["species"][:].astype(np.int64)
            self.masses = particles["mass"][:]
            self.pbc = particles["box"].attrs["boundary"] == b"periodic"
            self._time = self._file[_TIME]
            self._values = {
                name: self._file[element]["value"]
                for name, (element, _) in _ELEMENTS.items()
                if element in self._file
            }
            steps = self._file[_STEP][:]
        except (KeyError, AttributeError) as error:
            self.close()
            raise FileError(
                f"{path} is no trajectory of mdgraph ({error}); give one, or convert it to "
                "extended XYZ and read it as a structure."
            ) from error
        except _ERRORS as error:
            self.close()
            raise _failure(path, "read", error) from error
        if creator != _CREATOR:
            self.close()
            raise FileError(
                f"{path} was written by {' '.join(map(str, creator))}, which this version does "
                "not read; convert it to extended XYZ and read it as a structure."
            )
        # A kill can leave a length without the number that belongs there.
        self.steps = steps[: np.argmax(steps < 0)] if (steps < 0).any() else steps

    def _read(self, index: int) -> Frame:
        try:
            values: dict[str, Any] = {
                name: dataset[index] for name, dataset in self._values.items()
            }
            time_fs = float(self._time[index])
        except _ERRORS as error:
            raise _failure(self.path, "read", error) from error
        values.setdefault("cell", np.zeros((3, 3)))
        if np.isnan(values.get("stress", np.nan)).all():
            values["stress"] = None
        for name in ("energy", "kinetic_energy", "temperature"):
            values[name] = float(values[name])
        return Frame(step=int(self.steps[index]), time_fs=time_fs, **values)

    def copy_frames(self, file: h5py.File, last_step: int) -> None:
        """Copies the frames up to `last_step` into a file laid out without frames."""
        count = int(np.searchsorted(self.steps, last_step, side="right"))
        for dataset in (*self._values.values(), self._time, self._file[_STEP]):
            copy = file[dataset.name]
            copy.resize(count, axis=0)
            for rows in _blocks(count, dataset.chunks[0]):
                copy[rows] = dataset[rows]

    def close(self) -> None:
        """Closes the file; closing twice is harmless."""
        self._file.close()


def _lay_out(path: Path, system: System) -> h5py.File:
    """Creates a file with everything but frames, open in HDF5's ordinary mode."""
    file = h5py.File(path, "w", libver=_LIBRARY_VERSIONS)
    about = file.create_group("h5md")
    about.attrs["version"] = np.array([1, 1], dtype=np.int32)
    about.create_group("author").attrs["name"] = "unknown"
    creator = about.create_group("creator")
    creator.attrs["name"], creator.attrs["version"] = _CREATOR
    about.create_group("modules/units").attrs["version"] = np.array([1, 0], dtype=np.int32)

    particles = file.create_group("particles/all")
    particles["species"] = system.numbers.astype(np.int32)
    particles["mass"] = system.masses
    particles["mass"].attrs["unit"] = "u"
    box = particles.create_group("box")
    box.attrs["dimension"] = 3
    box.attrs["boundary"] = np.where(system.pbc, b"periodic", b"none")

    fields = dict(_ELEMENTS)
    if not system.cell.any():
        del fields["cell"]
    if system.volume == 0:
        del fields["stress"]
    matrices = {"cell": (3, 3), "stress": (3, 3)}
    vectors = dict.fromkeys(("positions", "velocities", "forces"), (len(system), 3))
    shapes = matrices | vectors
    for name, (element, unit) in fields.items():
        group = file.create_group(element)
        _create(group, "value", shapes.get(name, ()), np.float64, unit)
        if name == "positions":
            _create(group, "step", (), np.int64)
            _create(group, "time", (), np.float64, "fs")
        else:
            group["step"] = file[_STEP]
            group["time"] = file[_TIME]
    particles["position"].attrs["wrapping"] = (
        "unwrapped: atoms are not put back into the cell, so there is no image group"
    )
    return file


def _create(
    group: h5py.Group, name: str, shape: tuple[int, ...], dtype: type, unit: str | None = None
) -> None:
    row_bytes = 8 * int(np.prod(shape))
    dataset = group.create_dataset(
        name,
        shape=(0, *shape),
        maxshape=(None, *shape),
        chunks=(max(1, _CHUNK_BYTES // row_bytes), *shape),
        dtype=dtype,
        fillvalue=-1 if dtype is np.int64 else np.nan,
    )
    if unit is not None:
        dataset.attrs["unit"] = unit


def _put(dataset: h5py.Dataset, index: int, value: Any) -> None:
    dataset.resize(index + 1, axis=0)
    dataset[index] = value


def _blocks(count: int, rows: int) -> Iterator[slice]:
    return (slice(start, min(start + rows, count)) for start in range(0, count, rows))


def _open_to_append(path: Path) -> h5py.File:
    """Opens for writing with readers in one call: no moment in which a kill spoils the file."""
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_V110, h5py.h5f.LIBVER_V110)
    flags = h5py.h5f.ACC_RDWR | h5py.h5f.ACC_SWMR_WRITE
    try:
        return h5py.File(h5py.h5f.open(os.fsencode(path), flags, access))
    except _ERRORS as error:
        raise _failure(path, "write", error) from error


def _open_to_read(path: Path) -> h5py.File:
    try:
        return h5py.File(path, "r", swmr=True, libver=_LIBRARY_VERSIONS)
    except _ERRORS as error:
        raise _failure(path, "read", error) from error


def _failure(path: Path, verb: str, error: Exception) -> FileError:
    """The sentence for an error of the HDF5 library, which tells `errno` in its text alone."""
    if isinstance(error, OSError) and error.errno is not None:
        return disk_failure(path, verb, error)
    if number := re.search(r"errno = (\d+)", str(error)):
        return disk_failure(path, verb, OSError(int(number[1]), os.strerror(int(number[1]))))
    return FileError(f"Cannot {verb} {path}: it is damaged or no HDF5 file; put back the original.")
