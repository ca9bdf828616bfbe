"""Potentials in torch, differentiable twice, and the registry of their architectures."""

from mdgraph.models.architectures import Architecture, architecture_named, register
from mdgraph.models.config import (
    CoulombConfig,
    PotentialConfig,
    RadialBasisConfig,
    ReadoutConfig,
    RepulsionConfig,
    TensorNetConfig,
)
from mdgraph.models.d3 import D3Config, D3Potential, d3_config
from mdgraph.models.external import BondsConfig, FieldConfig, HarmonicBond, Wall, WallsConfig
from mdgraph.models.pair_potentials import (
    LennardJonesConfig,
    LennardJonesPair,
    MorseConfig,
    MorsePair,
    ZBLConfig,
)
from mdgraph.models.potential import (
    AbsolutePositions,
    Atoms,
    Domain,
    ListRoles,
    Potential,
    PotentialModule,
    TrainablePotential,
    check_coulomb_range,
    check_species,
)
from mdgraph.models.sum import SumConfig, SumPotential, SumTerm
from mdgraph.models.tensornet_potential import TensorNetPotential
from mdgraph.models.terms import term, with_terms

__all__ = [
    "AbsolutePositions",
    "Architecture",
    "Atoms",
    "BondsConfig",
    "CoulombConfig",
    "D3Config",
    "D3Potential",
    "Domain",
    "FieldConfig",
    "HarmonicBond",
    "LennardJonesConfig",
    "LennardJonesPair",
    "ListRoles",
    "MorseConfig",
    "MorsePair",
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
    "Wall",
    "WallsConfig",
    "ZBLConfig",
    "architecture_named",
    "check_coulomb_range",
    "check_species",
    "d3_config",
    "register",
    "term",
    "with_terms",
]
