"""The kernels of the neighbor list against the torch search, row for row.

Without a CUDA device Triton interprets the kernels on CPU tensors, so the systems are tiny;
the large ones are for a GPU.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
import pytest
import torch
from ase_pairs import SEARCHES, assert_agrees_with_ase, search_forced
from neighbor_cases import (
    CASES,
    PBC,
    TRICLINIC,
    Case,
    deformed,
    random_atoms,
    silicon,
    unwrapped,
    used_slots,
    water_box,
)

from mdgraph.decomposition.bricks import BrickGrid
from mdgraph.engine.checks import any_close
from mdgraph.gpu.graphs import CapturedGraph
from mdgraph.neighbors import NeighborList
from mdgraph.neighbors import list as neighbor_list
from mdgraph.state import State
from mdgraph.system import System

pytest.importorskip("triton", reason="Triton is not installed")

from mdgraph.neighbors import triton_builder
from mdgraph.neighbors.compiled_builder import CompiledBuilder
from mdgraph.neighbors.torch_builder import TorchBuilder
from mdgraph.neighbors.triton_builder import KernelBuilder

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS = ("index", "image", "reverse")


@pytest.fixture(params=SEARCHES)
def search(request: pytest.FixtureRequest) -> str:
    return request.param


@contextmanager
def kernels_forced(builder: type = KernelBuilder) -> Iterator[None]:
    """Lets the kernels build lists on a CPU too, interpreted; or torch operations.

    Lists near a brick have a little room, as ten atoms would else all have rows.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbor_list, "_MORE_ROWS", 0.005)
        patch.setattr(neighbor_list, "builder_class", lambda _: builder)
        yield


class Both:
    """One system or batch, listed by the kernels and by torch operations on the CPU."""

    def __init__(
        self,
        systems: list[System],
        cutoff: float,
        skin: float = 0.0,
        *,
        search: str,
        dtype: torch.dtype = torch.float64,
        capacity: int | None = 32,
        cell_varies: bool = True,
    ) -> None:
        self.state, self.host = State(systems, DEVICE, dtype), State(systems, "cpu", dtype)
        with search_forced(search):
            with kernels_forced():
                self.list = NeighborList(self.state, cutoff, skin, capacity, cell_varies)
            with kernels_forced(TorchBuilder):
                self.oracle = NeighborList(self.host, cutoff, skin, capacity, cell_varies)

    def move(self, positions: object, cell: object = None) -> None:
        """New positions (N, 3) and cells for both, and an update of both."""
        for state in (self.state, self.host):
            state.positions.copy_(torch.as_tensor(positions))
            if cell is not None:
                state.cell.copy_(torch.as_tensor(cell))
        self.update()

    def update(self) -> None:
        self.list.update_(self.state.positions, self.state.cell)
        self.oracle.update_(self.host.positions, self.host.cell)

    def grow(self) -> None:
        with kernels_forced():
            self.list.grow()
        with kernels_forced(TorchBuilder):
            self.oracle.grow()

    def assert_same(self) -> None:
        assert torch.equal(self.list.count.cpu(), self.oracle.count)
        assert torch.equal(self.list.wrap.cpu(), self.oracle.wrap)
        assert torch.equal(self.list.order.cpu(), self.oracle.order)
        assert torch.equal(self.list.offsets.cpu(), self.oracle.offsets)
        assert int(self.list.rebuilds) == int(self.oracle.rebuilds)
        kept, now = self.list.reference(), self.oracle.reference()
        assert all(torch.equal(a.cpu(), b) for a, b in zip(kept, now, strict=True))
        # Blocks, and so capacities, differ between devices.
        width = min(self.list.capacity, self.oracle.capacity)
        used = used_slots(self.oracle)[:, :width]
        for name in ROWS:
            mine = getattr(self.list, name).cpu()
            assert torch.equal(mine[:, :width][used], getattr(self.oracle, name)[:, :width][used])
        status, expected = self.list.status(), self.oracle.status()
        assert status.complete
        assert (status.most_neighbors, status.insufficient) == (
            expected.most_neighbors,
            expected.insufficient,
        )
        self.assert_empty_slots_point_nowhere()

    def assert_empty_slots_point_nowhere(self) -> None:
        rows = self.list
        slots = torch.arange(rows.capacity, device=rows.count.device).expand(rows.index.shape)
        empty = slots >= rows.count[:, None]
        atoms = torch.arange(len(rows.count), device=rows.count.device)[:, None]
        assert torch.equal(rows.index[empty], atoms.expand_as(slots)[empty].int())
        assert torch.equal(rows.reverse[empty], slots[empty].int())
        assert not rows.offsets[rows.image[empty].long()].any()


def small(pbc: tuple[bool, bool, bool], seed: int, atoms: int = 4) -> System:
    return unwrapped(random_atoms(TRICLINIC, pbc, atoms, seed))


@pytest.mark.parametrize("pbc", PBC)
def test_rows_are_those_of_torch(pbc: tuple[bool, bool, bool], search: str) -> None:
    both = Both([small(pbc, 30)], 4.5, search=search)
    assert int(both.oracle.count.sum()) > 0
    both.assert_same()


@pytest.mark.parametrize("pbc", [(True, True, True), (False, True, False)])
def test_rows_are_those_of_torch_for_an_unchanging_cell_in_float32(
    pbc: tuple[bool, bool, bool], search: str
) -> None:
    both = Both([small(pbc, 31)], 4.5, search=search, dtype=torch.float32, cell_varies=False)
    both.assert_same()


@pytest.mark.parametrize("case", ["silicon 5", "one periodic atom", "one lone atom", "coincident"])
def test_awkward_cells_give_the_rows_of_torch(case: str, search: str) -> None:
    system, cutoff = CASES[case]()
    both = Both([system], min(cutoff, 4.0), search=search)
    both.assert_same()


def test_atoms_on_faces_have_the_pairs_of_ase(search: str) -> None:
    """Into which cell they are wrapped is a matter of rounding."""
    system, cutoff = CASES["on faces"]()
    state = State([system], DEVICE)
    with kernels_forced(), search_forced(search):
        rows = NeighborList(state, cutoff, capacity=64)
    assert_agrees_with_ase(rows, state, [system])


def test_a_thin_cell_has_many_images(search: str) -> None:
    cell = np.array([[2.6, 0.0, 0.0], [7.4, 2.3, 0.0], [-4.7, 5.6, 3.0]])
    both = Both([random_atoms(cell, True, 2, 32)], 4.0, search=search)
    assert int(both.oracle.count.max()) > 20
    both.assert_same()


def test_a_batch_of_different_systems_has_the_rows_of_torch(search: str) -> None:
    systems = [small((True, True, True), 33, 3), small((False, False, False), 34, 4)]
    systems += [small((True, False, True), 35, 1)]
    both = Both(systems, 4.0, search=search)
    both.assert_same()


def test_an_infinite_cutoff_lists_each_molecule() -> None:
    systems = [small((False, False, False), seed, atoms) for seed, atoms in ((36, 4), (37, 2))]
    both = Both(systems, math.inf, search="every pair")
    assert both.oracle.count.tolist() == [3, 3, 3, 3, 1, 1]
    both.assert_same()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_pair_at_the_cutoff_is_found_from_both_sides_or_from_none(
    dtype: torch.dtype, search: str
) -> None:
    """In a perfect crystal a whole shell lies within rounding of the cutoff."""
    primitive = 3.6149 / 2 * np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    grid = np.stack(np.meshgrid([0, 1], [0, 1], [0], indexing="ij"), -1).reshape(-1, 3)
    cell = np.array([[2.0], [2.0], [1.0]]) * primitive
    turn, _ = np.linalg.qr(np.random.default_rng(38).normal(size=(3, 3)))
    system = System([29] * 4, grid @ primitive @ turn + 0.1, cell=cell @ turn, pbc=True)
    state = State([system], DEVICE, dtype)
    with kernels_forced(), search_forced(search):
        rows = NeighborList(state, float(np.linalg.norm(primitive[0])), capacity=32)
    pairs = rows.pairs(state.positions, state.cell)
    used = torch.arange(rows.capacity, device=DEVICE) < rows.count[:, None]
    slots = torch.arange(used.numel(), device=DEVICE)
    assert torch.equal(pairs.reverse.long()[pairs.reverse.long()], slots)
    vectors = torch.cat(pairs.vectors, dim=1).detach().flatten(0, 1)
    used = used.flatten()
    assert torch.equal(vectors[pairs.reverse.long()][used], -vectors[used])


# Overflow and numbers that are not numbers


def test_overflow_stays_in_its_row_and_keeps_the_true_count(search: str) -> None:
    both = Both([silicon()], 7.5, search=search, capacity=8)
    true = int(both.list.status().most_neighbors)
    assert true == both.oracle.status().most_neighbors > both.list.capacity
    assert (both.list.count == both.list.capacity).all()
    assert ((both.list.reverse >= 0) & (both.list.reverse < both.list.capacity)).all()
    kept = [set(zip(*row, strict=True)) for row in rows_of(both.list)]
    both.grow()
    assert both.list.status().complete
    both.assert_same()
    everything = [set(zip(*row, strict=True)) for row in rows_of(both.list)]
    assert all(some < every for some, every in zip(kept, everything, strict=True))


def rows_of(rows: NeighborList) -> list[tuple[list[int], list[int]]]:
    """Neighbors and images of each atom."""
    counts = rows.count.tolist()
    return [
        (rows.index[atom, :count].tolist(), rows.image[atom, :count].tolist())
        for atom, count in enumerate(counts)
    ]


@pytest.mark.parametrize("broken", [slice(None), slice(1, 2)])
def test_nothing_is_written_beyond_the_buffers(broken: slice, search: str) -> None:
    """The buffers are the middle of larger ones, which must stay as they are."""
    state = State([silicon(), small((True, True, False), 39, 1)], DEVICE)
    with kernels_forced(), search_forced(search):
        rows = NeighborList(state, 6.0, capacity=8)
        assert rows.status().most_neighbors > rows.capacity
        guards = guarded(rows)
        for _ in range(2):
            rows.update_(state.positions, state.cell)
            state.positions[broken] = math.nan
    assert rows.count[broken].sum() == 0
    for whole in guards:
        assert (whole[:64] == -77).all()
        assert (whole[-64:] == -77).all()


def guarded(rows: NeighborList) -> list[torch.Tensor]:
    """Moves what the builder writes into the middle of larger buffers."""
    guards = []

    def surrounded(tensor: torch.Tensor) -> torch.Tensor:
        whole = torch.full((tensor.numel() + 128,), -77, dtype=tensor.dtype, device=DEVICE)
        guards.append(whole)
        inner = whole[64:-64].view(tensor.shape)
        return inner.copy_(tensor)

    def surround(owner: object, *names: str) -> None:
        for name in names:
            object.__setattr__(owner, name, surrounded(getattr(owner, name)))

    builder = rows._builder
    surround(builder._wrapped, "positions", "fractional")
    if builder._search.bins:
        scratch = ("_placed", "_in_bin", "_bin_start", "_bin_of", "_slot_of", "_members")
        surround(builder._search, *scratch)
    for name in (*ROWS, "count", "wrap", "order"):
        surround(builder._task.rows, name)
        setattr(rows, name, getattr(builder._task.rows, name))
    return guards


@pytest.mark.parametrize("pbc", [(True, True, True), (True, False, False), (False, False, False)])
def test_a_broken_position_costs_only_its_own_pairs(
    pbc: tuple[bool, bool, bool], search: str
) -> None:
    both = Both([small(pbc, 40, 5)], 5.5, search=search)
    broken = both.host.positions.clone()
    broken[3, 1] = math.nan
    both.move(broken)
    assert int(both.list.count[3]) == 0
    assert int(both.list.count.sum()) > 0
    assert torch.equal(both.list.count.cpu(), both.oracle.count)
    used = used_slots(both.oracle)
    for name in ROWS:
        mine = getattr(both.list, name).cpu()[:, : both.oracle.capacity]
        assert torch.equal(mine[used], getattr(both.oracle, name)[used])
    assert sorted(both.list.order.tolist()) == list(range(5))
    both.assert_empty_slots_point_nowhere()


# Skin and cells


@pytest.mark.parametrize("pbc", PBC)
def test_builds_fall_due_as_torch_finds_while_cells_deform(
    pbc: tuple[bool, bool, bool],
) -> None:
    rng = np.random.default_rng([41, *pbc])
    both = Both([small(pbc, 42)], 3.5, 1.2, search=str(rng.choice(list(SEARCHES))))
    for builds, amount in ((1, 0.02), (2, 0.5), (2, 0.02)):
        cell = both.host.cell[0].numpy().copy()
        after = deformed(cell, amount / 10, rng, "any")
        carried = both.host.positions.numpy() @ np.linalg.inv(cell) @ after
        both.move(carried + rng.normal(scale=amount, size=carried.shape), after[None])
        assert int(both.list.rebuilds) == builds
        both.assert_same()


@pytest.mark.parametrize(("flags", "block"), [(64, 128), (64, 2), (1, 2)])
def test_each_atom_makes_a_build_due_and_only_once(
    flags: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one program, by two with a flag each, or by two with one flag."""
    monkeypatch.setattr(triton_builder, "OWN_FLAGS", flags)
    if block == 2 and torch.cuda.is_available():
        pytest.skip("programs of two atoms are for the interpreter")
    monkeypatch.setattr(triton_builder, "BLOCK", block)
    both = Both([small((True,) * 3, 42)], 3.5, 1.2, search="cell list", cell_varies=False)
    places = both.host.positions.numpy().copy()
    for builds, atom in enumerate((0, len(places) // 2, len(places) - 1), start=1):
        for step, far in ((0.5, 0), (0.2, 1), (0.0, 1)):
            places[atom, 0] += step
            both.move(places)
            assert int(both.list.rebuilds) == builds + far
    both.assert_same()


@pytest.mark.parametrize("cell_varies", [False, True])
def test_a_build_falls_due_by_the_atoms_that_are_looked_at_alone(cell_varies: bool) -> None:
    """And an update whose flag others give builds by that alone."""
    both = Both([small((True,) * 3, 42)], 3.5, 1.2, search="cell list", cell_varies=cell_varies)
    found = []
    for item, state in ((both.list, both.state), (both.oracle, both.host)):
        places = state.positions.clone()
        places[3] += 0.7
        atoms = torch.tensor([1, 3, 2, 3], device=places.device)
        for used in ([1, 1, 1, 0], [1, 0, 1, 0], [0, 0, 0, 1]):
            rows = torch.tensor(used, dtype=torch.bool, device=places.device)
            due = torch.zeros(1, dtype=torch.int32, device=places.device)
            item.look_(due, places[atoms], state.cell, atoms, rows)
            item.due = due
            item.update_(places if bool(due) else 2.0 * places, state.cell)
            item.due = None
            found.append((int(due), int(item.rebuilds)))
            item.rebuild_(state.positions, state.cell)
    assert found[:3] == found[3:] == [(1, 2), (0, 3), (1, 5)]


@pytest.mark.parametrize("skin", [0.0, 0.5])
def test_pairs_find_the_reverse_slots_that_builds_one_way_leave_out(skin: float) -> None:
    system = small((True, True, True), 45)
    state, host = State([system], DEVICE), State([system], "cpu")
    with kernels_forced():
        one_way = NeighborList(state, 3.5, skin, 32, one_way=True)
    with kernels_forced(TorchBuilder):
        oracle = NeighborList(host, 3.5, skin, 32)
    one_way.reverse.fill_(-5)
    for of, own in ((one_way, state), (oracle, host)):
        own.positions[0] = own.positions[1] + 0.1
        of.update_(own.positions, own.cell)
    # Nor does it take any to look for close atoms, as each batch of frames does.
    assert any_close(state, one_way)
    assert bool((one_way.reverse == -5).all())
    assert int(one_way.rebuilds) == int(oracle.rebuilds)
    one_way.pairs(state.positions, state.cell)
    width = min(one_way.capacity, oracle.capacity)
    used = used_slots(oracle)[:, :width]
    assert torch.equal(one_way.reverse.cpu()[:, :width][used], oracle.reverse[:, :width][used])


@pytest.mark.parametrize("cell_varies", [True, False])
def test_a_build_that_is_not_due_writes_nothing(cell_varies: bool, search: str) -> None:
    systems = [small((True, True, True), 43, 2), small((False, True, False), 44, 2)]
    both = Both(systems, 3.5, 1.0, search=search, cell_varies=cell_varies)
    start = both.host.positions.clone()
    names = (*ROWS, "count", "wrap", "reference_positions", "reference_cell")
    for name in (*ROWS, "count", "wrap"):
        getattr(both.list, name).fill_(-5)
    before = {name: getattr(both.list, name).clone() for name in names}
    start[1, 0] += 0.49
    both.move(start)
    assert all(torch.equal(before[name], getattr(both.list, name)) for name in names)
    assert int(both.list.rebuilds) == int(both.oracle.rebuilds) == 1

    # One atom of one system is enough, and so is one that is nowhere.
    start[-1, 2] -= 0.51
    both.move(start)
    both.assert_same()
    assert int(both.list.rebuilds) == 2
    start[0, 1] = math.nan
    both.move(start)
    assert int(both.list.rebuilds) == int(both.oracle.rebuilds) == 3


def test_a_cell_that_shrinks_beyond_the_plan_is_recorded(search: str) -> None:
    both = Both([random_atoms(TRICLINIC * 1.5, True, 3, 45)], 3.0, search=search)
    for factor in (0.97, 0.4):
        both.move(both.host.positions * factor, both.host.cell * factor)
        assert both.list.status().insufficient == (factor == 0.4)
        assert both.oracle.status().insufficient == (factor == 0.4)
    both.grow()
    assert both.list.status().complete
    both.assert_same()


# Large systems


def gas(atoms: int) -> Case:
    """Atoms in a triclinic box of water's density, some closer than any molecule's."""
    scale = (atoms * 10.0 / np.linalg.det(TRICLINIC)) ** (1 / 3)
    return unwrapped(random_atoms(TRICLINIC * scale, True, atoms, 46)), 5.0


def droplet() -> Case:
    return water_box(10).replace(pbc=False, cell=np.zeros((3, 3))), 5.0


LARGE = {
    "water": lambda: (unwrapped(water_box(10)), 5.0),
    "long range": lambda: (water_box(10), 11.0),
    "droplet": droplet,
    "gas": lambda: gas(24_000),
}


@cache
def large_by_torch(name: str) -> tuple[State, NeighborList]:
    """A large system on the CPU, listed once for all tests."""
    system, cutoff = LARGE[name]()
    host = State([system])
    with search_forced("cell list"):
        return host, NeighborList(host, cutoff, capacity=640 if cutoff > 8.0 else 128)


@pytest.mark.gpu
@pytest.mark.parametrize("name", LARGE)
def test_large_systems_give_the_rows_of_torch(name: str, search: str) -> None:
    system, cutoff = LARGE[name]()
    host, oracle = large_by_torch(name)
    assert oracle.status().complete
    state = State([system], "cuda")
    with search_forced(search):
        rows = NeighborList(state, cutoff)
    assert rows.status().complete
    assert torch.equal(rows.count.cpu(), oracle.count)
    assert torch.equal(rows.wrap.cpu(), oracle.wrap)
    width = int(oracle.count.max())
    used = used_slots(oracle)[:, :width]
    # Numbers of images depend on the search; the translations do not.
    mine, theirs = (one.offsets[one.image.long()].cpu() for one in (rows, oracle))
    assert torch.equal(mine[:, :width][used], theirs[:, :width][used])
    for name in ("index", "reverse"):
        mine = getattr(rows, name)[:, :width].cpu()
        assert torch.equal(mine[used], getattr(oracle, name)[:, :width][used])
    order = rows.order.cpu().long()
    assert torch.equal(order.sort().values, torch.arange(len(system)))
    if search == "cell list":
        assert torch.equal(order, oracle.order.long())
        # Along the order atoms lie close to one another: within a bin, or in the next.
        jumps = host.positions[order].diff(dim=0)
        whole = (jumps @ torch.linalg.pinv(host.cell[0])).round()
        jumps = jumps - whole @ host.cell[0]
        assert float(jumps.norm(dim=1).median()) < 1.5 * cutoff


@pytest.mark.gpu
@pytest.mark.parametrize("skin", [0.0, 0.5])
@pytest.mark.parametrize("cell_varies", [False, True])
def test_a_captured_update_replays_as_torch_updates(
    skin: float, cell_varies: bool, search: str
) -> None:
    system = water_box(6)
    state, host = State([system], "cuda"), State([system])
    with search_forced(search):
        rows = NeighborList(state, 4.5, skin, cell_varies=cell_varies)
        oracle = NeighborList(host, 4.5, skin, cell_varies=cell_varies)
    graph = CapturedGraph(lambda: rows.update_(state.positions, state.cell), state.device)
    rng = np.random.default_rng(47)
    start = int(rows.rebuilds) - int(oracle.rebuilds)
    for _ in range(6):
        host.positions += torch.from_numpy(rng.normal(scale=0.05, size=host.positions.shape))
        if cell_varies:
            host.positions *= 1.001
            host.cell *= 1.001
        state.positions.copy_(host.positions)
        state.cell.copy_(host.cell)
        graph.replay()
        oracle.update_(host.positions, host.cell)
        assert rows.status().complete
        assert int(rows.rebuilds) - int(oracle.rebuilds) == start
        assert torch.equal(rows.count.cpu(), oracle.count)
        width = int(oracle.count.max())
        used = used_slots(oracle)[:, :width]
        for name in ROWS:
            mine = getattr(rows, name)[:, :width].cpu()
            assert torch.equal(mine[used], getattr(oracle, name)[:, :width][used])


@pytest.mark.gpu
def test_a_build_repeats_bit_for_bit() -> None:
    """Atoms enter their bins in any order; nothing that is seen may depend on it."""
    system, cutoff = gas(24_000)
    state = State([system], "cuda")
    with search_forced("cell list"):
        rows = NeighborList(state, cutoff)
    names = (*ROWS, "count", "wrap", "order")
    first = {name: getattr(rows, name).clone() for name in names}
    for _ in range(20):
        rows.update_(state.positions, state.cell)
        assert all(torch.equal(first[name], getattr(rows, name)) for name in names)


@pytest.mark.gpu
def test_a_collapsed_liquid_overflows_and_growing_completes_the_list() -> None:
    """All atoms in a few bins: far more neighbors than slots, and bins of any size."""
    state = State([water_box(10)], "cuda")
    with search_forced("cell list"):
        rows = NeighborList(state, 4.0)
    rest = state.positions.clone()
    state.positions.copy_(0.3 * rest)
    rows.update_(state.positions, state.cell)
    found = rows.status().most_neighbors
    assert found > rows.capacity
    state.positions.copy_(rest)
    rows.update_(state.positions, state.cell)
    assert rows.status().most_neighbors == found
    rows.grow()
    assert rows.status().complete


# Limits


def limited(
    both: Both, shape: tuple[int, int, int], number: int, builder: type = KernelBuilder
) -> tuple[BrickGrid, torch.Tensor]:
    """Leaves out what is far from a brick; the grid and its planes."""
    grid = BrickGrid(shape)
    planes = grid.planes(both.host.positions, both.host.cell, both.host.pbc)
    with kernels_forced(builder), search_forced("cell list"):
        both.list.limit_(grid.brick(number, planes.to(both.list.count.device)))
    return grid, planes


BUILDERS = [
    KernelBuilder,
    pytest.param(
        CompiledBuilder, marks=pytest.mark.skipif(DEVICE == "cuda", reason="builds on a CPU")
    ),
]


@pytest.mark.parametrize("builder", BUILDERS)
@pytest.mark.parametrize(
    ("case", "shape", "number"),
    [
        ("pbc (True, True, True)", (3, 1, 1), 1),
        ("pbc (True, False, False)", (1, 1, 3), 2),
        ("left-handed", (1, 1, 3), 0),
    ],
)
def test_atoms_far_from_a_brick_have_no_rows(
    case: str, shape: tuple[int, int, int], number: int, builder: type
) -> None:
    """Those of its atoms and of their neighbors are there, through motion and growth."""
    system, _ = CASES[case]()
    rng = np.random.default_rng(45)
    both = Both([unwrapped(system)], 1.5, 0.4, search="cell list", capacity=8)
    grid, planes = limited(both, shape, number, builder)
    assert assert_limited(both, grid, number, planes) > 0  # built from the same reference
    builds = int(both.list.rebuilds)
    left_out = 0
    for amount in (1.0, 0.01):
        moves = amount * torch.from_numpy(rng.normal(size=both.host.positions.shape))
        both.move(both.host.positions + moves, both.host.cell * (1.0 + 0.01 * amount))
        left_out += assert_limited(both, grid, number, planes)
    assert int(both.list.rebuilds) == builds + 1
    assert int(both.oracle.rebuilds) == 2
    assert left_out > 0
    assert_whole(both)
    for item, state in ((both.list, both.state), (both.oracle, both.host)):
        item.rebuild_(state.positions, state.cell)
    assert_whole(both)
    with search_forced("cell list"):
        with kernels_forced(builder):
            both.list.grow()
        with kernels_forced(TorchBuilder):
            both.oracle.grow()
        assert assert_limited(both, grid, number, planes) > 0
        with kernels_forced(builder):
            both.list.limit_(None)
    assert both.list.row is None
    both.list.rebuilds.copy_(both.oracle.rebuilds)
    both.assert_same()


@pytest.mark.parametrize("builder", BUILDERS)
def test_too_few_rows_are_an_overflow_that_growing_cures(builder: type) -> None:
    """Nothing is written beyond the buffers, and their number stays until the list has grown."""
    system, _ = CASES["pbc (True, True, True)"]()
    both = Both([unwrapped(system)], 1.5, search="cell list", capacity=8)
    grid, planes = limited(both, (3, 1, 1), 1, builder)
    rows = len(both.list.index)
    assert rows < len(both.list.count)
    assert both.list.status().complete
    rest = both.host.positions.clone()
    middle = 0.5 * (planes[0] + planes[1]) * both.host.cell[0, 0]
    crowd = 0.05 * (rest - rest.mean(0)) + middle
    both.list.update_(crowd.to(DEVICE), both.state.cell)
    status = both.list.status()
    assert status.rows > rows == status.row_capacity
    assert not status.complete
    assert bool(both.list.overflowed())
    for name in ROWS:
        assert int(getattr(both.list, name).min()) >= 0
    assert int(both.list.reverse.max()) < both.list.capacity
    assert int(both.list.row.max()) < rows
    assert int((both.list.row >= 0).sum()) == rows
    both.update()
    assert both.list.status().rows == status.rows
    with kernels_forced(builder), search_forced("cell list"):
        both.list.grow()
    assert both.list.status().complete
    assert len(both.list.index) == status.rows
    assert_limited(both, grid, 1, planes)


def test_a_search_of_every_pair_has_rows_of_all() -> None:
    system, _ = CASES["pbc (True, True, True)"]()
    both = Both([unwrapped(system)], 1.5, search="every pair", capacity=8)
    grid = BrickGrid((3, 1, 1))
    planes = grid.planes(both.host.positions, both.host.cell, both.host.pbc)
    with kernels_forced(), search_forced("every pair"):
        both.list.limit_(grid.brick(1, planes.to(DEVICE)))
    assert both.list.whole() is both.list
    both.list.rebuilds.copy_(both.oracle.rebuilds)
    both.assert_same()


@pytest.mark.parametrize("skin", [0.0, 0.4])
def test_a_search_that_waits_is_done_before_the_next_update(skin: float) -> None:
    """Which would else take its flag away, and the rows would be those of an earlier build."""
    system, _ = CASES["pbc (True, True, True)"]()
    both = Both([unwrapped(system)], 1.5, skin, search="cell list", capacity=8)
    grid, planes = limited(both, (3, 1, 1), 1)
    for state in (both.state, both.host):
        state.positions.copy_(state.positions.flip(0))
    both.list.update_(both.state.positions, both.state.cell, joined=False)
    both.oracle.update_(both.host.positions, both.host.cell)
    both.update()
    assert assert_limited(both, grid, 1, planes) > 0


def assert_whole(both: Both) -> None:
    """Compares the rows of all atoms, which are in other buffers, and pairs."""
    whole, oracle = both.list.whole(), both.oracle
    assert whole is not both.list
    assert torch.equal(whole.count.cpu(), oracle.count)
    assert torch.equal(whole.order.cpu(), oracle.order)
    width = min(whole.capacity, oracle.capacity)
    used = used_slots(oracle)[:, :width]
    for name in ROWS:
        mine = getattr(whole, name).cpu()[:, :width]
        assert torch.equal(mine[used], getattr(oracle, name)[:, :width][used])
    mine, its = (
        torch.cat(item.pairs(state.positions, state.cell).vectors, 1)[:, :width].detach().cpu()
        for item, state in ((both.list, both.state), (oracle, both.host))
    )
    # A GPU rounds products and sums of places, up to hundreds of A, in another order than a CPU.
    torch.testing.assert_close(mine[used], its[used], rtol=0.0, atol=1e-12)


def assert_limited(both: Both, grid: BrickGrid, number: int, planes: torch.Tensor) -> int:
    """Compares the rows that a domain reads; returns how many others are left out."""
    mine, oracle = both.list, both.oracle
    owner = grid.owners(*oracle.reference(), both.host.pbc, planes)
    used = used_slots(oracle)
    own = owner == number
    needed = own | (used & own[oracle.index.long()]).any(1)
    assert torch.equal(mine.count.cpu()[needed], oracle.count[needed])
    assert torch.equal(mine.order.cpu(), oracle.order)
    assert torch.equal(mine.wrap.cpu(), oracle.wrap)
    everyone = torch.arange(len(owner))
    own_rows = mine.rows_of(everyone.to(mine.count.device)).cpu()
    reverse = mine.reverse.cpu()[own_rows]
    assert bool(((reverse >= 0) & (reverse < mine.capacity)).all())
    width = min(mine.capacity, oracle.capacity)
    kept = (used & needed[:, None])[:, :width]
    for name in ("index", "image"):
        rows = getattr(mine, name).cpu()[own_rows][:, :width]
        assert torch.equal(rows[kept], getattr(oracle, name)[:, :width][kept])
    # The way back from what a domain reads: its own rows, and own neighbors in rows of others.
    read = kept & (own[:, None] | own[oracle.index.long()][:, :width])
    assert torch.equal(reverse[:, :width][read], oracle.reverse[:, :width][read])
    assert mine.row is not None
    has_row = mine.row.cpu() >= 0
    taken = mine.row.cpu()[has_row].sort().values
    assert torch.equal(taken, torch.arange(len(taken), dtype=torch.int32))
    assert len(taken) <= len(mine.index) <= len(owner)
    assert torch.equal(mine.count.cpu(), torch.where(has_row, oracle.count, 0))
    return int((~has_row).sum())
