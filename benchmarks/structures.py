"""Structures that the benchmarks make, and potentials with random weights."""

from typing import Any

import ase.build
import numpy as np
import torch

from mdgraph.models import RadialBasisConfig, ReadoutConfig, TensorNetConfig, TensorNetPotential
from mdgraph.runs.water import water as box
from mdgraph.system import System

CLUSTERS = (24, 165)


def random_potential(channels: int = 128) -> TensorNetPotential:
    """TorchMD-Net's architecture and sizes with random weights, for hydrogen and oxygen."""
    torch.manual_seed(1)
    config = TensorNetConfig(
        species=(1, 8),
        channels=channels,
        layers=2,
        cutoff=5.0,
        radial_basis=RadialBasisConfig(number=32),
        readout=ReadoutConfig(hidden=(max(1, channels // 2),)),
        self_interaction=True,
        charge_factor=True,
    )
    return TensorNetPotential(config)


def random_network(scale: float, settings: dict[str, Any]) -> TensorNetPotential:
    """A potential whose tensors are all random, norms, references and charges' weights too.

    Args:
        scale: of its energies.
        settings: of its TensorNetConfig.
    """
    torch.manual_seed(11)
    potential = TensorNetPotential(TensorNetConfig.model_validate(settings))
    with torch.no_grad():
        for parameter in potential.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        potential.scale.fill_(scale)
        potential.shift.fill_(-0.9)
        potential.references.copy_(-10.0 * torch.rand(len(potential.species)))
        for part, config in zip(potential.repulsions, potential.config.repulsion, strict=True):
            if config.kind == "torchmdnet_network":
                part.powers.copy_(torch.arange(len(part.powers), dtype=torch.float64) ** 0.3)
                part.radii.copy_(1.2 + torch.rand(part.radii.shape).tril())
                part.radii.copy_(torch.maximum(part.radii, part.radii.T))
            if config.kind == "matgl":
                # Near the universal ones: others leave nothing of the energy, or are too stiff.
                part.constant.fill_(14.0)
                for parameter, values in (
                    (part.power, [0.25]),
                    (part.division, [2.1]),
                    (part.coefficients, [0.2, 0.5, 0.3, 0.04]),
                    (part.exponents, [3.0, 1.0, 0.4, 0.2]),
                ):
                    parameter.copy_(torch.tensor(values, dtype=torch.float64).expm1().log())
        if potential.coulomb is not None:
            potential.coulomb.weights.copy_(torch.rand(len(potential.coulomb.weights)) + 0.1)
    return potential


def water(atoms: int, seed: int = 1) -> System:
    """Water of liquid density; periodic unless a cluster was asked for."""
    return box(atoms, periodic=atoms not in CLUSTERS, seed=seed)


def solution(atoms: int) -> System:
    """Acetamide, the smallest peptide bond, amid that water: four elements."""
    drop = atoms in CLUSTERS
    solvent = water(648 if drop else atoms)
    solute = ase.build.molecule("CH3CONH2")
    places = solute.positions - solute.positions.mean(0) + solvent.positions.mean(0)
    molecules = solvent.positions.reshape(-1, 3, 3)
    distance = np.linalg.norm(molecules[:, :, None] - places, axis=-1).min((1, 2))
    order = np.argsort(distance, kind="stable")
    kept = order[distance[order] > 1.8]
    if drop:
        kept = kept[: (atoms - len(solute)) // 3]
    return System(
        numbers=np.concatenate([solute.numbers, np.tile([8, 1, 1], len(kept))]),
        positions=np.concatenate([places, molecules[np.sort(kept)].reshape(-1, 3)]),
        cell=np.zeros((3, 3)) if drop else solvent.cell,
        pbc=np.full(3, not drop),
    )


def salt(cells: int) -> System:
    """Rock salt with every atom displaced."""
    atoms = ase.build.bulk("NaCl", "rocksalt", a=5.64, cubic=True).repeat(cells)
    displacements = np.random.default_rng(0).normal(scale=0.1, size=atoms.positions.shape)
    return System(
        numbers=atoms.numbers,
        positions=atoms.positions + displacements,
        cell=atoms.cell.array,
        pbc=atoms.pbc,
    )
