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
"""Two atoms closer than this (A), in any image, are taken for an error in the structure."""


def check_duplicates(system: System) -> None:
    """Refuses equal positions before a list is allocated, which would need a slot for each.

    Raises:
        InputError: two atoms in the same place.
    """
    rounded = np.round(system.positions / COINCIDENT)
    _, place, count = np.unique(rounded, axis=0, return_inverse=True, return_counts=True)
    if count.max() > 1:
        first, second = np.flatnonzero(place.ravel() == count.argmax())[:2].tolist()
        raise _coincident(first, second)


def check_pairs(state: State, pairs: NeighborList) -> None:
    """Refuses pairs of a list that are too close, images among them; reads the device.

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
"""A^3 of an atom; metallic hydrogen, the densest there is, has a little more."""

NEAREST: Final = 0.4
"""A; where most atoms have another one nearer than this, lengths are no A. A few may, as the
repulsion between nuclei is looked at down to 0.3 A."""

NEAREST_PAIR: Final = 0.2
"""The same of two atoms alone, which are pushed together to look at their repulsion."""

_AROUND: Final = 2.0
"""A of space that atoms take beyond the outermost of them."""

_LOOKED_AT: Final = 16
_AT_LEAST: Final = 4
_DISTANCES: Final = 500_000
"""Most and fewest atoms whose nearest ones are looked for, and distances between them."""

_SHIFTS: Final = np.array([one for one in itertools.product((-1, 0, 1), repeat=3) if any(one)])


def check_lengths(system: System) -> None:
    """Refuses a structure in nm or in fractions of its cell, before a list of it is allocated.

    Raises:
        InputError: no more than 1 A^3 for each atom, or most atoms closer than 0.4 A to another.
    """
    _check(system.positions, system.cell, system.pbc)


def check_lengths_of(state: State) -> None:
    """The same for all systems of a state; reads the device."""
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
    space = min(open_box, _widths(positions).prod()) / count
    if space <= DENSEST:
        raise _wrong_unit(f"There are {space:.2g} A^3 for each atom, too few for any matter")
    nearest = np.sort(_nearest(fractional, cell, pbc))
    # A structure may have two atoms that are close.
    most = float(nearest[(3 * len(nearest) - 1) // 4 if count > 4 else -1])
    if most < (NEAREST_PAIR if count == 2 else NEAREST):
        raise _wrong_unit(f"Most atoms have another one within {most:.2g} A")


def _widths(points: Array) -> Array:
    """(3,) of the box around points (N, 3), with what the outermost ones take."""
    widths: Array = points.max(axis=0) - points.min(axis=0) + _AROUND
    return widths


def completed(cell: Array, pbc: NDArray[np.bool_]) -> Array:
    """A cell (3, 3), A, as `complete_cell` has it; most are periodic in all directions, or none."""
    if pbc.all():
        return cell
    if not pbc.any():
        return np.eye(3)
    complete: Array = complete_cell(torch.tensor(cell)[None], torch.tensor(pbc)[None])[0].numpy()
    return complete


def _nearest(fractional: Array, cell: Array, pbc: NDArray[np.bool_]) -> Array:
    """Distances (A) from some atoms to the nearest one; exact below half the cell's heights."""
    count = len(fractional)
    own = np.inf
    if pbc.any():
        shifts = _SHIFTS[(_SHIFTS[:, ~pbc] == 0).all(axis=1)]
        own = np.square(shifts @ cell).sum(axis=1).min()
    looked_at = min(count, max(_AT_LEAST, min(_LOOKED_AT, _DISTANCES // count)))
    chosen = np.arange(looked_at) * count // looked_at
    between = fractional[chosen, None] - fractional
    if pbc.any():
        between -= np.where(pbc, np.rint(between), 0.0)
    vectors = between @ cell
    squares = np.einsum("ijk,ijk->ij", vectors, vectors)
    squares[np.arange(looked_at), chosen] = own
    squares[squares < COINCIDENT**2] = np.inf  # is found, and said, by others
    nearest: Array = np.sqrt(squares.min(axis=1))
    return nearest


def _wrong_unit(what: str) -> InputError:
    return InputError(
        f"{what}; positions and cells are in A, are these in nm, or fractions of the cell?"
    )
