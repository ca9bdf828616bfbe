"""A neighbor list that overflows, whose cell changes or whose atoms are lost says so, and grows."""

import math

import numpy as np
import pytest
import torch
from ase_pairs import (
    assert_agrees_with_ase,
    assert_same_pairs,
    pairs_by_ase,
    pairs_of,
    search_forced,
    within,
)
from neighbor_cases import (
    TRICLINIC,
    assert_reverse_is_right,
    molecule,
    random_atoms,
    silicon,
    slab,
    vectors_of,
    water_box,
)

from mdgraph.neighbors import NeighborList
from mdgraph.state import State

# Capacity and overflow


def test_an_overflow_keeps_the_true_count_and_growing_completes_the_list(search: str) -> None:
    state = State([silicon()])
    with search_forced(search):
        ample = NeighborList(state, 12.0)
        small = NeighborList(state, 12.0, capacity=8)
        true = int(ample.count.max())
        status = small.status()
        assert status.most_neighbors == true > small.capacity
        assert not status.complete
        assert (small.count == small.capacity).all()
        # What did fit are true pairs.
        (kept,) = pairs_of(small, state)
        (all_pairs,) = pairs_of(ample, state)
        assert kept.keys() < all_pairs.keys()
        assert ((small.reverse >= 0) & (small.reverse < small.capacity)).all()

        small.grow()
        assert small.status().complete
        assert torch.equal(small.count, ample.count)
        assert list(pairs_of(small, state)[0]) == list(all_pairs)
        assert torch.equal(vectors_of(small, state)[:, :true], vectors_of(ample, state)[:, :true])
        assert_reverse_is_right(small, state)


def test_an_overflow_stays_recorded_after_the_atoms_have_moved_apart(search: str) -> None:
    system = random_atoms(np.eye(3) * 30.0, True, 60, 11)
    state = State([system])
    with search_forced(search):
        neighbors = NeighborList(state, 3.0)
        rest = state.positions.clone()
        state.positions.copy_(15.0 + 0.05 * (rest - 15.0))
        neighbors.update_(state.positions, state.cell)
        crowded = neighbors.status()
        assert not crowded.complete
        state.positions.copy_(rest)
        neighbors.update_(state.positions, state.cell)
        assert neighbors.status().most_neighbors == crowded.most_neighbors
        assert not neighbors.status().complete
        assert_same_pairs(pairs_of(neighbors, state)[0], pairs_by_ase(system, 3.1), 3.0)
        neighbors.grow()
        assert neighbors.status().complete
        assert_agrees_with_ase(neighbors, state, [system])


def test_a_list_planned_for_a_gas_grows_when_atoms_come_together(search: str) -> None:
    """All atoms fall into a few bins: bins overflow, and another search may become better."""
    system = random_atoms(np.eye(3) * 44.0, True, 120, 12)
    state = State([system])
    with search_forced(search):
        neighbors = NeighborList(state, 5.0)
    state.positions.copy_(state.positions * 0.12)
    neighbors.update_(state.positions, state.cell)
    assert not neighbors.status().complete
    neighbors.grow()
    dense = system.replace(positions=state.positions.numpy())
    assert_agrees_with_ase(neighbors, state, [dense])
    # And back, when the plan holds far more than is needed.
    state.positions.copy_(torch.from_numpy(system.positions.copy()))
    neighbors.update_(state.positions, state.cell)
    assert_agrees_with_ase(neighbors, state, [system])


def test_atoms_that_leave_the_planned_box_of_a_droplet_are_not_lost() -> None:
    system = random_atoms(np.eye(3) * 20.0, False, 80, 13).replace(cell=np.zeros((3, 3)))
    state = State([system])
    with search_forced("cell list"):
        neighbors = NeighborList(state, 4.0)
        rng = np.random.default_rng(14)
        for scale in (1.5, 4.0, 0.5):
            positions = rng.uniform(-10.0, 20.0, (80, 3)) * scale
            state.positions.copy_(torch.from_numpy(positions))
            neighbors.update_(state.positions, state.cell)
            if not neighbors.status().complete:
                neighbors.grow()
            assert_agrees_with_ase(neighbors, state, [system.replace(positions=positions)])


def test_a_list_is_a_function_of_its_reference(search: str) -> None:
    state = State([water_box(3)])
    with search_forced(search):
        neighbors = NeighborList(state, 5.0, skin=1.0)
    state.positions += 0.1 * torch.sin(torch.arange(state.positions.numel()).view(-1, 3))
    neighbors.update_(state.positions, state.cell)
    names = ("index", "image", "reverse", "count", "wrap")
    before = {name: getattr(neighbors, name).clone() for name in names}
    reference = neighbors.reference()
    neighbors.rebuild_(state.positions + 3.0, state.cell)
    neighbors.rebuild_(*reference)
    for name in names:
        assert torch.equal(before[name], getattr(neighbors, name)), name


# Numbers that are not numbers


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e-9, 1e9])
def test_a_broken_cell_leaves_a_list_that_can_grow_again(bad: float, search: str) -> None:
    """As after a chunk that went astray: back to the start, larger lists, again."""
    system = random_atoms(TRICLINIC, True, 20, 25)
    state = State([system])
    with search_forced(search):
        neighbors = NeighborList(state, 4.0, skin=0.5)
        reference = neighbors.reference()
        neighbors.update_(state.positions, state.cell * bad)
        assert ((neighbors.index >= 0) & (neighbors.index < 20)).all()
        neighbors.rebuild_(*reference)
        neighbors.grow()
    assert_agrees_with_ase(neighbors, state, [system])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e300])
@pytest.mark.parametrize("pbc", [(True, True, True), (True, False, False), (False, False, False)])
def test_broken_positions_cost_only_their_own_pairs(
    bad: float, pbc: tuple[bool, bool, bool], search: str
) -> None:
    system = random_atoms(TRICLINIC * 2, pbc, 40, 15)
    state = State([system])
    with search_forced(search):
        neighbors = NeighborList(state, 4.0, skin=0.5)
        good = pairs_of(neighbors, state)[0]
        state.positions[3, 1] = bad
        neighbors.update_(state.positions, state.cell)
        assert int(neighbors.count[3]) == 0
        assert ((neighbors.index >= 0) & (neighbors.index < 40)).all()
        assert ((neighbors.reverse >= 0) & (neighbors.reverse < neighbors.capacity)).all()
        state.positions[3] = 0.0
        found = pairs_of(neighbors, state)[0]
        assert found.keys() == {key for key in good if 3 not in key[:2]}

        state.positions[3] = torch.from_numpy(system.positions[3].copy())
        neighbors.update_(state.positions, state.cell)
        assert pairs_of(neighbors, state)[0].keys() == good.keys()


# Cells that change


@pytest.mark.parametrize("skin", [0.0, 0.6])
def test_a_cell_that_shrinks_beyond_the_plan_is_recorded_and_growing_completes_the_list(
    skin: float, search: str
) -> None:
    system = random_atoms(TRICLINIC * 2, True, 30, 18)
    state = State([system])
    with search_forced(search):
        neighbors = NeighborList(state, 4.0, skin, capacity=4000)
        assert neighbors.status().complete
        for factor in (0.35, 0.2):
            small = system.replace(positions=system.positions * factor, cell=system.cell * factor)
            state.positions.copy_(torch.from_numpy(small.positions.copy()))
            state.cell.copy_(torch.from_numpy(small.cell.copy()))
            neighbors.update_(state.positions, state.cell)
            assert neighbors.status().insufficient
            neighbors.grow()
            assert not neighbors.status().insufficient
            assert_agrees_with_ase(neighbors, state, [small])


def test_a_complete_status_is_right_while_a_cell_shrinks(search: str) -> None:
    """Whenever nothing is flagged, nothing is missing."""
    system = random_atoms(np.array([[9.0, 0, 0], [4, 8.0, 0], [-3, 2, 10.0]]), True, 5, 19)
    state = State([system])
    with search_forced(search):
        neighbors = NeighborList(state, 3.0, capacity=512)
        flagged = 0
        for factor in np.linspace(1.0, 0.35, 40):
            small = system.replace(positions=system.positions * factor, cell=system.cell * factor)
            state.positions.copy_(torch.from_numpy(small.positions.copy()))
            state.cell.copy_(torch.from_numpy(small.cell.copy()))
            neighbors.update_(state.positions, state.cell)
            if neighbors.status().insufficient:
                flagged += 1
                neighbors.grow()
            assert_agrees_with_ase(neighbors, state, [small])
    assert 0 < flagged < 12


def test_a_cell_that_grows_stays_complete(search: str) -> None:
    system = random_atoms(TRICLINIC, (True, True, False), 20, 20)
    state = State([system])
    with search_forced(search):
        neighbors = NeighborList(state, 4.0)
        large = system.replace(positions=system.positions * 3, cell=system.cell * 3)
        state.positions.copy_(torch.from_numpy(large.positions.copy()))
        state.cell.copy_(torch.from_numpy(large.cell.copy()))
        neighbors.update_(state.positions, state.cell)
    assert_agrees_with_ase(neighbors, state, [large])


@pytest.mark.gpu
def test_a_captured_update_reads_nothing_back_and_gives_the_list_of_the_processor(
    search: str,
) -> None:
    systems = [water_box(3), slab((0.0, 0.0, 0.0)), molecule(np.zeros((3, 3)))]
    state, host = State(systems, "cuda"), State(systems)
    with search_forced(search):
        neighbors = NeighborList(state, 4.0, skin=0.6)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        neighbors.update_(state.positions, state.cell)
    torch.cuda.current_stream().wait_stream(side)
    # A capture fails where the host reads.
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        neighbors.update_(state.positions, state.cell)
    builds = int(neighbors.rebuilds)
    rng = np.random.default_rng(26)
    for _ in range(12):
        host.positions += torch.from_numpy(rng.normal(scale=0.06, size=host.positions.shape))
        host.cell *= 1.002
        host.positions *= 1.002
        state.positions.copy_(host.positions)
        state.cell.copy_(host.cell)
        graph.replay()
        assert neighbors.status().complete
        for found, expected in zip(
            pairs_of(neighbors, state), pairs_of(NeighborList(host, 4.1), host), strict=True
        ):
            assert_same_pairs(within(found, 4.0), expected, 4.0)
    assert 0 < int(neighbors.rebuilds) - builds < 12
