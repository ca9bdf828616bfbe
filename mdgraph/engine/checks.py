"""Checks of structures: lengths that are not in Angstrom, and overlapping atoms."""

import itertools
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mdgraph.errors import InputError
from mdgraph.neighbors import NeighborList
from mdgraph.state import State
from mdgraph.system import System, SystemArrays, compact_cell, completed_cell
from mdgraph.units import COVALENT_RADII

COINCIDENT: Final = 1e-3
"""Two atoms closer than this (A), in any image, are an error of the structure."""


_WEIGHTS: Final = np.sqrt([2.0, 3.0, 5.0, 7.0])
"""Of a place in the key that finds equal ones by one sort; unlike places may share one, too."""


def check_duplicates(systems: Sequence[System]) -> None:
    """Refuses equal positions before a neighbor list is allocated for them.

    Raises:
        InputError: two atoms of a system in the same place.
    """
    arrays = SystemArrays.of(systems)
    owner = np.arange(len(arrays)).repeat(arrays.sizes)
    columns = [*np.round(arrays.positions / COINCIDENT).T, owner]
    keys = sum(column * weight for column, weight in zip(columns, _WEIGHTS, strict=True))
    keys = np.sort(keys)
    if (keys[1:] != keys[:-1]).all():
        return  # equal rows have equal keys, as each is summed alike
    rows = np.column_stack(columns)
    order = np.lexsort(rows.T)
    same = (rows[order[1:]] == rows[order[:-1]]).all(axis=1)
    if same.any():
        place = int(same.argmax())
        first, second = sorted(order[place : place + 2].tolist())
        start = int(owner.searchsorted(owner[first]))
        raise _coincident(first - start, second - start)


def check_pairs(state: State, pairs: NeighborList) -> None:
    """Refuses pairs of a list that are too close, images included; syncs.

    Raises:
        InputError: two atoms, or an atom and an image, in the same place.
    """
    for block in pairs.blocks(state.positions, state.cell):
        distance = torch.linalg.vector_norm(block.vectors.detach(), dim=-1)
        close = (block.valid & (distance < COINCIDENT)).nonzero()
        if len(close):
            atom, slot = close[0].tolist()
            neighbor = int(block.index[atom, slot])
            start = int(state.grouping.start[state.grouping.index[atom]])
            raise _coincident(*sorted((atom - start, neighbor - start)))


def any_close(state: State, pairs: NeighborList) -> Tensor:
    """() bool, whether a pair is closer than `NEAREST`; capturable, does not sync.

    Without such a pair `check_pairs` passes, and `check_lengths` as far as it is of distances.
    """
    close = []
    for block in pairs.blocks(state.positions, state.cell):
        distance = torch.linalg.vector_norm(block.vectors.detach(), dim=-1)
        close.append((block.valid & (distance < NEAREST)).any())
    return torch.stack(close).any()


def _coincident(first: int, second: int) -> InputError:
    return InputError(
        f"Atoms {first} and {second} are at the same place "
        f"(closer than {COINCIDENT} A); move or remove one of them."
    )


Array = NDArray[np.float64]

DENSEST: Final = 1.0
"""Smallest volume of an atom, A^3; metallic hydrogen, the densest matter, has a little more."""

FRACTIONS: Final = (4, 4.0)
"""Atoms, and A^3 of the cell for each of them: so many within a cube of 1 A, as fractions are, in
so large a cell are no structure, whose shortest distance would be 1.41 A at most."""

NEAREST: Final = 0.4
"""If most atoms have another one nearer than this (A), lengths are not in Angstrom. A few pairs
may be closer, such as in studies of nuclear repulsion down to 0.3 A."""

NEAREST_PAIR: Final = 0.2
"""The same limit for a system of two atoms."""

_MARGIN: Final = 2.0
"""Space that atoms take beyond the outermost positions, A."""

_MOST_ATOMS: Final = 16
_FEWEST_ATOMS: Final = 4
_DISTANCES: Final = 500_000
"""Limits of the sample of atoms whose nearest neighbors are searched, and of its distances."""

_LONGEST_BOND: Final = 1.35
_BONDS_IN_BOHR: Final = (1.5, 2.3)
"""Distances over sums of covalent radii: bonds have 0.8 to 1.25, in bohr 1.89 times as much."""
_NOBLE_GASES: Final = (2, 10, 18, 36, 54, 86)

_SHIFTS: Final = np.array(
    [shift for shift in itertools.product((-1, 0, 1), repeat=3) if any(shift)]
)


def check_lengths(systems: Sequence[System], *, distances: bool = True) -> None:
    """Refuses structures in nm or in fractions of their cell, before a list is allocated.

    Args:
        systems: the structures.
        distances: whether it looks at distances too; see `any_close`.

    Raises:
        InputError: no more than 1 A^3 for each atom, most atoms closer than 0.4 A to another, or
            all of them in a small part of a cell, as fractions are.
    """
    if not distances:
        systems = _check_volumes(SystemArrays.of(systems))
    shapes = [(system.positions, system.cell, system.pbc) for system in systems]
    _check_all(shapes, distances=distances)


def _check_volumes(systems: SystemArrays) -> list[System]:
    """Does without distances what `check_lengths` does, for many systems at once.

    Returns:
        Those that are periodic along one or two directions, which are left.

    Raises:
        InputError: no more than 1 A^3 for each atom.
    """
    starts = systems.ends - systems.sizes
    highest = np.maximum.reduceat(systems.positions, starts)
    lowest = np.minimum.reduceat(systems.positions, starts)
    widths = highest - lowest
    volumes = (widths + _MARGIN).prod(axis=1)
    periodic = systems.pbc.all(axis=1)
    cells = np.abs(np.linalg.det(systems.cells[periodic]))
    volumes[periodic] = np.minimum(volumes[periodic], cells)
    _check_fractions(widths[periodic], cells, systems.sizes[periodic])
    mixed = systems.pbc.any(axis=1) & ~periodic
    _check_volume((volumes / systems.sizes)[~mixed])
    return [systems[place] for place in np.flatnonzero(mixed).tolist()]


def _check_volume(volumes: Array) -> None:
    """Raises InputError for volumes of an atom, A^3, that no matter has."""
    volume = volumes.min(initial=np.inf)
    if volume <= DENSEST:
        raise _wrong_unit(f"There are {volume:.2g} A^3 for each atom, too few for any matter")


def _check_fractions(widths: Array, volumes: Array, counts: NDArray[np.int64] | np.int64) -> None:
    """Refuses atoms that fractions of their cell put into a cube of 1 A.

    Args:
        widths: (G, 3) from the lowest to the highest position, A.
        volumes: (G) of the cells, which are periodic in three directions, A^3.
        counts: (G) of atoms.
    """
    fewest, roomy = FRACTIONS
    alike = (counts >= fewest) & (widths.max(axis=1) <= 1.0) & (volumes > roomy * counts)
    if alike.any():
        raise _wrong_unit("All atoms are within 1 A along x, y and z, and the cell is far larger")


def check_lengths_of(state: State) -> None:
    """Does `check_lengths` for all systems of a state; syncs."""
    parts = np.split(state.positions.double().cpu().numpy(), np.cumsum(state.grouping.sizes)[:-1])
    cells, pbc = state.cell.double().cpu().numpy(), state.pbc.cpu().numpy()
    _check_all(
        [
            (positions, cell, periodic)
            for positions, cell, periodic in zip(parts, cells, pbc, strict=True)
            if np.isfinite(positions).all() and np.isfinite(cell).all()
        ]
    )


def _check_all(
    systems: Sequence[tuple[Array, Array, NDArray[np.bool_]]], *, distances: bool = True
) -> None:
    """Checks positions (n, 3), cells and periodic directions, those of a kind together."""
    kinds: dict[tuple[int, ...], list[tuple[Array, Array]]] = {}
    for positions, cell, pbc in systems:
        kind = (len(positions), *pbc.tolist())
        kinds.setdefault(kind, []).append((positions, completed_cell(cell, pbc)))
    for (count, *periodic), members in kinds.items():
        together = max(1, _DISTANCES // (_MOST_ATOMS * count))
        for start in range(0, len(members), together):
            part = members[start : start + together]
            positions = np.stack([one for one, _ in part])
            cells = np.stack([cell for _, cell in part])
            _check(positions, cells, np.array(periodic, dtype=bool), distances=distances)


def _check(positions: Array, cells: Array, pbc: NDArray[np.bool_], *, distances: bool) -> None:
    """Checks systems of as many atoms each: (G, n, 3), (G, 3, 3) and (3,)."""
    count = positions.shape[1]
    fractional = positions @ np.linalg.inv(cells)
    volumes = np.abs(np.linalg.det(cells))
    if pbc.all():
        _check_fractions(np.ptp(positions, axis=1), volumes, np.int64(count))
    open_box = volumes * _widths(fractional)[:, ~pbc].prod(axis=1)
    _check_volume(np.minimum(open_box, _widths(positions).prod(axis=1)) / count)
    if not distances:
        return
    sample = min(count, max(_FEWEST_ATOMS, min(_MOST_ATOMS, _DISTANCES // count)))
    indices = np.arange(sample) * count // sample
    # A structure may have two atoms that are close.
    place = (3 * sample - 1) // 4 if count > 4 else sample - 1
    least = NEAREST_PAIR if count == 2 else NEAREST
    some = indices[:: sample // (sample - place)][: sample - place]
    if (_nearest(fractional, cells, pbc, some) >= least).all():
        return  # so many that the others do not matter
    typical = np.sort(_nearest(fractional, cells, pbc, indices), axis=1)[:, place].min()
    if typical < least:
        raise _wrong_unit(f"Most atoms have another one within {typical:.2g} A")


def _widths(points: Array) -> Array:
    """Widths (G, 3) of the boxes around points (G, n, 3), with a margin."""
    widths: Array = points.max(axis=1) - points.min(axis=1) + _MARGIN
    return widths


def _nearest(
    fractional: Array, cells: Array, pbc: NDArray[np.bool_], indices: NDArray[np.int64]
) -> Array:
    """Distances (G, sample), A, from some atoms of each system to their nearest ones."""
    nearest: Array = np.sqrt(_squares(fractional, cells, pbc, indices).min(axis=2))
    return nearest


def _squares(
    fractional: Array, cells: Array, pbc: NDArray[np.bool_], indices: NDArray[np.int64]
) -> Array:
    """Squares of distances (G, sample, n), A^2, from some atoms of each system to all.

    They are exact below half the heights of the cell; that to the atom itself is of its images.
    """
    own_image = np.full((len(cells), 1), np.inf)
    if pbc.any():
        shifts = _SHIFTS[(_SHIFTS[:, ~pbc] == 0).all(axis=1)]
        own_image = np.square(shifts @ cells).sum(axis=2).min(axis=1, keepdims=True)
    differences = fractional[:, indices, None] - fractional[:, None]
    if pbc.any():
        differences -= np.where(pbc, np.rint(differences), 0.0)
    vectors = differences @ cells[:, None]
    squares: Array = np.einsum("gijk,gijk->gij", vectors, vectors)
    squares[:, np.arange(len(indices)), indices] = own_image
    squares[squares < COINCIDENT**2] = np.inf  # `check_pairs` reports these
    return squares


def seems_in_bohr(system: System) -> bool:
    """Whether atoms are as far from each other as bonds are long in bohr, and none is nearer.

    Noble gases and pairs of atoms may be so in A, and are not told.
    """
    count = len(system)
    if count <= 2 or np.isin(system.numbers, _NOBLE_GASES).any():
        return False
    cells = compact_cell(completed_cell(system.cell, system.pbc), system.pbc)[None]
    sample = min(count, max(_FEWEST_ATOMS, min(_MOST_ATOMS, _DISTANCES // count)))
    indices = np.arange(sample) * count // sample
    squares = _squares(system.positions[None] @ np.linalg.inv(cells), cells, system.pbc, indices)
    radii = COVALENT_RADII[system.numbers]
    bonds = np.sqrt(squares[0]) / (radii[indices, None] + radii)
    shortest = bonds.min(axis=1)
    shortest_of_all, (least, most) = shortest.min(), _BONDS_IN_BOHR
    return bool(shortest_of_all > _LONGEST_BOND and least < np.median(shortest) < most)


def _wrong_unit(what: str) -> InputError:
    return InputError(
        f"{what}; positions and cells are in A, are these in nm, or fractions of the cell?"
    )
