"""Potentials in plain torch, differentiable twice: TensorNet and TensorNet2."""

from mdgraph.models.assembly import TensorNetPotential, check_species
from mdgraph.models.configuration import (
    CoulombConfig,
    RadialBasisConfig,
    ReadoutConfig,
    RepulsionConfig,
    TensorNetConfig,
)
from mdgraph.models.potential import Atoms, Potential

__all__ = [
    "Atoms",
    "CoulombConfig",
    "Potential",
    "RadialBasisConfig",
    "ReadoutConfig",
    "RepulsionConfig",
    "TensorNetConfig",
    "TensorNetPotential",
    "check_species",
]
