"""Steps between reports: what a run takes where it is told none, and keeps when it goes on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_folders import folder_of

from mdgraph.engine import Simulation
from mdgraph.errors import InputError
from mdgraph.io.formats import read_trajectory
from mdgraph.io.log import read_log
from mdgraph.runs import md
from mdgraph.runs.config import MDConfig, MinimizeConfig, default_intervals
from mdgraph.runs.config_files import read_configuration
from mdgraph.runs.folder import Run
from mdgraph.runs.md import resume, start
from mdgraph.runs.protocol import read_protocol

NONE = {"trajectory_interval": None, "log_interval": None, "checkpoint_interval": None}


@pytest.mark.parametrize(
    ("steps", "frames", "checkpoints"),
    [
        (0, 1, 1000),
        (6, 1, 1000),
        (20, 2, 1000),
        (60, 5, 1000),
        (99, 10, 1000),
        (500, 10, 1000),
        (2_000, 10, 1000),
        (3_000, 20, 1000),
        (10_000, 50, 1000),
        (20_000, 100, 1000),
        (40_000, 200, 2000),
        (100_000, 500, 5000),
        (200_000, 1000, 10_000),
        (10**9, 1000, 10_000),
    ],
)
def test_are_chosen_by_the_length_of_the_run(steps: int, frames: int, checkpoints: int) -> None:
    assert default_intervals(steps) == (frames, frames, checkpoints)
    assert MDConfig(steps=steps).intervals == (frames, frames, checkpoints)


def test_give_about_200_frames() -> None:
    for steps in range(2_000, 200_000, 777):
        assert 125 < steps / default_intervals(steps).trajectory < 320


def test_that_are_given_are_taken() -> None:
    assert MDConfig(time_ps=20.0).intervals == (200, 200, 2000)
    assert MDConfig(time_ps=20.0, trajectory_interval=3).intervals == (3, 200, 2000)
    assert MDConfig(checkpoint_interval=7, log_interval=5).intervals == (10, 5, 7)


def test_in_ps_are_rounded_to_steps() -> None:
    times = {"trajectory_interval_ps": 0.1, "checkpoint_interval_ps": 5}
    assert MDConfig(time_ps=20.0, **times).intervals == (200, 200, 10_000)
    assert MDConfig(timestep_fs=0.3, log_interval_ps=0.01).intervals.log == 33
    with pytest.raises(ValueError, match="log_interval and log_interval_ps both give the interval"):
        MDConfig(log_interval=5, log_interval_ps=0.1)
    with pytest.raises(ValueError, match=r"ps is 0.0002, which is 0.4 time steps of 0.5 fs; give"):
        MDConfig(trajectory_interval_ps=2e-4)


def test_of_the_command_line_go_before_those_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("trajectory_interval: 20\nlog_interval_ps: 0.1\n")
    options = {"trajectory_interval_ps": "0.05", "log_interval": "3"}
    assert read_configuration(MDConfig, path).intervals[:2] == (20, 200)
    assert read_configuration(MDConfig, path, options).intervals[:2] == (100, 3)


def test_of_a_minimisation_do_not_grow_with_the_most_steps() -> None:
    assert MinimizeConfig(steps=10**6).intervals == MinimizeConfig().intervals == (10, 10, 1000)


def test_of_the_stages_of_a_protocol_are_their_own(tmp_path: Path) -> None:
    path = tmp_path / "protocol.yaml"
    path.write_text(
        "log_interval: 30\nstages:\n- {run: minimise, steps: 9000}\n- ensemble: nve\n"
        "- {ensemble: npt, time_ps: 20, log_interval: 7}\n"
    )
    stages = read_protocol(path, None, tmp_path)
    assert [one.configuration.intervals for one in stages] == [
        (10, 30, 1000),
        (10, 30, 1000),
        (200, 7, 2000),
    ]


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Simulation, MDConfig]]:
    """Simulations and configurations of runs that take no step."""
    found: list[tuple[Simulation, MDConfig]] = []

    def advance(simulation: Simulation, _: Any, run: Run, *__: Any) -> Any:
        assert isinstance(run.configuration, MDConfig)
        found.append((simulation, run.configuration))

    monkeypatch.setattr(md, "advance", advance)
    return found


class TestTheRun:
    def test_keeps_those_that_it_began_with(
        self, configured: Callable[..., MDConfig], begun: list[tuple[Simulation, MDConfig]]
    ) -> None:
        configuration = configured(steps=40_000, **NONE)
        start(configuration)
        resume(Path(configuration.out), {"steps": 10**6})
        kept = folder_of(configuration).read_record()["configuration"]
        assert begun[-1][1].steps == 10**6
        assert [kept[name] for name in NONE] == [200, 200, 2000]
        assert [one.intervals for _, one in begun] == [(200, 200, 2000)] * 2

    def test_keeps_times_in_ps_as_steps(
        self, configured: Callable[..., MDConfig], begun: list[tuple[Simulation, MDConfig]]
    ) -> None:
        configuration = configured(
            steps=40_000, timestep_fs=0.5, **NONE, trajectory_interval_ps=0.05, log_interval_ps=1
        )
        start(configuration)
        resume(Path(configuration.out), {"steps": 10**6})
        kept = folder_of(configuration).read_record()["configuration"]
        assert [kept[name] for name in NONE] == [100, 2000, 2000]
        assert [kept[f"{name}_ps"] for name in NONE] == [None] * 3
        assert [one.intervals for _, one in begun] == [(100, 2000, 2000)] * 2

    @pytest.mark.usefixtures("without_picture")
    def test_of_few_steps_reports_about_ten_times(
        self, configured: Callable[..., MDConfig]
    ) -> None:
        configuration = configured(steps=25, **NONE)
        start(configuration)
        folder = folder_of(configuration)
        np.testing.assert_array_equal(read_log(folder.log)["step"], range(0, 25, 2))
        with read_trajectory(folder.trajectory("h5md")) as trajectory:
            np.testing.assert_array_equal(trajectory.steps, range(0, 25, 2))

    def test_chooses_graphs_that_fit_between_its_reports(
        self,
        configured: Callable[..., MDConfig],
        begun: list[tuple[Simulation, MDConfig]],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        asked: list[list[int]] = []

        def choose(_: Simulation, steps: int, intervals: Any = ()) -> None:
            asked.append([steps, *sorted(intervals)])

        monkeypatch.setattr(Simulation, "choose", choose)
        replicas = {"replicas": 2, "temperatures_K": "300:400", "exchange": 90}
        start(configured(steps=40_000, **NONE | {"log_interval": 50}, **replicas))
        assert asked == [[40_000, 50, 90, 200, 2000]]

    def test_takes_the_length_of_graphs_that_it_is_told(
        self, configured: Callable[..., MDConfig], begun: list[tuple[Simulation, MDConfig]]
    ) -> None:
        configuration = configured(steps=20, steps_per_replay=4)
        start(configuration)
        resume(Path(configuration.out))
        assert [one.step_graphs.longest for one, _ in begun] == [4, 4]


def test_a_stage_refuses_a_graph_of_three_steps(tmp_path: Path) -> None:
    path = tmp_path / "protocol.yaml"
    path.write_text("stages:\n- run: minimise\n- ensemble: nve\n  steps_per_replay: 3\n")
    with pytest.raises(InputError, match=r"line 4: steps_per_replay is 3; choose among 1, 2, 4"):
        read_protocol(path, None, tmp_path)
