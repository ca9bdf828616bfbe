"""Bonds and contacts of copies of one structure: what stays together, what comes too close."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from ase.data import covalent_radii
from numpy.typing import NDArray
from torch import Tensor

from mdgraph.data import LabelledFrame, open_dataset
from mdgraph.data.likeness import short_pairs
from mdgraph.errors import InputError
from mdgraph.io.structures import read_systems
from mdgraph.system import System

FACTOR = 1.25
"""A bond is shorter than this times the sum of both covalent radii."""

SHARED = 1.2
"""A hydrogen on its way from one atom to another is farther from both than a bond is long, by
less than this factor: midway between the oxygens of acetylacetone it has 1.25 to 1.4 A."""

NEAREST = 1.2
LOST = 1.35
FOUND = 1.1
"""Times the shortest distance in a crystal: nearest neighbors are nearer, are so no more beyond,
and others become it below. Those of fcc are 1 and 1.41, and at 300 K copper's spread by 0.06."""

_REACH = 3.0
"""A; the shortest distances are looked for within it, and contacts of elements never seen closer
are judged by it."""


class Bonds:
    """Distances within S copies of N atoms, on a device.

    Attributes:
        reach: (N, N) A, below which two atoms are bonded; 0 on the diagonal.
        shortest: (N, N) A, what training has seen of such elements; 0 on the diagonal.
    """

    def __init__(
        self,
        system: System,
        shortest: NDArray[np.float64],
        device: torch.device,
        transfer: bool = False,
    ) -> None:
        """Takes the atoms, not the places, of a structure.

        Args:
            system: the structure.
            shortest: (119, 119) A, see `shortest_distances`.
            device: where positions lie.
            transfer: whether a hydrogen may go from one heavy atom to another.
        """
        numbers, off = system.numbers, 1.0 - np.eye(len(system))
        radii = covalent_radii[numbers]
        self.reach = torch.tensor(FACTOR * (radii[:, None] + radii) * off, device=device)
        self.shortest = torch.tensor(shortest[np.ix_(numbers, numbers)] * off, device=device)
        self._heavy = torch.tensor(numbers != 1, device=device)
        self._transfer = transfer
        periodic = system.pbc[:, None]
        cell = np.where(periodic, system.cell, np.eye(3))
        self._cell = torch.tensor(cell, device=device)
        self._inverse = torch.linalg.inv(self._cell) * torch.tensor(system.pbc, device=device)

    def distances(self, positions: Tensor) -> Tensor:
        """(S, N, N) A of (S, N, 3), to the nearest image; right below half the cell's width."""
        vectors = positions[:, None] - positions[:, :, None]
        return (vectors - torch.round(vectors @ self._inverse) @ self._cell).norm(dim=-1)

    def graph(self, distances: Tensor) -> Tensor:
        """(S, ...) bool: what must not change. With transfer, bonds of heavy atoms, and whether
        each hydrogen has one.
        """
        bonded = distances < self.reach
        if not self._transfer:
            return bonded
        near = distances < SHARED * self.reach
        held = near[:, ~self._heavy][:, :, self._heavy].any(-1)
        kept = bonded[:, self._heavy][:, :, self._heavy].flatten(1)
        return torch.cat([kept, held], dim=1)

    def closeness(self, distances: Tensor) -> Tensor:
        """(S,) the smallest ratio of a distance to the shortest one in training."""
        ratio = distances / self.shortest
        return torch.where(self.shortest > 0.0, ratio, torch.inf).flatten(1).amin(1)


class Neighbors(Bonds):
    """Nearest neighbors in a crystal, whose bonds have no length to be told by."""

    def __init__(self, system: System, shortest: NDArray[np.float64], device: torch.device) -> None:
        """Takes atoms and places; see Bonds."""
        super().__init__(system, shortest, device)
        places = torch.tensor(system.positions, device=device)
        distances = self.distances(places[None])[0].fill_diagonal_(torch.inf)
        nearest = distances.min()
        self._limit = torch.where(distances < NEAREST * nearest, LOST, FOUND) * nearest

    def graph(self, distances: Tensor) -> Tensor:
        """(S, N, N) bool: who is whose neighbor."""
        return distances < self._limit


def shortest_distances(path: Path) -> NDArray[np.float64]:
    """(119, 119) A, by elements, over the frames of a data set or of what `read_systems` reads."""
    found = np.full((119, 119), _REACH)
    frames: Iterable[LabelledFrame | System]
    if path.suffix == ".h5":
        with open_dataset(path) as dataset:
            frames = list(dataset.frames())
    else:
        frames = read_systems(path)
    for frame in frames:
        first, second, distance = short_pairs(frame, _REACH)
        np.minimum.at(found, (frame.numbers[first], frame.numbers[second]), distance)
    if (found == _REACH).all():
        raise InputError(f"No two atoms of {path} are closer than {_REACH:g} A.")
    return found
