"""Collective variables, and the biases that act on them within a step.

A simulation takes `variables`, by name, and `biases`, which name them:

    Simulation(..., variables={"phi": Dihedral([4, 6, 8, 14])},
               biases=[HarmonicBias("phi", centre=-1.0, stiffness=2.0)])
"""

from mdgraph.biases.bias import Bias, HarmonicBias, LinearBias, MovingBias, WallBias
from mdgraph.biases.metadynamics import Metadynamics
from mdgraph.biases.variables import (
    RMSD,
    Angle,
    CellVolume,
    CollectiveVariable,
    Combination,
    CoordinationNumber,
    Dihedral,
    Distance,
    Position,
    PotentialEnergy,
    RadiusOfGyration,
)

__all__ = [
    "RMSD",
    "Angle",
    "Bias",
    "CellVolume",
    "CollectiveVariable",
    "Combination",
    "CoordinationNumber",
    "Dihedral",
    "Distance",
    "HarmonicBias",
    "LinearBias",
    "Metadynamics",
    "MovingBias",
    "Position",
    "PotentialEnergy",
    "RadiusOfGyration",
    "WallBias",
]
