"""Potentials that come with mdgraph, by name."""

from pathlib import Path

from mdgraph.checkpoints.native import FILE_NAME

_PACKAGE = Path(__file__).resolve().parent.parent


def shipped_potentials() -> dict[str, Path]:
    """Name and folder of each potential that comes with mdgraph.

    They lie inside an installed package, and beside the package in a clone.
    """
    found: dict[str, Path] = {}
    for root in (_PACKAGE.parent / "potentials", _PACKAGE / "potentials"):
        found |= {path.parent.name: path.parent for path in root.glob(f"*/{FILE_NAME}")}
    return dict(sorted(found.items()))
