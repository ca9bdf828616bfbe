"""The neighbor list against ASE, and what it promises beyond the pairs."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from ase_pairs import (
    SEARCHES,
    assert_agrees_with_ase,
    assert_same_pairs,
    pairs_by_ase,
    pairs_of,
    search_forced,
    uses_cell_list,
    within,
)
from numpy.typing import NDArray

from mdgraph.errors import InputError
from mdgraph.neighbors import NeighborList
from mdgraph.state import State
from mdgraph.system import System

Case = tuple[System, float]

PBC = [tuple(bool(number >> axis & 1) for axis in range(3)) for number in range(8)]
TRICLINIC = np.array([[7.1, 0.3, -0.4], [-2.2, 6.4, 0.9], [1.7, 2.9, 8.3]])


@pytest.fixture(params=SEARCHES)
def search(request: pytest.FixtureRequest) -> str:
    return request.param


def water_box(side: int, seed: int = 0) -> System:
    """A jittered grid of water molecules at the density of the liquid."""
    rng = np.random.default_rng(seed)
    edge = 3.104
    grid = np.stack(np.meshgrid(*[np.arange(side)] * 3, indexing="ij"), -1).reshape(-1, 3)
    oxygen = (grid + 0.5 + rng.uniform(-0.08, 0.08, grid.shape)) * edge
    bond = rng.normal(size=(len(grid), 2, 3))
    bond *= 0.96 / np.linalg.norm(bond, axis=-1, keepdims=True)
    positions = np.concatenate([oxygen[:, None], oxygen[:, None] + bond], axis=1).reshape(-1, 3)
    return System(np.tile([8, 1, 1], len(grid)), positions, cell=np.eye(3) * edge * side, pbc=True)


def silicon() -> System:
    cell = 5.431 / 2 * np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    return System([14, 14], [[0.0, 0.0, 0.0], [1.34, 1.38, 1.33]], cell=cell, pbc=True)


def slab(normal: tuple[float, float, float]) -> System:
    """Two layers of atoms, periodic along the first two vectors; the third is given."""
    rng = np.random.default_rng(1)
    cell = np.array([[5.1, 0.0, 0.2], [2.5, 4.4, 0.0], normal])
    grid = np.array([[x, y, z] for x in (0, 0.5) for y in (0, 0.5) for z in (0, 2.1)])
    positions = grid[:, :2] @ cell[:2] + np.outer(grid[:, 2], [0.0, 0.0, 1.0])
    positions += rng.normal(scale=0.1, size=positions.shape)
    return System([29] * len(positions), positions, cell=cell, pbc=(True, True, False))


def wire(axis: int) -> System:
    rng = np.random.default_rng(2)
    cell = np.roll(np.array([[3.3, 1.2, 0.7], [0.0, 5.0, 1.0], [0.4, 0.0, 6.0]]), axis, axis=0)
    positions = rng.uniform(0.0, 4.0, (6, 3))
    return System([79] * 6, positions, cell=cell, pbc=np.arange(3) == axis)


def random_atoms(cell: NDArray[np.float64], pbc: object, atoms: int, seed: int) -> System:
    rng = np.random.default_rng(seed)
    return System(rng.choice([1, 6, 8], atoms), rng.random((atoms, 3)) @ cell, cell=cell, pbc=pbc)


def molecule(cell: NDArray[np.float64]) -> System:
    rng = np.random.default_rng(3)
    return System([6] * 9, rng.uniform(0.0, 6.0, (9, 3)), cell=cell, pbc=False)


def on_faces() -> System:
    places = (0.0, -1e-17, 1e-17, 0.5, 1.0, 1.0 - 1e-16, 2.0, -1.0)
    fractional = np.array([[places[k], places[-1 - k], 0.25 * k] for k in range(8)])
    return System([10] * 8, fractional @ TRICLINIC, cell=TRICLINIC, pbc=True)


def coincident() -> System:
    """An atom, one exactly at its image, one exactly on top of it, and one apart."""
    first = np.array([1.0, 2.0, 3.0])
    cell = np.diag([6.0, 5.0, 4.0])
    positions = [first, first + cell[0] - 2 * cell[2], first, first + 1.0]
    return System([1, 2, 3, 4], positions, cell=cell, pbc=True)


CASES: dict[str, Callable[[], Case]] = {
    "water": lambda: (water_box(4), 3.5),
    "water beyond half the box": lambda: (water_box(2), 5.0),
    "silicon 5": lambda: (silicon(), 5.0),
    "silicon 12": lambda: (silicon(), 12.0),
    "slab, no third vector": lambda: (slab((0.0, 0.0, 0.0)), 6.0),
    "slab, dummy vector": lambda: (slab((3.0, -1.0, 1.3)), 6.0),
    "wire along x": lambda: (wire(0), 5.5),
    "wire along z": lambda: (wire(2), 5.5),
    "molecule": lambda: (molecule(np.zeros((3, 3))), 3.0),
    "molecule with a cell": lambda: (molecule(TRICLINIC), 3.0),
    "skewed": lambda: (
        random_atoms(np.array([[6.0, 0, 0], [17.0, 5.0, 0], [-11.0, 13.0, 7.0]]), True, 7, 4),
        5.0,
    ),
    "left-handed": lambda: (random_atoms(TRICLINIC[[1, 0, 2]], True, 12, 5), 5.0),
    "one periodic atom": lambda: (random_atoms(TRICLINIC / 3, True, 1, 6), 5.0),
    "one lone atom": lambda: (random_atoms(TRICLINIC, False, 1, 7), 5.0),
    "on faces": lambda: (on_faces(), 4.0),
    "coincident": lambda: (coincident(), 6.5),
    **{
        f"pbc {pbc}": lambda pbc=pbc, seed=seed: (random_atoms(TRICLINIC, pbc, 10, seed), 4.2)
        for seed, pbc in enumerate(PBC)
    },
}


def rotation(seed: int) -> NDArray[np.float64]:
    matrix, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))
    return matrix * np.linalg.det(matrix)


def unwrapped(system: System) -> System:
    rng = np.random.default_rng(8)
    leaps = rng.integers(-60, 60, (len(system), 3)) * system.pbc
    return system.replace(positions=system.positions + leaps @ system.cell)


def wrapped(system: System) -> System:
    lattice = np.where(system.pbc[:, None], system.cell, 0.0)
    if not system.pbc.all():
        return system
    fractional = system.positions @ np.linalg.inv(lattice)
    return system.replace(positions=(fractional - np.floor(fractional)) @ lattice)


def turned(system: System) -> System:
    turn = rotation(9)
    return system.replace(positions=system.positions @ turn, cell=system.cell @ turn)


def moved(system: System) -> System:
    return system.replace(positions=system.positions + np.array([123.4, -45.6, 7.8]))


MOTIONS = {
    "as it is": lambda system: system,
    "wrapped": wrapped,
    "unwrapped": unwrapped,
    "turned": turned,
    "moved": moved,
    "turned, moved, unwrapped": lambda system: unwrapped(moved(turned(system))),
}


def used_slots(neighbors: NeighborList) -> torch.Tensor:
    return torch.arange(neighbors.capacity) < neighbors.count[:, None]


def vectors_of(neighbors: NeighborList, state: State) -> torch.Tensor:
    return torch.cat(neighbors.pairs(state.positions, state.cell).vectors, dim=1).detach()


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


def assert_reverse_is_right(neighbors: NeighborList, state: State) -> None:
    pairs = neighbors.pairs(state.positions, state.cell)
    reverse = pairs.reverse.long()
    slots = torch.arange(len(reverse))
    assert torch.equal(reverse[reverse], slots)
    used = used_slots(neighbors).flatten()
    assert torch.equal(reverse[~used], slots[~used])
    vectors = vectors_of(neighbors, state).flatten(0, 1)
    assert torch.equal(vectors[reverse][used], -vectors[used])
    assert torch.equal(reverse // neighbors.capacity, neighbors.index.flatten().long())


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


# Capacity and overflow


def test_overflow_keeps_the_true_count_and_growing_mends_it(search: str) -> None:
    state = State([silicon()])
    with search_forced(search):
        ample = NeighborList(state, 12.0)
        small = NeighborList(state, 12.0, capacity=8)
        true = int(ample.count.max())
        status = small.status()
        assert status.found == true > small.capacity
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


def test_overflow_stays_known_after_the_crowd_has_gone(search: str) -> None:
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
        assert neighbors.status().found == crowded.found
        assert not neighbors.status().complete
        assert_same_pairs(pairs_of(neighbors, state)[0], pairs_by_ase(system, 3.1), 3.0)
        neighbors.grow()
        assert neighbors.status().complete
        assert_agrees_with_ase(neighbors, state, [system])


def test_a_list_planned_for_a_gas_grows_for_a_crowd(search: str) -> None:
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


# Skin


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


def test_the_list_rests_while_it_is_complete() -> None:
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


def deformed(cell: NDArray[np.float64], amount: float, rng: np.random.Generator, kind: str):
    """A lattice a little strained, sheared or turned."""
    match kind:
        case "strain":
            return cell * (1.0 + amount * rng.normal(size=3))
        case "shear":
            return cell @ (np.eye(3) + amount * np.triu(rng.normal(size=(3, 3)), 1))
        case "turn":
            axis = rng.normal(size=3) * amount
            skew = np.cross(np.eye(3), axis)
            half = np.eye(3) - skew / 2
            return cell @ np.linalg.solve(half, np.eye(3) + skew / 2)
        case "any":
            return cell + amount * rng.normal(size=(3, 3)) * np.abs(cell).max()
        case _:
            return cell


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


# Cells that change


@pytest.mark.parametrize("skin", [0.0, 0.6])
def test_a_cell_that_shrinks_beyond_the_plan_is_seen_and_growing_mends_it(
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


def test_a_complete_status_is_to_be_trusted_while_a_cell_shrinks(search: str) -> None:
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
