"""Tables for people, a row as soon as it is known."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Table:
    """Columns of one width.

    Attributes:
        columns: title, key in a row, and format of each.
        width: characters.
        name: characters of a first column of names, at its left; else 0.
    """

    columns: tuple[tuple[str, str, str], ...]
    width: int
    name: int = 0

    def titles(self) -> str:
        return self._line([title for title, _, _ in self.columns])

    def text(self, row: Mapping[str, Any]) -> str:
        """A row; a dash for what is not known, words as they are."""

        def cell(value: Any, form: str) -> str:
            if value is None:
                return "-"
            return value if isinstance(value, str) else format(value, form)

        return self._line([cell(row.get(key), form) for _, key, form in self.columns])

    def _line(self, cells: list[str]) -> str:
        names = [f"{cell:<{self.name}}" for cell in cells[:1] if self.name]
        return "".join([*names, *(f"{cell:>{self.width}}" for cell in cells[len(names) :])])
