"""Kernels that cut domains, beside the torch operations that cut them on the host."""

from pathlib import Path

import pytest
import torch
from ase.build import bulk, fcc111
from ase.io import read

from mdgraph.decomposition.bricks import BrickGrid
from mdgraph.decomposition.division import Division, TorchCutter
from mdgraph.io.structures import from_ase
from mdgraph.neighbors import NeighborList
from mdgraph.state import State
from mdgraph.system import System

pytest.importorskip("triton", reason="its interpreter runs the kernels on a CPU")
from mdgraph.decomposition.cutting_kernels import KernelCutter

ROOT = Path(__file__).resolve().parents[2]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INTERPRETED = pytest.mark.skipif(DEVICE == "cuda", reason="kernels run on the GPU, in other cases")


def water() -> System:
    atoms = read(ROOT / "potentials" / "water-pbe0" / "start.extxyz")
    return from_ase(atoms[:24])


CASES = {
    "water": (water, (2, 1, 1)),
    "columns": (water, (2, 2, 2)),
    "slab": (lambda: from_ase(fcc111("Cu", (3, 3, 3), a=3.64, vacuum=8.0)), (1, 3, 2)),
    "two images of a neighbor": (
        lambda: from_ase(bulk("Cu", "fcc", 3.64, cubic=True) * (3, 1, 1)),
        (2, 1, 1),
    ),
    "more domains than a word has bits": (
        lambda: from_ase(bulk("Si", "diamond", 5.46) * (33, 1, 1)),
        (33, 1, 1),
    ),
}


BOTH = (TorchCutter, KernelCutter)


def divisions(
    system: System,
    shape: tuple[int, int, int],
    device: str,
    monkeypatch: pytest.MonkeyPatch,
    cutters: tuple[type, ...] = BOTH,
) -> tuple[State, list[NeighborList], list[Division]]:
    """A system with two lists, cut by each; later divisions are cut by the last."""
    monkeypatch.setattr("mdgraph.decomposition.cutting_kernels._SCAN", 16)
    monkeypatch.setattr("mdgraph.decomposition.cutting_kernels._ORDERED", 8)
    generator = torch.Generator().manual_seed(0)
    state = State([system], device)
    moves = 0.1 * torch.randn(state.positions.shape, dtype=torch.float64, generator=generator)
    state.positions.add_(moves.to(device))
    lists = [NeighborList(state, cutoff, 0.4) for cutoff in (3.5, 2.0)]
    grid = BrickGrid(shape)
    planes = grid.planes(state.positions, state.cell, state.pbc)
    numbers = range(len(grid)) if len(grid) < 9 else (0, 31, 32)
    made = []
    for cutter in cutters:
        monkeypatch.setattr(
            "mdgraph.decomposition.division._cutter_class", lambda _, kind=cutter: kind
        )
        made.append(Division(numbers, grid, planes, state, lists, 4))
    return state, lists, made


def assert_same(by_torch: Division, by_kernels: Division) -> None:
    for one, other in zip(by_torch.domains, by_kernels.domains, strict=True):
        assert one.capacity == other.capacity
        assert torch.equal(one.most, other.most)
        assert torch.equal(one.is_used, other.is_used)
        used = one.is_used
        assert torch.equal(one.source[used], other.source[used])
        for name in ("numbers", "kinds"):
            mine, its = getattr(one.state, name), getattr(other.state, name)
            assert torch.equal(mine[used], its[used])
            assert torch.equal(mine[: one.capacity.owned], its[: one.capacity.owned])
        for number, rows in one.send.items():
            assert torch.equal(rows, other.send[number])
        for rows, others in zip(one.lists, other.lists, strict=True):
            for name in ("index", "image", "reverse", "count", "order"):
                assert torch.equal(getattr(rows, name), getattr(others, name)), name
            assert torch.equal(rows.wrap[used], others.wrap[used])


@pytest.mark.parametrize(
    ("case", "device"),
    [
        pytest.param("water", "cpu", marks=INTERPRETED),
        pytest.param("two images of a neighbor", "cpu", marks=INTERPRETED),
        *(pytest.param(case, "cuda", marks=pytest.mark.gpu) for case in CASES),
    ],
)
def test_kernels_cut_as_torch_does(case: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, shape = CASES[case]
    state, lists, (by_torch, by_kernels) = divisions(make(), shape, device, monkeypatch)
    assert_same(by_torch, by_kernels)
    assert not bool(by_torch.outgrown())
    assert not bool(by_kernels.outgrown())
    before = [domain.source.clone() for domain in by_kernels.domains]
    state.positions[::7] += 0.8
    by_kernels.update_()  # the lists are the same yet
    for domain, source in zip(by_kernels.domains, before, strict=True):
        assert torch.equal(domain.source, source)
    for listed in lists:
        listed.rebuild_(state.positions, state.cell)
    for division in (by_torch, by_kernels):
        division.update_()
    assert torch.equal(by_torch.outgrown(), by_kernels.outgrown())
    for one, other in zip(by_torch.domains, by_kernels.domains, strict=True):
        assert torch.equal(one.most, other.most)
    again = [
        Division(
            [domain.number for domain in division.domains], BrickGrid(shape), division._planes,
            state, lists, 4, before=division,
        )
        for division in (by_torch, by_kernels)
    ]  # fmt: skip
    for division in again:
        division.update_()
    assert_same(*again)


def test_a_domain_without_room_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Atoms that flow to one side leave no room, for either cutter."""
    state, lists, made = divisions(water(), (2, 1, 1), DEVICE, monkeypatch)
    state.positions[:, 0] *= 0.3
    for listed in lists:
        listed.rebuild_(state.positions, state.cell)
    for division in made:
        division.update_()
        assert bool(division.outgrown())
        for part in division.domains:  # what is left is evaluated, and must stay within buffers
            order = part.lists[0].order
            assert int(order.min()) >= 0
            assert int(order.max()) < part.capacity.owned
    larger = Division(
        range(2), BrickGrid((2, 1, 1)), made[1]._planes, state, lists, 4, before=made[1]
    )
    assert not bool(larger.outgrown())
    assert sum(int(part.is_used[: part.capacity.owned].sum()) for part in larger.domains) == 24


def test_both_sides_of_a_message_have_as_much_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where one of them missed atoms, its list having been incomplete."""
    state, lists, (whole,) = divisions(water(), (2, 1, 1), "cpu", monkeypatch, (TorchCutter,))
    grid, planes = BrickGrid((2, 1, 1)), whole._planes
    sides = [Division([number], grid, planes, state, lists, 4) for number in range(2)]
    sides[0].domains[0].most[len(state.elements) :] += 50
    told: list[torch.Tensor] = []
    Division([0], grid, planes, state, lists, 4, before=sides[0], agree_=told.append)
    grown = [
        Division(
            [number], grid, planes, state, lists, 4, before=side,
            agree_=lambda values: values.copy_(torch.maximum(values, told[0])),
        ).domains[0].capacity
        for number, side in enumerate(sides)
    ]  # fmt: skip
    assert grown[0].send[1] == grown[1].receive[0] > sides[1].domains[0].capacity.receive[0]
    assert grown[0].receive[1] == grown[1].send[0] > sides[1].domains[0].capacity.send[0]


def test_what_came_after_an_overflow_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Atoms that flew anywhere, or to no number, would fill one domain with the whole system."""
    state, lists, (division,) = divisions(water(), (2, 1, 1), "cpu", monkeypatch, (TorchCutter,))
    first = division.domains[0]
    before = first.capacity.rows
    first.most[0] += 10**6
    assert bool(division.outgrown())
    again = Division(range(2), BrickGrid((2, 1, 1)), division._planes, state, lists, 4, division)
    assert not bool(again.outgrown())
    assert before < again.domains[0].capacity.rows < 10 * before + 100
