"""Checks of structures: lengths that are not in Angstrom, and overlapping atoms."""

import itertools
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from mdgraph.errors import InputError
from mdgraph.neighbors import NeighborList
from mdgraph.neighbors.geometry import complete_cell
from mdgraph.state import State
from mdgraph.system import System

COINCIDENT: Final = 1e-3
"""Two atoms closer than this (A), in any image, are an error of the structure."""


def check_duplicates(system: System) -> None:
    """Refuses equal positions before a neighbor list is allocated for them.

    Raises:
        InputError: two atoms in the same place.
    """
    rounded = np.round(system.positions / COINCIDENT)
    _, place, count = np.unique(rounded, axis=0, return_inverse=True, return_counts=True)
    if count.max() > 1:
        first, second = np.flatnonzero(place.ravel() == count.argmax())[:2].tolist()
        raise _coincident(first, second)


def check_pairs(state: State, pairs: NeighborList) -> None:
    """Refuses pairs of a list that are too close, images included; syncs.

    Raises:
        InputError: two atoms, or an atom and an image, in the same place.
    """
    for block in pairs.pairs(state.positions, state.cell).blocks:
        distance = torch.linalg.vector_norm(block.vectors.detach(), dim=-1)
        close = (block.valid & (distance < COINCIDENT)).nonzero()
        if len(close):
            atom, slot = close[0].tolist()
            neighbor = int(block.index[atom, slot])
            start = int(state.grouping.start[state.grouping.index[atom]])
            raise _coincident(*sorted((atom - start, neighbor - start)))


def _coincident(first: int, second: int) -> InputError:
    return InputError(
        f"Atoms {first} and {second} are at the same place "
        f"(closer than {COINCIDENT} A); move or remove one of them."
    )


Array = NDArray[np.float64]

DENSEST: Final = 1.0
"""Smallest volume of an atom, A^3; metallic hydrogen, the densest matter, has a little more."""

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

_SHIFTS: Final = np.array(
    [shift for shift in itertools.product((-1, 0, 1), repeat=3) if any(shift)]
)


def check_lengths(system: System) -> None:
    """Refuses a structure in nm or in fractions of its cell, before a list is allocated.

    Raises:
        InputError: no more than 1 A^3 for each atom, or most atoms closer than 0.4 A to another.
    """
    _check(system.positions, system.cell, system.pbc)


def check_lengths_of(state: State) -> None:
    """Does `check_lengths` for all systems of a state; syncs."""
    parts = np.split(state.positions.double().cpu().numpy(), np.cumsum(state.grouping.sizes)[:-1])
    cells, pbc = state.cell.double().cpu().numpy(), state.pbc.cpu().numpy()
    for positions, cell, periodic in zip(parts, cells, pbc, strict=True):
        if np.isfinite(positions).all() and np.isfinite(cell).all():
            _check(positions, cell, periodic)


def _check(positions: Array, cell: Array, pbc: NDArray[np.bool_]) -> None:
    count = len(positions)
    cell = completed(cell, pbc)
    fractional = positions @ np.linalg.inv(cell)
    open_box = abs(np.linalg.det(cell)) * _widths(fractional)[~pbc].prod()
    volume = min(open_box, _widths(positions).prod()) / count
    if volume <= DENSEST:
        raise _wrong_unit(f"There are {volume:.2g} A^3 for each atom, too few for any matter")
    nearest = np.sort(_nearest(fractional, cell, pbc))
    # A structure may have two atoms that are close.
    typical = float(nearest[(3 * len(nearest) - 1) // 4 if count > 4 else -1])
    if typical < (NEAREST_PAIR if count == 2 else NEAREST):
        raise _wrong_unit(f"Most atoms have another one within {typical:.2g} A")


def _widths(points: Array) -> Array:
    """Widths (3,) of the box around points (N, 3), with a margin."""
    widths: Array = points.max(axis=0) - points.min(axis=0) + _MARGIN
    return widths


def completed(cell: Array, pbc: NDArray[np.bool_]) -> Array:
    """A cell (3, 3), A, completed as by `complete_cell`; fast for three or no periodic axes."""
    if pbc.all():
        return cell
    if not pbc.any():
        return np.eye(3)
    complete: Array = complete_cell(torch.tensor(cell)[None], torch.tensor(pbc)[None])[0].numpy()
    return complete


def _nearest(fractional: Array, cell: Array, pbc: NDArray[np.bool_]) -> Array:
    """Distances (A) from a sample of atoms to their nearest ones.

    They are exact below half the heights of the cell.
    """
    count = len(fractional)
    own_image = np.inf
    if pbc.any():
        shifts = _SHIFTS[(_SHIFTS[:, ~pbc] == 0).all(axis=1)]
        own_image = np.square(shifts @ cell).sum(axis=1).min()
    sample = min(count, max(_FEWEST_ATOMS, min(_MOST_ATOMS, _DISTANCES // count)))
    indices = np.arange(sample) * count // sample
    differences = fractional[indices, None] - fractional
    if pbc.any():
        differences -= np.where(pbc, np.rint(differences), 0.0)
    vectors = differences @ cell
    squares = np.einsum("ijk,ijk->ij", vectors, vectors)
    squares[np.arange(sample), indices] = own_image
    squares[squares < COINCIDENT**2] = np.inf  # `check_pairs` reports these
    nearest: Array = np.sqrt(squares.min(axis=1))
    return nearest


def _wrong_unit(what: str) -> InputError:
    return InputError(
        f"{what}; positions and cells are in A, are these in nm, or fractions of the cell?"
    )
