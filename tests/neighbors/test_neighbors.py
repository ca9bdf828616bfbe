"""The neighbor list finds every pair, whatever the cell, in rows of one order."""

import math

import numpy as np
import pytest
import torch
from ase_pairs import SEARCHES, assert_agrees_with_ase, pairs_of, search_forced, uses_cell_list
from neighbor_cases import (
    CASES,
    TRICLINIC,
    assert_reverse_is_right,
    molecule,
    moved,
    silicon,
    unwrapped,
    used_slots,
    vectors_of,
    water_box,
    wire,
)
from numpy.typing import NDArray

from mdgraph.errors import InputError
from mdgraph.neighbors import NeighborList
from mdgraph.state import State
from mdgraph.system import System


def rotation(seed: int) -> NDArray[np.float64]:
    matrix, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))
    return matrix * np.linalg.det(matrix)


def wrapped(system: System) -> System:
    lattice = np.where(system.pbc[:, None], system.cell, 0.0)
    if not system.pbc.all():
        return system
    fractional = system.positions @ np.linalg.inv(lattice)
    return system.replace(positions=(fractional - np.floor(fractional)) @ lattice)


def turned(system: System) -> System:
    turn = rotation(9)
    return system.replace(positions=system.positions @ turn, cell=system.cell @ turn)


MOTIONS = {
    "as it is": lambda system: system,
    "wrapped": wrapped,
    "unwrapped": unwrapped,
    "turned": turned,
    "moved": moved,
    "turned, moved, unwrapped": lambda system: unwrapped(moved(turned(system))),
}


@pytest.mark.parametrize("motion", MOTIONS)
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_ase(case: str, motion: str, search: str) -> None:
    system, cutoff = CASES[case]()
    system = MOTIONS[motion](system)
    state = State([system])
    with search_forced(search):
        neighbors = NeighborList(state, cutoff)
    assert uses_cell_list(neighbors) == (search == "cell list")
    assert_agrees_with_ase(neighbors, state, [system])


@pytest.mark.parametrize("case", ["water", "silicon 12", "wire along x", "molecule with a cell"])
def test_agrees_with_ase_in_float32(case: str, search: str) -> None:
    system, cutoff = CASES[case]()
    state = State([system], dtype=torch.float32)
    with search_forced(search):
        neighbors = NeighborList(state, cutoff)
    assert_agrees_with_ase(neighbors, state, [system], rounding=1e-4, accuracy=1e-5)


def test_large_systems_take_the_cell_list_and_agree_with_ase() -> None:
    system = unwrapped(water_box(9))
    state = State([system])
    neighbors = NeighborList(state, 4.0)
    assert uses_cell_list(neighbors)
    assert_agrees_with_ase(neighbors, state, [system])


def test_a_large_droplet_without_a_cell_takes_the_cell_list() -> None:
    system = water_box(8).replace(pbc=False, cell=np.zeros((3, 3)))
    state = State([system])
    neighbors = NeighborList(state, 4.0)
    assert uses_cell_list(neighbors)
    apart = np.linalg.norm(system.positions[:, None] - system.positions, axis=-1)
    (found,) = pairs_of(neighbors, state)
    near = np.argwhere((apart < 4.0) & (apart > 0.0))
    assert [key[:2] for key in found] == list(map(tuple, near.tolist()))


def test_small_systems_take_every_pair() -> None:
    assert not uses_cell_list(NeighborList(State([water_box(4)]), 5.0))


def test_the_cost_of_the_cell_list_is_linear() -> None:
    """Candidates looked at for one atom do not grow with the number of atoms."""
    candidates = []
    for side in (8, 10, 14):
        neighbors = NeighborList(State([water_box(side)]), 3.0)
        assert uses_cell_list(neighbors)
        candidates.append(neighbors._search.candidates)
    assert max(candidates) < 1.3 * min(candidates)


def test_both_searches_give_the_same_rows_to_the_bit() -> None:
    for system, cutoff in (water_box(4), 4.0), (silicon(), 12.0), (wire(1), 5.5):
        state = State([unwrapped(system)])
        lists = []
        for name in SEARCHES:
            with search_forced(name):
                lists.append(NeighborList(state, cutoff))
        first, second = lists
        assert torch.equal(first.count, second.count)
        assert torch.equal(first.wrap, second.wrap)
        assert torch.equal(first.index, second.index)
        assert torch.equal(first.reverse, second.reverse)
        assert torch.equal(vectors_of(first, state), vectors_of(second, state))


@pytest.mark.parametrize("case", CASES)
def test_rows_are_ordered_and_reverse_slots_pair_up(case: str, search: str) -> None:
    system, cutoff = CASES[case]()
    state = State([unwrapped(system)])
    with search_forced(search):
        neighbors = NeighborList(state, cutoff, skin=0.4)
    assert_reverse_is_right(neighbors, state)
    used = used_slots(neighbors)
    # Rows ascend by (neighbor, image number); image numbers ascend by lattice translation.
    key = neighbors.index.long() * (1 + int(neighbors.image.max())) + neighbors.image
    assert (key.diff(dim=1)[used[:, 1:]] > 0).all()
    (found,) = pairs_of(neighbors, state)
    wrap = neighbors.wrap.numpy().astype(int)
    order = [(i, j, *(np.array(s) + wrap[j] - wrap[i])) for i, j, *s in found]
    assert order == sorted(order)


@pytest.mark.parametrize("kind", [torch.float64, torch.float32])
def test_pairs_exactly_at_the_cutoff_are_listed_in_both_directions(
    kind: torch.dtype, search: str
) -> None:
    """In a perfect crystal whole shells lie within rounding of the cutoff."""
    primitive = 3.6149 / 2 * np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    grid = np.stack(np.meshgrid(*[np.arange(3)] * 3, indexing="ij"), -1).reshape(-1, 3)
    for seed, steps in enumerate([(1, 0, 0), (1, 1, -1), (2, 0, 0), (2, -1, 0)]):
        turn = rotation(seed)
        system = System(
            [29] * len(grid), grid @ primitive @ turn + 0.1, cell=3 * primitive @ turn, pbc=True
        )
        state = State([system], dtype=kind)
        with search_forced(search):
            neighbors = NeighborList(state, float(np.linalg.norm(np.array(steps) @ primitive)))
        assert_reverse_is_right(neighbors, state)


def test_a_batch_lists_what_each_system_lists_alone(search: str) -> None:
    cutoff = 4.5
    names = ["silicon 5", "molecule", "slab, no third vector", "wire along z", "one lone atom"]
    systems = [CASES[name]()[0] for name in [*names, "left-handed", "one periodic atom"]]
    systems = [unwrapped(system) for system in systems]
    batch = State(systems)
    with search_forced(search):
        together = NeighborList(batch, cutoff)
        assert_agrees_with_ase(together, batch, systems)
        assert_reverse_is_right(together, batch)
        for system, found in zip(systems, pairs_of(together, batch), strict=True):
            state = State([system])
            (alone,) = pairs_of(NeighborList(state, cutoff), state)
            assert list(found) == list(alone)
            np.testing.assert_allclose(
                list(found.values()), list(alone.values()), rtol=0, atol=1e-12
            )


def test_infinite_cutoff_lists_every_pair_of_each_molecule() -> None:
    systems = [molecule(np.zeros((3, 3))), CASES["one lone atom"]()[0], molecule(TRICLINIC)]
    state = State(systems)
    neighbors = NeighborList(state, math.inf, skin=0.5)
    assert neighbors.count.tolist() == [8] * 9 + [0] + [8] * 9
    assert neighbors.status().complete
    state.positions[0] += 1e3
    neighbors.update_(state.positions, state.cell)
    found = pairs_of(neighbors, state)
    assert [len(one) for one in found] == [72, 0, 72]
    expected = state.positions[1] - state.positions[0]
    np.testing.assert_allclose(found[0][0, 1, 0, 0, 0], expected, rtol=0, atol=1e-10)


def test_infinite_cutoff_is_refused_with_periodic_directions() -> None:
    with pytest.raises(InputError, match="finite cutoff"):
        NeighborList(State([molecule(np.zeros((3, 3))), wire(0)]), math.inf)
