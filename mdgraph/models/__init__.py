"""Potentials in plain torch, differentiable twice: TensorNet and TensorNet2; what they know."""

from mdgraph.models.config import (
    CoulombConfig,
    RadialBasisConfig,
    ReadoutConfig,
    RepulsionConfig,
    TensorNetConfig,
)
from mdgraph.models.potential import Atoms, Domain, ListRoles, Potential
from mdgraph.models.tensornet_potential import TensorNetPotential, check_species

__all__ = [
    "Atoms",
    "CoulombConfig",
    "Domain",
    "ListRoles",
    "Potential",
    "RadialBasisConfig",
    "ReadoutConfig",
    "RepulsionConfig",
    "TensorNetConfig",
    "TensorNetPotential",
    "check_species",
]
