"""Potentials in plain torch, differentiable twice: TensorNet and TensorNet2; what they know."""

from mdgraph.models.assembly import TensorNetPotential, check_species
from mdgraph.models.configuration import (
    CoulombConfig,
    RadialBasisConfig,
    ReadoutConfig,
    RepulsionConfig,
    TensorNetConfig,
)
from mdgraph.models.domain import Domain
from mdgraph.models.potential import Atoms, Potential

__all__ = [
    "Atoms",
    "CoulombConfig",
    "Domain",
    "Potential",
    "RadialBasisConfig",
    "ReadoutConfig",
    "RepulsionConfig",
    "TensorNetConfig",
    "TensorNetPotential",
    "check_species",
]
