"""States in OpenMM's XML."""

from pathlib import Path
from typing import Any

import openmm

from mdgraph.errors import FileError


def state_of(file: Any) -> Any:
    """Reads a State from a path or an open file.

    Raises:
        OSError: the file cannot be opened.
        FileError: it holds something else.
    """
    try:
        text = Path(file).read_text() if isinstance(file, str | Path) else file.read()
        found = openmm.XmlSerializer.deserialize(text)
    except (ValueError, TypeError, openmm.OpenMMException):
        found = None
    if not isinstance(found, openmm.State):
        name = file if isinstance(file, str | Path) else getattr(file, "name", "The file")
        raise FileError(f"{name} holds no State of OpenMM; give one that saveState wrote.")
    return found
