"""Random crystals, free clusters and molecules torn apart, as a search for structures draws them.

A potential that nobody trained on other structures than those of its data may lie far too low
somewhere else, and a search that relaxes random structures finds such places (DOI
10.1103/PhysRevLett.97.045504). Of a fixed number of draws the first is taken whose atoms are no
nearer than they may be, or else the one of the farthest atoms is widened, so that no composition
or volume makes the search endless.
"""

from collections.abc import Sequence
from itertools import product
from typing import Final

import numpy as np
from ase.geometry import cellpar_to_cell
from numpy.typing import NDArray

from mdgraph.data.bonding import bond_lengths, bonded
from mdgraph.system import System

Array = NDArray[np.float64]

CLOSEST: Final = 0.6
"""Of the sum of two covalent radii; no atoms are nearer, unless that is asked. Bonds have 0.75 and
more."""

_DRAWS: Final = 16
"""Of positions for each structure."""

_LENGTHS: Final = (0.6, 1.6)
_ANGLES: Final = (60.0, 120.0)
"""Relative lengths and degrees of random cells; flatter ones hold the same lattices."""

_SCATTER: Final = (0.2, 0.6)
"""A, standard deviations of the coordinates of scattered atoms."""

_FARTHEST: Final = 1.3
"""Of the sum of two covalent radii, of an atom that is put beside another."""

_ACIDIC: Final = (7, 8, 9, 16)
"""Elements whose hydrogens go elsewhere: N, O, F, S."""

_TILT: Final = 0.7
"""Of a unit length: of a new bond from the side that is free; flat atoms have two sides."""

_IMAGES: Final = np.array(list(product((-1.0, 0.0, 1.0), repeat=3)))


def random_crystal(
    numbers: Sequence[int] | NDArray[np.int64],
    volume: float,
    rng: np.random.Generator,
    closest: float = CLOSEST,
) -> System:
    """A random cell with atoms at random places.

    Args:
        numbers: atomic numbers (N,).
        volume: A^3 an atom; larger where atoms would be too near each other.
        rng: draws.
        closest: share of the sum of two covalent radii, no atoms are nearer.
    """
    numbers = np.asarray(numbers)
    cell = cellpar_to_cell([*rng.uniform(*_LENGTHS, 3), *rng.uniform(*_ANGLES, 3)])
    cell = cell * (len(numbers) * volume / abs(np.linalg.det(cell))) ** (1.0 / 3.0)
    positions = rng.random((_DRAWS, len(numbers), 3)) @ cell
    return _apart(numbers, positions, cell, closest)


def random_cluster(
    numbers: Sequence[int] | NDArray[np.int64],
    volume: float,
    rng: np.random.Generator,
    closest: float = CLOSEST,
) -> System:
    """Atoms at random places of a ball in vacuum.

    Args:
        numbers: atomic numbers (N,).
        volume: A^3 an atom, of the ball; larger where atoms would be too near each other.
        rng: draws.
        closest: share of the sum of two covalent radii, no atoms are nearer.
    """
    numbers = np.asarray(numbers)
    ways = rng.normal(size=(_DRAWS, len(numbers), 3))
    ways /= np.linalg.norm(ways, axis=-1, keepdims=True)
    radius = (3.0 / (4.0 * np.pi) * volume * len(numbers)) ** (1.0 / 3.0)
    positions = radius * rng.random((_DRAWS, len(numbers), 1)) ** (1.0 / 3.0) * ways
    return _apart(numbers, positions, None, closest)


def scattered_molecule(
    system: System, rng: np.random.Generator, closest: float = CLOSEST
) -> System:
    """A molecule whose atoms are all displaced at random, by 0.2 to 0.6 A in each direction."""
    size = (_DRAWS, *system.positions.shape)
    draws = system.positions + rng.normal(scale=rng.uniform(*_SCATTER), size=size)
    return _with_places(system, draws, closest)


def moved_atom(system: System, rng: np.random.Generator, closest: float = CLOSEST) -> System:
    """A molecule with one atom put beside another, in any direction.

    It comes as near as `closest` or up to 1.3 times the sum of their covalent radii away. Two of
    three times a hydrogen moves, if there is one.
    """
    hydrogens = np.flatnonzero(system.numbers == 1)
    if not len(hydrogens) or rng.random() < 1.0 / 3.0:
        hydrogens = np.arange(len(system))
    atom = int(rng.choice(hydrogens))
    beside = int(rng.choice(np.delete(np.arange(len(system)), atom)))
    ways = rng.normal(size=(_DRAWS, 3))
    return _beside(system, atom, beside, ways, rng.uniform(closest, _FARTHEST), closest)


def tautomer(system: System, rng: np.random.Generator, closest: float = CLOSEST) -> System:
    """A molecule with one hydrogen bonded to another heavy atom, on the side that is free there.

    A hydrogen of N, O, F or S, if there is one, and else any. Without a hydrogen, or with fewer
    than two heavy atoms, it is `moved_atom`.
    """
    bonds = bonded(system.numbers, system.positions)
    heavy = np.flatnonzero(system.numbers != 1)
    hydrogens = np.flatnonzero(system.numbers == 1)
    acid = [atom for atom in hydrogens if np.isin(system.numbers[bonds[atom]], _ACIDIC).any()]
    if not len(hydrogens) or len(heavy) < 2:
        return moved_atom(system, rng, closest)
    atom = int(rng.choice(acid or hydrogens))
    others = [place for place in heavy if not bonds[atom, place]]
    if not others:
        return moved_atom(system, rng, closest)
    beside = int(rng.choice(others))
    arms = system.positions[bonds[beside]] - system.positions[beside]
    arms = arms / np.linalg.norm(arms, axis=1, keepdims=True)
    ways = rng.normal(scale=_TILT, size=(_DRAWS, 3)) - arms.sum(axis=0)
    return _beside(system, atom, beside, ways, 1.0, closest)


def _beside(
    system: System, atom: int, beside: int, ways: Array, share: float, closest: float
) -> System:
    """One atom put beside another, a share of the sum of their radii away in one of (D, 3) ways."""
    ways = ways / np.linalg.norm(ways, axis=-1, keepdims=True)
    draws = np.repeat(system.positions[None], _DRAWS, axis=0)
    length = share * bond_lengths(system.numbers)[atom, beside]
    draws[:, atom] = system.positions[beside] + length * ways
    return _with_places(system, draws, closest)


def _with_places(system: System, draws: Array, closest: float) -> System:
    """A molecule at the first of the draws (D, N, 3) whose atoms are apart, or the best one."""
    return system.replace(positions=_apart(system.numbers, draws, None, closest).positions)


def _apart(numbers: NDArray[np.int64], draws: Array, cell: Array | None, closest: float) -> System:
    """Of the draws (D, N, 3) the first whose atoms are apart, or the best one, widened.

    Distances to periodic images count too.
    """
    shifts = np.zeros((1, 3)) if cell is None else _IMAGES @ cell
    ways = draws[:, :, None, None] - draws[:, None, :, None] + shifts
    distances = np.linalg.norm(ways, axis=-1)
    own = np.arange(len(numbers))
    middle = len(shifts) // 2  # no shift
    distances[:, own, own, middle] = np.inf
    shares = (distances.min(axis=-1) / (closest * bond_lengths(numbers))).min(axis=(1, 2))
    best = int(np.minimum(shares, 1.0).argmax())
    scale = 1.0 / min(1.0, float(shares[best]))
    positions = scale * draws[best]
    if cell is None:
        return System(numbers, positions)
    return System(numbers, positions, cell=scale * cell, pbc=np.full(3, True))
