"""Structures that the benchmarks make."""

import ase.build
import numpy as np

from mdgraph.system import System

MOLECULE = np.array([[0.0, 0.0, 0.0], [0.757, 0.586, 0.0], [-0.757, 0.586, 0.0]])
VOLUME_PER_MOLECULE = 29.9  # A^3, liquid water at 300 K
CLUSTERS = (24, 165)


def water(atoms: int, seed: int = 1) -> System:
    """Randomly turned molecules on a jittered grid; periodic unless a cluster was asked for."""
    generator = np.random.default_rng(seed)
    molecules = atoms // 3
    edge = (molecules * VOLUME_PER_MOLECULE) ** (1 / 3)
    points = int(np.ceil(molecules ** (1 / 3) - 1e-9))
    periodic = atoms not in CLUSTERS
    # Where the grid has more points than molecules, those of a box leave gaps all over it.
    taken = np.arange(molecules) * (points**3 if periodic else molecules) // molecules
    grid = np.stack(np.unravel_index(taken, [points] * 3), axis=-1)
    centres = (grid + 0.5) * edge / points
    centres = centres + generator.normal(scale=0.05, size=centres.shape)
    turns, _ = np.linalg.qr(generator.normal(size=(molecules, 3, 3)))
    positions = centres[:, None] + MOLECULE @ turns
    return System(
        numbers=np.tile([8, 1, 1], molecules),
        positions=positions.reshape(-1, 3),
        cell=np.eye(3) * edge if periodic else np.zeros((3, 3)),
        pbc=np.full(3, periodic),
    )


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
