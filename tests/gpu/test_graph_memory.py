"""Graphs for which there is no memory: shorter ones, then eager steps, with the same bits."""

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ensembles import assert_same, graphed, toy
from recording import RecordedGraph
from toys import LennardJones, argon

from mdgraph.engine import LangevinMiddle, Simulation
from mdgraph.engine.calculation import Calculation
from mdgraph.gpu import graphs
from mdgraph.gpu.graphs import CapturedGraph, GraphMemoryError, captured

CPU = torch.device("cpu")
SHORT = "CUDA out of memory. Tried to allocate 2.00 MiB."


class CudaWithoutDevice:
    """Stands for `torch.cuda` while a capture is warmed up, recorded and ended."""

    def __init__(self, ending: Callable[[], None]) -> None:
        self.recording = False
        self._ending = ending

    def device(self, device: torch.device) -> Any:
        return nullcontext()

    def stream(self, stream: object) -> Any:
        return nullcontext()

    def current_stream(self, device: torch.device | None = None) -> Any:
        return SimpleNamespace(wait_stream=lambda other: None)

    def synchronize(self) -> None:
        pass

    def CUDAGraph(self) -> Any:  # noqa: N802
        return SimpleNamespace(pool=lambda: None)

    @contextmanager
    def graph(self, *arguments: object, **options: object) -> Iterator[None]:
        self.recording = True
        try:
            yield
        finally:
            self.recording = False
            self._ending()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Callable[..., CudaWithoutDevice]:
    def standing(ending: Callable[[], None] = lambda: None) -> CudaWithoutDevice:
        stand_in = CudaWithoutDevice(ending)
        own = SimpleNamespace(cuda=stand_in, OutOfMemoryError=torch.OutOfMemoryError)
        monkeypatch.setattr(graphs, "torch", own)
        stream = stand_in.current_stream()
        monkeypatch.setattr(graphs, "shared_stream", lambda device, role: stream)
        return stand_in

    return standing


@contextmanager
def collection_at_every_allocation() -> Iterator[None]:
    thresholds = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def hidden() -> None:
    raise RuntimeError("operation failed due to a previous error during capture")


def full() -> None:
    raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later")


class TestACapture:
    @pytest.mark.parametrize("ending", [lambda: None, hidden], ids=["told", "hidden"])
    def test_whose_recording_finds_no_memory_says_which(self, cuda, ending) -> None:
        stand_in = cuda(ending)

        def record() -> None:
            if stand_in.recording:
                raise torch.OutOfMemoryError(SHORT)

        with pytest.raises(GraphMemoryError, match=r"not for its graph: .*allocate 2\.00 MiB"):
            captured(record, CPU)

    def test_whose_instantiation_finds_no_memory_says_so(self, cuda) -> None:
        cuda(full)
        with pytest.raises(GraphMemoryError, match=r"its graph: CUDA error: out of memory$"):
            captured(lambda: None, CPU)

    def test_whose_calls_find_no_memory_leaves_it_at_that(self, cuda) -> None:
        cuda()

        def call() -> None:
            raise torch.OutOfMemoryError(SHORT)

        with pytest.raises(torch.OutOfMemoryError) as raised:
            captured(call, CPU)
        assert not isinstance(raised.value, GraphMemoryError)

    def test_destroys_nothing_that_lies_in_a_cycle_meanwhile(self, cuda) -> None:
        stand_in = cuda()
        destroyed_while_recording = []

        class Old:
            def __init__(self) -> None:
                self.itself = self

            def __del__(self) -> None:
                destroyed_while_recording.append(stand_in.recording)

        def record() -> None:
            for _ in range(10):
                Old()

        with collection_at_every_allocation():
            captured(record, CPU)
            [[] for _ in range(100)]
        assert len(destroyed_while_recording) > 10
        assert not any(destroyed_while_recording)
        assert gc.isenabled()

    def test_that_is_interrupted_passes_the_interrupt_on(self, cuda) -> None:
        stand_in = cuda(hidden)

        def record() -> None:
            if stand_in.recording:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            captured(record, CPU)


class Small:
    """Stands for CapturedGraph on a device with memory for graphs of so many calls."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.tried: list[int] = []

    def __call__(
        self, function: Callable[[], None], device: torch.device, calls: int = 1, pool: Any = None
    ) -> RecordedGraph:
        self.tried.append(calls)
        for _ in range(3):
            function()
        if calls > self.most:
            raise GraphMemoryError(SHORT)
        return RecordedGraph(function, calls)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Small]:
    def having(most: int) -> Small:
        made = Small(most)
        monkeypatch.setattr("mdgraph.gpu.graphs.CapturedGraph", made)
        return made

    return having


class TestSteps:
    @pytest.mark.parametrize(("most", "tried"), [(8, [32, 16, 8, 4, 2]), (1, [32, 16, 8, 4, 2, 1])])
    def test_take_shorter_graphs(self, most: int, tried: list[int], small, caplog) -> None:
        runs = [toy(LangevinMiddle(5.0, 300.0, 5.0), chunk=78) for _ in range(2)]
        found = small(most)
        graphed(runs[1])
        with caplog.at_level(logging.WARNING):
            for run in runs:
                run.run(78)
        assert found.tried == tried
        assert (runs[1].graphed, runs[1].step_graphs.longest) == (True, most)
        assert not caplog.messages
        assert_same(*runs)

    def test_run_eagerly_where_no_graph_fits(self, small, caplog) -> None:
        runs = [toy(LangevinMiddle(5.0, 300.0, 5.0), chunk=10) for _ in range(2)]
        found = small(0)
        graphed(runs[1])
        with caplog.at_level(logging.WARNING):
            for run in runs:
                run.run(40)
        assert found.tried == [8, 4, 2, 1]
        assert not runs[1].graphed
        (said,) = caplog.messages
        assert said.endswith(f"so every step runs eagerly: {SHORT}")
        assert_same(*runs)

    def test_take_graphs_again_where_other_lists_leave_room(self, small, caplog) -> None:
        run = Simulation(
            argon(1), LennardJones(0.0104, 3.4, 7.5), LangevinMiddle(4.0, 120.0), device="cpu"
        )
        found = small(0)
        graphed(run).run(10)
        run.set_skin(0.5)
        run.run(10)
        assert not run.graphed
        assert len([one for one in caplog.messages if "eagerly" in one]) == 1
        found.most = 32
        run.set_skin(0.0)
        run.run(10)
        assert (run.graphed, run.step_graphs.longest) == (True, 32)


def test_evaluations_run_eagerly_where_no_graph_fits(small, caplog) -> None:
    calculation = Calculation([argon(1)], LennardJones(0.0104, 3.4, 7.5), device="cpu")
    calculation.compute()
    before = calculation.state.forces.clone()
    found = small(0)
    for _ in range(3):
        calculation.compute(graphed=True)
    assert found.tried == [1]
    assert torch.equal(calculation.state.forces, before)
    assert len([one for one in caplog.messages if "eagerly" in one]) == 1


def test_the_stand_in_lets_a_capture_that_fits_pass(cuda) -> None:
    cuda()
    calls: list[int] = []
    assert isinstance(captured(lambda: calls.append(1), CPU, calls=2), CapturedGraph)
    assert len(calls) == graphs.WARM_UP + 2


@pytest.mark.gpu
def test_graphs_in_cycles_do_not_end_a_capture() -> None:
    device = torch.device("cuda")
    values = torch.zeros(8, device=device)

    def record() -> None:
        for _ in range(50):
            values.add_([1.0][0])  # a new list is an occasion for the collector

    class Owner:
        def __init__(self) -> None:
            self.itself = self
            self.graph = captured(record, device)

    with collection_at_every_allocation():
        for _ in range(3):
            Owner()
        gc.disable()
        old = [Owner() for _ in range(3)]
        del old
        gc.enable()
        graph = captured(record, device)
    assert graph is not None
    values.zero_()
    graph.replay()
    assert values.tolist() == [50.0] * 8
