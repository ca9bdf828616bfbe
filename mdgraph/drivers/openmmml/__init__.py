"""openmm-ml: its MLPotential by the name `mdgraph`."""

from mdgraph.drivers.openmmml.plugin import PotentialFactory

__all__ = ["PotentialFactory"]
