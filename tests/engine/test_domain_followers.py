"""What another rank than 0 does with its own lists, here in one process."""

import gc
from collections.abc import Callable, Sequence

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
        self.shared: Sequence[torch.Tensor] = ()
        self.dropped: list[tuple[Call, int]] = []

    def drop(self, call: Call, number: int) -> None:
        self.dropped.append((call, number))

    def share_(self, values: torch.Tensor) -> Callable[[], None]:
        torch.cat([part.flatten() for part in self.shared], out=values)
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
    state = reference.state(torch.device("cpu"), torch.float64)
    lists = reference.lists(state, whole.cutoffs, grid.brick(0, planes))
    divided = DividedSystem(1, state, lists, planes, whole, grid, exchange, margin)

    def tell(scale: float) -> None:
        positions, cell = scale * start.positions, scale * start.cell
        references = [part for _ in lists for part in (positions, cell)]
        exchange.shared = (positions, cell, start.charge.double(), planes, *references)

    tell(1.0)
    divided.divide_()
    assert float(divided.evaluate_()[-1]) == 0.0
    tell(0.8)
    assert float(divided.evaluate_()[-1]) == 1.0  # rank 0 says that domains grow
    divided.divide_()
    found = divided.evaluate_()
    assert float(found[-1]) == 0.0
    squeezed = State([system], "cpu")
    squeezed.positions.mul_(0.8)
    squeezed.cell.mul_(0.8)
    whole.evaluate_(squeezed, [NeighborList(squeezed, cutoff, 0.3) for cutoff in whole.cutoffs])
    forces = found[: 3 * len(system)].view(-1, 3)
    assert forces == pytest.approx(squeezed.forces, abs=1e-9)
    virial = found[-10:-1].view(3, 3)
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
