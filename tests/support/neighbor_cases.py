"""Systems of every kind for neighbor lists, and what a list holds of them."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from mdgraph.neighbors import NeighborList
from mdgraph.state import State
from mdgraph.system import System

Case = tuple[System, float]

PBC = [tuple(bool(number >> axis & 1) for axis in range(3)) for number in range(8)]
TRICLINIC = np.array([[7.1, 0.3, -0.4], [-2.2, 6.4, 0.9], [1.7, 2.9, 8.3]])


def water_box(side: int, seed: int = 0) -> System:
    """A jittered grid of water molecules at the density of the liquid."""
    rng = np.random.default_rng(seed)
    edge = 3.104
    grid = np.stack(np.meshgrid(*[np.arange(side)] * 3, indexing="ij"), -1).reshape(-1, 3)
    oxygen = (grid + 0.5 + rng.uniform(-0.08, 0.08, grid.shape)) * edge
    bond = rng.normal(size=(len(grid), 2, 3))
    bond *= 0.96 / np.linalg.norm(bond, axis=-1, keepdims=True)
    positions = np.concatenate([oxygen[:, None], oxygen[:, None] + bond], axis=1).reshape(-1, 3)
    return System(np.tile([8, 1, 1], len(grid)), positions, cell=np.eye(3) * edge * side, pbc=True)


def silicon() -> System:
    cell = 5.431 / 2 * np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    return System([14, 14], [[0.0, 0.0, 0.0], [1.34, 1.38, 1.33]], cell=cell, pbc=True)


def slab(normal: tuple[float, float, float]) -> System:
    """Two layers of atoms, periodic along the first two vectors; the third is given."""
    rng = np.random.default_rng(1)
    cell = np.array([[5.1, 0.0, 0.2], [2.5, 4.4, 0.0], normal])
    grid = np.array([[x, y, z] for x in (0, 0.5) for y in (0, 0.5) for z in (0, 2.1)])
    positions = grid[:, :2] @ cell[:2] + np.outer(grid[:, 2], [0.0, 0.0, 1.0])
    positions += rng.normal(scale=0.1, size=positions.shape)
    return System([29] * len(positions), positions, cell=cell, pbc=(True, True, False))


def wire(axis: int) -> System:
    rng = np.random.default_rng(2)
    cell = np.roll(np.array([[3.3, 1.2, 0.7], [0.0, 5.0, 1.0], [0.4, 0.0, 6.0]]), axis, axis=0)
    positions = rng.uniform(0.0, 4.0, (6, 3))
    return System([79] * 6, positions, cell=cell, pbc=np.arange(3) == axis)


def random_atoms(cell: NDArray[np.float64], pbc: object, atoms: int, seed: int) -> System:
    rng = np.random.default_rng(seed)
    return System(rng.choice([1, 6, 8], atoms), rng.random((atoms, 3)) @ cell, cell=cell, pbc=pbc)


def molecule(cell: NDArray[np.float64]) -> System:
    rng = np.random.default_rng(3)
    return System([6] * 9, rng.uniform(0.0, 6.0, (9, 3)), cell=cell, pbc=False)


def on_faces() -> System:
    places = (0.0, -1e-17, 1e-17, 0.5, 1.0, 1.0 - 1e-16, 2.0, -1.0)
    fractional = np.array([[places[k], places[-1 - k], 0.25 * k] for k in range(8)])
    return System([10] * 8, fractional @ TRICLINIC, cell=TRICLINIC, pbc=True)


def coincident() -> System:
    """An atom, one exactly at its image, one exactly on top of it, and one apart."""
    first = np.array([1.0, 2.0, 3.0])
    cell = np.diag([6.0, 5.0, 4.0])
    positions = [first, first + cell[0] - 2 * cell[2], first, first + 1.0]
    return System([1, 2, 3, 4], positions, cell=cell, pbc=True)


CASES: dict[str, Callable[[], Case]] = {
    "water": lambda: (water_box(4), 3.5),
    "water beyond half the box": lambda: (water_box(2), 5.0),
    "silicon 5": lambda: (silicon(), 5.0),
    "silicon 12": lambda: (silicon(), 12.0),
    "slab, no third vector": lambda: (slab((0.0, 0.0, 0.0)), 6.0),
    "slab, dummy vector": lambda: (slab((3.0, -1.0, 1.3)), 6.0),
    "wire along x": lambda: (wire(0), 5.5),
    "wire along z": lambda: (wire(2), 5.5),
    "molecule": lambda: (molecule(np.zeros((3, 3))), 3.0),
    "molecule with a cell": lambda: (molecule(TRICLINIC), 3.0),
    "skewed": lambda: (
        random_atoms(np.array([[6.0, 0, 0], [17.0, 5.0, 0], [-11.0, 13.0, 7.0]]), True, 7, 4),
        5.0,
    ),
    "left-handed": lambda: (random_atoms(TRICLINIC[[1, 0, 2]], True, 12, 5), 5.0),
    "one periodic atom": lambda: (random_atoms(TRICLINIC / 3, True, 1, 6), 5.0),
    "one lone atom": lambda: (random_atoms(TRICLINIC, False, 1, 7), 5.0),
    "on faces": lambda: (on_faces(), 4.0),
    "coincident": lambda: (coincident(), 6.5),
    **{
        f"pbc {pbc}": lambda pbc=pbc, seed=seed: (random_atoms(TRICLINIC, pbc, 10, seed), 4.2)
        for seed, pbc in enumerate(PBC)
    },
}


def unwrapped(system: System) -> System:
    rng = np.random.default_rng(8)
    leaps = rng.integers(-60, 60, (len(system), 3)) * system.pbc
    return system.replace(positions=system.positions + leaps @ system.cell)


def moved(system: System) -> System:
    return system.replace(positions=system.positions + np.array([123.4, -45.6, 7.8]))


def used_slots(neighbors: NeighborList) -> torch.Tensor:
    return torch.arange(neighbors.capacity) < neighbors.count[:, None]


def vectors_of(neighbors: NeighborList, state: State) -> torch.Tensor:
    return torch.cat(neighbors.pairs(state.positions, state.cell).vectors, dim=1).detach()


def assert_reverse_is_right(neighbors: NeighborList, state: State) -> None:
    pairs = neighbors.pairs(state.positions, state.cell)
    reverse = pairs.reverse.long()
    slots = torch.arange(len(reverse))
    assert torch.equal(reverse[reverse], slots)
    used = used_slots(neighbors).flatten()
    assert torch.equal(reverse[~used], slots[~used])
    vectors = vectors_of(neighbors, state).flatten(0, 1)
    assert torch.equal(vectors[reverse][used], -vectors[used])
    assert torch.equal(reverse // neighbors.capacity, neighbors.index.flatten().long())


def deformed(cell: NDArray[np.float64], amount: float, rng: np.random.Generator, kind: str):
    """A lattice a little strained, sheared or turned."""
    match kind:
        case "strain":
            return cell * (1.0 + amount * rng.normal(size=3))
        case "shear":
            return cell @ (np.eye(3) + amount * np.triu(rng.normal(size=(3, 3)), 1))
        case "turn":
            axis = rng.normal(size=3) * amount
            skew = np.cross(np.eye(3), axis)
            half = np.eye(3) - skew / 2
            return cell @ np.linalg.solve(half, np.eye(3) + skew / 2)
        case "any":
            return cell + amount * rng.normal(size=(3, 3)) * np.abs(cell).max()
        case _:
            return cell
