"""Cheap potentials with known statistics, through the same seams as TensorNet."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from mdgraph.evaluators import Evaluator
from mdgraph.models import Atoms
from mdgraph.models.ops.messages import sum_slots
from mdgraph.neighbors import NeighborList, Pairs
from mdgraph.state import State
from mdgraph.system import System


class HarmonicWells(Evaluator):
    """Every atom in its own isotropic well, U = k/2 |x - x0|^2; an Evaluator without virial.

    A stiffness of 0 makes an ideal gas.
    """

    cutoffs: tuple[float, ...] = ()

    def __init__(self, centres: Tensor, stiffness: float) -> None:
        self.centres = centres
        self.stiffness = stiffness

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        displacement = (state.places() - self.centres).to(state.dtype)
        state.forces.copy_(-self.stiffness * displacement)
        state.energies.copy_(0.5 * self.stiffness * displacement.square().sum(-1))
        state.energy.copy_(state.grouping.sum(state.energies))
        state.virial.zero_()


class LennardJones(nn.Module):
    """Shifted to a continuous force at the cutoff; a Potential."""

    species = None
    uses_charge = False

    def __init__(self, epsilon: float, sigma: float, cutoff: float) -> None:
        super().__init__()
        self.epsilon, self.sigma = epsilon, sigma
        self.cutoffs = (cutoff,)

    def forward(self, atoms: Atoms, pairs: tuple[Pairs, ...]) -> Tensor:
        def energy(ratio: Tensor) -> Tensor:
            return 4.0 * self.epsilon * (ratio**12 - ratio**6)

        cutoff = self.cutoffs[0]
        end = self.sigma / cutoff
        slope = 4.0 * self.epsilon * (-12.0 * end**12 + 6.0 * end**6) / cutoff
        shift = 4.0 * self.epsilon * (end**12 - end**6)
        total = pairs[0].vectors[0].new_zeros(len(atoms.numbers))
        for block in pairs[0].blocks:
            distance = torch.linalg.vector_norm(block.vectors, dim=-1)
            pair = energy(self.sigma / distance) - shift - slope * (distance - cutoff)
            inside = block.valid & (distance < cutoff)
            total = total + sum_slots(torch.where(inside, pair, 0.0))
        return 0.5 * total.double()


class HoledPairs(LennardJones):
    """Pairs as dense and strong as copper, with a Gaussian well at 0.75 of their distance at rest.

    Crystals at rest do not feel it, and atoms that come so near fall into it.

    Attributes:
        depth: eV of a pair.
        atom: eV of each atom, whatever is near it.
        free: eV that an atom alone has beside that.
    """

    def __init__(self, depth: float = 0.0, atom: float = 0.0, free: float = 0.0) -> None:
        super().__init__(0.41, 2.338, 6.5)
        self.depth, self.atom, self.free = depth, atom, free

    def forward(self, atoms: Atoms, pairs: tuple[Pairs, ...]) -> Tensor:
        total = super().forward(atoms, pairs) + self.atom
        coordination = torch.zeros_like(total)
        for block in pairs[0].blocks:
            distance = torch.linalg.vector_norm(block.vectors, dim=-1)
            well = -0.5 * self.depth * torch.exp(-0.5 * ((distance - 1.9) / 0.1) ** 2)
            near = torch.exp(-((distance / 3.0) ** 4))
            total = total + sum_slots(torch.where(block.valid, well, 0.0)).double()
            coordination = coordination + sum_slots(torch.where(block.valid, near, 0.0)).double()
        return total + self.free * torch.exp(-coordination)


def argon(cells: int, seed: int = 0) -> System:
    """Face-centred cubic argon near its liquid density, slightly jittered."""
    generator = np.random.default_rng(seed)
    edge = 5.8
    base = np.array([[0, 0, 0], [0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]])
    grid = np.stack(np.meshgrid(*[np.arange(cells)] * 3, indexing="ij"), -1).reshape(-1, 1, 3)
    positions = ((grid + base) * edge).reshape(-1, 3)
    positions = positions + generator.normal(scale=0.05, size=positions.shape)
    return System(
        numbers=np.full(len(positions), 18),
        positions=positions,
        cell=np.eye(3) * edge * cells,
        pbc=np.full(3, True),
    )


def blocked_error(samples: np.ndarray, blocks: int = 20) -> float:
    """Standard error of the mean of a correlated series from the means of its blocks."""
    means = samples[: len(samples) // blocks * blocks].reshape(blocks, -1).mean(axis=1)
    return float(means.std(ddof=1) / np.sqrt(blocks))


class QuarticWells(Evaluator):
    """Atoms in wells that make their motion chaotic; an Evaluator without virial.

    U = a (x^4 + y^4 + z^4) + b (x^2 y^2 + y^2 z^2 + z^2 x^2) is homogeneous of fourth degree,
    so that of N atoms is distributed as Gamma(3N/4, kT).
    """

    cutoffs: tuple[float, ...] = ()

    def __init__(self, even: float, mixed: float) -> None:
        self.even, self.mixed = even, mixed

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        squared = state.positions.square()
        others = squared.sum(-1, keepdim=True) - squared
        slope = 4.0 * self.even * squared + 2.0 * self.mixed * others
        state.forces.copy_(-slope * state.positions)
        energies = self.even * squared.square() + 0.5 * self.mixed * squared * others
        state.energies.copy_(energies.sum(-1))
        state.energy.copy_(state.grouping.sum(state.energies))
        state.virial.zero_()


def log_ratio_slope(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """Slope of ln p2(x) / p1(x) from as many independent samples of each, and its error.

    The samples are told apart by a logistic curve, whose slope is the most likely one.
    """
    values = np.concatenate([first, second])
    mean, scale = values.mean(), values.std()
    design = np.stack([np.ones_like(values), (values - mean) / scale], axis=1)
    label = np.repeat([0.0, 1.0], [len(first), len(second)])
    weights = np.zeros(2)
    for _ in range(50):
        chance = 1.0 / (1.0 + np.exp(-design @ weights))
        information = design.T @ (design * (chance * (1.0 - chance))[:, None])
        weights = weights + np.linalg.solve(information, design.T @ (label - chance))
    error = np.sqrt(np.linalg.inv(information)[1, 1])
    return float(weights[1] / scale), float(error / scale)
