"""H5MD 1.1 trajectories (DOI 10.1016/j.cpc.2014.01.018): layout, writer and reader.

A file can be read while the run writes it and after the run was killed. The step number of a
frame is written last, after all other data of the frame reached the operating system, so the
length of `step` is the number of complete frames.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Self

import h5py
import numpy as np

from mdgraph.errors import FileError, printable
from mdgraph.io import hdf5
from mdgraph.io.files import disk_failures, refuse_existing, replacing, sync_file, write_atomically
from mdgraph.io.trajectories import (
    VECTORS,
    WHOLE,
    Frame,
    FrameContents,
    TrajectoryReader,
    TrajectoryWriter,
)
from mdgraph.system import System
from mdgraph.units import KILOJOULE_PER_MOLE

_ELEMENTS: Final = {
    "positions": ("particles/all/position", "Angstrom"),
    "velocities": ("particles/all/velocity", "Angstrom fs-1"),
    "forces": ("particles/all/force", "kJ mol-1 Angstrom-1"),
    "cell": ("particles/all/box/edges", "Angstrom"),
    "energy": ("observables/potential_energy", "eV"),
    "kinetic_energy": ("observables/kinetic_energy", "eV"),
    "temperature": ("observables/temperature", "K"),
    "stress": ("observables/stress", "eV Angstrom-3"),
}
"""H5MD element and unit of each field of a frame.

MDAnalysis knows no unit of forces with eV, and refuses a file with a unit that it does not know.
"""

_FORCE_UNITS: Final = {"kJ mol-1 Angstrom-1": KILOJOULE_PER_MOLE, "eV Angstrom-1": 1.0}
"""Units of forces in files, eV/A: of layout 2, and of layout 1."""

CREATOR: Final = "mdgraph"
LAYOUT: Final = "layout 2"
"""Written with the name of the creator, by which a reader recognizes files that it can read."""

_LAYOUTS: Final = ("layout 1", LAYOUT)
"""What is read; layout 1, of release 0.1.0, has forces in eV/A."""

STEP: Final = "particles/all/position/step"
TIME: Final = "particles/all/position/time"
_CHUNK_BYTES: Final = 1 << 14


def frame_values(file: h5py.File) -> dict[str, h5py.Dataset]:
    """The dataset of each field that the file holds."""
    return {
        name: file[element]["value"] for name, (element, _) in _ELEMENTS.items() if element in file
    }


def value_shapes(atoms: int) -> dict[str, tuple[int, ...]]:
    """The shape of each field in one frame."""
    matrices = dict.fromkeys(("cell", "stress"), (3, 3))
    vectors = dict.fromkeys(VECTORS, (atoms, 3))
    return {**dict.fromkeys(_ELEMENTS, ()), **matrices, **vectors}


def lay_out(file: h5py.File, system: System, contents: FrameContents = WHOLE) -> None:
    """Writes everything but frames to an empty file."""
    metadata = file.create_group("h5md")
    metadata.attrs["version"] = np.array([1, 1], dtype=np.int32)
    metadata.create_group("author").attrs["name"] = "unknown"
    creator = metadata.create_group("creator")
    creator.attrs["name"], creator.attrs["version"] = CREATOR, LAYOUT
    metadata.create_group("modules/units").attrs["version"] = np.array([1, 0], dtype=np.int32)

    particles = file.create_group("particles/all")
    particles["species"] = system.numbers.astype(np.int32)
    particles["mass"] = system.masses
    particles["mass"].attrs["unit"] = "u"
    box = particles.create_group("box")
    box.attrs["dimension"] = 3
    box.attrs["boundary"] = np.where(system.pbc, b"periodic", b"none")

    left_out = set(VECTORS) - set(contents.fields)
    fields = {name: element for name, element in _ELEMENTS.items() if name not in left_out}
    if not system.cell.any():
        del fields["cell"]
    if system.volume == 0:
        del fields["stress"]
    shapes = value_shapes(len(system))
    for name, (element, unit) in fields.items():
        group = file.create_group(element)
        dtype = np.float32 if contents.single and name in VECTORS else np.float64
        _create(group, "value", shapes[name], dtype, unit)
        if name == "positions":
            _create(group, "step", (), np.int64)
            _create(group, "time", (), np.float64, "fs")
        else:
            group["step"] = file[STEP]
            group["time"] = file[TIME]
    particles["position"].attrs["wrapping"] = (
        "unwrapped: atoms are not put back into the cell, so there is no image group"
    )


def _create(
    group: h5py.Group, name: str, shape: tuple[int, ...], dtype: type, unit: str | None = None
) -> None:
    row_bytes = np.dtype(dtype).itemsize * int(np.prod(shape))
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


class H5MDWriter(TrajectoryWriter):
    """Appends frames to an H5MD file."""

    def __init__(
        self,
        path: Path,
        system: System,
        *,
        keeps_open: bool = True,
        contents: FrameContents = WHOLE,
    ) -> None:
        """Opens an existing file.

        Args:
            path: the file.
            system: the system that the file was created with.
            keeps_open: whether the file stays open between frames. The time of each write grows
                with the number of open files, so with many files pass False.
            contents: with which the file was created.
        """
        super().__init__(path, system, None, contents)
        self._keeps_open = keeps_open
        self._open()
        if len(self._step):
            self.last_step = int(self._step[-1])
        if not keeps_open:
            self.close()

    def _open(self) -> None:
        self._file = hdf5.open_to_append(self.path)
        self._step = self._file[STEP]
        self._time = self._file[TIME]
        self._values = frame_values(self._file)

    @classmethod
    def create(cls, path: Path, system: System, contents: FrameContents = WHOLE) -> Self:
        """Creates a file without frames, which will hold some vectors of each atom."""
        refuse_existing(path)
        write_atomically(path, _image(system, contents))
        return cls(path, system, contents=contents)

    @classmethod
    @contextmanager
    def resuming(
        cls,
        path: Path,
        last_step: int,
        system: System,
        *,
        keeps_open: bool = True,
        contents: FrameContents = WHOLE,
    ) -> Iterator[tuple[Callable[[], Self], TrajectoryReader]]:
        """See TrajectoryWriter. The frames are copied to a new file, which replaces the old one."""
        with H5MDReader(path) as reader:
            reader.check_holds(system)
            reader.check_complete(contents)
            with replacing(path) as (temporary, finish):
                temporary.write_bytes(_image(system, contents))
                with (
                    hdf5.open_to_append(temporary, path) as file,
                    hdf5.write_failures(path, file),
                ):
                    reader.copy_frames(file, last_step)

                def finish_path() -> Path:
                    finish()
                    return path

                options: dict[str, Any] = {"keeps_open": keeps_open, "contents": contents}
                yield lambda: cls(finish_path(), system, **options), reader

    def _write(self, frame: Frame) -> None:
        if not self._keeps_open:
            self._open()
        index = len(self._step)
        stress = np.full((3, 3), np.nan) if frame.stress is None else frame.stress
        values = {"stress": stress, "forces": frame.forces / KILOJOULE_PER_MOLE}
        with hdf5.write_failures(self.path, self._file):
            for name, dataset in self._values.items():
                hdf5.put_row(dataset, index, values.get(name, getattr(frame, name)))
            hdf5.put_row(self._time, index, frame.time_fs)
            hdf5.put_row(self._step, index, frame.step)
            self._file.flush()
        if not self._keeps_open:
            self.close()

    def sync(self) -> None:
        """Waits until all frames would survive a loss of power."""
        with disk_failures(self.path, "write"):
            sync_file(self.path)

    def close(self) -> None:
        """Closes the file; closing twice is harmless."""
        if self._file:
            with hdf5.write_failures(self.path, self._file):
                self._file.flush()
        self._step = self._time = None
        self._values = {}
        hdf5.close(self._file)


class H5MDReader(TrajectoryReader):
    """Reads files of `H5MDWriter`, also while it writes and after it was killed.

    Positions, velocities, cells and energies have the bits that were written; forces, which are
    in another unit in the file, differ from those by 2e-16 relative at most. Vectors that the
    file holds in float32 are returned in float64.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._values: dict[str, h5py.Dataset] = {}
        self._force_unit = KILOJOULE_PER_MOLE
        self._file = hdf5.open_to_read(path)
        try:
            with hdf5.read_failures(path):
                self._find_frames()
        except FileError:
            self.close()
            raise

    def _find_frames(self) -> None:
        try:
            attributes = self._file["h5md/creator"].attrs
            creator = attributes["name"], attributes["version"]
            if creator not in [(CREATOR, layout) for layout in _LAYOUTS]:
                raise KeyError(f"it was written by {' '.join(map(str, creator))}")
            size = self.path.stat().st_size
            species = self._dataset("particles/all/species", 1, size)
            self.numbers = species[:].astype(np.int64)
            atoms = len(self.numbers)
            self.masses = self._dataset("particles/all/mass", 1, size)[:].astype(np.float64)
            self.pbc = self._file["particles/all/box"].attrs["boundary"] == b"periodic"
            steps = self._dataset(STEP, 1, size)[:]
            self._time = self._dataset(TIME, 1, size)
            for name, row in value_shapes(atoms).items():
                values = f"{_ELEMENTS[name][0]}/value"
                if values in self._file:
                    self._values[name] = self._dataset(values, 1 + len(row), size, row)
            if "positions" not in self._values:
                raise KeyError("it holds no positions")
            for name, dataset in self._values.items():
                known = _FORCE_UNITS if name == "forces" else {_ELEMENTS[name][1]: 1.0}
                unit = dataset.attrs.get("unit", "" if name == "forces" else _ELEMENTS[name][1])
                if unit not in known:
                    raise KeyError(f"its {name} are in '{unit}'")
                if name == "forces":
                    self._force_unit = known[unit]
            if len(self.masses) != atoms or np.shape(self.pbc) != (3,):
                raise KeyError("masses or boundaries are not those of its atoms")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FileError(
                f"{self.path} is not a trajectory that this version of mdgraph reads "
                f"({printable(error.args[0] if error.args else error, 200)}); give another, or "
                "convert it to extended XYZ and read it as a structure."
            ) from error
        # A killed writer can leave a row without its step number; the fill value is -1.
        self.steps = steps[: np.argmax(steps < 0)] if (steps < 0).any() else steps
        if (np.diff(self.steps) <= 0).any():
            raise FileError(
                f"{self.path} is damaged: the steps of its frames do not increase; copy it once "
                "more."
            )
        shortest = min(map(len, (self._time, *self._values.values())), default=0)
        if shortest < len(self.steps):
            raise FileError(
                f"{self.path} declares {len(self.steps):,} frames and holds {shortest:,}; copy it "
                "once more."
            )

    def _dataset(
        self, name: str, axes: int, size: int, row: tuple[int, ...] | None = None
    ) -> h5py.Dataset:
        """A dataset of numbers in the file.

        Args:
            name: path of the dataset in the file.
            axes: expected number of axes.
            size: size of the file in bytes, an upper bound of the number of rows.
            row: expected shape of a row; None accepts any.

        Raises:
            KeyError: it is absent, has another shape or type, or its rows are not in the file.
        """
        dataset = self._file[name]
        if not isinstance(dataset, h5py.Dataset) or dataset.dtype.kind not in "iuf":
            raise KeyError(f"{name} is not a set of numbers")
        shape = dataset.shape
        if shape is None or len(shape) != axes or (row is not None and shape[1:] != row):
            raise KeyError(f"{name} has the shape {shape}")
        # Even compressed, a row takes a byte or more.
        if shape[0] > size or dataset.is_virtual or dataset.external:
            raise KeyError(f"{name} declares {shape[0]:,} rows, which are not in the file")
        return dataset

    def _read(self, index: int) -> Frame:
        atoms = len(self.numbers)
        values: dict[str, Any] = {
            "cell": np.zeros((3, 3)),
            "stress": None,
            "forces": np.full((atoms, 3), np.nan),
            "velocities": None,
            **dict.fromkeys(("energy", "kinetic_energy", "temperature"), np.nan),
        }
        with hdf5.read_failures(self.path):
            for name, dataset in self._values.items():
                values[name] = np.asarray(dataset[index], dtype=np.float64)
            values["forces"] = values["forces"] * self._force_unit
            time_fs = float(self._time[index])
        if values["stress"] is not None and np.isnan(values["stress"]).all():
            values["stress"] = None
        for name in ("energy", "kinetic_energy", "temperature"):
            values[name] = float(values[name])
        return Frame(step=int(self.steps[index]), time_fs=time_fs, **values)

    def check_complete(self, contents: FrameContents) -> None:
        """Raises FileError if a field is missing, as in files that another program reduced."""
        with hdf5.read_failures(self.path):
            missing = {*contents.fields, "energy"} - set(self._values)
        if missing:
            raise FileError(
                f"{self.path} lacks {', '.join(sorted(missing))}, so the run cannot continue with "
                "it; put back the file that the run wrote."
            )

    def copy_frames(self, file: h5py.File, last_step: int) -> None:
        """Copies the frames up to `last_step` into a file without frames."""
        count = int(np.searchsorted(self.steps, last_step, side="right"))
        for dataset in (*self._values.values(), self._time, self._file[STEP]):
            copy = file[dataset.name]
            copy.resize(count, axis=0)
            rows = dataset.chunks[0]
            converts = dataset is self._values.get("forces")
            for start in range(0, count, rows):
                values = dataset[start : min(start + rows, count)]
                if converts and self._force_unit != KILOJOULE_PER_MOLE:
                    values *= self._force_unit / KILOJOULE_PER_MOLE
                copy[start : start + len(values)] = values
            copy.flush()
        file.flush()

    def close(self) -> None:
        """Closes the file; closing twice is harmless."""
        self._time = None
        self._values = {}
        hdf5.close(self._file)


@lru_cache(maxsize=1)
def _image(system: System, contents: FrameContents) -> bytes:
    """The bytes of a file without frames, cached for replicas of one system."""
    return hdf5.file_image(lambda file: lay_out(file, system, contents))
