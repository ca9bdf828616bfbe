"""Several processes train as one does with all their frames, whoever of them is lost."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lost_rank import signal_before
from prepared import prepared_ranks
from torch.distributed.run import parse_args
from training_sets import assert_near, clusters, crystals, prepare, settings

from mdgraph.cli import main
from mdgraph.errors import InputError, MDGraphError
from mdgraph.train import report
from mdgraph.train.distributed import Processes
from mdgraph.train.loop import train
from mdgraph.train.progress import TrainingLog, read_checkpoint
from mdgraph.train.step import TrainingStep

pytestmark = pytest.mark.usefixtures("without_report")


def _rank(
    rank: int, port: int, configuration: Path, said: Path, dies_at: int, number: signal.Signals
) -> None:
    """One of two, by the command, as torchrun starts it; the second gets a signal at a step."""
    os.environ |= {"WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    report.write_report = lambda path, *_: path.write_text("")
    if rank:
        signal_before(dies_at, number)
    with said.open("w") as file:
        os.dup2(file.fileno(), 2)
    sys.argv = ["mdgraph", "train", str(configuration)]
    main()


def run_both(
    processes: Any,
    configuration: Path,
    dies_at: int = 0,
    number: signal.Signals = signal.SIGKILL,
) -> tuple[list[int], str]:
    """How two ranks of a training ended, and what the first one said."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    said = [configuration.with_suffix(f".{rank}") for rank in (0, 1)]
    both = [
        processes.Process(
            target=_rank, args=(rank, port, configuration, said[rank], dies_at, number)
        )
        for rank in (0, 1)
    ]
    for process in both:
        process.start()
    for process in both:
        process.join(200)
        process.kill()
    return [process.exitcode for process in both], said[0].read_text()


@pytest.mark.parametrize("whole", [{"batch": 4}, {"batch": None, "batch_edges": 2 * 96}])
def test_two_processes_are_one_with_twice_the_batch(
    processes: Any, tmp_path: Path, whole: dict[str, int | None]
) -> None:
    """Of frames, or of edges: then 4 clusters of 40 or 2 crystals of 96, in unlike batches."""
    frames = [*clusters(16), *crystals(8)]
    loss = {"perturbation": {"weight": 0.3}}
    options: dict[str, Any] = {"shapes": 2, "steps": 6, "precision": "double", "loss": loss}
    train(settings(prepare(tmp_path, frames, **options, **whole)), quiet=True)
    half = {name: value and value // 2 for name, value in whole.items()}
    path = prepare(tmp_path, frames, **options, **half, out=str(tmp_path / "two"))
    ended, said = run_both(processes, path)
    assert ended == [0, 0], said
    assert "frames of 2 shapes" in said
    assert path.with_suffix(".1").read_text() == ""  # what all know is said once
    one, two = (
        np.genfromtxt(tmp_path / name / "log.csv", delimiter=",", names=True)
        for name in ("out", "two")
    )
    np.testing.assert_allclose(two["loss"], one["loss"], rtol=1e-6)
    assert_near(tmp_path / "out", tmp_path / "two")


def test_a_lost_rank_ends_the_job_and_fewer_go_on(processes: Any, tmp_path: Path) -> None:
    """What remains is a message and a checkpoint, from which one process does what two would."""
    options = {"steps": 30, "precision": "double", "checkpoint_interval": 5, "validations": 1}
    train(settings(prepare(tmp_path, clusters(16), **options, batch=6)), quiet=True)
    path = prepare(tmp_path, [], **options, batch=3, out=str(tmp_path / "two"))
    ended, said = run_both(processes, path, dies_at=13)
    assert ended == [1, -signal.SIGKILL]
    assert "Another process of the training is gone" in said
    assert "Traceback" not in said
    assert not (tmp_path / "two" / "model.safetensors").exists()
    config = settings(path)
    assert read_checkpoint(tmp_path / "two" / "checkpoint.safetensors").progress.step == 10
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mdgraph.train.setup.join_processes", lambda _: Processes(0, 4))
        with pytest.raises(InputError, match="has 6 frames, as the training was begun by 2"):
            train(config, resume=True, quiet=True)
    train(config, resume=True, quiet=True)
    assert_near(tmp_path / "out", tmp_path / "two")


def test_an_error_is_said_before_torchrun_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mdgraph_command: Callable[..., Any]
) -> None:
    """Which sends SIGTERM to all that are left, here while the log is closed."""

    def lost(self: Any, shape: int, controls: Any) -> None:
        raise MDGraphError("Another process is gone")

    path = prepare(tmp_path, clusters(8))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr("mdgraph.train.setup.join_processes", lambda _: Processes(0, 2))
    monkeypatch.setattr(Processes, "sum_", lambda *_: None)
    monkeypatch.setattr(TrainingStep, "run", lost)
    monkeypatch.setattr(TrainingLog, "__exit__", lambda *_: signal.raise_signal(signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    try:
        done = mdgraph_command("train", path)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (done.status, done.err.splitlines()[-1]) == (
        1,
        "mdgraph: error: Another process is gone",
    )


def test_a_signal_to_one_rank_stops_all_at_one_step(processes: Any, tmp_path: Path) -> None:
    """With a checkpoint of the step under way, and a status that says which signal it was."""
    options = {"steps": 30, "precision": "double", "validations": 1}
    train(settings(prepare(tmp_path, clusters(16), **options, batch=6)), quiet=True)
    path = prepare(tmp_path, [], **options, batch=3, out=str(tmp_path / "two"))
    ended, said = run_both(processes, path, dies_at=13, number=signal.SIGTERM)
    assert ended == [143, 143], said
    assert "Stopped; the checkpoint is of step 13, continue with: mdgraph train" in said
    assert "Stopped" not in path.with_suffix(".1").read_text()
    train(settings(path), resume=True, quiet=True)
    assert_near(tmp_path / "out", tmp_path / "two")


def test_the_benchmark_of_scaling_runs(
    processes: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On ranks that are given what torchrun reads of its words."""
    scaling = import_module("scaling")

    def run(command: list[str], **options: Any) -> SimpleNamespace:
        assert command[:3] == [sys.executable, "-m", "torch.distributed.run"]
        read = parse_args(command[3:])
        assert read.standalone
        words, count = [read.training_script, *read.training_script_args], int(read.nproc_per_node)
        assert options == {"check": True, "stdout": subprocess.PIPE, "text": True}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        both = prepared_ranks(processes, words, count, **pipes)
        ends = [rank.communicate() for rank in both]
        assert [rank.returncode for rank in both] == [0] * count, ends
        return SimpleNamespace(stdout="".join(out for out, _ in ends))

    prepare(tmp_path, clusters(8))
    options = ["--ranks", "2", "--modes", "strong", "--batch", "1", "--steps", "3"]
    small = ["--channels", "8", "--layers", "1", "--radial", "8", "--device", "cpu"]
    command = ["scaling.py", str(tmp_path / "set.h5"), *options, *small]
    monkeypatch.setattr(sys, "argv", command)
    monkeypatch.setattr(scaling, "subprocess", SimpleNamespace(run=run, PIPE=subprocess.PIPE))
    scaling.main()
    found = json.loads(capsys.readouterr().out)
    assert (found["mode"], found["ranks"], found["batch_per_rank"]) == ("strong", 2, 1)
    assert found["frames_per_second"] == pytest.approx(2e3 / found["ms_per_step"], rel=0.01)
    assert 0.0 <= found["communication_share"] < 1.0
    assert found["efficiency"] == 1.0
