"""OpenMM: its own Simulation and reporters, advanced by the engine."""

from mdgraph.drivers.openmm.boxes import reduced
from mdgraph.drivers.openmm.simulation import Simulation

__all__ = ["Simulation", "reduced"]
