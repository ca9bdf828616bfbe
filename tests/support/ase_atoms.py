"""Atoms of many kinds, and calculators with small random potentials for them."""

from typing import Any

import torch
from ase import Atoms
from ase.build import bulk, molecule

from mdgraph.drivers.ase import MDGraphCalculator
from mdgraph.engine import Calculation
from mdgraph.models import (
    CoulombConfig,
    RadialBasisConfig,
    ReadoutConfig,
    RepulsionConfig,
    TensorNetConfig,
    TensorNetPotential,
)

CUTOFF = 3.0


def tensornet(**changes: Any) -> TensorNetPotential:
    """Random weights, steep enough for forces of some tenths of an eV/A, and hard cores."""
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "species": (1, 6, 8, 14, 29),
        "channels": 8,
        "layers": 1,
        "cutoff": CUTOFF,
        "radial_basis": RadialBasisConfig(number=6),
        "readout": ReadoutConfig(hidden=(8,)),
        "repulsion": (RepulsionConfig(kind="matgl", cutoff=CUTOFF),),
    }
    potential = TensorNetPotential(TensorNetConfig(**(settings | changes)))
    potential.scale.fill_(20.0)
    for part in potential.repulsions:
        part.constant.fill_(1.0)  # cores that hold atoms apart, and do not tear molecules
    return potential


def charged(cutoff: float | None = None) -> TensorNetPotential:
    """A random TensorNet2 with Coulomb energy, over all pairs unless a cutoff is given."""
    coulomb = CoulombConfig(cutoff=cutoff)
    return tensornet(architecture="tensornet2", charge_channels=2, coulomb=coulomb)


def calculator(potential: Any = None, **options: Any) -> MDGraphCalculator:
    potential = tensornet() if potential is None else potential
    return MDGraphCalculator(potential, **({"device": "cpu", "precision": "double"} | options))


def ethanol() -> Atoms:
    return molecule("CH3CH2OH")


def silicon() -> Atoms:
    """A strained, rattled primitive cell, smaller than the cutoff."""
    atoms = bulk("Si", a=5.0)
    atoms.set_cell(atoms.cell.array @ [[1.02, 0.03, 0.0], [0.0, 0.99, 0.05], [0.0, 0.0, 1.0]])
    atoms.positions[1] += [0.9, 1.4, 1.1]
    return atoms


class CountedCalculation(Calculation):
    """Counts how many of it were made."""

    made = 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        CountedCalculation.made += 1
        super().__init__(*arguments, **options)
