"""Result: what a record holds, as rows for people, spreadsheets and programs."""

import csv
import io
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mdgraph.errors import InputError
from mdgraph.io.files import refuse_existing, write_atomically

Row = dict[str, int | float | str]


@dataclass(frozen=True, eq=False, kw_only=True)
class Result:
    """Base of results.

    Attributes:
        kind: what was recorded.
        samples: number of samples.
        every: steps from one to the next.
    """

    kind: ClassVar[str]
    samples: int
    every: int

    def rows(self, system: int | None = None) -> list[Row]:
        """One row a value, of one system or all; names of columns with their units."""
        raise NotImplementedError

    def text(self) -> str:
        """A table with aligned columns."""
        rows = self.rows()
        lines = [list(rows[0]), *([_plain(value, ".7g") for value in row.values()] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        aligned = (
            "  ".join(field.rjust(width) for field, width in zip(line, widths, strict=True))
            for line in lines
        )
        return "\n".join(
            [f"{self.kind}, {self.samples} samples, every {self.every} steps", *aligned]
        )

    def csv(self, system: int | None = None) -> str:
        """Comma-separated values with a row of names, of one system or all; 15 digits."""
        file, rows = io.StringIO(), self.rows(system)
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(rows[0] if rows else [])
        writer.writerows([_plain(value, ".15g") for value in row.values()] for row in rows)
        return file.getvalue()

    def json(self) -> str:
        """The same rows as JSON; null where there is no number."""
        rows = [{name: _finite(value) for name, value in row.items()} for row in self.rows()]
        head = {"kind": self.kind, "samples": self.samples, "every": self.every}
        return json.dumps({**head, "rows": rows}, indent=1) + "\n"

    def save(self, path: str | Path, system: int | None = None, *, overwrite: bool = False) -> None:
        """Writes .txt, .csv or .json, whole or not at all.

        Args:
            path: the file.
            system: of which alone a .csv is written; None writes all.
            overwrite: whether a file that exists is replaced.

        Raises:
            InputError: another suffix.
            FileError: the file exists, or the disk refused.
        """
        forms: dict[str, Callable[[], str]] = {
            ".txt": lambda: self.text() + "\n",
            ".csv": lambda: self.csv(system),
            ".json": self.json,
        }
        suffix = Path(path).suffix
        if suffix not in forms:
            raise InputError(f"Results go into .txt, .csv or .json files, not '{path}'.")
        refuse_existing(Path(path), overwrite=overwrite)
        content = forms[suffix]()
        write_atomically(
            path, lambda place: place.write_text(content, encoding="utf-8"), new=not overwrite
        )


def _plain(value: float | str, form: str) -> str:
    return format(value, form) if isinstance(value, float) else str(value)


def _finite(value: float | str) -> float | str | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value
