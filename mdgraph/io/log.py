"""The log of a run, a CSV file with one row per report, and evaluated frames in extended XYZ."""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from mdgraph.errors import FileError, InputError
from mdgraph.io.files import (
    AppendedFile,
    TableWriter,
    disk_failures,
    readable_file,
    refuse_existing,
    write_atomically,
)
from mdgraph.io.xyz import FrameText, format_decimals
from mdgraph.system import System
from mdgraph.units import SYMBOLS

LOG_COLUMNS: Final = (
    "step",
    "time_ps",
    "potential_energy_eV",
    "kinetic_energy_eV",
    "total_energy_eV",
    "temperature_K",
    "ns_per_day",
)
"""Columns of every log; some runs add more."""

_SPEED: Final = "ns_per_day"
"""Column that is empty where there is no speed yet, as in the first row."""

_DIGITS: Final = {_SPEED: 4, "temperature_K": 10, "pressure_bar": 10}
"""Significant digits of columns that do not need the 15 of the others."""

_UNITS: Final = {
    "_eV": "eV",
    "_K": "K",
    "_ps": "ps",
    "_fs": "fs",
    "_bar": "bar",
    "_A3": "A^3",
    "_g_per_cm3": "g/cm^3",
    _SPEED: "ns/day",
}
"""Units by the ends of names of columns."""


def unit_row(columns: Sequence[str]) -> str:
    """The unit of each column, as its name has it, with commas; - of a column without a unit."""
    units = (
        next((unit for end, unit in _UNITS.items() if column.endswith(end)), "-")
        for column in columns
    )
    return ",".join(units)


class LogWriter(TableWriter):
    """Appends rows to a CSV file; each row survives the death of the process.

    Attributes:
        path: the file.
        columns: names of the columns, the first one `step`.
        last_step: step of the last row, None while there is none.
    """

    def __init__(self, file: AppendedFile, columns: Sequence[str], last_step: int | None) -> None:
        super().__init__(file)
        self.columns = tuple(columns)
        self.last_step = last_step

    @classmethod
    def create(
        cls, path: str | Path, columns: Sequence[str] = LOG_COLUMNS, *, units: bool = False
    ) -> Self:
        """Creates a log with its header.

        Args:
            path: of the file.
            columns: their names.
            units: whether a second row has the unit of each column.

        Raises:
            InputError: the first column is not `step`.
            FileError: the file exists already, or the disk refused.
        """
        if not columns or columns[0] != "step":
            raise InputError("The first column of a log must be 'step'.")
        path = Path(path)
        refuse_existing(path)
        lines = [",".join(columns), *([unit_row(columns)] if units else [])]
        header = "".join(f"{line}\n" for line in lines).encode()
        write_atomically(path, header)
        return cls(AppendedFile(path, len(header)), columns, last_step=None)

    @classmethod
    def resume(cls, path: str | Path, last_step: int) -> Self:
        """Opens the log of an interrupted run to go on after a checkpoint.

        Rows after `last_step` and a half-written last row are removed; a row of units stays.

        Raises:
            FileError: the file cannot be read, is not a log, or the disk refused.
        """
        with cls.resuming(path, last_step) as (resume, _):
            return resume()

    @classmethod
    @contextmanager
    def resuming(
        cls, path: str | Path, last_step: int
    ) -> Iterator[tuple[Callable[[], Self], dict[str, NDArray[np.float64]]]]:
        """Runs the checks of `resume` without changing the file.

        Yields:
            A function that resumes the log, and the rows that stay: column name to (rows,)
            float64.

        Raises:
            FileError: see `resume`.
        """
        path = Path(path)
        columns, lines, size = _read_lines(path)
        rows = []
        for line in lines:
            row = _row(path, columns, line)
            if row[0] > last_step:
                break
            size += len(line) + 1
            rows.append(row)
        file = AppendedFile(path, size, cut=False)
        row_step = int(rows[-1][0]) if rows else None
        values = np.array(rows).reshape(-1, len(columns)).T
        try:
            yield (
                lambda: cls(file.cut(), columns, row_step),
                dict(zip(columns, values, strict=True)),
            )
        finally:
            if not file.is_cut:
                file.close()

    def append(self, values: Mapping[str, float]) -> None:
        """Writes one row; most columns have 15 significant digits, `ns_per_day` has 4.

        An `ns_per_day` of NaN becomes an empty field.

        Raises:
            InputError: a column is missing or unknown, or the step is not after the last one.
            FileError: the disk refused; earlier rows are unchanged.
        """
        if set(values) != set(self.columns):
            wrong = sorted(set(values) ^ set(self.columns))
            raise InputError(
                f"A row for {self.path} has missing or unknown columns {', '.join(wrong)}; "
                f"give exactly {', '.join(self.columns)}."
            )
        step = int(values["step"])
        if self.last_step is not None and step <= self.last_step:
            raise InputError(
                f"{self.path} holds step {self.last_step} already and takes no step {step} "
                "after it; append rows in the order of their steps."
            )
        numbers = (_text(column, values[column]) for column in self.columns[1:])
        self._file.append((",".join((str(step), *numbers)) + "\n").encode())
        self.last_step = step


def _text(column: str, value: float) -> str:
    if column == _SPEED and math.isnan(value):
        return ""
    return f"{value:.{_DIGITS.get(column, 15)}g}"


def read_log(path: str | Path) -> dict[str, NDArray[Any]]:
    """Reads a log, also while it is written: column name to (rows,) float64, `step` int64.

    A half-written last row is ignored, and so is a row of units. An empty `ns_per_day` is NaN.

    Raises:
        FileError: the file cannot be read or is not a log.
    """
    path = Path(path)
    columns, lines, _ = _read_lines(path)
    rows = np.array([_row(path, columns, line) for line in lines]).reshape(-1, len(columns))
    table: dict[str, NDArray[Any]] = dict(zip(columns, rows.T.copy(), strict=True))
    table["step"] = table["step"].astype(np.int64)
    return table


def _read_lines(path: Path) -> tuple[list[str], list[str], int]:
    """Names of the columns, the lines of the complete rows, and the bytes before these."""
    with disk_failures(path, "read"):
        header, *lines = path.read_bytes().decode("latin-1").split("\n")
    columns = header.split(",")
    if columns[0] != "step" or not lines:
        raise FileError(f"{path} is not a log of a run: it does not begin with a row of names.")
    before = len(header) + 1
    if lines[:-1] and lines[0] == unit_row(columns):
        before += len(lines.pop(0)) + 1
    return columns, lines[:-1], before


def _row(path: Path, columns: Sequence[str], line: str) -> list[float]:
    try:
        numbers = [
            math.nan if not text and column == _SPEED else float(text)
            for column, text in zip(columns, line.split(","), strict=True)
        ]
    except ValueError:
        numbers = []
    if len(numbers) != len(columns) or not math.isfinite(numbers[0]):
        raise FileError(
            f"{path} is damaged: its row '{line[:60]}' does not hold {len(columns)} numbers; "
            "put back the original."
        )
    return numbers


_PROPERTIES = "species:S:1:pos:R:3:forces:R:3:energies:R:1"


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Energy, forces and stress of a system by a potential.

    Attributes:
        system: the system.
        energy: eV.
        energies: (N,) float64, eV, per atom; their sum is the energy.
        forces: (N, 3) float64, eV/A.
        stress: (3, 3) float64, eV/A^3, tension positive; None if the cell has no volume.
        info: further numbers of the system, by name.
        arrays: (N,) further numbers per atom, by name.
    """

    system: System
    energy: float
    energies: NDArray[np.float64]
    forces: NDArray[np.float64]
    stress: NDArray[np.float64] | None
    info: Mapping[str, float] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    def extended_xyz(self) -> bytes:
        """The frame as text; numbers carry all digits of float64."""
        system = self.system
        entries = [
            f"Properties={_PROPERTIES}{''.join(f':{name}:R:1' for name in self.arrays)}",
            f"energy={self.energy!r}",
            f'pbc="{" ".join("FT"[int(periodic)] for periodic in system.pbc)}"',
        ]
        if system.cell.any():
            entries.insert(0, f'Lattice="{_numbers(system.cell)}"')
        if self.stress is not None:
            entries.append(f'stress="{_numbers(self.stress)}"')
        if system.charge is not None:
            entries.append(f"charge={system.charge!r}")
        entries += [f"{name}={value!r}" for name, value in self.info.items()]
        columns = np.column_stack(
            [system.positions, self.forces, self.energies, *self.arrays.values()]
        )
        rows = _rows(system.numbers.tobytes(), columns.shape[1])
        lines = rows % tuple(format_decimals(columns))
        return b"%d\n%b\n%b" % (len(system), " ".join(entries).encode(), lines)


@lru_cache(maxsize=16)
def _rows(numbers: bytes, columns: int) -> bytes:
    """A format of the rows of atoms, by their atomic numbers as bytes of int64."""
    row = b"%b" + b" %%b" * columns + b"\n"
    symbols = [SYMBOLS[number].encode() for number in np.frombuffer(numbers, dtype=np.int64)]
    return b"".join(row % symbol for symbol in symbols)


def _numbers(values: NDArray[np.float64]) -> str:
    return " ".join(repr(value) for value in values.ravel().tolist())


@dataclass(frozen=True)
class WrittenFrames:
    """The complete frames of a file of evaluations, which may have been cut by a kill.

    Attributes:
        count: number of frames.
        size: bytes of them.
        last: the last one, None of none.
    """

    count: int = 0
    size: int = 0
    last: FrameText | None = None


def written_frames(path: Path) -> WrittenFrames:
    """Finds the complete frames of a file; none in an absent one.

    Raises:
        FileError: the file cannot be read, or something else than such frames is in it.
    """
    if not path.exists():
        return WrittenFrames()
    readable_file(path, "a file of results")
    frames = WrittenFrames()
    with disk_failures(path, "read"), path.open("rb") as file:
        line = 1
        while True:
            first, header = file.readline(_LONGEST), file.readline(_LONGEST)
            if not header.endswith(b"\n"):
                return frames
            if not (first.strip().isdigit() and b"forces:R:3" in header and b"energy=" in header):
                raise FileError(
                    f"{path} holds other things than results of mdgraph, from line {line} on; give "
                    "another --out."
                )
            rows = list(itertools.islice(file, int(first)))
            if len(rows) < int(first) or not rows[-1].endswith(b"\n"):
                return frames
            content = b"".join([first, header, *rows])
            text = FrameText(path, frames.count, line, frames.size, len(rows), content)
            frames = WrittenFrames(frames.count + 1, frames.size + len(content), text)
            line += 2 + len(rows)


_LONGEST: Final = 1 << 20
"""Bytes of a header, at most."""


def written_energy(frame: FrameText) -> float:
    """Energy of a frame that `Evaluation` wrote, eV; NaN without one."""
    entry = re.search(rb"\benergy=(\S+)", frame.content.split(b"\n", 2)[1])
    return float(entry[1]) if entry else math.nan
