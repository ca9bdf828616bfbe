"""Bonds and contacts of copies of one structure: which stay, which atoms come too close.

By the same bonds drops, slabs and molecules are cut from a liquid.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mdgraph.data import LabelledFrame
from mdgraph.data.bonding import bond_lengths
from mdgraph.data.similarity import short_pairs
from mdgraph.errors import InputError
from mdgraph.system import System, compact_cell, completed_cell, make_whole
from mdgraph.units import BOND_FACTOR

Array = NDArray[np.float64]

TRANSFER_FACTOR: Final = 1.2
"""A hydrogen between two heavy atoms counts as attached within this times the length of a bond:
midway between the oxygens of acetylacetone it has 1.25 to 1.4 A to both."""

NEAREST: Final = 1.2
LOST: Final = 1.35
NEW: Final = 1.1
"""Times the shortest distance in a crystal: nearest neighbors are within `NEAREST` at first, are
lost beyond `LOST`, and other atoms become neighbors below `NEW`. Shells of fcc are at 1 and 1.41,
and at 300 K distances in copper spread by 0.06."""

APART: Final = 7.0
"""A between a molecule and all others beyond which it has evaporated; second neighbors in liquids
of small molecules are closer."""

REACH: Final = 3.0
"""A; shortest distances are searched within it, and stand for elements that are never closer."""

DROP: Final = 20
"""Most molecules of a drop."""

_SLAB_HEIGHT: Final = 3
"""Height of a slab's cell, in cells of the liquid."""


class BondGraph:
    """Distances and bonds within S copies of N atoms, on a device.

    Attributes:
        reach: (N, N) A, below which two atoms are bonded; 0 on the diagonal.
        shortest: (N, N) A, the shortest distance of such elements in training; 0 on the diagonal.
    """

    def __init__(
        self,
        system: System,
        shortest: Array,
        device: torch.device,
        transfer: bool = False,
    ) -> None:
        """Reads elements and cell of a structure, not its positions.

        Args:
            system: the structure.
            shortest: (119, 119) A, see `shortest_distances`.
            device: of the positions.
            transfer: whether a hydrogen may go from one heavy atom to another.
        """
        numbers, off = system.numbers, 1.0 - np.eye(len(system))
        self.reach = torch.tensor(BOND_FACTOR * bond_lengths(numbers) * off, device=device)
        self.shortest = torch.tensor(shortest[np.ix_(numbers, numbers)] * off, device=device)
        self._heavy = torch.tensor(numbers != 1, device=device)
        self._molecule: Tensor | None = None
        self._transfer = transfer
        cell = compact_cell(completed_cell(system.cell, system.pbc), system.pbc)
        self._cell = torch.tensor(cell, device=device)
        self._inverse = torch.linalg.inv(self._cell) * torch.tensor(system.pbc, device=device)

    def distances(self, positions: Tensor) -> Tensor:
        """(S, N, N) A of (S, N, 3), to the nearest image; right below half of `smallest_height`."""
        vectors = positions[:, None] - positions[:, :, None]
        return (vectors - torch.round(vectors @ self._inverse) @ self._cell).norm(dim=-1)

    def graph(self, distances: Tensor) -> Tensor:
        """(S, ...) bool, which must not change: bonds.

        With `transfer` bonds between heavy atoms, and whether each hydrogen has a bond.
        """
        bonds = distances < self.reach
        if not self._transfer:
            return bonds
        near = distances < TRANSFER_FACTOR * self.reach
        attached = near[:, ~self._heavy][:, :, self._heavy].any(-1)
        heavy = bonds[:, self._heavy][:, :, self._heavy].flatten(1)
        return torch.cat([heavy, attached], dim=1)

    def evaporated(self, distances: Tensor) -> Tensor:
        """(S,) molecules that are apart from all others, by the bonds of the first call's first.

        Zero where all atoms hang together.
        """
        if self._molecule is None:
            bonds = (distances[0] < self.reach).cpu().numpy()
            numbers = np.unique(first_atoms(bonds), return_inverse=True)[1]
            self._molecule = torch.tensor(numbers, device=distances.device)
        molecule = self._molecule
        count = int(molecule.max()) + 1
        if count == 1:
            return torch.zeros(len(distances), dtype=torch.int64, device=distances.device)
        others = molecule[:, None] != molecule
        nearest = torch.where(others, distances, torch.inf).amin(-1)
        each = nearest.new_full((len(nearest), count), torch.inf)
        each.scatter_reduce_(1, molecule.expand_as(nearest), nearest, "amin")
        return (each > APART).sum(1)

    def closeness(self, distances: Tensor) -> Tensor:
        """(S,) the smallest ratio of a distance to the shortest one in training."""
        ratio = distances / self.shortest
        return torch.where(self.shortest > 0.0, ratio, torch.inf).flatten(1).amin(1)


class NeighborGraph(BondGraph):
    """Nearest neighbors in a crystal, which take the place of bonds."""

    def __init__(self, system: System, shortest: Array, device: torch.device) -> None:
        """Reads elements, cell and positions of a structure; see BondGraph."""
        super().__init__(system, shortest, device)
        positions = torch.tensor(system.positions, device=device)
        distances = self.distances(positions[None])[0].fill_diagonal_(torch.inf)
        nearest = distances.min()
        self._limit = torch.where(distances < NEAREST * nearest, LOST, NEW) * nearest

    def graph(self, distances: Tensor) -> Tensor:
        """(S, N, N) bool: pairs of neighbors."""
        return distances < self._limit


def shortest_distances(frames: Iterable[LabelledFrame | System]) -> Array:
    """(119, 119) A, the shortest distance of each pair of elements over frames, 3 A at most.

    Raises:
        InputError: no two atoms are closer than 3 A.
    """
    shortest = np.full((119, 119), REACH)
    for frame in frames:
        first, second, distance = short_pairs(frame, REACH)
        np.minimum.at(shortest, (frame.numbers[first], frame.numbers[second]), distance)
    if (shortest == REACH).all():
        raise InputError(f"No two atoms of these frames are closer than {REACH:g} A.")
    return shortest


def first_atoms(bonds: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(N,) the first atom of each atom's molecule, of (N, N) bonds."""
    first, before = np.arange(len(bonds)), np.zeros(0)
    connected = bonds | np.eye(len(bonds), dtype=bool)
    while not np.array_equal(first, before):
        first, before = np.where(connected, first, len(bonds)).min(1), first
    return first


def cut(liquid: System, shape: str) -> System:
    """A drop, slab or molecule without velocities; molecules are made whole.

    A drop is the first molecule with the nearest others, a slab lies in a cell three times as high,
    and a molecule is the first one alone. None of them occurs in the training set of a liquid.

    Args:
        liquid: of whole molecules, periodic in all directions and neutral.
        shape: `drop`, `slab` or `molecule`.

    Raises:
        InputError: the liquid is charged, has an open side or no separate molecules.
    """
    if not liquid.pbc.all():
        raise InputError("The liquid has an open side; give one that is periodic in all three.")
    if liquid.charge:
        raise InputError("The liquid is charged, and nothing tells where; give a neutral one.")
    positions = torch.tensor(liquid.positions)[None]
    graph = BondGraph(liquid, np.zeros((119, 119)), positions.device)
    bonds = (graph.distances(positions)[0] < graph.reach).numpy()
    first = first_atoms(bonds)
    if not first.any():
        raise InputError("All atoms of a frame hang together; give a liquid of molecules.")
    cell = compact_cell(liquid.cell)  # where whole turns lead to the nearest image
    places = make_whole(liquid.positions, cell, np.argwhere(np.triu(bonds)))
    places = places - np.floor(places[first] @ np.linalg.inv(cell)) @ cell
    if shape == "slab":
        high = cell * [[1], [1], [_SLAB_HEIGHT]]
        return liquid.replace(positions=places, cell=high, velocities=None)
    if shape == "molecule":
        return System(liquid.numbers[first == 0], places[first == 0])
    apart = places[first] - places[0]
    places = places - np.round(apart @ np.linalg.inv(cell)) @ cell
    distance = np.linalg.norm(places[first] - places[0], axis=1)
    molecules, order = np.unique(first), np.unique(first, return_index=True)[1]
    nearest = molecules[np.argsort(distance[order], kind="stable")[:DROP]]
    kept = np.isin(first, nearest)
    return System(liquid.numbers[kept], places[kept])
