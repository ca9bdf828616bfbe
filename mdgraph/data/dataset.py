"""HDF5 data sets: labelled frames as ragged columns, and their summary; layout in `docs/data.md`.

Files are written completely or not at all: an append writes a copy, which then replaces the file.
"""

import hashlib
import itertools
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import h5py
import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter
from tqdm import tqdm

from mdgraph.arguments import check_fields, checked, shown
from mdgraph.errors import FileError, InputError
from mdgraph.io.files import readable_file, refuse_existing, write_atomically
from mdgraph.io.hdf5 import members, open_to_read, open_to_write, read_failures
from mdgraph.system import FARTHEST, System
from mdgraph.units import SYMBOLS

Array = NDArray[np.float64]
Item = TypeVar("Item")

_LARGEST_ENERGY: Final = 2e6
"""eV per atom; the heaviest atom has 1.4e6 with all its electrons."""


@dataclass(frozen=True)
class Provenance:
    """The source of imported frames.

    Attributes:
        file: name of the file.
        sha256: SHA-256 of the file.
        importer: name of the importer that read it.
        keys: name of each label in the file.
        units: units in the file; the data set stores eV and A.
        level_of_theory: level of theory of the labels, as stated at the import.
        licence: licence of the data.
    """

    file: str
    sha256: str = ""
    importer: str = ""
    keys: dict[str, str] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    level_of_theory: str = ""
    licence: str = ""

    def __post_init__(self) -> None:
        """Raises InputError if a field has the wrong type."""
        check_fields(self)

    def description(self) -> dict[str, Any]:
        """All fields, as values for JSON."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class LabelledFrame:
    """N atoms and their labels; unknown labels are NaN or None.

    Attributes:
        numbers: (N,) atomic numbers.
        positions: (N, 3) A.
        cell: (3, 3) A, one lattice vector per row.
        pbc: (3,) bool.
        energy: eV.
        forces: (N, 3) eV/A.
        stress: (3, 3) eV/A^3, tension positive.
        dipole: (3,) e A.
        charge: e, total charge.
        weight: weight of the frame in the loss.
        force_weights: (N,) factors of `weight` for the forces on each atom; None means 1.
        group: name of the molecule or type of configuration, for splits and tables.
    """

    numbers: NDArray[np.int64]
    positions: Array
    cell: Array = field(default_factory=lambda: np.zeros((3, 3)))
    pbc: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(3, dtype=bool))
    energy: float = np.nan
    forces: Array | None = None
    stress: Array | None = None
    dipole: Array | None = None
    charge: float = 0.0
    weight: float = 1.0
    force_weights: Array | None = None
    group: str = ""

    def __len__(self) -> int:
        return len(self.numbers)

    def system(self) -> System:
        """The structure with its charge; raises InputError for one that cannot be."""
        return System(self.numbers, self.positions, self.cell, self.pbc, charge=self.charge)

    def check(self, where: str) -> None:
        """Raises InputError for invalid shapes and numbers; the message begins with `where`."""
        for name, dtype_kinds, is_required in (
            ("numbers", "iu", True),
            ("positions", "fiu", True),
            ("cell", "fiu", True),
            ("pbc", "b", True),
            *((name, "fiu", False) for name in ("forces", "stress", "dipole", "force_weights")),
        ):
            value = getattr(self, name)
            if value is None and not is_required:
                continue
            if not isinstance(value, np.ndarray) or value.dtype.kind not in dtype_kinds:
                raise InputError(
                    f"{where} has {name} {shown(value)}; give an array of "
                    f"{'truth values' if dtype_kinds == 'b' else 'numbers'}."
                )
        for name in ("energy", "charge", "weight"):
            value = getattr(self, name)
            if not isinstance(value, Real) or np.asarray(value).dtype.kind not in "fiu":
                raise InputError(f"{where} has the {name} {shown(value)}; give a number.")
        if not isinstance(self.group, str):
            raise InputError(f"{where} has the group {shown(self.group)}; give a text.")
        atoms = len(self.numbers)
        if atoms == 0:
            raise InputError(f"{where} has no atoms; remove it.")
        wrong = [int(n) for n in self.numbers.reshape(-1) if not 0 < n < len(SYMBOLS)]
        if wrong:
            raise InputError(f"{where} has an atomic number {wrong[0]}; repair it.")
        for name, value, shape in (
            ("numbers", self.numbers, (atoms,)),
            ("pbc", self.pbc, (3,)),
            ("positions", self.positions, (atoms, 3)),
            ("forces", self.forces, (atoms, 3)),
            ("cell", self.cell, (3, 3)),
            ("stress", self.stress, (3, 3)),
            ("dipole", self.dipole, (3,)),
            ("force_weights", self.force_weights, (atoms,)),
        ):
            if value is not None and np.shape(value) != shape:
                raise InputError(
                    f"{where} has {name} of shape {np.shape(value)} for {atoms} atoms, not "
                    f"{shape}; name the right key or repair the file."
                )
        if not (np.isfinite(self.positions).all() and np.isfinite(self.cell).all()):
            raise InputError(f"{where} has a position or cell that is not finite; repair it.")
        farthest = max(np.abs(self.positions).max(), np.abs(self.cell).max())
        if farthest > FARTHEST:
            raise InputError(
                f"{where} has a position or cell vector of {farthest:.3g} A; repair it, or give "
                "the right --length-unit."
            )
        if not abs(self.charge) <= self.numbers.sum() or abs(self.charge % 1.0 - 0.5) < 0.499:
            raise InputError(
                f"{where} has a charge of {self.charge:g} e, which must be whole and no larger "
                "than that of its nuclei; give the right --charge-key, or none."
            )
        if np.isfinite(self.energy) and abs(self.energy) > _LARGEST_ENERGY * atoms:
            raise InputError(
                f"{where} has an energy of {self.energy:.3g} eV, beyond that of all electrons of "
                "its atoms; give the right --energy-key and --energy-unit."
            )
        weights = np.array([self.weight])
        if self.force_weights is not None:
            weights = np.append(weights, self.force_weights)
        if not (np.isfinite(weights).all() and weights.min() >= 0.0):
            raise InputError(f"{where} has a weight that is not a number from 0 on; repair it.")
        if self.pbc.any() and np.linalg.matrix_rank(self.cell[self.pbc]) < self.pbc.sum():
            raise InputError(f"{where} is periodic along a vector its cell lacks; repair it.")


FORMAT: Final = "mdgraph-dataset"
VERSION: Final = 1
"""Increases when the meaning of the layout changes."""

PART: Final = 512
"""Frames written, read or hashed at a time."""

_GAP: Final = 8
"""Unused frames between two frames that are read together, as they share chunks."""

ATOM_COLUMNS: Final[dict[str, tuple[str, tuple[int, ...]]]] = {
    "numbers": ("u1", ()),
    "positions": ("<f8", (3,)),
    "forces": ("<f8", (3,)),
    "force_weights": ("<f8", ()),
}
FRAME_COLUMNS: Final[dict[str, tuple[str, tuple[int, ...]]]] = {
    "atoms": ("<i4", ()),
    "cell": ("<f8", (3, 3)),
    "pbc": ("?", (3,)),
    "charge": ("<f8", ()),
    "energy": ("<f8", ()),
    "stress": ("<f8", (3, 3)),
    "dipole": ("<f8", (3,)),
    "weight": ("<f8", ()),
    "group": ("<i4", ()),
    "source": ("<i4", ()),
}


def _foreign(path: Path) -> FileError:
    return FileError(
        f"{path} is no data set of mdgraph; make one of it with 'mdgraph data convert'."
    )


def _damaged(path: Path, reason: str) -> FileError:
    return FileError(
        f"Cannot read {path}: {reason}; make it again with 'mdgraph data convert', or copy it "
        "again."
    )


_PROVENANCE: Final = TypeAdapter(Provenance)


class Dataset:
    """A data set of M frames in a file; columns of frames are in memory, columns of atoms are not.

    Attributes:
        path: the file.
        atoms: (M,) int64, number of atoms of each frame.
        start: (M + 1,) int64, first row of each frame in the columns of atoms.
        cell, pbc, charge, energy, stress, dipole, weight: (M, ...), see LabelledFrame.
        group: (M,) int64, index in `groups`.
        source: (M,) int64, index in `sources`.
        groups: names of the groups.
        sources: provenance of each imported file.
    """

    @checked
    def __init__(self, path: Path) -> None:
        self.path = path
        self._sha256 = ""
        readable_file(path, "a data set")
        if not h5py.is_hdf5(path):
            raise _foreign(path)
        self._file = open_to_read(path)
        try:
            with read_failures(path):
                columns = self._read()
        except BaseException:
            self._file.close()
            raise
        self.atoms = columns["atoms"].astype(np.int64)
        self.start = np.concatenate([[0], np.cumsum(self.atoms)])
        self.cell, self.pbc, self.charge = columns["cell"], columns["pbc"], columns["charge"]
        self.energy, self.stress, self.dipole = (
            columns["energy"],
            columns["stress"],
            columns["dipole"],
        )
        self.weight = columns["weight"]
        self.group, self.source = columns["group"].astype(int), columns["source"].astype(int)

    def _read(self) -> dict[str, NDArray[Any]]:
        """Reads columns of frames, groups and sources; raises FileError if they do not agree."""
        path, attributes = self.path, self._file.attrs
        if str(attributes.get("format")) != FORMAT:
            raise _foreign(path)
        version = int(attributes["version"])
        if version > VERSION:
            raise FileError(
                f"{path} was written by a newer mdgraph (layout {version}, this one reads "
                f"{VERSION}); upgrade mdgraph."
            )
        top = members(self._file, path)
        frames, atoms = (members(top[name], path) for name in ("frames", "atoms"))
        columns = {}
        for name, (dtype, shape) in FRAME_COLUMNS.items():
            column = frames[name]
            if column.shape[1:] != shape or column.dtype.kind != np.dtype(dtype).kind:
                raise _damaged(path, f"frames/{name} has another shape or type than is written")
            columns[name] = column[...]
        counts = columns["atoms"].astype(np.int64)
        if {len(column) for column in columns.values()} != {len(counts)} or not len(counts):
            raise _damaged(path, "its columns have different numbers of frames, or none")
        if counts.min() < 1 or counts.max() > len(atoms["numbers"]):
            raise _damaged(path, "frames/atoms is not a number of atoms")
        for name, (dtype, shape) in ATOM_COLUMNS.items():
            if name == "force_weights" and name not in atoms:
                continue  # older files have no weights
            column = atoms[name]
            fits = column.shape == (int(counts.sum()), *shape)
            if not fits or column.dtype.kind != np.dtype(dtype).kind:
                raise _damaged(path, f"atoms/{name} does not fit the frames")
        self.groups = [str(name) for name in top["groups"].asstr()[...]]
        texts = top["sources"].asstr()[...]
        self.sources = [_PROVENANCE.validate_json(text) for text in texts]
        for name, names in (("group", self.groups), ("source", self.sources)):
            if columns[name].min() < 0 or columns[name].max() >= len(names):
                raise _damaged(path, f"frames/{name} names one that is not there")
        values = np.concatenate([columns["cell"].reshape(-1), columns["charge"], columns["weight"]])
        if not np.isfinite(values).all():
            raise _damaged(path, "a cell, charge or weight is not finite")
        return columns

    def __len__(self) -> int:
        return len(self.atoms)

    def column(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Rows of a column of `ATOM_COLUMNS` for the frames from start to stop."""
        with read_failures(self.path):
            if name not in self._file["atoms"]:  # older files have no weights
                return np.ones(self.start[stop] - self.start[start])
            rows: NDArray[Any] = self._file["atoms"][name][self.start[start] : self.start[stop]]
        if name == "numbers":
            rows = rows.astype(np.int64)
            if len(rows) and not 0 < rows.min() <= rows.max() < len(SYMBOLS):
                raise _damaged(self.path, "atoms/numbers names no element")
        elif name == "positions" and not np.isfinite(rows).all():
            raise _damaged(self.path, "a position is not finite")
        return rows

    def numbers(self) -> NDArray[np.int64]:
        """Atomic numbers of all atoms of all frames."""
        return self.column("numbers", 0, len(self))

    def frame(self, index: int) -> LabelledFrame:
        """Reads one frame."""
        return next(self._frames(np.array([index])))

    def frames(
        self, chosen: Sequence[int] | NDArray[np.int64] | None = None
    ) -> Iterator[LabelledFrame]:
        """Reads all frames, or the chosen ones in the given order."""
        order = np.arange(len(self)) if chosen is None else np.asarray(chosen, dtype=np.int64)
        first = 0
        while first < len(order):
            indices = order[first : first + PART]
            steps = np.diff(indices)
            stops = np.flatnonzero((steps < 1) | (steps > _GAP))
            stretch = indices[: stops[0] + 1] if len(stops) else indices
            yield from self._frames(stretch)
            first += len(stretch)

    def _frames(self, indices: NDArray[np.int64]) -> Iterator[LabelledFrame]:
        """Reads frames with ascending indices in one piece."""
        start = int(indices[0])
        columns = [self.column(name, start, int(indices[-1]) + 1) for name in ATOM_COLUMNS]
        for index in indices:
            rows = slice(*(self.start[index : index + 2] - self.start[start]))
            numbers, positions, forces, weights = (column[rows] for column in columns)
            yield LabelledFrame(
                numbers,
                positions,
                self.cell[index],
                self.pbc[index],
                float(self.energy[index]),
                forces,
                self.stress[index],
                self.dipole[index],
                float(self.charge[index]),
                float(self.weight[index]),
                weights,
                self.groups[self.group[index]],
            )

    def sha256(self) -> str:
        """SHA-256 of numbers and labels, independent of the compression; reads the file once."""
        if self._sha256:
            return self._sha256
        digest = hashlib.sha256(f"{FORMAT} {VERSION}".encode())
        with read_failures(self.path):
            for part, columns in (("atoms", ATOM_COLUMNS), ("frames", FRAME_COLUMNS)):
                for name, (dtype, _) in columns.items():
                    if name not in self._file[part]:
                        continue
                    column = self._file[part][name]
                    for start in range(0, len(column), 1 << 16):
                        rows = column[start : start + (1 << 16)]
                        if name == "force_weights":
                            if (rows == 1.0).all():
                                continue  # weights of 1 do not change the hash
                            digest.update(f"{start}".encode())
                        digest.update(np.ascontiguousarray(rows, dtype).tobytes())
        digest.update("\n".join(self.groups).encode())
        self._sha256 = digest.hexdigest()
        return self._sha256

    def close(self) -> None:
        """Closes the file; closing twice is harmless."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@checked
def open_dataset(path: str | Path) -> Dataset:
    """Opens a data set to read.

    Raises:
        FileError: the file does not exist, is damaged, or is from a newer mdgraph.
    """
    return Dataset(Path(path))


def is_dataset(path: Path) -> bool:
    """Whether an HDF5 file is a data set; raises FileError if it cannot be read."""
    file = open_to_read(path)
    try:
        with read_failures(path):
            return str(file.attrs.get("format")) == FORMAT
    finally:
        file.close()


@checked
def write_dataset(
    path: str | Path,
    parts: Iterable[tuple[Iterable[LabelledFrame], Provenance]],
    *,
    append: bool = False,
    overwrite: bool = False,
) -> int:
    """Writes the frames of one or several sources; returns the number of frames.

    Args:
        path: a new file, or with `append` an existing data set.
        parts: the frames and the provenance of each source; every frame is checked.
        append: whether to add the frames to an existing data set.
        overwrite: whether to replace an existing file.

    Raises:
        InputError: a frame is invalid, or a source has no frames.
        FileError: the file exists, or with `append` is no data set; or the disk refused.
    """
    path = Path(path)
    if append:
        open_dataset(path).close()
    else:
        refuse_existing(path, overwrite=overwrite)
    count = 0

    def write(temporary: Path) -> None:
        nonlocal count
        if append:
            shutil.copyfile(path, temporary)
        with open_to_write(temporary, new=not append) as (file, check):
            if not append:
                _lay_out(file)
            elif "force_weights" not in file["atoms"]:
                _make_column(file, "atoms", "force_weights", len(file["atoms"]["numbers"]))
            count = sum(_append(file, *_frames_and_provenance(part), check) for part in parts)

    write_atomically(path, write, new=not (append or overwrite))
    return count


def _frames_and_provenance(part: Any) -> tuple[Iterable[LabelledFrame], Provenance]:
    """Frames and provenance of a part; raises InputError if it is not such a pair."""
    is_pair = isinstance(part, tuple | list) and len(part) == 2
    if not is_pair or not isinstance(part[0], Iterable) or not isinstance(part[1], Provenance):
        raise InputError(
            f"A part of a data set is {shown(part)}; give its LabelledFrames and its Provenance."
        )
    return part[0], part[1]


def _lay_out(file: h5py.File) -> None:
    file.attrs.update(
        {"format": FORMAT, "version": VERSION, "energy_unit": "eV", "length_unit": "A"}
    )
    for part, columns in (("atoms", ATOM_COLUMNS), ("frames", FRAME_COLUMNS)):
        for name in columns:
            _make_column(file, part, name)
    for name in ("groups", "sources"):
        file.create_dataset(name, (0,), h5py.string_dtype(), maxshape=(None,), chunks=(256,))


def _make_column(file: h5py.File, part: str, name: str, length: int = 0) -> None:
    dtype, shape = (ATOM_COLUMNS if part == "atoms" else FRAME_COLUMNS)[name]
    file.create_dataset(
        f"{part}/{name}",
        (length, *shape),
        dtype,
        maxshape=(None, *shape),
        chunks=(4096 if part == "atoms" else 256, *shape),
        compression="gzip",
        shuffle=True,
        fillvalue=1 if name == "force_weights" else 0,
    )


def _append(
    file: h5py.File,
    frames: Iterable[LabelledFrame],
    provenance: Provenance,
    check: Callable[[], None],
) -> int:
    groups = [str(name) for name in file["groups"].asstr()[...]]
    group_numbers = {name: number for number, name in enumerate(groups)}
    source, count = len(file["sources"]), 0
    bar = tqdm(frames, f"writing {provenance.file}", unit="frame", leave=False, disable=None)
    iterator = iter(bar)
    while part := list(itertools.islice(iterator, PART)):
        for number, frame in enumerate(part, count):
            frame.check(f"Frame {number} of {provenance.file}")
            group_numbers.setdefault(frame.group, len(group_numbers))
        _extend(file["atoms"]["numbers"], np.concatenate([frame.numbers for frame in part]))
        _extend(file["atoms"]["positions"], np.concatenate([frame.positions for frame in part]))
        forces = [_or_nan(frame.forces, (len(frame), 3)) for frame in part]
        _extend(file["atoms"]["forces"], np.concatenate(forces))
        weights = [
            np.ones(len(frame)) if frame.force_weights is None else frame.force_weights
            for frame in part
        ]
        _extend(file["atoms"]["force_weights"], np.concatenate(weights))
        columns: dict[str, list[Any]] = {
            "atoms": [len(frame) for frame in part],
            "stress": [_or_nan(frame.stress, (3, 3)) for frame in part],
            "dipole": [_or_nan(frame.dipole, (3,)) for frame in part],
            "group": [group_numbers[frame.group] for frame in part],
            "source": [source] * len(part),
        }
        for name in ("cell", "pbc", "charge", "energy", "weight"):
            columns[name] = [getattr(frame, name) for frame in part]
        for name, values in columns.items():
            _extend(file["frames"][name], np.array(values))
        count += len(part)
        check()
    if not count:
        raise InputError(f"{provenance.file} gives no frame; check the file and its keys.")
    _extend(file["groups"], np.array(list(group_numbers)[len(groups) :], dtype=object))
    text = json.dumps(provenance.description())
    _extend(file["sources"], np.array([text], dtype=object))
    return count


def _or_nan(value: NDArray[Any] | None, shape: tuple[int, ...]) -> NDArray[np.float64]:
    return np.full(shape, np.nan) if value is None else value


def _extend(dataset: h5py.Dataset, rows: NDArray[Any]) -> None:
    if len(rows):
        before = len(dataset)
        dataset.resize(before + len(rows), axis=0)
        dataset[before:] = rows


def evenly_spaced(items: Sequence[Item], most: int) -> list[Item]:
    """Up to so many items, evenly spaced."""
    places = np.linspace(0, len(items) - 1, min(most, len(items))).round().astype(int)
    return [items[place] for place in places]


def compositions(dataset: Dataset) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Elements (E,), ascending, and the number of atoms of each element in each frame, (M, E)."""
    elements, columns = np.unique(dataset.numbers(), return_inverse=True)
    counts = np.zeros((len(dataset), len(elements)), dtype=np.int64)
    frames = np.repeat(np.arange(len(dataset)), dataset.atoms)
    np.add.at(counts, (frames, columns), 1)
    return elements, counts


def fit_references(
    counts: NDArray[np.int64], energies: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Fits reference energies (E,) of the elements; returns them and their sums per frame (M,).

    The fit is least squares of the energy per atom, with equal weights of all frames. If the
    compositions do not determine the references, it takes the solution with the smallest norm.
    """
    atoms = counts.sum(1, keepdims=True)
    references: NDArray[np.float64] = np.linalg.lstsq(counts / atoms, energies / atoms[:, 0])[0]
    return references, counts @ references


def rank(counts: NDArray[np.int64]) -> int:
    """The number of independent reference energies that the compositions determine."""
    return int(np.linalg.matrix_rank(np.unique(counts, axis=0)))


@dataclass(frozen=True, eq=False)
class DatasetSummary:
    """Numbers and distributions of a data set.

    Attributes:
        frames: number of frames.
        atoms: smallest, median and largest number of atoms of a frame.
        elements: number of atoms of each element.
        groups: number of frames of each group.
        periodic: number of frames with at least one periodic direction.
        labelled: number of frames with an energy, finite forces, a stress, a dipole.
        energies: (M,) eV per atom.
        forces: norms of the forces on all atoms, eV/A.
    """

    frames: int
    atoms: tuple[int, int, int]
    elements: dict[str, int]
    groups: dict[str, int]
    periodic: int
    labelled: dict[str, int]
    energies: NDArray[np.float64]
    forces: NDArray[np.float64]

    def lines(self) -> list[str]:
        """Lines of text for printing."""
        low, middle, high = self.atoms
        size = f"{low}" if low == high else f"{low} to {high}, median {middle}"
        labelled = ", ".join(f"{count} with {name}" for name, count in self.labelled.items())
        lines = [
            f"frames:    {self.frames} ({labelled}; {self.periodic} periodic)",
            f"atoms:     {size} a frame",
            "elements:  " + ", ".join(f"{name} {n}" for name, n in self.elements.items()),
            "groups:    " + _first_groups(self.groups),
        ]
        energies = self.energies[np.isfinite(self.energies)]
        if len(energies):
            lines.append(
                f"energy:    {energies.mean():.6g} eV an atom, spread {1e3 * energies.std():.4g} "
                "meV an atom"
            )
        if len(self.forces):
            rms = float(np.sqrt((self.forces**2).mean() / 3.0))
            lines.append(
                f"forces:    {rms:.4g} eV/A root mean square a component, largest "
                f"{self.forces.max():.4g} eV/A"
            )
        return lines


def _first_groups(groups: dict[str, int]) -> str:
    texts = [f"{name or 'unnamed'} {count}" for name, count in list(groups.items())[:8]]
    return ", ".join(texts) + (f" and {len(groups) - 8} more" if len(groups) > 8 else "")


def summarize(dataset: Dataset) -> DatasetSummary:
    """Counts frames, elements, groups and labels of a data set; reads all frames once."""
    elements, counts = compositions(dataset)
    sizes, with_forces = [np.zeros(0)], 0
    for start in range(0, len(dataset), 1000):
        stop = min(start + 1000, len(dataset))
        forces = np.linalg.norm(dataset.column("forces", start, stop), axis=1)
        sizes.append(forces[np.isfinite(forces)])
        owner = np.repeat(np.arange(stop - start), dataset.atoms[start:stop])
        with_forces += stop - start - len(np.unique(owner[~np.isfinite(forces)]))
    names = Counter(dataset.groups[group] for group in dataset.group)
    sorted_atoms = np.sort(dataset.atoms)
    return DatasetSummary(
        frames=len(dataset),
        atoms=(
            int(sorted_atoms[0]),
            int(sorted_atoms[len(sorted_atoms) // 2]),
            int(sorted_atoms[-1]),
        ),
        elements={
            SYMBOLS[number]: int(count)
            for number, count in zip(elements, counts.sum(0), strict=True)
        },
        groups=dict(names.most_common()),
        periodic=int(dataset.pbc.any(1).sum()),
        labelled={
            "energy": int(np.isfinite(dataset.energy).sum()),
            "forces": with_forces,
            "stress": int(np.isfinite(dataset.stress).all((1, 2)).sum()),
            "dipole": int(np.isfinite(dataset.dipole).all(1).sum()),
        },
        energies=dataset.energy / dataset.atoms,
        forces=np.concatenate(sizes),
    )
