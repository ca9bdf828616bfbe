"""openmm-ml: mdgraph's potentials as `MLPotential('mdgraph')`."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mdgraph.drivers.openmmml.plugin import PotentialFactory

__all__ = ["PotentialFactory"]


def __getattr__(name: str) -> Any:
    # Late: openmm-ml loads this module while it is imported itself, and a System that is read
    # from XML needs this package without openmm-ml.
    if name == "PotentialFactory":
        importlib.import_module("openmmml")
        from mdgraph.drivers.openmmml.plugin import PotentialFactory

        return PotentialFactory
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
