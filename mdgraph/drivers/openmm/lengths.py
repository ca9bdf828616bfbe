"""Positions and boxes of OpenMM that came without their unit, or with a wrong one."""

from typing import Final

import numpy as np
from ase.data import covalent_radii
from numpy.typing import NDArray

from mdgraph.drivers.openmm.boxes import Array
from mdgraph.drivers.openmm.units import NANOMETRE
from mdgraph.engine.lengths import check_lengths
from mdgraph.errors import InputError
from mdgraph.system import System

LONG: Final = 4.0
TORN: Final = 2.0
"""A; where half of all bonds are longer, and half of them to the nearest image, positions came
without their unit."""

MATTER: Final = (0.7, 1.3)
"""Distances to the nearest atom, over the sum of covalent radii, in molecules and metals."""

GRID: Final = (3, 7)
"""Neighbors nearly as near as the nearest, in a gas on a simple grid; molecules have fewer of
them, and metals more."""

_FEWEST: Final = 8
"""Atoms; fewer of them may well be pulled apart on purpose."""

_LOOKED_AT: Final = (4, 16)
_DISTANCES: Final = 500_000
"""Fewest and most atoms whose neighbors are looked for, and distances between them."""

_NOBLE: Final = (2, 10, 18, 36, 54, 86)


def check_unit(structure: System, bonds: NDArray[np.int64]) -> None:
    """Refuses lengths that no matter has, as OpenMM reads plain numbers as nm.

    Args:
        structure: positions and box, A. A molecule that a face of the box cuts is no fault,
            nor is a gas.
        bonds: (B, 2) atoms; without any, nearest neighbors are looked at.

    Raises:
        InputError: bonds or neighbors ten times too far apart, or atoms that are closer to each
            other than `check_lengths` allows.
    """
    if len(bonds):
        _check_bonds(structure, bonds)
    else:
        _check_neighbors(structure)
    try:
        check_lengths(structure)
    except InputError:
        raise InputError(_crowded(structure)) from None


def _check_bonds(structure: System, bonds: NDArray[np.int64]) -> None:
    first, second = bonds.T
    vectors = structure.positions[second] - structure.positions[first]
    lengths = np.linalg.norm(vectors, axis=1)
    shortest = np.linalg.norm(_to_nearest_image(vectors, structure), axis=1)
    if np.median(lengths) > LONG and np.median(shortest) > TORN:
        raise InputError(
            f"Half of the topology's bonds are longer than {np.median(lengths):.3g} A; OpenMM "
            "reads plain numbers as nm, so give positions with their unit."
        )


def _check_neighbors(structure: System) -> None:
    """Refuses positions a tenth of which are matter, while they themselves are not."""
    if len(structure.numbers) < _FEWEST:
        return
    distances, sums = _distances(structure)
    if _is_matter(distances, sums):
        return
    # Either all lengths are ten times too large, or the box is right and positions leave it.
    wrong = _is_matter(0.1 * distances, sums) and not _is_grid(distances)
    if structure.pbc.any():
        fractions = structure.positions @ np.linalg.inv(structure.cell)
        tenth = structure.replace(positions=0.1 * structure.positions)
        wrong |= np.ptp(fractions, axis=0).max() > 2.0 and _is_matter(*_distances(tenth))
    if wrong:
        raise InputError(
            "Distances between atoms are those of matter at a tenth of the positions only; "
            "OpenMM reads plain numbers as nm, so give positions and box with their unit."
        )


def _distances(structure: System) -> tuple[Array, Array]:
    """Distances (K, N) from some atoms to all others, and the sums of covalent radii, A."""
    numbers, positions = structure.numbers, structure.positions
    count = len(numbers)
    looked_at = min(count, int(np.clip(_DISTANCES // count, *_LOOKED_AT)))
    chosen = np.arange(looked_at) * count // looked_at
    vectors = _to_nearest_image(positions - positions[chosen, None], structure)
    distances: Array = np.linalg.norm(vectors, axis=-1)
    distances[np.arange(looked_at), chosen] = np.inf
    noble = np.isin(numbers, _NOBLE)
    distances[noble | noble[chosen, None]] = np.inf  # they have no bonds by which to judge
    radii = covalent_radii[numbers]
    return distances, radii + radii[chosen, None]


def _is_matter(distances: Array, sums: Array) -> bool:
    nearest = (distances / sums).min(axis=1)
    return bool(np.mean((nearest > MATTER[0]) & (nearest < MATTER[1])) >= 0.9)


def _is_grid(distances: Array) -> bool:
    near = distances < 1.3 * distances.min(axis=1, keepdims=True)
    neighbors = near.sum(axis=1)
    return bool(np.median(neighbors) >= GRID[0] and neighbors.max() <= GRID[1])


def _to_nearest_image(vectors: Array, structure: System) -> Array:
    if not structure.pbc.any():
        return vectors
    cell = structure.cell
    nearest: Array = vectors - np.round(vectors @ np.linalg.inv(cell)) @ cell
    return nearest


def _crowded(structure: System) -> str:
    room = f"{len(structure.numbers)} atoms span {_in_nm(np.ptp(structure.positions, axis=0))}"
    if structure.pbc.any():
        room += f" in a box of {_in_nm(np.linalg.norm(structure.cell, axis=1))}"
    return (
        f"{room}, closer to each other than in any matter; give positions and box with their "
        "unit, of which OpenMM reads plain numbers as nm, and not as fractions of the box."
    )


def _in_nm(lengths: Array) -> str:
    return " x ".join(f"{one / NANOMETRE:.3g}" for one in lengths) + " nm"
