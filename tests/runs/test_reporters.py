"""Recorders see every step once, whatever overflows, fails or runs meanwhile."""

import io
import logging
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ensembles import assert_same
from storms import broken, storm

from mdgraph.engine import Simulation
from mdgraph.engine.reporting import HostSnapshot, Thermo
from mdgraph.errors import SimulationError
from mdgraph.io.trajectories import Frame
from mdgraph.runs import reporters
from mdgraph.runs.reporters import ProgressBar, ProgressLines, frames_of
from mdgraph.units import duration_text


class Recorder:
    """Keeps what it is shown, and how far the simulation had been launched by then."""

    def __init__(self, run: Simulation, interval: int) -> None:
        self.interval = interval
        self.steps: list[int] = []
        self.ahead: list[int] = []
        self.moments: list[tuple[float, ...]] = []
        self._run = run
        run.recorders.append(self)

    def record(self, view: HostSnapshot) -> None:
        self.steps.append(view.step)
        self.ahead.append(self._run.step - view.step)
        state = torch.cat([view.positions, view.velocities, view.forces]).double().flatten()
        energies = view.observables.potential_energy, view.observables.kinetic_energy
        self.moments.append((view.time, *state.tolist(), *map(float, energies)))


class TestRecorders:
    @pytest.mark.parametrize("depth", [1, 2, 3])
    @pytest.mark.parametrize(("chunk", "interval"), [(4, 4), (5, 3), (3, 6), (25, 10)])
    def test_see_what_a_calm_run_shows_whatever_overflows(
        self, chunk: int, interval: int, depth: int
    ) -> None:
        plan = 1 + np.random.default_rng(chunk).permutation(60)[:20]
        calm, hit = storm([], 60, 1), storm(plan.tolist(), chunk, depth)
        seen = [Recorder(one, interval) for one in (calm, hit)]
        for one in (calm, hit):
            one.run(60)
        assert seen[0].steps == [*range(interval, 61, interval)]
        assert seen[0].moments == seen[1].moments

    @pytest.mark.parametrize("depth", [1, 2, 3])
    def test_are_shown_a_step_while_others_run(self, depth: int) -> None:
        run = storm([], 4, depth)
        seen = Recorder(run, 4)
        run.run(40)
        assert seen.ahead == [*[4 * (depth - 1)] * (11 - depth), *range(4 * (depth - 2), -1, -4)]

    @pytest.mark.parametrize("depth", [1, 2, 3])
    @pytest.mark.parametrize("at", [9, 10, 11, 23])
    def test_see_no_step_that_failed(self, at: int, depth: int) -> None:
        run = broken(at, depth)
        seen = Recorder(run, 2)
        with pytest.raises(SimulationError):
            run.run(30)
        assert seen.steps == [*range(2, at, 2)]

    @pytest.mark.parametrize("depth", [1, 2, 3])
    def test_come_before_reporters(self, depth: int) -> None:
        run = storm([], 4, depth)
        seen = Recorder(run, 4)
        told = []
        report = SimpleNamespace(interval=10, report=lambda one: told.append([*seen.steps]))
        run.reporters.append(report)
        run.run(20)
        assert told == [[4, 8], [4, 8, 12, 16, 20]]

    @pytest.mark.parametrize("depth", [1, 2, 3])
    @pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt])
    def test_that_fail_miss_that_step_alone(self, kind: type[BaseException], depth: int) -> None:
        def fail_once(view: HostSnapshot) -> None:
            if view.step == 8 and not failed:
                failed.append(view.step)
                raise kind("disk full")

        failed: list[int] = []
        run, whole = storm([], 4, depth), storm([], 4, depth)
        run.recorders.append(SimpleNamespace(interval=4, record=fail_once))
        seen, others = Recorder(run, 4), Recorder(whole, 4)
        with pytest.raises(kind, match="disk full"):
            run.run(40)
        assert run.step == 8
        run.run(32)
        whole.run(40)
        assert seen.steps == [4, *range(12, 41, 4)]
        assert seen.moments == [others.moments[0], *others.moments[2:]]
        assert_same(run, whole)

    def test_may_keep_what_they_are_shown_of_observables_and_frames(self) -> None:
        class Keeper:
            interval = 4

            def __init__(self) -> None:
                self.kept: list[tuple[Frame, Thermo]] = []

            def record(self, view: HostSnapshot) -> None:
                self.kept.append((frames_of(view)[0], view.observables))

        run, keeper = storm([], 4, 2), Keeper()
        run.recorders.append(keeper)
        told: list[tuple[list[float], float]] = []
        report = SimpleNamespace(
            interval=4,
            report=lambda one: told.append(
                (one.state.positions.flatten().tolist(), float(one.observables().kinetic_energy))
            ),
        )
        run.reporters.append(report)
        run.run(20)
        assert len({kinetic for _, kinetic in told}) == 5
        assert told == [
            (frame.positions.ravel().tolist(), float(seen.kinetic_energy))
            for frame, seen in keeper.kept
        ]


def shown(step: int, minimizes: bool = False) -> Any:
    """What lines of progress see of a simulation at a step of 2 fs."""
    converged = torch.zeros(1, dtype=torch.bool) if minimizes else None
    integrator = SimpleNamespace(converged=lambda: converged)
    return SimpleNamespace(step=step, time=2.0 * step, timestep=2.0, integrator=integrator)


class TestProgressLines:
    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
        clock = SimpleNamespace(now=1000.0)
        monkeypatch.setattr(
            reporters, "time", SimpleNamespace(perf_counter=lambda: clock.now), raising=True
        )
        return clock

    def lines(
        self, caplog: pytest.LogCaptureFixture, clock: SimpleNamespace, first: int, **options: bool
    ) -> list[str]:
        """Of a run to step 50,000 that takes 0.1 s a step and reports every 10 steps."""
        caplog.set_level(logging.INFO)
        lines = ProgressLines(shown(first, **options), 50_000)
        for step in range(first, 50_000, 10):
            clock.now = 1000.0 + 0.1 * (step - first)
            lines.report(shown(step, **options))
        return [record.getMessage() for record in caplog.records]

    def test_tell_the_length_and_then_the_progress_once_a_minute(
        self, caplog: pytest.LogCaptureFixture, clock: SimpleNamespace
    ) -> None:
        length, *progress = self.lines(caplog, clock, 0)
        assert length == "100 ps will take about 1 h 23 min, at 1.73 ns/day."
        assert len(progress) == 83
        assert progress[0] == "1.24 of 100 ps (1 %), 1.73 ns/day, 1 h 22 min left"
        assert progress[-1].endswith(" ps (99 %), 1.73 ns/day, 18 s left")

    def test_of_a_resumed_run_tell_what_is_left(
        self, caplog: pytest.LogCaptureFixture, clock: SimpleNamespace
    ) -> None:
        length, *progress = self.lines(caplog, clock, 20_000)
        assert length == "60 ps will take about 50 min, at 1.73 ns/day."
        assert progress[0] == "41.24 of 100 ps (41 %), 1.73 ns/day, 49 min left"

    def test_of_a_minimisation_count_steps(
        self, caplog: pytest.LogCaptureFixture, clock: SimpleNamespace
    ) -> None:
        first, *_ = self.lines(caplog, clock, 0, minimizes=True)
        assert first == "20 of at most 50000 steps, 0.1 s each, at most 1 h 23 min left"

    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (0.2, "0 s"),
            (59.4, "59 s"),
            (59.6, "1 min"),
            (3560.0, "59 min"),
            (3590.0, "1 h 0 min"),
            (5220.0, "1 h 27 min"),
            (172_700.0, "47 h 58 min"),
            (172_799.0, "2 d 0 h"),
            (1e6, "11 d 14 h"),
        ],
    )
    def test_have_times_in_two_units(self, seconds: float, text: str) -> None:
        assert duration_text(seconds) == text

    @pytest.mark.parametrize("terminal", [True, False])
    def test_stand_where_no_terminal_shows_a_bar(
        self, terminal: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        monkeypatch.setattr(reporters, "FIRST_LINE", 0.0)
        monkeypatch.setattr(reporters, "LINES_APART", 0.0)
        stderr = io.StringIO()
        stderr.isatty = lambda: terminal  # type: ignore[method-assign]
        monkeypatch.setattr(sys, "stderr", stderr)
        run = storm([], 5, 1)
        bar = ProgressBar(run, 20)
        assert bar.interval == 5
        run.reporters.append(bar)
        run.run(20)
        bar.close()
        lines = [record.getMessage() for record in caplog.records]
        assert ("20/20 steps" in stderr.getvalue()) == terminal
        assert [line.split(" ps ")[0] for line in lines if " ps " in line] == (
            []
            if terminal
            else [
                f"{20e-3 * run.timestep:.4g}",
                f"{1e-2 * run.timestep:.4g} of {20e-3 * run.timestep:.4g}",
                f"{15e-3 * run.timestep:.4g} of {20e-3 * run.timestep:.4g}",
            ]
        )
        caplog.clear()
        assert terminal or ProgressBar(run, 40, lines=False)._lines is None
