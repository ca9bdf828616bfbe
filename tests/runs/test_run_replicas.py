"""Runs of many replicas from the command line."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Finished
from shared_runs import run_shared

from mdgraph.engine.replicas import ExchangeRecord
from mdgraph.errors import FileError, InputError
from mdgraph.io.formats import read_trajectory
from mdgraph.io.log import read_log
from mdgraph.runs import md
from mdgraph.runs.config import MDConfig
from mdgraph.runs.config_files import read_configuration
from mdgraph.runs.folder import RunDirectory
from mdgraph.runs.md import RunOutcome, resume, start
from mdgraph.runs.protocol import FinishedRun


@pytest.fixture
def configured(tmp_path: Path, tiny_potential: Path, water_file: Path) -> Callable[..., MDConfig]:
    def make(**changes: Any) -> MDConfig:
        options = {
            "structure": str(water_file),
            "potential": str(tiny_potential),
            "out": str(tmp_path / "run"),
            "evaluator": "reference",
            "replicas": 3,
            "temperatures_K": "300:480",
            "exchange": 4,
            "steps": 30,
            "trajectory_interval": 5,
            "log_interval": 5,
            "checkpoint_interval": 7,
            "check": False,
            "chunk": 3,
        }
        return MDConfig(**(options | changes))

    return make


def content(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"exchanges": (folder / "exchanges.csv").read_text()}
    for number in range(3):
        part = folder / f"replica-{number}"
        log = read_log(part / "log.csv")
        del log["ns_per_day"]
        found[f"log {number}"] = {name: column.tolist() for name, column in log.items()}
        with read_trajectory(part / "trajectory.h5md") as trajectory:
            found[f"trajectory {number}"] = [
                (frame.step, frame.positions.tolist(), frame.velocities.tolist())
                for frame in trajectory
            ]
        found[f"end {number}"] = (part / "end.extxyz").read_text()
    return found


def test_every_replica_has_its_files_and_resumes_to_the_same_bits(
    configured: Callable[..., MDConfig], tmp_path: Path
) -> None:
    outcome = start(configured(out=str(tmp_path / "whole")))
    assert (outcome.replicas, outcome.steps) == (3, 30)
    whole = content(tmp_path / "whole")
    first, second = (whole[f"trajectory {number}"][0] for number in (0, 1))
    assert first[1] == second[1]
    assert first[2] != second[2]
    record = ExchangeRecord.read(tmp_path / "whole" / "exchanges.csv", 4)
    assert (sum(record.attempted), record.accepted.count(0)) == (7, 0)
    # Between two exchanges, and at one.
    start(configured(steps=14))
    resume(tmp_path / "run", {"steps": 20})
    resume(tmp_path / "run", {"steps": 30})
    assert content(tmp_path / "run") == whole
    with pytest.raises(FileError, match=rf"holds one replica of a run; give {tmp_path}/run, or"):
        FinishedRun.read(tmp_path / "run" / "replica-1")


def test_the_command_says_what_was_exchanged(
    mdgraph_command: Callable[..., Finished], configured: Callable[..., MDConfig], tmp_path: Path
) -> None:
    known = configured()
    done = mdgraph_command(
        *("md", *known.structure, "--potential", known.potential, "--evaluator", "reference"),
        *("--replicas", 4, "--temperatures-K", "450,300,390,340", "--exchange", 5),
        *("--steps", 10),
        *("--out", tmp_path / "out", "--ensemble", "nvt-bussi"),
    )
    assert done.status == 0, done.err
    assert "Of 3 exchanges" in done.err
    assert "logs of 4 replicas are in" in done.out
    assert f"their picture is {tmp_path / 'out' / 'picture.png'}" in done.out
    assert (tmp_path / "out" / "picture.png").exists()
    first, *_ = zip(*read_log(tmp_path / "out" / "exchanges.csv").values(), strict=True)
    assert first == (0, 3, 0, 2, 1)


@pytest.mark.parametrize("text", ["300 310.5  330", " 300, 310.5 ,330 ", "300\t310.5, 330"])
def test_numbers_are_parted_by_spaces_and_commas(
    configured: Callable[..., MDConfig], text: str
) -> None:
    assert configured(temperatures_K=text).replica_temperatures == [300.0, 310.5, 330.0]
    assert configured(temperatures_K=" 300 : 480 ").temperatures_K == "300:480"


def test_one_bath_or_many_overrides_what_a_file_says(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("replicas: 2\ntemperatures_K: 300:400\nexchange: 5\n", encoding="utf-8")
    one = read_configuration(MDConfig, file, {"temperature_K": "350"})
    assert (one.temperature_K, one.temperatures_K, one.exchange) == (350.0, None, None)
    file.write_text("replicas: 2\ntemperature_K: 350\n", encoding="utf-8")
    many = read_configuration(MDConfig, file, {"temperatures_K": "300:400"})
    assert (many.temperature_K, many.temperatures_K) == (300.0, "300:400")
    file.write_text("replicas: 2\ntemperature_K: 350\ntemperatures_K: 300:400\n", encoding="utf-8")
    with pytest.raises(InputError, match="temperatures_K and temperature_K both give"):
        read_configuration(MDConfig, file)


def test_a_ramp_of_all_replicas_is_said(
    configured: Callable[..., MDConfig], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="mdgraph")
    ramp = {"temperatures_K": None, "exchange": None, "temperature_K": "300:450", "steps": 2}
    start(configured(**ramp))
    assert (
        "All 3 replicas go from 300 to 450 K over the run; for a temperature of each give "
        "--temperatures-K 300:450."
    ) in caplog.messages


def test_temperatures_are_in_even_ratios_or_a_list(
    configured: Callable[..., MDConfig], tmp_path: Path
) -> None:
    np.testing.assert_allclose(configured().replica_temperatures, [300.0, 379.47, 480.0], rtol=1e-4)
    file = tmp_path / "run.yaml"
    file.write_text("replicas: 3\ntemperatures_K: [300, 310.5, 330]\n", encoding="utf-8")
    assert read_configuration(MDConfig, file).replica_temperatures == [300.0, 310.5, 330.0]


@pytest.mark.slow
def test_a_run_shared_by_two_ranks_outlives_one_of_them(
    processes: Any, configured: Callable[..., MDConfig], tmp_path: Path
) -> None:
    start(configured(out=str(tmp_path / "one")))
    one = content(tmp_path / "one")
    parted = configured()
    # One rank has a checkpoint of step 28, and would like one of the end; the other died before.
    assert run_shared(processes, parted, False, dies_at=28) == [0, -signal.SIGKILL]
    assert "lost another one" in (tmp_path / "said").read_text(encoding="utf-8")
    with pytest.raises(InputError, match="shared by 2 ranks, and there are 1 now"):
        resume(tmp_path / "run")
    assert run_shared(processes, parted, True, dies_at=0) == [0, 0]
    for rank, replicas in ((0, [0]), (1, [1, 2])):
        folder = tmp_path / "run" / f"rank-{rank}"
        assert (folder / "exchanges.csv").read_text() == one["exchanges"]
        for replica in replicas:
            path = folder / f"replica-{replica}" / "trajectory.h5md"
            with read_trajectory(path) as trajectory:
                frames = [(one.step, one.positions) for one in trajectory]
            expected = one[f"trajectory {replica}"]
            assert [step for step, _ in frames] == [frame[0] for frame in expected]
            # A network rounds by the batch.
            positions = [frame[1] for frame in expected]
            np.testing.assert_allclose([x for _, x in frames], positions, atol=1e-6)


def test_a_signal_to_one_rank_stops_all_and_each_says_so(
    processes: Any, configured: Callable[..., MDConfig], tmp_path: Path
) -> None:
    assert run_shared(processes, configured(), False, dies_at=-8) == [0, 0]
    for rank in (0, 1):
        assert (tmp_path / f"said-{rank}").read_text() == f"12 2 {signal.SIGTERM!r}"
        assert (tmp_path / "run" / f"rank-{rank}" / "checkpoint.safetensors").exists()


def test_the_command_says_how_ranks_go_on(
    mdgraph_command: Callable[..., Finished],
    configured: Callable[..., MDConfig],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    stopped = RunOutcome(
        directory=RunDirectory(tmp_path / "out"),
        steps=12,
        total_steps=30,
        time_ps=0.0,
        ns_per_day=1.0,
        mean_temperature=300.0,
        signal=signal.SIGTERM,
        replicas=3,
        ranks=2,
    )
    monkeypatch.setattr(md, "start", lambda configuration, starts: stopped)
    handled: dict[int, object] = {}
    monkeypatch.setattr(signal, "signal", handled.__setitem__)
    done = mdgraph_command("md", *(configured().structure or ()), "--out", tmp_path / "out")
    assert done.status == 128 + signal.SIGTERM
    expected = f"torchrun --nproc-per-node 2 -m mdgraph md --resume --out {tmp_path}/out"
    assert done.out.splitlines()[-1] == f"Stopped by SIGTERM; continue with: {expected}"
    assert handled[signal.SIGTERM] == signal.SIG_IGN  # as torchrun sends once one has left


@pytest.mark.parametrize("command", ["md", "minimise", "protocol"])
def test_what_ranks_do_not_share_is_refused(
    command: str,
    mdgraph_command: Callable[..., Finished],
    configured: Callable[..., MDConfig],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "stages.yaml").write_text("stages:\n- run: minimise\n", encoding="utf-8")
    monkeypatch.setenv("WORLD_SIZE", "2")
    given = [tmp_path / "stages.yaml"] if command == "protocol" else []
    given += configured().structure or ()
    done = mdgraph_command(command, *given, "--out", tmp_path / "out")
    assert done.status == 1
    assert "is of one process, and torchrun started 2; start it without" in done.err
    assert not (tmp_path / "out").exists()


def test_ranks_leave_a_used_folder_alone(
    processes: Any, configured: Callable[..., MDConfig], tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").touch()
    assert run_shared(processes, configured(), False, dies_at=0) == [1, 1]
    assert [one.name for one in (tmp_path / "run").iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"exchange": 5}, "--exchange belongs to replicas; say how many, such as --replicas 8"),
        (
            {"temperatures_K": "300 310 320"},
            r"--temperatures-K belongs to replicas; give --replicas 3 too\.",
        ),
        ({"temperatures_K": "350"}, r"for one system give --temperature-K 350\."),
        ({"replicas": 8, "temperatures_K": "350"}, "1 for 8 replicas; .* --temperature-K 350 for"),
        ({"replicas": 1, "temperatures_K": "300,310"}, "has 2 for 1 replica; give one for each"),
        (
            {"replicas": 2, "temperatures_K": "300:310", "temperature_K": "300"},
            "--temperatures-K and --temperature-K both give temperatures; give the first for one",
        ),
        ({"replicas": 2, "temperatures_K": "300 to 310"}, "is 300 to 310; it should be first:last"),
        ({"replicas": 2, "temperatures_K": "300 310:320"}, "or a list such as 300,320,340"),
        ({"replicas": 2, "temperatures_K": "300,,310"}, "or a list such as 300,320,340"),
        ({"replicas": 2, "temperatures_K": "300,inf"}, "should be finite numbers"),
        ({"replicas": 2, "exchange": 5}, "needs replicas at different temperatures"),
        (
            {"replicas": 2, "exchange": 5, "temperatures_K": "300,300.0"},
            "needs replicas at different temperatures",
        ),
        (
            {"replicas": 1, "exchange": 5, "temperatures_K": "300:400"},
            "needs replicas at different temperatures",
        ),
        ({"replicas": 2, "temperatures_K": "300,310,320"}, "has 3 for 2 replicas; give one"),
        ({"replicas": 2, "temperatures_K": "300:0"}, "greater than 0"),
        ({"replicas": 2, "temperatures_K": "300:310:320"}, "first:last"),
        (
            {"replicas": 2, "temperatures_K": "300:310", "exchange": 5, "ensemble": "npt"},
            "exchange needs an nvt ensemble",
        ),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_configuration(MDConfig, None, options)


def test_more_files_than_may_be_open_are_refused(
    mdgraph_command: Callable[..., Any],
    configured: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The limit is raised where that is allowed."""
    limits = [(64, 130)]
    monkeypatch.setattr("resource.getrlimit", lambda kind: limits[0])
    monkeypatch.setattr("resource.setrlimit", lambda kind, both: limits.insert(0, both))
    with pytest.raises(InputError, match=r"need up to 132 open files, .* allows 130; give at most"):
        start(configured(replicas=16))
    assert not [*tmp_path.iterdir()]
    start(configured(replicas=3, steps=4, check=False))
    assert limits[0] == (106, 130)


@pytest.mark.parametrize("most", [2, 3])
def test_trajectories_that_are_opened_for_each_frame(
    configured: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, most: int
) -> None:
    """They hold what those hold that stay open, also after a resume."""
    monkeypatch.setattr("mdgraph.runs.reporters._MOST_OPEN", most)
    options = {"replicas": 3, "steps": 60, "trajectory_interval": 4}
    whole, parts = (configured(out=str(tmp_path / name), **options) for name in ("whole", "parts"))
    start(whole)
    start(parts.model_copy(update={"steps": 30}))
    resume(Path(parts.out), {"steps": 60})
    for number in range(3):
        name = f"replica-{number}/trajectory.h5md"
        one, other = (read_trajectory(tmp_path / place / name) for place in ("whole", "parts"))
        with one, other:
            assert one.steps.tolist() == other.steps.tolist() == [*range(0, 61, 4)]
            for first, second in zip(one, other, strict=True):
                assert np.array_equal(first.positions, second.positions)
