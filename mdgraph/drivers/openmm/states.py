"""States in OpenMM's XML."""

from pathlib import Path
from typing import Any, Final

import openmm

from mdgraph.errors import FileError
from mdgraph.io.files import read_file

_LARGEST_BYTES: Final = 1 << 34
"""Of a State: a hundred million atoms."""


def state_of(file: Any) -> Any:
    """Reads a State from a path or an open file.

    Raises:
        FileError: the file cannot be read, or holds something else.
    """
    try:
        text = (
            read_file(file, "a State", _LARGEST_BYTES).decode(errors="replace")
            if isinstance(file, str | Path)
            else file.read()
        )
        found = openmm.XmlSerializer.deserialize(text)
    except (ValueError, TypeError, openmm.OpenMMException):
        found = None
    if not isinstance(found, openmm.State):
        name = file if isinstance(file, str | Path) else getattr(file, "name", "The file")
        raise FileError(f"{name} holds no State of OpenMM; give one that saveState wrote.")
    return found
