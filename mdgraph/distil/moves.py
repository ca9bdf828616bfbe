"""Moves of atoms that dynamics seldom make: displacements, stretched bonds, turns, strains."""

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mdgraph.data.bonding import bond_lengths, bonded
from mdgraph.distil.config import SamplingConfig
from mdgraph.system import System

Array = NDArray[np.float64]
Move = Callable[[System, np.random.Generator, SamplingConfig], System | None]
"""A copy of a system with atoms moved; None where the move cannot be made."""

_CLOSEST = 0.7
"""Of the sum of two covalent radii; moves never bring atoms nearer than the shorter of this and
their distance before."""


def displace(system: System, rng: np.random.Generator, config: SamplingConfig) -> System:
    """All atoms moved at random."""
    moves = rng.normal(scale=config.displacement, size=system.positions.shape)
    return system.replace(positions=system.positions + moves)


def strain(system: System, rng: np.random.Generator, config: SamplingConfig) -> System | None:
    """The cell changed at random, with the atoms in it."""
    if not system.pbc.all():
        return None
    size = config.strain
    stretch = np.eye(3) * (1.0 + rng.uniform(-size, size)) + np.diag(
        rng.uniform(-size / 3, size / 3, 3)
    )
    shear = rng.uniform(-size / 3, size / 3, (3, 3))
    deformation = stretch + 0.5 * (shear + shear.T) * (1.0 - np.eye(3))
    return system.replace(positions=system.positions @ deformation, cell=system.cell @ deformation)


def stretch(system: System, rng: np.random.Generator, config: SamplingConfig) -> System | None:
    """One bond of a molecule longer or shorter, with all that hangs on its smaller end."""
    bond = _random_bridge(system, rng)
    if bond is None:
        return None
    first, second, part = bond
    way = system.positions[second] - system.positions[first]
    positions = system.positions.copy()
    positions[part] += (rng.uniform(*config.stretch) - 1.0) * way
    return _kept_apart(system, positions)


def turn(system: System, rng: np.random.Generator, config: SamplingConfig) -> System | None:
    """A part of a molecule turned about the bond that holds it, by any angle."""
    bond = _random_bridge(system, rng, least=2)
    if bond is None:
        return None
    first, second, part = bond
    axis = system.positions[second] - system.positions[first]
    return _rotated(system, part, second, axis, rng.uniform(0.0, 2.0 * np.pi))


def bend(system: System, rng: np.random.Generator, config: SamplingConfig) -> System | None:
    """A part of a molecule swung about the atom that holds it, which changes its angles."""
    bond = _random_bridge(system, rng)
    if bond is None:
        return None
    first, second, part = bond
    axis = np.cross(system.positions[second] - system.positions[first], rng.normal(size=3))
    angle = np.radians(config.bend)
    return _rotated(system, part, first, axis, rng.uniform(-angle, angle))


def _rotated(
    system: System, part: NDArray[np.int64], centre: int, axis: Array, angle: float
) -> System | None:
    """Atoms of a part rotated about an axis through an atom; None if any come too near.

    Rodrigues' formula: a cos(angle) + (k x a) sin(angle) + k (k a) (1 - cos(angle)).
    """
    axis = axis / np.linalg.norm(axis)
    arms = system.positions[part] - system.positions[centre]
    along = (arms @ axis)[:, None] * axis
    rotated = along + np.cos(angle) * (arms - along) + np.sin(angle) * np.cross(axis, arms)
    positions = system.positions.copy()
    positions[part] = system.positions[centre] + rotated
    return _kept_apart(system, positions)


def collide(system: System, rng: np.random.Generator, config: SamplingConfig) -> System | None:
    """Two atoms without a bond pushed towards each other, each by up to 0.5 A."""
    if len(system) < 3 or system.pbc.any():
        return None
    distance = np.linalg.norm(system.positions[:, None] - system.positions, axis=2)
    pairs = np.argwhere(
        np.triu((distance > 1.5) & (distance < 3.5) & ~bonded(system.numbers, system.positions), 1)
    )
    if not len(pairs):
        return None
    first, second = pairs[rng.integers(len(pairs))]
    way = system.positions[second] - system.positions[first]
    step = rng.uniform(0.1, 0.5) * way / np.linalg.norm(way)
    positions = system.positions.copy()
    positions[first] += step
    positions[second] -= step
    return _kept_apart(system, positions)


def meet(system: System, rng: np.random.Generator, config: SamplingConfig) -> System | None:
    """Two copies of a molecule, one of them turned, whose nearest atoms are 1.2 to 4 A apart."""
    if system.pbc.any() or system.charge:
        return None
    middle = system.positions.mean(axis=0)
    rotation, upper = np.linalg.qr(rng.normal(size=(3, 3)))
    rotation *= np.sign(np.diag(upper))
    rotation[:, 0] *= np.sign(np.linalg.det(rotation))
    other = (system.positions - middle) @ rotation.T + middle
    way = rng.normal(size=3)
    way /= np.linalg.norm(way)
    apart = rng.uniform(1.2, 4.0)
    near, far = 0.0, 2.0 * np.linalg.norm(system.positions - middle, axis=1).max() + apart
    for _ in range(40):
        distance = 0.5 * (near + far)
        gap = np.linalg.norm(system.positions[:, None] - (other + distance * way), axis=2).min()
        near, far = (distance, far) if gap < apart else (near, distance)
    numbers = np.concatenate([system.numbers, system.numbers])
    positions = np.concatenate([system.positions, other + far * way])
    between = np.linalg.norm(system.positions[:, None] - positions[len(system) :], axis=2)
    closest = _CLOSEST * bond_lengths(numbers)[: len(system), len(system) :]
    return System(numbers, positions) if (between >= closest).all() else None


MOVES: Final[dict[str, Move]] = {
    "displaced": displace,
    "stretched": stretch,
    "turned": turn,
    "bent": bend,
    "collided": collide,
    "strained": strain,
}
"""By the name that frames of each have in a data set."""


def move_atoms(
    system: System, rng: np.random.Generator, config: SamplingConfig
) -> tuple[System, str]:
    """A copy of a system with atoms moved in a random way, and the name of the way."""
    if rng.uniform() < config.pairs and (pair := meet(system, rng, config)) is not None:
        return pair, "met"
    for name in rng.permutation(list(MOVES)):
        copy = MOVES[name](system, rng, config)
        if copy is not None:
            return copy.replace(velocities=None), str(name)
    raise AssertionError("every structure can be displaced")


def _random_bridge(
    system: System, rng: np.random.Generator, least: int = 1
) -> tuple[int, int, NDArray[np.int64]] | None:
    """A random bond that is in no ring: an atom, the atom at its smaller end, that end's atoms.

    Args:
        system: without periodic directions; of others there is none.
        rng: chooses.
        least: atoms of that end.
    """
    if system.pbc.any():
        return None
    bonds = bonded(system.numbers, system.positions)
    pairs = np.argwhere(np.triu(bonds))
    for number in rng.permutation(len(pairs)):
        first, second = (int(atom) for atom in pairs[number])
        part = _reachable(bonds, second, first)
        if part is None:
            continue
        other = _reachable(bonds, first, second)
        assert other is not None
        if len(other) < len(part):
            first, second, part = second, first, other
        if len(part) >= least:
            return first, second, part
    return None


def _reachable(bonds: NDArray[np.bool_], start: int, cut: int) -> NDArray[np.int64] | None:
    """Atoms that bonds lead to from one end of the bond to `cut`; None if `cut` is among them."""
    seen = np.zeros(len(bonds), dtype=bool)
    seen[start] = True
    frontier = [start]
    while frontier:
        atom = frontier.pop()
        for neighbor in np.flatnonzero(bonds[atom] & ~seen):
            if atom == start and neighbor == cut:
                continue
            if neighbor == cut:
                return None
            seen[neighbor] = True
            frontier.append(int(neighbor))
    return np.flatnonzero(seen)


def _kept_apart(system: System, positions: Array) -> System | None:
    """The system at these positions, unless atoms come too near."""
    before = np.linalg.norm(system.positions[:, None] - system.positions, axis=2)
    after = np.linalg.norm(positions[:, None] - positions, axis=2)
    least = np.minimum(_CLOSEST * bond_lengths(system.numbers), before)
    np.fill_diagonal(least, 0.0)
    return system.replace(positions=positions) if (after >= least - 1e-9).all() else None
