"""The HDF5 file of a data set: ragged frames as columns; `docs/data.md` describes the layout."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Self

import h5py
import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from mdgraph.arguments import checked
from mdgraph.data.frames import LabelledFrame, Provenance
from mdgraph.elements import SYMBOLS
from mdgraph.errors import FileError
from mdgraph.io.files import readable_file
from mdgraph.io.hdf5 import members, open_to_read, read_failures

FORMAT: Final = "mdgraph-dataset"
VERSION: Final = 1
"""Raised when the layout changes its meaning."""

PART: Final = 512
"""Frames written, read or hashed at a time."""

_GAP: Final = 8
"""Frames that are read over, because their chunks are read anyway."""

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
    """A data set on the disk, frame by frame; the numbers of frames as a whole in memory.

    Attributes:
        path: the file.
        atoms: (M,) int64, atoms of each frame.
        start: (M + 1,) int64, first row of each frame among all atoms.
        cell, pbc, charge, energy, stress, dipole, weight: (M, ...), see LabelledFrame.
        group: (M,) int64, place in `groups`.
        source: (M,) int64, place in `sources`.
        groups: names.
        sources: what each file was.
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
                found = self._read()
        except BaseException:
            self._file.close()
            raise
        self.atoms = found["atoms"].astype(np.int64)
        self.start = np.concatenate([[0], np.cumsum(self.atoms)])
        self.cell, self.pbc, self.charge = found["cell"], found["pbc"], found["charge"]
        self.energy, self.stress, self.dipole = found["energy"], found["stress"], found["dipole"]
        self.weight = found["weight"]
        self.group, self.source = found["group"].astype(int), found["source"].astype(int)

    def _read(self) -> dict[str, NDArray[Any]]:
        """The columns of the frames, and texts; raises FileError for what does not fit together."""
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
        found = {}
        for name, (kind, shape) in FRAME_COLUMNS.items():
            column = frames[name]
            if column.shape[1:] != shape or column.dtype.kind != np.dtype(kind).kind:
                raise _damaged(path, f"frames/{name} has another shape or type than is written")
            found[name] = column[...]
        counts = found["atoms"].astype(np.int64)
        if {len(column) for column in found.values()} != {len(counts)} or not len(counts):
            raise _damaged(path, "its columns have different numbers of frames, or none")
        if counts.min() < 1 or counts.max() > len(atoms["numbers"]):
            raise _damaged(path, "frames/atoms is no number of atoms")
        for name, (kind, shape) in ATOM_COLUMNS.items():
            if name == "force_weights" and name not in atoms:
                continue  # weights came later than the layout
            column = atoms[name]
            fits = column.shape == (int(counts.sum()), *shape)
            if not fits or column.dtype.kind != np.dtype(kind).kind:
                raise _damaged(path, f"atoms/{name} does not fit the frames")
        self.groups = [str(name) for name in top["groups"].asstr()[...]]
        texts = top["sources"].asstr()[...]
        self.sources = [_PROVENANCE.validate_json(text) for text in texts]
        for name, known in (("group", self.groups), ("source", self.sources)):
            if found[name].min() < 0 or found[name].max() >= len(known):
                raise _damaged(path, f"frames/{name} names one that is not there")
        cells = np.concatenate([found["cell"].reshape(-1), found["charge"], found["weight"]])
        if not np.isfinite(cells).all():
            raise _damaged(path, "a cell, charge or weight is not finite")
        return found

    def __len__(self) -> int:
        return len(self.atoms)

    def column(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Rows of one of `ATOM_COLUMNS` of the frames from start to stop."""
        with read_failures(self.path):
            if name not in self._file["atoms"]:  # weights came later than the layout
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
        """One frame."""
        return next(self._frames(np.array([index])))

    def frames(
        self, chosen: Sequence[int] | NDArray[np.int64] | None = None
    ) -> Iterator[LabelledFrame]:
        """All frames, or the chosen ones in their order."""
        order = np.arange(len(self)) if chosen is None else np.asarray(chosen, dtype=np.int64)
        first = 0
        while first < len(order):
            ahead = order[first : first + PART]
            steps = np.diff(ahead)
            ends = np.flatnonzero((steps < 1) | (steps > _GAP))
            stretch = ahead[: ends[0] + 1] if len(ends) else ahead
            yield from self._frames(stretch)
            first += len(stretch)

    def _frames(self, chosen: NDArray[np.int64]) -> Iterator[LabelledFrame]:
        """Ascending frames, which are read at once."""
        start = int(chosen[0])
        columns = [self.column(name, start, int(chosen[-1]) + 1) for name in ATOM_COLUMNS]
        for index in chosen:
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
        """Of the numbers and labels, whatever the compression; reads the whole file, once."""
        if self._sha256:
            return self._sha256
        found = hashlib.sha256(f"{FORMAT} {VERSION}".encode())
        with read_failures(self.path):
            for part, columns in (("atoms", ATOM_COLUMNS), ("frames", FRAME_COLUMNS)):
                for name, (kind, _) in columns.items():
                    if name not in self._file[part]:
                        continue
                    column = self._file[part][name]
                    for start in range(0, len(column), 1 << 16):
                        rows = column[start : start + (1 << 16)]
                        if name == "force_weights":
                            if (rows == 1.0).all():
                                continue  # weights that change nothing leave no trace
                            found.update(f"{start}".encode())
                        found.update(np.ascontiguousarray(rows, kind).tobytes())
        found.update("\n".join(self.groups).encode())
        self._sha256 = found.hexdigest()
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
        FileError: there is none, it is damaged, or a newer mdgraph wrote it.
    """
    return Dataset(Path(path))
