"""Trajectories in HDF5 with the H5MD layout (doi:10.1016/j.cpc.2014.01.018), version 1.1.

A file can be read while the run goes on and after the process was killed. The step number of
a frame is written after everything else of it has reached the operating system: the length
of `step` counts the frames that are whole.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np

from mdgraph.elements import SYMBOLS
from mdgraph.errors import FileError
from mdgraph.io import hdf5
from mdgraph.io.files import (
    disk_failures,
    refuse_existing,
    replacing,
    sync_file,
    write_atomically,
)
from mdgraph.io.frames import Frame, TrajectoryReader, TrajectoryWriter
from mdgraph.io.h5md_layout import CREATOR, STEP, TIME, frame_values, lay_out
from mdgraph.system import System


class H5MDWriter(TrajectoryWriter):
    """Appends frames to an H5MD file."""

    def __init__(self, path: Path, system: System) -> None:
        super().__init__(path, system, last_step=None)
        self._file = hdf5.open_to_append(path)
        self._step = self._file[STEP]
        self._time = self._file[TIME]
        self._values = frame_values(self._file)
        if len(self._step):
            self.last_step = int(self._step[-1])

    @classmethod
    def create(cls, path: Path, system: System) -> Self:
        """Creates a file without frames."""
        refuse_existing(path)
        write_atomically(path, lambda temporary: _begin(temporary, system))
        return cls(path, system)

    @classmethod
    @contextmanager
    def resuming(
        cls, path: Path, last_step: int, system: System
    ) -> Iterator[tuple[Callable[[], Self], TrajectoryReader]]:
        """See TrajectoryWriter. A file that its writer did not close is copied."""
        with H5MDReader(path) as reader:
            reader.check_holds(system)
            with replacing(path) as (temporary, finish):
                _begin(temporary, system)
                with (
                    hdf5.open_to_append(temporary, path) as file,
                    hdf5.write_failures(path, file),
                ):
                    reader.copy_frames(file, last_step)

                def whole() -> Path:
                    finish()
                    return path

                yield lambda: cls(whole(), system), reader

    def _write(self, frame: Frame) -> None:
        index = len(self._step)
        stress = np.full((3, 3), np.nan) if frame.stress is None else frame.stress
        with hdf5.write_failures(self.path, self._file):
            for name, dataset in self._values.items():
                hdf5.put_row(dataset, index, stress if name == "stress" else getattr(frame, name))
            hdf5.put_row(self._time, index, frame.time_fs)
            hdf5.put_row(self._step, index, frame.step)
            self._file.flush()

    def sync(self) -> None:
        """Waits until all frames would survive a loss of power."""
        with disk_failures(self.path, "write"):
            sync_file(self.path)

    def close(self) -> None:
        """Closes the file; closing twice is harmless."""
        if self._file:
            with hdf5.write_failures(self.path, self._file):
                self._file.flush()
        self._file.close()


class H5MDReader(TrajectoryReader):
    """Reads what `H5MDWriter` wrote, also while it writes and after it was killed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = hdf5.open_to_read(path)
        try:
            with hdf5.read_failures(path):
                self._find_frames()
        except FileError:
            self.close()
            raise

    def _find_frames(self) -> None:
        try:
            about = self._file["h5md/creator"].attrs
            creator = about["name"], about["version"]
            if creator != CREATOR:
                raise KeyError(f"written by {' '.join(map(str, creator))}")
            particles = self._file["particles/all"]
            for array in (particles["species"], particles["mass"]):
                hdf5.check_stored(array, self.path)
            self.numbers = particles["species"][:].astype(np.int64)
            self.masses = particles["mass"][:].astype(np.float64)
            self.pbc = np.asarray(particles["box"].attrs["boundary"]) == b"periodic"
            self._time = self._file[TIME]
            self._values = frame_values(self._file)
            for array in (self._time, self._file[STEP], *self._values.values()):
                hdf5.check_stored(array, self.path)
            steps = self._file[STEP][:].astype(np.int64)
            # A kill can leave a length without the number that belongs there.
            self.steps = steps[: np.argmax(steps < 0)] if (steps < 0).any() else steps
            self._check_arrays()
        except KeyError as error:
            raise FileError(
                f"{self.path} is no trajectory that this version of mdgraph reads "
                f"({error.args[0]}); convert it to extended XYZ and read it as a structure."
            ) from error

    def _check_arrays(self) -> None:
        """Raises KeyError for what is missing, or has another shape than its writer gives it."""
        atoms = len(self.numbers)
        vectors = dict.fromkeys(("positions", "velocities", "forces"), (atoms, 3))
        numbers = dict.fromkeys(("energy", "kinetic_energy", "temperature"), ())
        for name, shape in (vectors | numbers).items():
            if name not in self._values:
                raise KeyError(f"it has no {name.replace('_', ' ')}")
            if self._values[name].shape[1:] != shape:
                raise KeyError(f"its {name} do not fit its {atoms} atoms")
        arrays = (self._time, *self._values.values())
        plain = all(array.dtype.kind == "f" and len(array) >= len(self) for array in arrays)
        cells = (
            self._values[name].shape[1:] for name in ("cell", "stress") if name in self._values
        )
        if not plain or set(cells) - {(3, 3)}:
            raise KeyError("its arrays are of different lengths, or hold no real numbers")
        if self.masses.shape != self.numbers.shape or self.pbc.shape != (3,):
            raise KeyError("its masses or periodic directions do not fit its atoms")
        if not atoms or not 0 < self.numbers.min() <= self.numbers.max() < len(SYMBOLS):
            raise KeyError("its species are no elements")

    def _read(self, index: int) -> Frame:
        values: dict[str, Any] = {"cell": np.zeros((3, 3)), "stress": None}
        with hdf5.read_failures(self.path):
            for name, dataset in self._values.items():
                values[name] = dataset[index]
            time_fs = float(self._time[index])
        if values["stress"] is not None and np.isnan(values["stress"]).all():
            values["stress"] = None
        for name in ("energy", "kinetic_energy", "temperature"):
            values[name] = float(values[name])
        return Frame(step=int(self.steps[index]), time_fs=time_fs, **values)

    def copy_frames(self, file: h5py.File, last_step: int) -> None:
        """Copies the frames up to `last_step` into a file laid out without frames."""
        count = int(np.searchsorted(self.steps, last_step, side="right"))
        for dataset in (*self._values.values(), self._time, self._file[STEP]):
            copy = file[dataset.name]
            copy.resize(count, axis=0)
            rows = dataset.chunks[0]
            for start in range(0, count, rows):
                copy[start : min(start + rows, count)] = dataset[start : min(start + rows, count)]
            copy.flush()
        file.flush()

    def close(self) -> None:
        """Closes the file; closing twice is harmless."""
        self._file.close()


def _begin(path: Path, system: System) -> None:
    """Writes a file without frames."""
    path.write_bytes(hdf5.file_image(lambda file: lay_out(file, system)))
