"""Trajectories in extended XYZ: text that ASE, OVITO and others read.

A frame is two lines and one line per atom. Numbers carry all digits of float64, or of float32 where
a run asks for it, so reading restores the same bits. The file stores momenta in ASE's units, so
`ase.io.read` returns atoms with the same velocities.
"""

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Self

import numpy as np
from ase import units as ase_units
from numpy.typing import NDArray

from mdgraph.errors import FileError
from mdgraph.io.files import AppendedFile, disk_failures, readable_file, refuse_existing
from mdgraph.io.trajectories import (
    VECTORS,
    WHOLE,
    Frame,
    FrameContents,
    TrajectoryReader,
    TrajectoryWriter,
)
from mdgraph.system import System
from mdgraph.units import NUMBERS


def _properties(fields: Sequence[str]) -> str:
    """The columns of a file whose frames hold these vectors, positions among them."""
    columns = "species:S:1:pos:R:3:masses:R:1"
    names = {"velocities": "momenta", "forces": "forces"}
    return columns + "".join(f":{name}:R:3" for field, name in names.items() if field in fields)


_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    _properties(fields): fields
    for fields in (VECTORS, VECTORS[:1], VECTORS[:2], (VECTORS[0], VECTORS[2]))
}
"""Vectors of an atom by the columns that a file may have."""

_HELD: Final = ":move_mask:L:1"
"""Columns of a file that holds fixed atoms: ASE's name of what says T where an atom moves."""

_LONGEST_LINE: Final = 2000
_NUMBER: Final = "%.17g"
_SINGLE: Final = "%.9g"
"""All digits of float64, and of float32."""

_HEADER_ENTRY: Final = re.compile(r'(\w+)=(?:"([^"]*)"|(\S+))')


class ExtendedXYZWriter(TrajectoryWriter):
    """Appends frames to an extended XYZ file, which names the fixed atoms of the system."""

    def __init__(
        self,
        file: AppendedFile,
        system: System,
        last_step: int | None,
        contents: FrameContents = WHOLE,
    ) -> None:
        super().__init__(file.path, system, last_step, contents)
        self._file = file
        self._masses = system.masses[:, None]
        self._pbc = " ".join("T" if periodic else "F" for periodic in system.pbc)
        triple = " ".join([_SINGLE if contents.single else _NUMBER] * 3)
        others = f" {triple}" * (len(contents.fields) - 1)
        self._columns = _properties(contents.fields)
        ends = [""] * len(system)
        if system.fixed is not None:
            self._columns += _HELD
            ends = [" F" if fixed else " T" for fixed in system.fixed]
        self._atom_lines = "".join(
            f"{symbol} {triple} {_NUMBER % mass}{others}{end}\n"
            for symbol, mass, end in zip(system.symbols, system.masses, ends, strict=True)
        )

    @classmethod
    def create(cls, path: Path, system: System, contents: FrameContents = WHOLE) -> Self:
        """Creates a file without frames, which will hold some vectors of each atom."""
        refuse_existing(path)
        return cls(AppendedFile(path, 0), _loose(system), None, contents)

    @classmethod
    @contextlib.contextmanager
    def resuming(
        cls,
        path: Path,
        last_step: int,
        system: System,
        *,
        keeps_open: bool = True,
        contents: FrameContents = WHOLE,
    ) -> Iterator[tuple[Callable[[], Self], TrajectoryReader]]:
        """See TrajectoryWriter."""
        with ExtendedXYZReader(path) as reader:
            if len(reader):
                reader.check_holds(system)
                reader.check_complete(contents)
            count = int(np.searchsorted(reader.steps, last_step, side="right"))
            frame_step = int(reader.steps[count - 1]) if count else None
            file = AppendedFile(path, reader.offsets[count], cut=False)
            try:
                yield lambda: cls(file.cut(), _loose(system), frame_step, contents), reader
            finally:
                if not file.is_cut:
                    file.close()

    def _write(self, frame: Frame) -> None:
        fields = self.contents.fields
        entries = [f"Properties={self._columns}", f'pbc="{self._pbc}"']
        if frame.cell.any():
            entries.insert(0, f'Lattice="{_numbers(frame.cell)}"')
        entries += [
            f"step={frame.step}",
            f"time_fs={float(frame.time_fs)}",
            f"energy={float(frame.energy)}",
            f"kinetic_energy={float(frame.kinetic_energy)}",
            f"temperature={float(frame.temperature)}",
        ]
        if frame.stress is not None:
            entries.append(f'stress="{_numbers(frame.stress)}"')
        vectors = [frame.positions]
        if "velocities" in fields:
            assert frame.velocities is not None  # as `append` checks
            vectors.append(self._masses * frame.velocities / ase_units.fs)
        if "forces" in fields:
            vectors.append(frame.forces)
        values = np.concatenate(vectors, axis=1)
        lines = self._atom_lines % tuple(values.ravel().tolist())
        self._file.append(f"{len(self._masses)}\n{' '.join(entries)}\n{lines}".encode())

    def sync(self) -> None:
        """Waits until all frames would survive a loss of power."""
        self._file.sync()

    def close(self) -> None:
        """Closes the file; closing twice is harmless."""
        self._file.close()


def _loose(system: System) -> System:
    # ASE takes the forces on fixed atoms from the frames of a trajectory that names them.
    return system.replace(fixed=None)


class ExtendedXYZReader(TrajectoryReader):
    """Reads files of `ExtendedXYZWriter`; ignores a half-written last frame.

    Attributes:
        offsets: byte offset of each frame, and of the end of the last frame.
        fields: vectors that the frames hold of each atom.
        fixed: (N,) bool, atoms that the file says are fixed; None for none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offsets = [0]
        self.fields: tuple[str, ...] = VECTORS
        self.steps = np.zeros(0, dtype=np.int64)
        self.numbers = np.zeros(0, dtype=np.int64)
        self.masses = np.zeros(0)
        self.pbc = np.zeros(3, dtype=bool)
        self.fixed: NDArray[np.bool_] | None = None
        self._has_fixed = False
        readable_file(path, "a trajectory")
        with disk_failures(path, "read"):
            self._file = path.open("rb")
        try:
            self._find_frames()
            if len(self):
                self._read_atoms()
        except FileError:
            self.close()
            raise

    def _find_frames(self) -> None:
        steps: list[int] = []
        while True:
            with self._frame_failures(len(steps)):
                frame = self._scan_frame()
            if frame is None:
                break
            self.fields = frame[2]
            steps.append(frame[0])
            self.offsets.append(self.offsets[-1] + frame[1])
        self.steps = np.array(steps, dtype=np.int64)

    def _scan_frame(self) -> tuple[int, int, tuple[str, ...]] | None:
        """Step, size in bytes and fields of the next frame; None if no complete frame follows."""
        first, second = self._file.readline(), self._file.readline()
        if not second.endswith(b"\n"):
            return None
        atoms, header = int(first), _parse_header(second)
        columns = header["Properties"].removesuffix(_HELD)
        fields, has_fixed = _FIELDS.get(columns), columns != header["Properties"]
        if len(self.offsets) == 1:
            self._has_fixed = has_fixed
        elif has_fixed != self._has_fixed:
            fields = None
        if fields is None or (len(self.offsets) > 1 and fields != self.fields):
            raise ValueError(f"its columns are {header['Properties']}")
        size, count, line = len(first) + len(second), 0, b""
        for line in itertools.islice(self._file, atoms):
            # With a wrong number of atoms, lines of the next frames would be read as atoms.
            if len(line) > _LONGEST_LINE or b"Properties=" in line:
                raise ValueError(f"its line {count + 3} is not an atom")
            size += len(line)
            count += 1
        if count < atoms or not line.endswith(b"\n"):
            return None
        return int(header["step"]), size, fields

    def _read_atoms(self) -> None:
        with self._frame_failures(0):
            header, table = self._table(0)
            self.pbc = np.array([flag == "T" for flag in header["pbc"].split()])
            self.numbers = np.array([NUMBERS[symbol.decode()] for symbol in table[:, 0]])
            self.masses = table[:, 4].astype(np.float64)
            if self._has_fixed:
                self.fixed = table[:, -1] == b"F"
                self.has_constraints = bool(self.fixed.any())

    def _read(self, index: int) -> Frame:
        with self._frame_failures(index):
            header, table = self._table(index)
            values = table[:, 1 : 2 + 3 * len(self.fields)].astype(np.float64)
            vectors = {
                field: values[:, start : start + 3].copy()
                for start, field in zip(range(4, values.shape[1], 3), self.fields[1:], strict=True)
            }
            velocities = vectors.get("velocities")
            if velocities is not None:
                velocities = velocities / self.masses[:, None] * ase_units.fs
            stress = header.get("stress")
            return Frame(
                step=int(header["step"]),
                time_fs=float(header["time_fs"]),
                positions=values[:, 0:3].copy(),
                velocities=velocities,
                forces=vectors.get("forces", np.full((len(values), 3), np.nan)),
                energy=float(header["energy"]),
                kinetic_energy=float(header["kinetic_energy"]),
                temperature=float(header["temperature"]),
                cell=_matrix(header.get("Lattice", "0 0 0 0 0 0 0 0 0")),
                stress=None if stress is None else _matrix(stress),
            )

    def _table(self, index: int) -> tuple[dict[str, str], NDArray[np.bytes_]]:
        self._file.seek(self.offsets[index])
        content = self._file.read(self.offsets[index + 1] - self.offsets[index])
        first, header, lines = content.split(b"\n", 2)
        fields = np.array(lines.split())
        width = 2 + 3 * len(self.fields) + self._has_fixed
        return _parse_header(header), fields.reshape(int(first), width)

    def system(self, index: int = -1) -> System:
        """The system at one frame, with its velocities and fixed atoms."""
        return super().system(index).replace(fixed=self.fixed)

    def check_complete(self, contents: FrameContents) -> None:
        """Raises FileError if the frames hold other vectors than a run writes."""
        if self.fields != contents.fields:
            raise FileError(
                f"{self.path} holds {', '.join(self.fields)} and the run writes "
                f"{', '.join(contents.fields)}, so it cannot continue with it; put back the file "
                "that the run wrote."
            )

    @contextlib.contextmanager
    def _frame_failures(self, index: int) -> Iterator[None]:
        try:
            with disk_failures(self.path, "read"):
                yield
        except (KeyError, ValueError) as error:
            reason = f"it has no {error.args[0]}" if isinstance(error, KeyError) else error
            raise FileError(
                f"Frame {index} of {self.path} is damaged or was not written by mdgraph "
                f"({reason}); copy the file again, or give it as a structure."
            ) from error

    def close(self) -> None:
        """Closes the file; closing twice is harmless."""
        self._file.close()


def _numbers(matrix: NDArray[np.float64]) -> str:
    return " ".join(str(value) for value in matrix.ravel().tolist())


def _matrix(numbers: str) -> NDArray[np.float64]:
    return np.array(numbers.split(), dtype=np.float64).reshape(3, 3)


def _parse_header(line: bytes) -> dict[str, str]:
    text = line.decode("utf-8", errors="replace")
    return {key: quoted or bare for key, quoted, bare in _HEADER_ENTRY.findall(text)}
