"""Several processes train as one does with all their frames, whoever of them is lost."""

import json
import os
import signal
import socket
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from training_sets import assert_near, clusters, crystals, prepare, settings

from mdgraph.cli import main
from mdgraph.errors import InputError
from mdgraph.train import output
from mdgraph.train.loop import train
from mdgraph.train.processes import Processes
from mdgraph.train.progress import read_progress
from mdgraph.train.step import TrainingStep

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.usefixtures("without_report")


def _rank(
    rank: int, port: int, configuration: Path, said: Path, dies_at: int, number: signal.Signals
) -> None:
    """One of two, by the command, as torchrun starts it; the second gets a signal at a step."""
    os.environ |= {"WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    output.write_report = lambda path, *_: path.write_text("")
    run, steps = TrainingStep.run, 0

    def counted(*arguments: Any) -> None:
        nonlocal steps
        steps += 1
        if rank and steps == dies_at:
            for _ in range(2):  # by the batch system, and by torchrun
                os.kill(os.getpid(), number)
        run(*arguments)

    TrainingStep.run = counted  # type: ignore[method-assign]
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


def test_two_processes_are_one_with_twice_the_batch(processes: Any, tmp_path: Path) -> None:
    frames = [*clusters(16), *crystals(8)]
    options = {"shapes": 2, "steps": 12, "precision": "double"}
    train(settings(prepare(tmp_path, frames, **options, batch=4)), quiet=True)
    path = prepare(tmp_path, frames, **options, batch=2, out=str(tmp_path / "two"))
    ended, said = run_both(processes, path)
    assert ended == [0, 0], said
    assert "frames of 2 shapes" in said
    assert path.with_suffix(".1").read_text() == ""  # what all know is said once
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
    assert read_progress(tmp_path / "two" / "checkpoint.safetensors").step == 10
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mdgraph.train.preparation.join_processes", lambda _: Processes(0, 4))
        with pytest.raises(InputError, match="has 6 frames, as the training was begun by 2"):
            train(config, resume=True, quiet=True)
    train(config, resume=True, quiet=True)
    assert_near(tmp_path / "out", tmp_path / "two")


def test_a_signal_to_one_rank_stops_all_at_one_step(processes: Any, tmp_path: Path) -> None:
    """With a checkpoint of the step under way, and a status that says which signal it was."""
    options = {"steps": 30, "precision": "double", "validations": 1}
    train(settings(prepare(tmp_path, clusters(16), **options, batch=6)), quiet=True)
    path = prepare(tmp_path, [], **options, batch=3, out=str(tmp_path / "two"))
    ended, said = run_both(processes, path, dies_at=13, number=signal.SIGTERM)
    assert ended == [143, 143], said
    assert "Stopped; the checkpoint is of step 13, go on with: mdgraph train" in said
    assert "Stopped" not in path.with_suffix(".1").read_text()
    train(settings(path), resume=True, quiet=True)
    assert_near(tmp_path / "out", tmp_path / "two")


def test_the_benchmark_of_scaling_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(tmp_path, clusters(8))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    options = ["--ranks", "2", "--modes", "strong", "--batch", "1", "--steps", "3"]
    small = ["--channels", "8", "--layers", "1", "--radial", "8", "--device", "cpu"]
    command = ["scaling.py", str(tmp_path / "set.h5"), *options, *small]
    monkeypatch.setattr(sys, "argv", command)
    import_module("scaling").main()
    found = json.loads(capsys.readouterr().out)
    assert (found["mode"], found["ranks"], found["batch_per_rank"]) == ("strong", 2, 1)
    assert found["frames_per_second"] == pytest.approx(2e3 / found["ms_per_step"], rel=0.01)
    assert 0.0 <= found["communication_share"] < 1.0
    assert found["efficiency"] == 1.0
