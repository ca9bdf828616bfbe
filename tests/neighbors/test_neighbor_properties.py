"""Generated systems: the neighbor list against ASE, whatever the cell."""

import numpy as np
import pytest
import torch
from ase_pairs import SEARCHES, assert_agrees_with_ase, search_forced
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from mdgraph.neighbors import NeighborList
from mdgraph.neighbors.geometry import NEIGHBORS, compact_cells, complete_cell
from mdgraph.state import State
from mdgraph.system import System, compact_cell, completed_cell

LONGEST = 9.0
"""A, of a cell vector."""

MOST_PAIRS = 3000


@st.composite
def cells(draw: st.DrawFn) -> NDArray[np.float64]:
    """Three vectors of any direction and handedness, faces at least 0.7 A apart."""
    element = st.floats(-1.0, 1.0, width=32).map(lambda x: round(x, 3))
    size = draw(st.floats(1.0, LONGEST, width=32))
    cell = size * draw(arrays.arrays(np.float64, (3, 3), elements=element))
    left, values, right = np.linalg.svd(cell)
    return left @ np.diag(np.maximum(values, 0.7)) @ right


@st.composite
def systems(draw: st.DrawFn) -> System:
    cell = draw(cells())
    atoms = draw(st.integers(1, 10))
    pbc = np.array(draw(st.tuples(st.booleans(), st.booleans(), st.booleans())))
    # Round numbers put atoms on faces, edges and each other.
    inside = st.one_of(st.floats(0.0, 1.0, width=32), st.sampled_from([0.0, 0.25, 0.5, 1.0]))
    fractional = draw(arrays.arrays(np.float64, (atoms, 3), elements=inside))
    leaps = draw(arrays.arrays(np.int64, (atoms, 3), elements=st.integers(-20, 20)))
    positions = (fractional + leaps * pbc) @ cell + draw(st.floats(-50.0, 50.0, width=32))
    if not draw(st.booleans()):
        cell = np.where(pbc[:, None], cell, 0.0)
    return System([1] * atoms, positions, cell=cell, pbc=pbc)


def affordable(system: System, cutoff: float) -> float:
    """The cutoff, or a shorter one where it would list too many pairs."""
    lattice = system.cell[system.pbc]
    volume = np.sqrt(np.linalg.det(lattice @ lattice.T)) if len(lattice) else 1.0
    shape = {0: 1.0, 1: 2.0 * cutoff, 2: np.pi * cutoff**2, 3: 4.19 * cutoff**3}[len(lattice)]
    excess = len(system) ** 2 * shape / volume / MOST_PAIRS
    return cutoff if excess < 1 else cutoff * excess ** (-1 / len(lattice))


def check_any_system(system: System, cutoff: float, skin: float, search: str) -> None:
    cutoff = affordable(system, cutoff + skin) - skin
    state = State([system])
    with search_forced(search):
        neighbors = NeighborList(state, max(cutoff, 0.1), skin)
    assert_agrees_with_ase(neighbors, state, [system])


ANY_SYSTEM = given(
    system=systems(),
    cutoff=st.floats(0.5, 11.0, width=32),
    skin=st.sampled_from([0.0, 0.7]),
    search=st.sampled_from(list(SEARCHES)),
)


@settings(max_examples=60, deadline=None, derandomize=True)
@ANY_SYSTEM
def test_any_system_agrees_with_ase(
    system: System, cutoff: float, skin: float, search: str
) -> None:
    check_any_system(system, cutoff, skin, search)


@pytest.mark.slow
@settings(max_examples=250, deadline=None, derandomize=True)
@ANY_SYSTEM
def test_many_systems_agree_with_ase(
    system: System, cutoff: float, skin: float, search: str
) -> None:
    check_any_system(system, cutoff, skin, search)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    batch=st.lists(systems(), min_size=2, max_size=4),
    cutoff=st.floats(0.5, 7.0, width=32),
    search=st.sampled_from(list(SEARCHES)),
)
def test_any_batch_agrees_with_ase(batch: list[System], cutoff: float, search: str) -> None:
    cutoff = min(affordable(system, cutoff) for system in batch)
    state = State(batch)
    with search_forced(search):
        neighbors = NeighborList(state, cutoff)
    assert_agrees_with_ase(neighbors, state, batch)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    system=systems(),
    skin=st.floats(0.0625, 2.0, width=32),
    search=st.sampled_from(list(SEARCHES)),
    seed=st.integers(0, 2**16),
)
def test_any_motion_of_atoms_and_cell_keeps_the_list_complete(
    system: System, skin: float, search: str, seed: int
) -> None:
    cutoff = affordable(system, 4.0 + skin) - skin
    rng = np.random.default_rng(seed)
    state = State([system])
    with search_forced(search):
        neighbors = NeighborList(state, max(cutoff, 0.1), skin)
        for _ in range(4):
            strain = np.eye(3) + rng.normal(scale=0.03, size=(3, 3)) * rng.integers(0, 2)
            steps = rng.normal(scale=0.3 * skin, size=system.positions.shape)
            positions = system.positions @ strain + steps
            system = system.replace(positions=positions, cell=system.cell @ strain)
            state.positions.copy_(state.positions.new_tensor(system.positions.tolist()))
            state.cell.copy_(state.cell.new_tensor(system.cell.tolist()))
            neighbors.update_(state.positions, state.cell)
            if not neighbors.status().complete:
                neighbors.grow()
            assert_agrees_with_ase(neighbors, state, [system])


@settings(max_examples=50, deadline=None, derandomize=True)
@given(cells(), st.tuples(st.booleans(), st.booleans(), st.booleans()))
def test_cells_are_completed_alike_on_the_host_and_on_a_device(
    cell: NDArray[np.float64], periodic: tuple[bool, bool, bool]
) -> None:
    pbc = np.array(periodic)
    expected = complete_cell(torch.tensor(cell)[None], torch.tensor(pbc)[None])[0]
    np.testing.assert_allclose(completed_cell(cell, pbc), expected, atol=1e-12)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(cells(), st.tuples(st.booleans(), st.booleans(), st.booleans()))
def test_cells_are_made_compact_alike_on_the_host_and_on_a_device(
    cell: NDArray[np.float64], periodic: tuple[bool, bool, bool]
) -> None:
    pbc = np.array(periodic)
    shears = np.eye(3) + pbc[:, None] * pbc * [[0.0, 2.0, -1.0], [0.0, 0.0, 2.0], [0.0, 0.0, 0.0]]
    skewed = shears @ completed_cell(cell, pbc)
    compact = compact_cell(skewed, pbc)
    change = compact @ np.linalg.inv(skewed)
    np.testing.assert_allclose(change, np.round(change), atol=1e-6)
    assert abs(np.linalg.det(compact)) == pytest.approx(abs(np.linalg.det(skewed)), rel=1e-9)
    np.testing.assert_array_equal(compact[~pbc], skewed[~pbc])
    lengths = np.linalg.norm(compact, axis=1)
    for axis in np.flatnonzero(pbc):
        others = NEIGHBORS.numpy() * (pbc & (np.arange(3) != axis))
        assert np.linalg.norm(compact[axis] + others @ compact, axis=1).min() >= (
            lengths[axis] * (1.0 - 1e-8)
        )
    device = compact_cells(torch.tensor(skewed)[None], torch.tensor(pbc)[None], NEIGHBORS)[0]
    np.testing.assert_allclose(lengths, np.linalg.norm(device, axis=1), rtol=1e-6)
