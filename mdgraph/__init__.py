"""mdgraph: molecular dynamics with TensorNet potentials, the whole step in one CUDA graph."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mdgraph.checkpoints import load as load
    from mdgraph.engine import LangevinMiddle as LangevinMiddle
    from mdgraph.engine import Simulation as Simulation
    from mdgraph.engine import VelocityVerlet as VelocityVerlet
    from mdgraph.system import System as System

import_module("mdgraph.moved")

__version__ = "0.2.0"

_PLACES = {
    "load": "mdgraph.checkpoints",
    "System": "mdgraph.system",
    "Simulation": "mdgraph.engine",
    "LangevinMiddle": "mdgraph.engine",
    "VelocityVerlet": "mdgraph.engine",
}


def __getattr__(name: str) -> Any:
    """Imports public names on first use, so that importing the package stays fast."""
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'mdgraph' has no attribute '{name}'")
