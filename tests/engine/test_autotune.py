"""Choices by measurement: the rules, with times made up, and that measuring leaves no trace."""

import logging
import re
from collections.abc import Callable, Iterator
from math import inf, nan
from types import SimpleNamespace

import pytest
import torch
from ensembles import assert_same, graphed, toy
from toys import HarmonicWells, LennardJones, argon

from mdgraph.engine import (
    Averages,
    LangevinMiddle,
    Simulation,
    VelocityVerlet,
    autotune,
    step_graphs,
)
from mdgraph.engine import simulation as simulations
from mdgraph.engine.autotune import (
    EAGER,
    LENGTHS,
    SKINS,
    TuningOptions,
    choose_execution,
    choose_skin,
    preferred,
)
from mdgraph.engine.restart import load_restart_, save_restart
from mdgraph.errors import InputError
from mdgraph.runs.folder import tuning_of_record


@pytest.fixture(autouse=True)
def one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times that are made up need no repetition."""
    monkeypatch.setattr(autotune, "PASSES", 1)


class Seconds:
    """A timer that does the work and says what it was told to say."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self.calls = 0

    def __call__(self, work: Callable[[], None]) -> float:
        work()
        self.calls += 1
        return self._seconds()


def liquid(**options: object) -> Simulation:
    options = {"device": "cpu", "temperature": 120.0, "seed": 3, "chunk": 7} | options
    return Simulation(
        argon(1),
        LennardJones(0.0104, 3.4, 5.5),
        LangevinMiddle(4.0, 120.0, 5.0),
        observe=[Averages(every=3)],
        **options,  # type: ignore[arg-type]
    )


class TestPreferred:
    @pytest.mark.parametrize(
        ("seconds", "chosen"),
        [
            ({1: 3.0, 8: 2.0, 32: 1.9}, 32),
            ({1: 3.0, 8: 2.0, 32: 1.999}, 8),
            ({1: 1.0, 8: 1.0, 32: 1.0, EAGER: 1.0}, 1),
            ({1: 1.0, 8: 1.1, EAGER: 0.9}, EAGER),
            ({0.0: 2.0, 0.3: inf}, 0.0),
        ],
    )
    def test_is_the_simplest_that_is_fast(self, seconds, chosen) -> None:
        assert preferred(seconds) == chosen


class TestSkin:
    @staticmethod
    def fastest(run: Simulation, best: float) -> Seconds:
        return Seconds(lambda: 1.0 + abs(run.calculation.skin - best))

    @pytest.mark.parametrize("best", [0.0, 0.6])
    def test_is_taken_and_leaves_no_trace(self, best: float, caplog) -> None:
        run, plain = liquid(), liquid()
        before = run.snapshot()
        plain.set_skin(best)
        with caplog.at_level(logging.INFO):
            choose_skin(run, self.fastest(run, best))
        assert run.calculation.skin == best
        assert {one.skin for one in run.calculation.lists} == {best}
        assert run.step == before["step"] == 0
        assert_same(run, plain)
        for one in (run, plain):
            one.run(40)
        assert_same(run, plain)
        (said,) = (one for one in caplog.messages if "skin" in one)
        assert re.search(rf"skin {best:g} A, lists built by torch", said)

    def test_is_measured_with_lists_that_fall_due(self, caplog) -> None:
        run = liquid()
        with caplog.at_level(logging.INFO):
            choose_skin(run, Seconds(lambda: 64e-6))
        (said,) = (one for one in caplog.messages if "list built every" in one)
        intervals = [float(one) for one in re.findall(r"every ([\d.]+) steps", said)]
        assert len(intervals) == len(SKINS)
        assert intervals[0] == 1.0
        assert intervals == sorted(intervals)
        assert intervals[-1] > 2.0

    def test_is_timed_without_captures(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each skin replaces the buffers of its graphs, whose captures are no part of a step."""
        captured: list[int] = []

        def capture(step: Callable[[], None], _: object, calls: int = 1, **__: object) -> object:
            captured.append(calls)
            return SimpleNamespace(replay=lambda: [step() for _ in range(calls)], pool=None)

        def timer(work: Callable[[], None]) -> float:
            before = len(captured)
            work()
            assert len(captured) == before
            return 0.1

        monkeypatch.setattr(step_graphs, "captured", capture)
        choose_skin(graphed(liquid()), timer)
        assert captured == [8] * len(SKINS)

    def test_in_the_middle_of_a_run_leaves_no_trace(self) -> None:
        run, plain = liquid(skin=0.3), liquid(skin=0.3)
        for one in (run, plain):
            one.run(33)
        choose_skin(run, self.fastest(run, 0.6))
        plain.set_skin(0.6)
        for one in (run, plain):
            one.run(33)
        assert_same(run, plain)

    def test_that_is_given_says_how_lists_are_built(self, caplog) -> None:
        with caplog.at_level(logging.DEBUG, "mdgraph"):
            run = liquid(skin=0.3)
            run.run(10)
        said = [one for one in caplog.messages if "built by" in one]
        assert said == ["Lists are built by torch where the host finds them due."]

    def test_that_takes_too_much_memory_is_left_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        run = liquid()
        take = run.set_skin

        def refuse(skin: float) -> None:
            if skin > 0.5:
                raise torch.OutOfMemoryError("CUDA out of memory")
            take(skin)

        monkeypatch.setattr(run, "set_skin", refuse)
        choose_skin(run, Seconds(lambda: 1.0 / (1.0 + run.calculation.skin)))
        assert run.calculation.skin == 0.3

    def test_of_a_file_is_taken_unless_another_was_given(self, tmp_path) -> None:
        first = liquid()
        first.run(10)
        first.set_skin(0.7)
        first.run(10)
        save_restart(first, tmp_path / "restart")
        first.run(20)
        second = liquid()
        load_restart_(second, tmp_path / "restart")
        assert second.calculation.skin == 0.7
        second.run(20)
        assert_same(first, second)
        with pytest.raises(InputError, match=r"with skin 0\.7, now it is 0\.2"):
            load_restart_(liquid(skin=0.2), tmp_path / "restart")


class TestWay:
    """Graphs recorded on the CPU."""

    @staticmethod
    def fastest(run: Simulation, best: int) -> Seconds:
        def seconds() -> float:
            length = run.step_graphs.longest if run.step_graphs.graphed else EAGER
            return 1e-3 if length == best else 2e-3

        return Seconds(seconds)

    @pytest.mark.parametrize("best", [8, EAGER])
    def test_is_taken_and_leaves_no_trace(self, best: int, captures, caplog) -> None:
        run, plain = (toy(LangevinMiddle(5.0, 300.0, 5.0), chunk=40) for _ in range(2))
        with caplog.at_level(logging.INFO):
            choose_execution(graphed(run), self.fastest(run, best), run.chunk)
        assert run.graphed == (best != EAGER)
        assert run.step_graphs.longest == max(best, 1)
        assert_same(run, plain)
        for one in (run, plain):
            one.run(70)
        assert_same(run, plain)
        (said,) = (one for one in caplog.messages if "A step takes" in one)
        assert said.count(" ms ") == len(LENGTHS) + 1

    def test_is_the_longest_of_those_as_fast(self, captures) -> None:
        run = toy(LangevinMiddle(5.0, 300.0, 5.0), chunk=40)
        choose_execution(graphed(run), Seconds(lambda: 1e-3), run.chunk)
        assert run.graphed
        assert run.step_graphs.longest == max(LENGTHS)

    def test_is_no_longer_than_a_chunk(self, captures) -> None:
        run = toy(LangevinMiddle(5.0, 300.0, 5.0), chunk=10)
        choose_execution(graphed(run), self.fastest(run, 32), run.chunk)
        assert run.step_graphs.longest in (1, 8)

    @pytest.mark.parametrize(("attached", "to_come", "longest"), [(10, 50, 8), (64, 4, 1)])
    def test_fits_between_reports(
        self,
        captures,
        attached: int,
        to_come: int,
        longest: int,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        run = graphed(toy(LangevinMiddle(5.0, 300.0, 5.0), chunk=128))
        monkeypatch.setattr(simulations, "stopwatch", lambda _: Seconds(lambda: 1e-3))
        run._tuning = TuningOptions(execution=True)
        run.reporters.append(SimpleNamespace(interval=attached, report=lambda _: None))
        run.choose(600, [to_come])
        assert run.step_graphs.longest == longest

    def test_forced_is_a_graph(self, captures) -> None:
        run = toy(LangevinMiddle(5.0, 300.0, 5.0), chunk=40)
        choose_execution(graphed(run), self.fastest(run, EAGER), run.chunk, eager=False)
        assert run.graphed

    def test_is_timed_once_all_graphs_are_there(self, captures) -> None:
        def there() -> float:
            found.append(sorted(run.step_graphs._graphs))
            return 1e-3

        found: list[list[int]] = []
        run = toy(LangevinMiddle(5.0, 300.0, 5.0), chunk=40)
        choose_execution(graphed(run), Seconds(there), run.chunk)
        assert found[1:] == [sorted(LENGTHS)] * len(found[1:])

    def test_is_one_of_those_whose_timing_fits_into_memory(self, captures) -> None:
        def seconds() -> float:
            if run.step_graphs.longest == 32:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return 1e-3 / run.step_graphs.longest

        run = toy(LangevinMiddle(5.0, 300.0, 5.0), chunk=40)
        plain = toy(LangevinMiddle(5.0, 300.0, 5.0), chunk=40)
        choose_execution(graphed(run), Seconds(seconds), run.chunk)
        assert run.step_graphs.longest == 8
        for one in (run, plain):
            one.run(70)
        assert_same(run, plain)

    def test_is_eager_where_no_graph_can_be_captured(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def refuse(*arguments: object, **options: object) -> None:
            raise RuntimeError("operation not permitted when stream is capturing")

        monkeypatch.setattr("mdgraph.gpu.graphs.CapturedGraph", refuse)
        run, plain = toy(VelocityVerlet(5.0)), toy(VelocityVerlet(5.0))
        timer = self.fastest(run, 1)
        choose_execution(graphed(run), timer, run.chunk)
        assert not run.graphed
        assert timer.calls == 0
        for one in (run, plain):
            one.run(20)
        assert_same(run, plain)
        assert caplog.text.count("every step runs eagerly") == 1


class TestWhatIsOpen:
    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            (("cpu", None, "auto", None), TuningOptions()),
            (
                ("cuda", None, "auto", None),
                TuningOptions(division=True, skin=True, execution=True, eager=True),
            ),
            (("cuda", 0.5, "auto", None), TuningOptions(division=True, execution=True, eager=True)),
            (("cuda", None, "on", None), TuningOptions(division=True, skin=True, execution=True)),
            (("cuda", None, "on", 8), TuningOptions(division=True, skin=True)),
            (("cuda", None, "off", None), TuningOptions(division=True, skin=True)),
        ],
    )
    def test_on_a_device(self, arguments, expected) -> None:
        assert TuningOptions.of(*arguments) == expected

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"graph": "perhaps"}, "choose auto, on or off"),
            ({"graph": "on"}, "needs a CUDA device"),
            ({"steps_per_replay": 3}, "steps_per_replay is 3; choose among 1, 2, 4, 8, 16, 32"),
            ({"steps_per_replay": 64}, "steps_per_replay is 64"),
            ({"skin": "thin"}, "skin is 'thin'; it must be a number or None"),
            ({"skin": nan}, "skin is nan; it must be a number or None"),
            ({"chunk": 2.5}, r"chunk is 2\.5; it must be a whole number or None"),
            ({"chunk": "long"}, "chunk is 'long'; it must be a whole number or None"),
            (
                {"maximum_temperature": nan},
                "maximum_temperature is nan; it must be a number or None",
            ),
        ],
    )
    def test_refuses(self, options, sentence) -> None:
        with pytest.raises(InputError, match=sentence):
            liquid(**options)

    @pytest.mark.parametrize("steps", [-1, 2.5, nan, inf, "many", None])
    def test_refuses_numbers_of_steps(self, steps) -> None:
        words = "The run is -1 steps" if steps == -1 else f"steps is {steps!r}; it must be a whole"
        with pytest.raises(InputError, match=words):
            toy(VelocityVerlet(1.0)).run(steps)

    def test_counts_steps_in_whole_numbers(self, captures) -> None:
        run = toy(VelocityVerlet(1.0), chunk=4.0)
        assert graphed(run).run(9.0) == 9
        assert isinstance(run.step, int)

    @pytest.fixture
    def measured(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
        found: list[str] = []
        monkeypatch.setattr(simulations, "choose_skin", lambda *_: found.append("skin"))
        monkeypatch.setattr(simulations, "choose_execution", lambda *_: found.append("way"))
        return found

    def test_is_measured_once_and_for_long_runs_alone(self, measured: list[str]) -> None:
        system = argon(1)
        wells = HarmonicWells(torch.tensor(system.positions), 1.0)
        run = Simulation(system, wells, VelocityVerlet(1.0), device="cpu")
        run._tuning = TuningOptions(skin=True, execution=True)
        run.run(10)
        assert measured == []
        run.run(600)
        assert measured == ["skin", "way"]
        run.run(600)
        assert measured == ["skin", "way"]


@pytest.mark.parametrize(
    ("gpu", "device", "chosen", "options"),
    [
        (
            "H200",
            "cuda:1",
            {"captured_as_cuda_graph": True, "steps_per_replay": 8},
            {"graph": "on", "steps_per_replay": 8},
        ),
        (
            "H200",
            "cuda",
            {"captured_as_cuda_graph": True},
            {"graph": "on", "steps_per_replay": 1},
        ),
        (
            "H200",
            "cuda",
            {"captured_as_cuda_graph": False, "steps_per_replay": None},
            {"graph": "off"},
        ),
        (None, "cuda", {"captured_as_cuda_graph": False, "steps_per_replay": None}, {}),
        ("H200", "cpu", {"captured_as_cuda_graph": True, "steps_per_replay": 8}, {}),
    ],
)
def test_a_resumed_run_keeps_its_measured_options(gpu, device, chosen, options) -> None:
    record = {"environment": {"gpu": gpu}, "chosen": chosen}
    assert tuning_of_record(record, torch.device(device)) == options
