"""Chunks and graphs of several steps: whatever goes wrong, and wherever, the bits are the same."""

import logging
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from ensembles import assert_same, graphed, toy
from storms import broken, deep, storm
from toys import HarmonicWells, LennardJones, argon

from mdgraph.engine import (
    Averages,
    LangevinMiddle,
    Simulation,
    StochasticCellRescaling,
    VelocityVerlet,
)
from mdgraph.errors import SimulationError
from mdgraph.neighbors import NeighborList
from mdgraph.state import State
from mdgraph.system import System


@pytest.mark.slow
def test_ten_thousand_overflows_leave_the_same_bits() -> None:
    steps = 12000
    generator = np.random.default_rng(3)
    plan = 1 + generator.permutation(steps)[:10000]
    calm, hit = storm([], 100, 1), storm(plan.tolist(), 1, 2)
    for run in (calm, hit):
        run.run(steps)
    (stormy,) = hit.calculation.lists
    assert stormy.growths == 10000
    assert_same(calm, hit)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("chunk", [1, 4, 25])
def test_overflows_anywhere_leave_the_same_bits(depth: int, chunk: int) -> None:
    generator = np.random.default_rng(chunk)
    calm = storm([], 10, 1)
    hit = storm((1 + generator.permutation(60)[:20]).tolist(), chunk, depth)
    for run in (calm, hit):
        run.run(60)
    assert_same(calm, hit)


@pytest.mark.parametrize("depth", [1, 2])
def test_repeated_overflows_of_real_lists_leave_the_same_bits(depth: int) -> None:
    def make(chunk: int) -> Simulation:
        return Simulation(
            argon(1),
            LennardJones(0.0104, 3.4, 7.5),
            LangevinMiddle(4.0, 120.0),
            device="cpu",
            temperature=120.0,
            skin=0.0,
            chunk=chunk,
            observe=[Averages(every=3)],
        )

    ample, tight = make(10), deep(make(4), depth)
    ample.run(60)
    (rows,) = tight.calculation.lists
    generator = np.random.default_rng(1)
    growths = 0
    while tight.step < 60:
        rows._allocate(1, *rows.reference())
        rows.sticky()[0].zero_()
        small = rows.capacity
        tight.run(min(int(generator.integers(1, 9)), 60 - tight.step))
        growths += rows.capacity > small
    assert growths > 5
    assert_same(ample, tight)


def test_a_cell_that_shrinks_through_the_cutoff_in_chunks_that_overlap() -> None:
    loose = argon(1).replace(positions=1.5 * argon(1).positions, cell=1.5 * argon(1).cell)

    def compressed(chunk: int, depth: int) -> Simulation:
        integrator = StochasticCellRescaling(2.0, 100.0, 0.03, tau_p=100.0, compressibility=30.0)
        run = Simulation(
            loose,
            LennardJones(0.0104, 3.4, 5.5),
            integrator,
            device="cpu",
            skin=0.4,
            chunk=chunk,
        )
        return deep(run, depth)

    runs = [compressed(40, 1), compressed(5, 2)]
    for run in runs:
        run.run(80)
    assert float(runs[0].state.cell[0, 0, 0]) < 5.5 < 8.0 < float(loose.cell[0, 0])
    assert_same(*runs)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("share", [0.2, 0.7])
def test_a_cell_that_collapses_at_once_ends_the_run(share: float, depth: int) -> None:
    """Lists follow a cell to half its width; in one step to less, they never could."""

    class Collapsing(VelocityVerlet):
        cell_varies = True

        def step_(self, state: State, evaluate: Callable[[], None]) -> None:
            factor = torch.where((state.step >= 11) & (state.step < 14), share, 1.0).double()
            state.cell *= factor
            state.positions *= factor
            super().step_(state, evaluate)

    def collapsing(chunk: int) -> Simulation:
        ideal = LennardJones(0.0, 3.4, 3.0)
        run = Simulation(argon(1), ideal, Collapsing(1.0), device="cpu", skin=0.0, chunk=chunk)
        return deep(run, depth)

    run, single = collapsing(5), collapsing(1)
    if share < 0.5:
        with pytest.raises(SimulationError, match="less than half its width at step 12;"):
            run.run(15)
        assert run.step == 11
    else:
        run.run(15)
    single.run(run.step)
    assert_same(run, single)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("what", ["lists", "domains"])
def test_what_overflows_however_often_it_is_enlarged_ends_the_run(what: str, depth: int) -> None:
    run, whole = storm([], 5, depth), storm([], 5, depth)

    def overflows(_: State) -> torch.Tensor:
        return run.state.step >= 12

    if what == "domains":
        run.calculation.evaluator.outgrown = overflows  # type: ignore[method-assign]
        said = "Atoms gather faster than buffers of domains or edges can be enlarged, at step 12;"
    else:
        run.calculation.lists[0]._plan = Always(12)  # type: ignore[attr-defined]
        said = "Atoms come together faster than neighbor lists can be enlarged, at step 12;"
    with pytest.raises(SimulationError, match=said):
        run.run(20)
    assert run.step == 11
    whole.run(11)
    assert_same(run, whole)


class Always:
    """A plan of overflows at a step and all later ones."""

    def __init__(self, first: int) -> None:
        self.first = first

    def __contains__(self, step: int) -> bool:
        return step >= self.first

    def remove(self, step: int) -> None:
        pass


class TestFailures:
    """Forces that are no numbers from a step on, in the first or the second chunk launched."""

    @pytest.mark.parametrize("depth", [1, 2, 3])
    @pytest.mark.parametrize("at", [2, 5, 6, 8, 10, 11, 23])
    def test_are_found_at_their_step(self, at: int, depth: int) -> None:
        run, whole = broken(at, depth), broken(1000, 1)
        with pytest.raises(SimulationError, match=rf"atoms 2 are not finite at step {at};"):
            run.run(30)
        whole.run(at - 1)
        assert run.step == at - 1
        assert_same(run, whole)

    def test_are_found_before_a_report(self) -> None:
        class Look:
            interval = 5

            def report(self, simulation: Simulation) -> None:
                assert torch.isfinite(simulation.state.forces).all()
                seen.append(simulation.step)

        seen: list[int] = []
        run = broken(12, 3)
        run.reporters.append(Look())
        with pytest.raises(SimulationError):
            run.run(30)
        assert seen == [5, 10]


class TestInterruptions:
    @staticmethod
    def calling(function: Callable[[int], None], depth: int, at: int = 1000) -> Simulation:
        """Calls a function at each evaluation; forces are no numbers at one step."""

        class Calling(HarmonicWells):
            calls = 0

            def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
                Calling.calls += 1
                function(Calling.calls)
                super().evaluate_(state, lists)
                state.forces[0] = torch.where(state.step == at - 1, torch.nan, state.forces[0])

        system = argon(1)
        wells = Calling(torch.tensor(system.positions), 1.0)
        run = Simulation(system, wells, LangevinMiddle(2.0, 300.0, 5.0), device="cpu", chunk=10)
        return deep(run, depth)

    @pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError("CUDA error")])
    @pytest.mark.parametrize("depth", [1, 2])
    @pytest.mark.parametrize(("call", "left"), [(3, 0), (17, 10), (21, 10), (22, 20), (35, 30)])
    def test_leave_the_end_of_a_chunk(
        self, error: BaseException, depth: int, call: int, left: int
    ) -> None:
        def interrupt(number: int) -> None:
            if number == call:
                raise error

        # The first call evaluates the start.
        interrupted, whole = self.calling(interrupt, depth), self.calling(lambda _: None, 1)
        with pytest.raises((KeyboardInterrupt, RuntimeError)):
            interrupted.run(40)
        assert interrupted.step == left
        interrupted.run(40 - left)
        whole.run(40)
        assert_same(interrupted, whole)

    def test_in_a_chunk_after_a_bad_one_leave_the_start_of_the_bad_one(self) -> None:
        def interrupt(number: int) -> None:
            if number == 27:
                raise KeyboardInterrupt

        interrupted, whole = self.calling(interrupt, 2, at=13), self.calling(lambda _: None, 1)
        with pytest.raises(KeyboardInterrupt):
            interrupted.run(40)
        whole.run(10)
        assert interrupted.step == 10
        assert_same(interrupted, whole)

    @pytest.mark.parametrize("depth", [1, 2])
    def test_stop_ends_the_chunk_at_hand(self, depth: int) -> None:
        stopped = self.calling(lambda number: number == 15 and stopped.stop(), depth)
        assert stopped.run(40) == 20
        whole = self.calling(lambda _: None, 1)
        whole.run(20)
        assert_same(stopped, whole)
        assert stopped.run(20) == 20


class TestGraphsOfSeveralSteps:
    @pytest.mark.parametrize("longest", [1, 2, 8, 32])
    @pytest.mark.parametrize("begin", [0, 29])
    def test_have_the_bits_of_single_steps(self, longest: int, begin: int, captures) -> None:
        runs = [
            toy(LangevinMiddle(5.0, 300.0, 5.0), observe=[Averages(every=3)], chunk=50)
            for _ in range(2)
        ]
        for run in runs:
            run.run(begin)
        graphed(runs[1]).step_graphs.longest = longest
        for run in runs:
            run.run(75)
        assert_same(*runs)
        assert max(one.repeats for one in captures) == longest
        assert len({one.repeats for one in captures}) == len(captures)

    def test_remove_momentum_at_its_own_steps(self, captures) -> None:
        system = System(numbers=[10, 18], positions=[[0.0, 0, 0], [9.0, 0, 0]])
        runs = [
            Simulation(
                system,
                HarmonicWells(torch.tensor(system.positions), 0.0),
                LangevinMiddle(2.0, 300.0, 50.0),
                device="cpu",
                remove_momentum=3,
                chunk=20,
            )
            for _ in range(2)
        ]
        graphed(runs[1])
        for run in runs:
            run.run(40)
        assert_same(*runs)

    def test_a_capture_that_is_interrupted_ends_the_run(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupt(*arguments: object, **options: object) -> None:
            try:
                raise KeyboardInterrupt
            finally:
                raise RuntimeError("operation failed due to a previous error during capture")

        monkeypatch.setattr("mdgraph.gpu.graphs.CapturedGraph", interrupt)
        run = toy(VelocityVerlet(5.0))
        with pytest.raises(KeyboardInterrupt):
            graphed(run).run(20)
        assert run.step == 0

    def test_a_step_that_does_not_fit_into_memory_ends_the_run_as_eager_ones_would_not_fit_either(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*arguments: object, **options: object) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory")

        monkeypatch.setattr("mdgraph.gpu.graphs.CapturedGraph", refuse)
        run = toy(VelocityVerlet(5.0))
        with pytest.raises(torch.OutOfMemoryError):
            graphed(run).run(20)
        assert run.step == 0

    def test_a_capture_that_fails_goes_on_eagerly(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def refuse(*arguments: object, **options: object) -> None:
            raise RuntimeError("operation not permitted when stream is capturing")

        monkeypatch.setattr("mdgraph.gpu.graphs.CapturedGraph", refuse)
        runs = [toy(VelocityVerlet(5.0)) for _ in range(2)]
        graphed(runs[1])
        with caplog.at_level(logging.WARNING):
            for run in runs:
                run.run(20)
        assert caplog.text.count("every step runs eagerly: operation not permitted") == 1
        assert not runs[1].graphed
        assert_same(*runs)
