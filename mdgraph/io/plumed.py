"""Tables in PLUMED's text layout, as COLVAR and HILLS are: reading, and appending rows.

A line `#! FIELDS time phi psi` names the columns, lines `#! SET min_phi -pi` hold constants, other
lines that begin with # are comments, and each further line is a row of numbers. A restart of PLUMED
repeats the lines of names and constants.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mdgraph.errors import FileError, InputError, name_some, printable
from mdgraph.io.files import (
    AppendedFile,
    TableWriter,
    disk_failures,
    refuse_existing,
    write_atomically,
)
from mdgraph.io.xyz import parse_decimals

_NAMES: Final = "#! FIELDS"
_CONSTANT: Final = "#! SET"

_PI: Final = {"pi": math.pi, "+pi": math.pi, "-pi": -math.pi, "2pi": 2.0 * math.pi}
"""Words of PLUMED for numbers."""


@dataclass(frozen=True, eq=False)
class PlumedTable:
    """A table of numbers with named columns.

    Attributes:
        path: the file it was read from.
        fields: names of the columns.
        values: (rows, columns) float64, in the units of the file: PLUMED's own are kJ/mol, nm, ps
            and rad.
        constants: words of `#! SET` by name.
        lines: (rows,) int64, number of the line of each row, from 1 on.
    """

    path: Path
    fields: tuple[str, ...]
    values: NDArray[np.float64]
    constants: Mapping[str, str] = field(default_factory=dict)
    lines: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.values)

    def __contains__(self, name: str) -> bool:
        return name in self.fields

    def column(self, name: str) -> NDArray[np.float64]:
        """A column by its name, (rows,) float64.

        Raises:
            InputError: there is no such column, or a number in it is not finite.
        """
        if name not in self.fields:
            raise InputError(
                f"{self.path} has no column {printable(name, 100)}; it has "
                f"{name_some(self.fields, 20)}."
            )
        values = self.values[:, self.fields.index(name)]
        wrong = np.flatnonzero(~np.isfinite(values))
        if len(wrong):
            raise InputError(
                f"{self.path}, line {self.lines[wrong[0]]}: {name} is {values[wrong[0]]}; remove "
                "the line, or leave this column out."
            )
        return values

    def number(self, name: str) -> float | None:
        """A constant as a number, where pi is one; None if it is absent.

        Raises:
            FileError: it is no number.
        """
        word = self.constants.get(name)
        if word is None:
            return None
        try:
            return _PI[word] if word in _PI else float(word)
        except ValueError as error:
            raise FileError(
                f"{self.path}: '#! SET {name} {printable(word, 40)}' is not a number; correct it."
            ) from error

    def domain(self, name: str) -> tuple[float, float] | None:
        """The two ends of a periodic variable, by `min_NAME` and `max_NAME`; None for others.

        Raises:
            FileError: they are no numbers, or not in order.
        """
        low, high = (self.number(f"{end}_{name}") for end in ("min", "max"))
        if low is None or high is None:
            return None
        if not low < high:
            raise FileError(
                f"{self.path}: min_{name} is {low:g} and max_{name} {high:g}; correct them."
            )
        return low, high


def read_plumed(path: str | Path) -> PlumedTable:
    """Reads a table, also while it is written: a last row without a line break is ignored.

    Raises:
        FileError: the file cannot be read, or is no such table; the sentence names the line.
    """
    path = Path(path)
    with disk_failures(path, "read"):
        content = path.read_bytes()
    lines = content.decode("latin-1").split("\n")[:-1]
    fields: tuple[str, ...] | None = None
    constants: dict[str, str] = {}
    texts: list[str] = []
    numbers: list[int] = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words:
            continue
        if not words[0].startswith("#"):
            if fields is None:
                break
            if len(words) != len(fields):
                raise FileError(
                    f"{path}, line {number}: {len(words)} number{'s' * (len(words) != 1)} for "
                    f"{len(fields)} columns ({name_some(fields)}); correct or remove it."
                )
            texts += words
            numbers.append(number)
        elif line.startswith(_NAMES):
            if fields is not None and fields != tuple(words[2:]):
                raise FileError(
                    f"{path}, line {number}: the columns change to {name_some(words[2:])}; put "
                    "each table into a file of its own."
                )
            fields = tuple(words[2:])
            if not fields or len(set(fields)) < len(fields):
                raise FileError(
                    f"{path}, line {number}: {_NAMES} has no name, or one twice; correct it."
                )
        elif line.startswith(_CONSTANT) and len(words) > 3:
            constants[words[2]] = words[3]
    if fields is None:
        raise FileError(
            f"{path} is not a table of PLUMED: no line '{_NAMES} ...' is before its numbers."
        )
    flat = parse_decimals([text.encode("latin-1") for text in texts])
    if flat is None:
        flat = _slowly(path, texts, numbers, len(fields))
    return PlumedTable(
        path, fields, flat.reshape(-1, len(fields)), constants, np.array(numbers, dtype=np.int64)
    )


def _slowly(
    path: Path, texts: Sequence[str], numbers: Sequence[int], columns: int
) -> NDArray[np.float64]:
    """The numbers one by one, nan and inf among them; raises FileError at what is none."""
    values = np.empty(len(texts))
    for place, text in enumerate(texts):
        try:
            values[place] = float(text)
        except ValueError as error:
            raise FileError(
                f"{path}, line {numbers[place // columns]}: '{printable(text, 40)}' is not a "
                "number; correct or remove the line."
            ) from error
    return values


class PlumedWriter(TableWriter):
    """Appends rows to a table; each row survives the death of the process.

    Attributes:
        path: the file.
        fields: names of the columns, the first one `time`.
        digits: significant digits of numbers; times have 15.
    """

    def __init__(self, file: AppendedFile, fields: Sequence[str], digits: int = 10) -> None:
        super().__init__(file)
        self.fields = tuple(fields)
        self.digits = digits

    @classmethod
    def create(
        cls,
        path: str | Path,
        fields: Sequence[str],
        constants: Mapping[str, str | float] | None = None,
        *,
        digits: int = 10,
    ) -> Self:
        """Creates a table with its names and constants, and no rows.

        Args:
            path: a new file.
            fields: names of the columns, `time` first.
            constants: of `#! SET`, in this order; a number is written with 15 digits.
            digits: significant digits of numbers but for times; 17 keep every bit.

        Raises:
            InputError: the first column is not `time`, or a name is empty, has a space or is there
                twice.
            FileError: the file exists already, or the disk refused.
        """
        names = [*fields, *(constants or {})]
        if not fields or fields[0] != "time":
            raise InputError("The first column of a table must be 'time'.")
        if len(set(fields)) < len(fields) or any(name.split() != [name] for name in names):
            raise InputError(
                f"Columns {name_some(names, 20)}: each needs another name, without spaces."
            )
        path = Path(path)
        refuse_existing(path)
        lines = [f"{_NAMES} {' '.join(fields)}"]
        for name, value in (constants or {}).items():
            lines.append(
                f"{_CONSTANT} {name} {value if isinstance(value, str) else f'{value:.15g}'}"
            )
        header = "".join(f"{line}\n" for line in lines).encode()
        write_atomically(path, header)
        return cls(AppendedFile(path, len(header)), fields, digits)

    @classmethod
    def resume(
        cls, path: str | Path, last_time: float, timestep: float, *, digits: int = 10
    ) -> Self:
        """Opens the table of an interrupted run to go on after a checkpoint.

        Rows after `last_time` and a half-written last row are removed.

        Args:
            path: the table.
            last_time: of the checkpoint, ps.
            timestep: ps; times of rows that differ by less than half of it are the same.
            digits: see `create`.

        Raises:
            FileError: the file cannot be read, is no table, or the disk refused.
        """
        table = read_plumed(path)
        times = table.values[:, 0]
        late = np.flatnonzero(times > last_time + 0.5 * timestep)
        with disk_failures(table.path, "read"):
            content = table.path.read_bytes()
        lines = content.split(b"\n")[:-1]
        kept = lines[: table.lines[late[0]] - 1] if len(late) else lines
        size = sum(len(line) + 1 for line in kept)
        return cls(AppendedFile(table.path, size), table.fields, digits)

    def append(self, rows: ArrayLike) -> None:
        """Writes rows, (columns,) or (n, columns), all of them or none.

        Raises:
            InputError: the number of columns is another one.
            FileError: the disk refused; earlier rows are unchanged.
        """
        values = np.atleast_2d(np.asarray(rows, dtype=np.float64))
        if values.ndim != 2 or values.shape[1] != len(self.fields):
            raise InputError(
                f"{self.path} has the {len(self.fields)} columns {name_some(self.fields, 20)}; "
                f"rows of {values.shape[-1]} numbers do not fit."
            )
        line = " %.15g" + f" %.{self.digits}g" * (len(self.fields) - 1) + "\n"
        text = "".join(line % tuple(row) for row in values.tolist())
        self._file.append(text.encode())
