"""Clusters: the surroundings of atoms as systems of their own."""

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
    """Atoms and images near one atom, without periodic directions, nearest first.

    Attributes:
        system: the atoms, with their centre at the origin.
        origin: (N,) int64, the atom that each of them is or repeats.
    """

    system: System
    origin: NDArray[np.int64]

    @property
    def radius(self) -> float:
        """A; of the farthest atom."""
        return float(np.linalg.norm(self.system.positions[-1]))

    def __len__(self) -> int:
        return len(self.origin)

    def nearest(self, atoms: int) -> "Cluster":
        """The cluster of the so many atoms nearest to the centre."""
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
    """Everything within a radius of an atom, images too where the cell is smaller.

    Total charge and masses stay what they were.

    Args:
        system: what to cut from.
        centre: index of the atom in it.
        radius: A.
        first: index by which its first atom is called.
    """
    pbc = torch.tensor(system.pbc)[None]
    lattice = complete_cell(torch.tensor(system.cell)[None], pbc)
    inverse_cell = inverse(lattice)
    vectors, height = lattice[0].numpy(), heights(inverse_cell)[0].numpy()
    away = system.positions - system.positions[centre]
    whole = np.where(system.pbc, np.round(away @ inverse_cell[0].numpy()), 0.0)
    away = away - whole @ vectors
    # An atom lies within half a cell now, so image n is (|n| - 1/2) heights away or farther.
    reach = np.where(system.pbc, np.floor(radius / height + 0.5), 0.0)
    axes = [np.arange(-count, count + 1) for count in reach]
    offsets = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)
    positions = (away + (offsets @ vectors)[:, None]).reshape(-1, 3)
    distance = np.linalg.norm(positions, axis=1)
    inside = np.flatnonzero(distance < radius)
    inside = inside[np.argsort(distance[inside], kind="stable")]
    atoms = inside % len(system)
    found = System(
        numbers=system.numbers[atoms],
        positions=positions[inside],
        masses=system.masses[atoms],
        charge=system.charge,
    )
    return Cluster(found, atoms + first)


def reordered(state: State) -> tuple[list[System], NDArray[np.int64]]:
    """The same systems with their atoms in another order, at another place of the cell.

    Each system moves as a whole along its periodic directions, so that other pairs cross the
    faces of the cell, and each atom goes to an image of its own. Atoms whose positions are
    float32 stay where they are, because they would be rounded otherwise. Reads the device.

    Returns:
        systems, and the index (N,) in the state of each of their atoms.
    """
    rng = np.random.default_rng(0)
    farthest = 2 if state.dtype == torch.float64 else 0
    systems, origin = [], []
    for system, first in zip(systems_of(state), state.grouping.start.tolist(), strict=True):
        order = rng.permutation(len(system))
        images = rng.integers(-farthest, farthest + 1, (len(system), 3))
        away = (images + rng.uniform(0.2, 0.8, 3) * (farthest > 0)) * system.pbc
        moved = system.replace(
            numbers=system.numbers[order],
            positions=(system.positions + away @ system.cell)[order],
            masses=system.masses[order],
        )
        systems.append(moved)
        origin.append(first + order)
    return systems, np.concatenate(origin)


def clusters_in(state: State, radius: float) -> Iterator[Cluster]:
    """Clusters around one atom after another in random but repeatable order; reads the device.

    One atom of each element comes first, the rarest before the others.
    """
    systems = systems_of(state)
    member, atom = state.grouping.index.tolist(), state.atom.tolist()
    kinds = state.kinds.cpu().numpy()
    order = np.random.default_rng(0).permutation(len(kinds))
    _, leaders, counts = np.unique(kinds[order], return_index=True, return_counts=True)
    leaders = leaders[np.argsort(counts, kind="stable")]
    for one in [*order[leaders].tolist(), *np.delete(order, leaders).tolist()]:
        yield cluster_around(systems[member[one]], atom[one], radius, one - atom[one])
