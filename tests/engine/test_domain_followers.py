"""What another rank than 0 does with its own lists, here in one process."""

import gc
from collections.abc import Callable

import pytest
import torch
from ase.build import bulk

from mdgraph.checkpoints import load
from mdgraph.decomposition.bricks import BrickGrid
from mdgraph.decomposition.divided_system import DividedSystem
from mdgraph.decomposition.evaluator import DecomposedEvaluator
from mdgraph.decomposition.exchange import Call, CallMessage, LocalExchange
from mdgraph.decomposition.references import EvaluatorPart, SystemReference
from mdgraph.decomposition.server import _Server
from mdgraph.fused.evaluator import FusedTensorNet
from mdgraph.io.structures import from_ase
from mdgraph.neighbors import NeighborList
from mdgraph.state import State


class FollowingExchange(LocalExchange):
    """That of another rank, which holds all domains; rank 0 shares what a test says."""

    alone = False

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.leads = True
        self.shared: list[torch.Tensor] = []
        self.dropped: list[tuple[Call, int]] = []

    def drop(self, call: Call, number: int) -> None:
        self.dropped.append((call, number))

    def share_(self, values: torch.Tensor) -> Callable[[], None]:
        values.copy_(self.shared.pop(0))
        return lambda: None


def test_lists_of_followers_grow_where_the_cell_outgrows_their_plan() -> None:
    """Rank 0 may have planned for more, having met such cells before it told the others."""
    system = from_ase(bulk("Cu", "fcc", 3.64, cubic=True) * (2, 2, 2))
    whole = FusedTensorNet(load("copper-pbe"), "double", "cpu")
    exchange, grid = FollowingExchange(1), BrickGrid((1, 1, 1))
    evaluator = DecomposedEvaluator(whole, len(system), grid, exchange)
    exchange.leads = False
    start = State([system], "cpu")
    planes = grid.planes(start.positions, start.cell, start.pbc)
    given = [NeighborList(start, cutoff, 0.3) for cutoff in whole.cutoffs]
    margin = evaluator.margin
    reference = SystemReference.of(evaluator.number, start, given, planes, margin)
    brick = grid.brick(0, planes)
    state, region = reference.region(whole, brick, exchange)
    lists = reference.lists(state, whole.cutoffs, brick)
    divided = DividedSystem(1, region, lists, planes, whole, grid, exchange, margin)

    def evaluated() -> torch.Tensor:
        found = divided.evaluate_()
        assert found is not None
        return found

    def tell(scale: float) -> None:
        positions, cell = scale * start.positions, scale * start.cell
        header = torch.cat([cell.flatten(), start.charge, planes, *(cell.flatten() for _ in lists)])
        columns = [
            start.numbers.double()[:, None],
            positions,
            *(positions for _ in lists),
        ]
        exchange.shared = [header, torch.cat(columns, 1)]

    tell(1.0)
    divided.divide_()
    tell(1.0)
    assert float(evaluated()[-1, -1]) == 0.0
    tell(0.8)
    assert float(evaluated()[-1, -1]) == 1.0  # rank 0 says that domains grow
    tell(0.8)
    divided.divide_()
    tell(0.8)
    found = evaluated()
    assert float(found[-1, -1]) == 0.0
    squeezed = State([system], "cpu")
    squeezed.positions.mul_(0.8)
    squeezed.cell.mul_(0.8)
    whole.evaluate_(squeezed, [NeighborList(squeezed, cutoff, 0.3) for cutoff in whole.cutoffs])
    assert found[:-2, 0].tolist() == [*range(len(system))]
    assert found[:-2, 1:4] == pytest.approx(squeezed.forces, abs=1e-9)
    virial = found[-2:].flatten()[:9].view(3, 3)
    assert virial == pytest.approx(squeezed.virial[0], rel=1e-9)


def test_evaluators_are_dropped_on_all_ranks() -> None:
    """Where rank 0 has let them go, with what it had made of them."""
    potential, grid = load("copper-pbe"), BrickGrid((1, 1, 1))
    exchange = FollowingExchange(1)
    server = _Server(exchange)  # type: ignore[arg-type]
    whole = FusedTensorNet(potential, "double", "cpu")
    evaluator = DecomposedEvaluator(whole, 4, grid, exchange)
    number, part = evaluator.number, EvaluatorPart(potential, whole.precision, "cpu", 4, grid)
    exchange.leads = False
    server._do(CallMessage(Call.ADD, number, part))
    assert [*server._evaluators] == [number]
    del evaluator
    gc.collect()
    assert exchange.dropped == [(Call.DROP_EVALUATOR, number)]
    server._do(CallMessage(*exchange.dropped[0], None))
    assert not server._evaluators
