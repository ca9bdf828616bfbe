"""Recorders see every step once, whatever overflows, fails or runs meanwhile."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ensembles import assert_same
from storms import broken, storm

from mdgraph.engine import Simulation
from mdgraph.engine.reporting import HostSnapshot, Thermo
from mdgraph.errors import SimulationError
from mdgraph.io.trajectories import Frame
from mdgraph.runs.reporters import frames_of


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
