"""OpenMM: its own Simulation and reporters, advanced by the engine."""

from mdgraph.drivers.openmm.simulation import Simulation
from mdgraph.drivers.openmm.topology import reduced

__all__ = ["Simulation", "reduced"]
