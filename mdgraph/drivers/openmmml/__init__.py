"""openmm-ml: its MLPotential by the name `mdgraph`."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mdgraph.drivers.openmmml.plugin import PotentialFactory

__all__ = ["PotentialFactory"]


def __getattr__(name: str) -> Any:
    # Only when asked: openmm-ml loads this while it is imported, and a System that is read from
    # XML, in a process that has imported neither, wants this package without it.
    if name == "PotentialFactory":
        importlib.import_module("openmmml")
        from mdgraph.drivers.openmmml.plugin import PotentialFactory

        return PotentialFactory
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
