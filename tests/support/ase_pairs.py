"""Pairs as ASE finds them, and the pairs of a list in the same words."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.geometry import complete_cell
from ase.neighborlist import neighbor_list
from numpy.typing import NDArray

from mdgraph.neighbors import NeighborList
from mdgraph.neighbors.search import CellList, EveryPair
from mdgraph.state import State
from mdgraph.system import System

SEARCHES = {"every pair": EveryPair, "cell list": CellList}
ROUNDING = 1e-9
"""A; pairs this close to the cutoff may be in either list."""

DirectedPairs = dict[tuple[int, ...], NDArray[np.float64]]
"""Vectors (3,) A by (i, j, three lattice offsets between the positions as given)."""


@contextmanager
def search_forced(name: str) -> Iterator[None]:
    """Makes one search win whatever the system, by pricing the other out."""
    (other,) = set(SEARCHES) - {name}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SEARCHES[other], "candidates", 2**62)
        yield


def uses_cell_list(neighbors: NeighborList) -> bool:
    return neighbors.status().bin_capacity > 0


def pairs_by_ase(system: System, cutoff: float) -> DirectedPairs:
    atoms = Atoms(system.numbers, system.positions, cell=system.cell, pbc=system.pbc)
    first, second, offset, vector = neighbor_list("ijSD", atoms, cutoff)
    keys = np.column_stack([first, second, offset]).tolist()
    found = {tuple(key): row for key, row in zip(keys, vector, strict=True)}
    assert len(found) == len(keys)
    return found


def pairs_of(neighbors: NeighborList, state: State) -> list[DirectedPairs]:
    """Valid slots of each system; fails on a pair listed twice or across systems."""
    pairs = neighbors.pairs(state.positions, state.cell)
    vectors = torch.cat(pairs.vectors, dim=1).detach().double().cpu().numpy()
    index = torch.cat([block.index for block in pairs.blocks], dim=1).cpu().numpy()
    valid = torch.cat([block.valid for block in pairs.blocks], dim=1).cpu().numpy()
    atom, slot = np.nonzero(valid)
    neighbor = index[atom, slot]
    vector = vectors[atom, slot]
    owner = state.grouping.index.cpu().numpy()
    assert (owner[atom] == owner[neighbor]).all()
    positions = state.positions.double().cpu().numpy()
    leap = vector - (positions[neighbor] - positions[atom])
    found = []
    for number, start in enumerate(state.grouping.start.tolist()):
        here = owner[atom] == number
        pbc = state.pbc[number].cpu().numpy()
        lattice = np.where(pbc[:, None], state.cell[number].double().cpu().numpy(), 0.0)
        offset = leap[here] @ np.linalg.inv(complete_cell(lattice))
        whole = np.rint(offset)
        np.testing.assert_allclose(whole @ lattice, leap[here], rtol=0, atol=1e-4)
        keys = np.column_stack([atom[here] - start, neighbor[here] - start, whole.astype(int)])
        one = {tuple(key): row for key, row in zip(keys.tolist(), vector[here], strict=True)}
        assert len(one) == len(keys)
        found.append(one)
    return found


def within(pairs: DirectedPairs, cutoff: float) -> DirectedPairs:
    return {key: row for key, row in pairs.items() if np.linalg.norm(row) < cutoff}


def assert_same_pairs(
    found: DirectedPairs,
    expected: DirectedPairs,
    cutoff: float,
    rounding: float = ROUNDING,
    accuracy: float = 1e-10,
) -> None:
    """Same keys and vectors, but for pairs within rounding of the cutoff.

    Args:
        found: no pair beyond the cutoff may be in here.
        expected: must hold the pairs a little beyond the cutoff as well.
    """
    missing = within(expected, cutoff - rounding).keys() - found.keys()
    surplus = found.keys() - within(expected, cutoff + rounding).keys()
    assert not missing, f"{len(missing)} pairs missing, such as {min(missing)}"
    assert not surplus, f"{len(surplus)} pairs too many, such as {min(surplus)}"
    if found:
        ours = np.array([found[key] for key in found])
        theirs = np.array([expected[key] for key in found])
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=accuracy)


def assert_agrees_with_ase(
    neighbors: NeighborList,
    state: State,
    systems: list[System],
    rounding: float = ROUNDING,
    accuracy: float = 1e-10,
) -> None:
    """Compares every system of the batch; pairs in the skin do not count."""
    cutoff = neighbors.cutoff
    assert neighbors.status().complete
    for found, system in zip(pairs_of(neighbors, state), systems, strict=True):
        expected = pairs_by_ase(system, cutoff + 2 * rounding)
        assert_same_pairs(within(found, cutoff), expected, cutoff, rounding, accuracy)
