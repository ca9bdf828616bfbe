"""A neighbor list with a skin rests while it is complete, and never misses a pair."""

import numpy as np
import pytest
import torch
from ase_pairs import SEARCHES, assert_same_pairs, pairs_by_ase, pairs_of, search_forced, within
from neighbor_cases import PBC, TRICLINIC, deformed, molecule, moved, random_atoms, water_box

from mdgraph.neighbors import NeighborList
from mdgraph.state import State
from mdgraph.system import System


def test_a_pair_that_closes_in_by_more_than_half_the_skin_each_is_not_missed(search: str) -> None:
    cutoff, skin = 5.0, 1.0
    apart = cutoff + skin + 0.1
    cell = np.diag([30.0, 30.0, 30.0])
    rng = np.random.default_rng(16)
    others = rng.uniform(10.0, 28.0, (30, 3))
    positions = np.concatenate([[[1.0, 1.0, 1.0], [1.0 + apart, 1.0, 1.0]], others])
    state = State([System([18] * 32, positions, cell=cell, pbc=True)])
    with search_forced(search):
        neighbors = NeighborList(state, cutoff, skin)
    assert (0, 1, 0, 0, 0) not in pairs_of(neighbors, state)[0]
    builds = int(neighbors.rebuilds)
    travel = 0.0
    for step in (0.3, 0.19, 0.1, 0.1):
        travel += step
        state.positions[0, 0] += step
        state.positions[1, 0] -= step
        neighbors.update_(state.positions, state.cell)
        # Never later than half the skin each, and not before.
        assert int(neighbors.rebuilds) == builds + (1 if travel > skin / 2 else 0)
    assert skin / 2 < travel < skin
    assert apart - 2 * travel < cutoff
    assert (0, 1, 0, 0, 0) in pairs_of(neighbors, state)[0]


def test_the_list_is_not_rebuilt_while_it_is_complete() -> None:
    # Far from the origin, where a strain carries the atoms a long way.
    state = State([moved(water_box(3))])
    neighbors = NeighborList(state, 4.0, skin=0.8)
    builds = int(neighbors.rebuilds)
    start = state.positions.clone()
    cell = state.cell.clone()

    state.positions[5, 2] += 0.39
    neighbors.update_(state.positions, state.cell)
    assert int(neighbors.rebuilds) == builds

    # A small strain that carries the atoms along costs little of the skin.
    state.positions.copy_(start * 1.01)
    state.cell.copy_(cell * 1.01)
    neighbors.update_(state.positions, state.cell)
    assert int(neighbors.rebuilds) == builds
    # So does a whole lattice vector, for what it is worth: it is a real displacement here.
    state.positions.copy_(start)
    state.cell.copy_(cell)
    state.positions[5] += state.cell[0, 1]
    neighbors.update_(state.positions, state.cell)
    assert int(neighbors.rebuilds) == builds + 1
    neighbors.update_(state.positions, state.cell)
    assert int(neighbors.rebuilds) == builds + 1

    # One system of a batch is enough.
    batch = State([water_box(2), molecule(np.zeros((3, 3)))])
    neighbors = NeighborList(batch, 4.0, skin=0.8)
    builds = int(neighbors.rebuilds)
    batch.positions[-1, 0] += 0.41
    neighbors.update_(batch.positions, batch.cell)
    assert int(neighbors.rebuilds) == builds + 1


def test_without_a_skin_every_update_builds() -> None:
    state = State([water_box(2)])
    neighbors = NeighborList(state, 4.0)
    builds = int(neighbors.rebuilds)
    for count in (1, 2):
        neighbors.update_(state.positions, state.cell)
        assert int(neighbors.rebuilds) == builds + count


@pytest.mark.parametrize("kind", ["rest", "strain", "shear", "turn", "any"])
@pytest.mark.parametrize("pbc", PBC)
def test_with_a_skin_no_pair_is_missed(kind: str, pbc: tuple[bool, bool, bool]) -> None:
    """Random walks of atoms and cell, compared with a fresh list at each step."""
    rng = np.random.default_rng([*map(ord, kind), *pbc])
    kept = total = 0
    for seed in range(3):
        cell = TRICLINIC + rng.normal(scale=0.5, size=(3, 3))
        system = random_atoms(cell, pbc, 8, seed)
        state = State([system])
        with search_forced(str(rng.choice(list(SEARCHES)))):
            neighbors = NeighborList(state, 4.0, skin=1.5, cell_varies=kind != "rest")
        for _ in range(8):
            builds = int(neighbors.rebuilds)
            lattice = state.cell[0].numpy()
            after = deformed(lattice, 0.01, rng, kind)
            carried = state.positions.numpy() @ np.linalg.inv(lattice) @ after
            carried += rng.normal(scale=0.15, size=carried.shape)
            state.positions.copy_(torch.from_numpy(carried))
            state.cell.copy_(torch.from_numpy(after))
            neighbors.update_(state.positions, state.cell)
            if not neighbors.status().complete:
                neighbors.grow()
            kept += builds == int(neighbors.rebuilds)
            total += 1
            now = system.replace(positions=carried, cell=after)
            expected = pairs_by_ase(now, 4.0 + 1e-6)
            found = within(pairs_of(neighbors, state)[0], 4.0)
            assert_same_pairs(found, expected, 4.0)
    assert 0 < kept < total


def test_reference_cell_and_positions_count_from_the_last_build() -> None:
    state = State([random_atoms(TRICLINIC, True, 6, 17)])
    neighbors = NeighborList(state, 4.0, skin=0.5)
    state.positions += 1.0
    neighbors.update_(state.positions, state.cell)
    positions, cell = neighbors.reference()
    assert torch.equal(positions, state.positions)
    assert torch.equal(cell, state.cell)
    state.positions += 0.1
    neighbors.update_(state.positions, state.cell)
    assert torch.equal(neighbors.reference()[0], positions)
