"""Clusters: the neighborhoods of atoms as separate systems."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from mdgraph.neighbors.geometry import complete_cell, heights, inverse
from mdgraph.state import State, systems_of
from mdgraph.system import System


@dataclass(frozen=True, eq=False)
class Cluster:
    """Atoms and images near a central atom, without periodic directions, nearest first.

    Attributes:
        system: the atoms, with the central one at the origin.
        origin: (N,) int64, index of the original atom of each atom or image.
    """

    system: System
    origin: NDArray[np.int64]

    @property
    def radius(self) -> float:
        """Distance of the farthest atom, A."""
        return float(np.linalg.norm(self.system.positions[-1]))

    def __len__(self) -> int:
        return len(self.origin)

    def nearest(self, atoms: int) -> "Cluster":
        """The cluster of the given number of atoms nearest to the centre."""
        part = self.system
        return Cluster(
            part.replace(
                numbers=part.numbers[:atoms],
                positions=part.positions[:atoms],
                masses=part.masses[:atoms],
            ),
            self.origin[:atoms],
        )


def cluster_around(system: System, centre: int, radius: float, first: int = 0) -> Cluster:
    """All atoms and images within a radius of an atom.

    The cluster keeps masses and the total charge of the system.

    Args:
        system: to cut from.
        centre: index of the central atom.
        radius: A.
        first: added to the indices in `Cluster.origin`.
    """
    pbc = torch.tensor(system.pbc)[None]
    lattice = complete_cell(torch.tensor(system.cell)[None], pbc)
    inverse_cell = inverse(lattice)
    vectors, height = lattice[0].numpy(), heights(inverse_cell)[0].numpy()
    displacements = system.positions - system.positions[centre]
    shifts = np.where(system.pbc, np.round(displacements @ inverse_cell[0].numpy()), 0.0)
    displacements = displacements - shifts @ vectors
    # Atoms are within half a cell now, so image n is at least (|n| - 1/2) heights away.
    reach = np.where(system.pbc, np.floor(radius / height + 0.5), 0.0)
    axes = [np.arange(-count, count + 1) for count in reach]
    offsets = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)
    positions = (displacements + (offsets @ vectors)[:, None]).reshape(-1, 3)
    distance = np.linalg.norm(positions, axis=1)
    inside = np.flatnonzero(distance < radius)
    inside = inside[np.argsort(distance[inside], kind="stable")]
    atoms = inside % len(system)
    atoms_within = System(
        numbers=system.numbers[atoms],
        positions=positions[inside],
        masses=system.masses[atoms],
        charge=system.charge,
    )
    return Cluster(atoms_within, atoms + first)


def reordered(state: State) -> tuple[list[System], NDArray[np.int64]]:
    """Copies of the systems with permuted atoms, shifted within the cell; syncs.

    Each system moves along its periodic directions, so that other pairs cross the faces of the
    cell, and each atom moves to a random image. Atoms with float32 positions do not move,
    because rounding would change them.

    Returns:
        systems, and the index (N,) in the state of each of their atoms.
    """
    rng = np.random.default_rng(0)
    farthest = 2 if state.dtype == torch.float64 else 0
    systems, origin = [], []
    for system, first in zip(systems_of(state), state.grouping.start.tolist(), strict=True):
        order = rng.permutation(len(system))
        images = rng.integers(-farthest, farthest + 1, (len(system), 3))
        shifts = (images + rng.uniform(0.2, 0.8, 3) * (farthest > 0)) * system.pbc
        permuted = system.replace(
            numbers=system.numbers[order],
            positions=(system.positions + shifts @ system.cell)[order],
            masses=system.masses[order],
        )
        systems.append(permuted)
        origin.append(first + order)
    return systems, np.concatenate(origin)


def clusters_in(state: State, radius: float) -> Iterator[Cluster]:
    """Yields clusters around all atoms, in a random but reproducible order; syncs.

    One atom of each element comes first, the rarest element before the others.
    """
    systems = systems_of(state)
    member, atom = state.grouping.index.tolist(), state.atom.tolist()
    kinds = state.kinds.cpu().numpy()
    order = np.random.default_rng(0).permutation(len(kinds))
    _, firsts, counts = np.unique(kinds[order], return_index=True, return_counts=True)
    firsts = firsts[np.argsort(counts, kind="stable")]
    for centre in [*order[firsts].tolist(), *np.delete(order, firsts).tolist()]:
        yield cluster_around(systems[member[centre]], atom[centre], radius, centre - atom[centre])
