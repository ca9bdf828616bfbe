"""Potentials in torch, differentiable twice: TensorNet, TensorNet2 and the registry."""

from mdgraph.models.architectures import Architecture, architecture_named, register
from mdgraph.models.config import (
    CoulombConfig,
    PotentialConfig,
    RadialBasisConfig,
    ReadoutConfig,
    RepulsionConfig,
    TensorNetConfig,
)
from mdgraph.models.potential import (
    Atoms,
    Domain,
    ListRoles,
    Potential,
    PotentialModule,
    TrainablePotential,
    check_species,
)
from mdgraph.models.sum import SumConfig, SumPotential, SumTerm
from mdgraph.models.tensornet_potential import TensorNetPotential

__all__ = [
    "Architecture",
    "Atoms",
    "CoulombConfig",
    "Domain",
    "ListRoles",
    "Potential",
    "PotentialConfig",
    "PotentialModule",
    "RadialBasisConfig",
    "ReadoutConfig",
    "RepulsionConfig",
    "SumConfig",
    "SumPotential",
    "SumTerm",
    "TensorNetConfig",
    "TensorNetPotential",
    "TrainablePotential",
    "architecture_named",
    "check_species",
    "register",
]
