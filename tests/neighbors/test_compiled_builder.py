"""The compiled lists of a CPU against the torch search, row for row."""

from collections.abc import Sequence

import pytest
import torch
from ase_pairs import SEARCHES, search_forced
from neighbor_cases import CASES, TRICLINIC, random_atoms, silicon, unwrapped

from mdgraph.neighbors import NeighborList
from mdgraph.neighbors import list as neighbor_list
from mdgraph.neighbors.compiled_builder import CompiledBuilder
from mdgraph.neighbors.torch_builder import TorchBuilder
from mdgraph.state import State
from mdgraph.system import System

EVERYTHING = ("index", "image", "reverse", "count", "wrap", "order", "offsets", "rebuilds")
EVERYTHING += ("reference_positions", "reference_cell")


@pytest.fixture(params=SEARCHES)
def search(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Both:
    """The same systems, listed both ways."""

    def __init__(self, systems: Sequence[System], cutoff: float, search: str, **more: object):
        dtype = more.pop("dtype", torch.float64)
        self.states = [State(systems, "cpu", dtype) for _ in range(2)]
        self.lists = []
        for state, builder in zip(self.states, (TorchBuilder, CompiledBuilder), strict=True):
            with pytest.MonkeyPatch.context() as patch, search_forced(search):
                patch.setattr(neighbor_list, "builder_class", lambda _, own=builder: own)
                self.lists.append(NeighborList(state, cutoff, **more))

    def move(self, positions: object, cell: object = None) -> None:
        for state, rows in zip(self.states, self.lists, strict=True):
            state.positions.copy_(torch.as_tensor(positions))
            if cell is not None:
                state.cell.copy_(torch.as_tensor(cell))
            rows.update_(state.positions, state.cell)

    def assert_same(self) -> None:
        first, second = self.lists
        for name in EVERYTHING:
            assert torch.equal(getattr(first, name), getattr(second, name)), name
        one, other = first.status(), second.status()
        assert one.most_neighbors == other.most_neighbors
        assert one.insufficient == other.insufficient


def test_a_cpu_has_compiled_lists() -> None:
    assert neighbor_list.builder_class(torch.device("cpu")) is CompiledBuilder


@pytest.mark.parametrize("name", CASES)
def test_rows_are_those_of_torch(name: str, search: str) -> None:
    system, cutoff = CASES[name]()
    both = Both([system], cutoff, search)
    both.assert_same()
    assert int(both.lists[0].count.sum()) > 0 or name == "one lone atom"


@pytest.mark.parametrize("cell_varies", [True, False])
def test_batches_move_and_deform(search: str, cell_varies: bool) -> None:
    systems = [
        unwrapped(random_atoms(TRICLINIC, pbc, atoms, seed))
        for pbc, atoms, seed in ((True, 30, 1), (False, 20, 2), ((True, False, True), 10, 3))
    ]
    both = Both(systems, 4.0, search, dtype=torch.float32, cell_varies=cell_varies, skin=0.4)
    generator = torch.Generator().manual_seed(4)
    for step in range(4):
        change = 0.2 * torch.randn(60, 3, generator=generator)
        cell = both.states[0].cell * (1.0 - 0.01 * step if cell_varies else 1.0)
        both.move(both.states[0].positions + change, cell)
        both.assert_same()
    assert int(both.lists[0].rebuilds) > 3


def test_overflow_keeps_the_true_count(search: str) -> None:
    both = Both([silicon()], 7.5, search, capacity=8)
    both.assert_same()
    assert both.lists[1].status().most_neighbors > both.lists[1].capacity == 32
    assert not both.lists[1].status().complete


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_broken_position_costs_only_its_own_pairs(search: str, number: float) -> None:
    system = random_atoms(TRICLINIC, True, 12, 5)
    both = Both([system], 4.0, search, cell_varies=False)
    positions = both.states[0].positions.clone()
    positions[3, 1] = number
    both.move(positions)
    whole = Both([system], 4.0, search, cell_varies=False).lists[1]
    rows = both.lists[1]
    assert int(rows.count[3]) == 0
    for atom in set(range(12)) - {3}:
        expected = whole.index[atom, : int(whole.count[atom])]
        kept = rows.index[atom, : int(rows.count[atom])]
        assert torch.equal(kept, expected[expected != 3])
