"""Forces without energies and virial, and two potentials that are evaluated at the same time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from backends import device_of
from random_networks import TENSORNET, crowd, crystal, lists_for, network

from mdgraph.engine import Calculation, LangevinMiddle, Simulation
from mdgraph.evaluators import MultipleTimeStepEvaluator
from mdgraph.fused.evaluator import FusedTensorNet
from mdgraph.gpu.launch import Branch
from mdgraph.neighbors import NeighborList
from mdgraph.state import State

NONE = TENSORNET | {"layers": 0, "channels": 16, "self_interaction": False}


@pytest.mark.parametrize("backend", ["compiled", "triton"])
@pytest.mark.parametrize("layers", [0, 1])
def test_forces_alone_have_the_bits_of_those_with_the_rest(backend: str, layers: int) -> None:
    settings = NONE | {"layers": layers}
    evaluator = FusedTensorNet(network(**settings), "mixed", device_of(backend), backend)
    system = crystal(3)
    whole, alone = (State([system], device_of(backend)) for _ in range(2))
    evaluator.evaluate_(whole, lists_for(whole, evaluator.potential))
    rest = (alone.virial, alone.energy)
    for sums in rest:
        sums.fill_(torch.nan)
    evaluator.evaluate_forces_(alone, lists_for(alone, evaluator.potential))
    assert torch.equal(alone.forces, whole.forces)
    # The work that is left out.
    assert all(bool(sums.isnan().all()) for sums in rest)
    # Elsewhere, with all results of the state left alone.
    for sums in (alone.forces, alone.energies):
        sums.fill_(torch.nan)
    into = torch.zeros_like(alone.forces)
    for _ in range(2):
        evaluator.evaluate_forces_(alone, lists_for(alone, evaluator.potential), into)
    assert torch.equal(into, whole.forces)
    assert all(bool(sums.isnan().all()) for sums in (alone.forces, alone.energies, *rest))


class Halved(FusedTensorNet):
    """Half of a potential, by `evaluate_` alone."""

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        super().evaluate_(state, lists)
        for result in (state.energies, state.energy, state.forces, state.virial):
            result.mul_(0.5)


class Mixed(Halved, FusedTensorNet):
    """By a class that comes before its base."""


@pytest.mark.parametrize("kind", [Halved, Mixed])
def test_what_overrides_evaluate_alone_has_its_forces_at_two_time_steps(
    kind: type[FusedTensorNet],
) -> None:
    small = FusedTensorNet(network(**NONE), "mixed")
    forces = []
    for cls, weight in ((kind, 1.0), (FusedTensorNet, 0.5)):
        large = cls(network(**NONE | {"layers": 1}), "mixed")
        own = []
        for pair in ((large, small), (small, large)):
            evaluator = MultipleTimeStepEvaluator(*pair, 3, virials=False)
            calculation = Calculation([crystal(2)], evaluator, device="cpu", cell_varies=False)
            own.append(evaluator.forces(calculation.state))
            evaluator.evaluate_small_(calculation.state, calculation.lists)
            own.append(calculation.state.forces)
        forces.append([own[0] * weight, own[1], own[2], own[3] * weight])
    for own, expected in zip(*forces, strict=True):
        assert torch.equal(own, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("channels", [32, 40])
def test_graphs_of_two_time_steps_have_the_bits_of_eager_steps(channels: int) -> None:
    """Beside the large potential on a stream of its own, and one after the other."""
    runs = []
    for graph, beside in (("off", True), ("on", True), ("on", False)):
        run = Simulation(
            crowd(100),
            network(**TENSORNET),
            LangevinMiddle(0.1, 50.0),
            inner_potential=network(**NONE | {"channels": channels}),
            inner_steps=3,
            device="cuda",
            graph=graph,
            temperature=50.0,
            check=None,
        )
        evaluator = run.calculation.evaluator
        assert isinstance(evaluator, MultipleTimeStepEvaluator)
        assert evaluator._runs_beside
        evaluator._runs_beside = beside
        run.run(66)
        runs.append(run)
    assert [run.graphed for run in runs] == [False, True, True]
    for name in ("positions", "velocities", "forces", "energy", "virial"):
        first = getattr(runs[0].state, name)
        assert all(torch.equal(first, getattr(run.state, name)) for run in runs[1:]), name


@pytest.mark.parametrize("cutoff", [3.0, 3.4])
def test_a_list_of_both_potentials_is_waited_for_by_both(
    cutoff: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, small = (
        FusedTensorNet(network(**NONE | {"cutoff": own}), "mixed", "cpu") for own in (3.4, cutoff)
    )
    evaluator = MultipleTimeStepEvaluator(large, small, 2, virials=False)
    state = State([crystal(2)])
    lists = [NeighborList(state, own) for own in evaluator.cutoffs]
    events: list[str] = []

    @contextmanager
    def fork(branch: Branch) -> Iterator[None]:
        events.append("fork")
        yield

    monkeypatch.setattr(NeighborList, "join", lambda item: events.append("join"))
    monkeypatch.setattr(Branch, "fork", fork)
    evaluator.evaluate_(state, lists)
    assert events[0] == ("join" if cutoff == 3.4 else "fork")


@pytest.mark.parametrize("cutoff", [3.0, 3.4])
def test_a_list_of_the_small_potential_is_updated_beside_the_large_one(cutoff: float) -> None:
    """With the forces of lists that are updated before both."""
    large, small = (
        FusedTensorNet(network(**NONE | {"cutoff": own}), "mixed", "cpu") for own in (3.4, cutoff)
    )
    forces = []
    for beside in (True, False):
        evaluator = MultipleTimeStepEvaluator(large, small, 2, virials=False)
        evaluator._runs_beside = beside
        calculation = Calculation([crystal(2)], evaluator, device="cpu", cell_varies=False)
        assert len(evaluator.own_lists(calculation.lists)) == (beside and cutoff == 3.0)
        builds = [int(item.rebuilds) for item in calculation.lists]
        calculation.state.positions[0, 0] += 0.6
        calculation.update_()
        assert [int(item.rebuilds) for item in calculation.lists] == [one + 1 for one in builds]
        forces.append(calculation.state.forces)
    assert torch.equal(*forces)
