"""The log of a run: one CSV row a report."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from mdgraph.errors import FileError, InputError
from mdgraph.io.files import AppendedFile, disk_failures, refuse_existing, write_atomically

LOG_COLUMNS: Final = (
    "step",
    "time_ps",
    "potential_energy_eV",
    "kinetic_energy_eV",
    "total_energy_eV",
    "temperature_K",
    "ns_per_day",
)
"""Columns of every run; some runs append more."""


class LogWriter:
    """Appends rows to a CSV file; each row survives the death of the process.

    Attributes:
        path: the file.
        columns: names of the columns, the first one `step`.
        last_step: step of the last row, None while there is none.
    """

    def __init__(self, file: AppendedFile, columns: Sequence[str], last_step: int | None) -> None:
        self.path = file.path
        self.columns = tuple(columns)
        self.last_step = last_step
        self._file = file

    @classmethod
    def create(cls, path: str | Path, columns: Sequence[str] = LOG_COLUMNS) -> Self:
        """Creates a log with its header.

        Raises:
            InputError: the first column is not `step`.
            FileError: the file exists already, or the disk refused.
        """
        if not columns or columns[0] != "step":
            raise InputError("The first column of a log must be 'step'.")
        path = Path(path)
        refuse_existing(path)
        header = (",".join(columns) + "\n").encode()
        write_atomically(path, lambda temporary: temporary.write_bytes(header))
        return cls(AppendedFile(path, len(header)), columns, last_step=None)

    @classmethod
    def resume(cls, path: str | Path, last_step: int) -> Self:
        """Opens the log of an interrupted run to go on after a checkpoint.

        Rows after `last_step` and a half-written last row are dropped.

        Raises:
            FileError: the file cannot be read, is no log, or the disk refused.
        """
        with cls.resuming(path, last_step) as (resume, _):
            return resume()

    @classmethod
    @contextmanager
    def resuming(
        cls, path: str | Path, last_step: int
    ) -> Iterator[tuple[Callable[[], Self], dict[str, NDArray[np.float64]]]]:
        """Checks all that `resume` needs; the file changes when the function is called.

        Yields:
            What resumes, and the rows that stay: column name to (rows,) float64.

        Raises:
            FileError: see `resume`.
        """
        path = Path(path)
        columns, lines = _read_lines(path)
        size, rows = len(",".join(columns)) + 1, []
        for line in lines:
            row = _row(path, columns, line)
            if row[0] > last_step:
                break
            size += len(line) + 1
            rows.append(row)
        file = AppendedFile(path, size, cut=False)
        last = int(rows[-1][0]) if rows else None
        values = np.array(rows).reshape(-1, len(columns)).T
        try:
            yield lambda: cls(file.cut(), columns, last), dict(zip(columns, values, strict=True))
        finally:
            if not file.is_cut:
                file.close()

    def append(self, values: Mapping[str, float]) -> None:
        """Writes one row with 15 significant digits.

        Raises:
            InputError: a column missing or unknown, or a step not after the last one.
            FileError: the disk refused; the rows before stay.
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
        numbers = (f"{values[column]:.15g}" for column in self.columns[1:])
        self._file.append((",".join((str(step), *numbers)) + "\n").encode())
        self.last_step = step

    def sync(self) -> None:
        """Waits until all rows would survive a loss of power."""
        self._file.sync()

    def close(self) -> None:
        """Closes the file; closing twice is harmless."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def read_log(path: str | Path) -> dict[str, NDArray[Any]]:
    """Reads a log, also while it is written: column name to (rows,) float64, `step` int64.

    A half-written last row is left out.

    Raises:
        FileError: the file cannot be read or is no log.
    """
    path = Path(path)
    columns, lines = _read_lines(path)
    rows = np.array([_row(path, columns, line) for line in lines]).reshape(-1, len(columns))
    table: dict[str, NDArray[Any]] = dict(zip(columns, rows.T.copy(), strict=True))
    table["step"] = table["step"].astype(np.int64)
    return table


def _read_lines(path: Path) -> tuple[list[str], list[str]]:
    """Names of the columns, and the rows that are whole."""
    with disk_failures(path, "read"):
        header, *lines = path.read_bytes().decode("latin-1").split("\n")
    columns = header.split(",")
    if columns[0] != "step" or not lines:
        raise FileError(f"{path} is no log of a run: it does not begin with a row of names.")
    return columns, lines[:-1]


def _row(path: Path, columns: Sequence[str], line: str) -> list[float]:
    try:
        numbers = [float(field) for field in line.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != len(columns) or not math.isfinite(numbers[0]):
        raise FileError(
            f"{path} is damaged: its row '{line[:60]}' does not hold {len(columns)} numbers; "
            "put back the original."
        )
    return numbers
