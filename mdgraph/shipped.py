"""What comes with mdgraph: potentials that are loaded by name.

Imports nothing heavy, as the completion of the command line reads it too.
"""

from pathlib import Path
from typing import Final

FILE_NAME: Final = "model.safetensors"
"""Name of the file with the weights in the folder of a potential."""

_PACKAGE = Path(__file__).resolve().parent


def shipped_potentials() -> dict[str, Path]:
    """Name and folder of each potential that comes with mdgraph.

    They are inside an installed package, and beside the package in a clone.
    """
    folders: dict[str, Path] = {}
    for root in (_PACKAGE.parent / "potentials", _PACKAGE / "potentials"):
        folders |= {path.parent.name: path.parent for path in root.glob(f"*/{FILE_NAME}")}
    return dict(sorted(folders.items()))
