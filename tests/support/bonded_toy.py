"""A force field of one molecule, sound by construction, with faults that can be planted."""

from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np
import torch
from ase.build import molecule
from numpy.typing import NDArray
from torch import Tensor

from mdgraph.evaluators import Evaluator
from mdgraph.neighbors import NeighborList
from mdgraph.state import State
from mdgraph.system import System
from mdgraph.validate.scans import Molecule


def structure(name: str = "CH3OH") -> System:
    """A molecule as ASE has it."""
    atoms = molecule(name)
    return System(atoms.numbers, atoms.positions)


class BondedToy(Evaluator):
    """Morse bonds, harmonic cosines of angles, and repulsion of all other pairs.

    Dimers and molecules alone are told apart by their number of atoms; there is no virial.
    """

    cutoffs: tuple[float, ...] = ()

    def __init__(
        self,
        system: System,
        fault: Callable[[Tensor], Tensor] | None = None,
        force_factor: float = 1.0,
    ) -> None:
        """Is at rest near a structure.

        Args:
            system: the molecule.
            fault: energy added, of the distances (N, N) within a molecule.
            force_factor: of the forces.
        """
        self._fault, self._factor = fault, force_factor
        graph = Molecule(system)
        self._size = len(system)
        self._bonds = torch.tensor(graph.bonds).T
        angles = [
            (first, middle, last)
            for middle, arms in enumerate(graph.neighbors)
            for first, last in combinations(arms, 2)
        ]
        self._angles = torch.tensor(angles).T
        near = np.eye(self._size, dtype=bool)
        for first, second in graph.bonds:
            near[first, second] = near[second, first] = True
        self._apart = torch.tensor(~(near.astype(int) @ near.astype(int) > 0))
        positions = torch.tensor(system.positions)
        self._lengths, self._cosines = self._coordinates(positions)

    def _coordinates(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        first, second = self._bonds
        lengths = (positions[first] - positions[second]).norm(dim=1)
        one, middle, other = self._angles
        arms = positions[one] - positions[middle], positions[other] - positions[middle]
        return lengths, torch.cosine_similarity(*arms, dim=1)

    def energy(self, positions: Tensor) -> Tensor:
        """Of one structure, eV; a sum over its molecules, and repulsion between them."""
        molecules = positions.split(self._size)
        total = positions.new_zeros(())
        for part in molecules:
            lengths, cosines = self._coordinates(part)
            total = total + (4.0 * (1.0 - torch.exp(-1.8 * (lengths - self._lengths))) ** 2).sum()
            total = total + (2.0 * (cosines - self._cosines) ** 2).sum()
            distances = (part[:, None] - part + torch.eye(self._size)[..., None]).norm(dim=-1)
            total = total + 0.5 * torch.exp((1.4 - distances[self._apart]) / 0.25).sum()
            if self._fault is not None:
                total = total + self._fault(distances)
        for one, other in combinations(molecules, 2):
            total = total + torch.exp((1.4 - torch.cdist(one, other)) / 0.25).sum()
        return total

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        """See Evaluator."""
        places = state.places().double()
        state.energies.zero_()
        start = 0
        for size in state.grouping.sizes:
            with torch.enable_grad():
                own = places[start : start + size].detach().requires_grad_()
                energy = self.energy(own)
                (slope,) = torch.autograd.grad(energy, own)
            state.forces[start : start + size] = (-self._factor * slope).to(state.forces.dtype)
            state.energies[start] = energy.detach()
            start += size
        state.energy.copy_(state.grouping.sum(state.energies))
        state.virial.zero_()

    def judge(self, systems: Sequence[System]) -> NDArray[np.float64]:
        """Energies as a judge gives them, eV."""
        return np.array([float(self.energy(torch.tensor(s.positions))) for s in systems])


def gaussian(first: int, second: int, height: float, centre: float, width: float = 0.1):
    """A fault: a Gaussian of the distance of two atoms."""

    def energy(distances: Tensor) -> Tensor:
        return height * torch.exp(-0.5 * ((distances[first, second] - centre) / width) ** 2)

    return energy
