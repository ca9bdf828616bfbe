"""Trainings that are killed, spoiled, too large or finished early go on, or end, as they should."""

import itertools
import logging
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from training_sets import assert_same, clusters, prepare, settings

from mdgraph.data import open_dataset
from mdgraph.errors import FileError, InputError, MDGraphError
from mdgraph.train import progress as progress_module
from mdgraph.train import step as step_module
from mdgraph.train.loop import Training, train
from mdgraph.train.progress import CHECKPOINT, Progress, TrainingLog, read_checkpoint, training_hash

pytestmark = pytest.mark.usefixtures("without_report")


def _trained(path: Path, out: Path, threads: int) -> None:
    torch.set_num_threads(threads)
    train(settings(path, out=str(out)), quiet=True)


def test_a_killed_training_resumes_to_the_same_weights(processes: Any, tmp_path: Path) -> None:
    options = {
        "validations": 4,
        "checkpoint_interval": 15,
        "loss": {"perturbation": {"weight": 1.0}},
    }
    path = prepare(tmp_path, clusters(16), steps=40, **options)
    train(settings(path), quiet=True)
    arguments = path, tmp_path / "killed", torch.get_num_threads()
    process = processes.Process(target=_trained, args=arguments)
    process.start()
    log = tmp_path / "killed" / "log.csv"
    while process.is_alive() and not (log.exists() and log.read_text().count("\n") >= 3):
        time.sleep(0.02)
    process.kill()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert not (tmp_path / "killed" / "model.safetensors").exists()
    other = {"seed": 7, "steps": 100, "loss": {"perturbation": {"weight": "1:2"}}}
    said = (
        r"loss\.perturbation\.weight was \[1\.0, 1\.0\] and is \[1\.0, 2\.0\], steps was 40 and is "
        "100, seed was 0 and is 7; resume"
    )
    with pytest.raises(InputError, match=said):
        train(settings(path, out=str(tmp_path / "killed"), **other), resume=True, quiet=True)
    train(settings(path, out=str(tmp_path / "killed")), resume=True, quiet=True)
    assert_same(tmp_path / "out", tmp_path / "killed")
    logs = [
        np.genfromtxt(tmp_path / name / "log.csv", delimiter=",", names=True)
        for name in ("out", "killed")
    ]
    for name in ("step", "loss", "validation_force_rmse_meV_per_A"):
        assert logs[0][name].tolist() == logs[1][name].tolist()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stopped_training_loses_nothing_and_says_how_to_go_on(
    tmp_path: Path,
    mdgraph_command: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    status: int,
) -> None:
    """Batch systems send SIGTERM; the handlers of before are there again afterwards."""
    path = prepare(tmp_path, clusters(8), steps=20, validations=2)
    train(settings(path, out=str(tmp_path / "whole")), quiet=True)
    run, steps = step_module.TrainingStep.run, itertools.count(1)

    def signalled(self: Any, shape: int, controls: Any) -> None:
        if next(steps) == 13:
            signal.raise_signal(number)
        run(self, shape, controls)

    before = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)]
    monkeypatch.setattr(step_module.TrainingStep, "run", signalled)
    done = mdgraph_command("train", path)
    assert done.status == status
    assert "Stopped; the checkpoint is of step 13, continue with: mdgraph train" in done.err
    assert done.err.rstrip().endswith("--resume")
    # Where no terminal shows a bar, a line says how far it is.
    said = r"Step 10 of 20: held out \S+ meV/A, \S+ meV/atom; waiting for data \S+; \d+ s left\n"
    assert re.search(said, done.err)
    assert [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)] == before
    assert mdgraph_command("train", tmp_path / "out" / "train.yaml", "--resume").status == 0
    assert_same(tmp_path / "whole", tmp_path / "out")
    logs = [(tmp_path / name / "log.csv").read_text().splitlines() for name in ("whole", "out")]
    assert [row.split(",")[4] for row in logs[0]] == [row.split(",")[4] for row in logs[1]]


def test_what_a_stop_does_not_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state gone bad, to which a resumed training comes again; a second signal ends at once."""
    path = prepare(tmp_path, clusters(8), steps=20, validations=2)
    run, reached = step_module.TrainingStep.run, [0]

    def signalled(self: Any, shape: int, controls: Any) -> None:
        run(self, shape, controls)
        reached[0] += 1
        if reached[0] == 13:
            next(iter(self.parameters.values())).data.fill_(torch.nan)
            signal.raise_signal(signal.SIGINT)
        if reached[0] == 15:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(step_module.TrainingStep, "run", signalled)
    for last in (13, 0):
        with pytest.raises(KeyboardInterrupt):
            train(settings(path), resume=last == 0, quiet=True)
        assert reached[0] == (13 if last else 15)
        assert read_checkpoint(tmp_path / "out" / CHECKPOINT).progress.step == 10


def test_a_log_that_lost_its_end_is_refused(tmp_path: Path) -> None:
    """Rather than padded with zeros that nobody can read."""
    path = prepare(tmp_path, clusters(8), steps=4, validations=2)
    train(settings(path), quiet=True)
    log = tmp_path / "out" / "log.csv"
    for held in (log.read_bytes()[:-20], b""):
        log.write_bytes(held)
        with pytest.raises(FileError, match=r"log\.csv lacks what was written last; put back the"):
            train(settings(path), resume=True, quiet=True)
        assert log.read_bytes() == held
    log.unlink()
    with pytest.raises(FileError, match=r"log\.csv: there is no such file"):
        train(settings(path), resume=True, quiet=True)
    assert not log.exists()


def test_a_log_whose_rows_are_garbled_is_refused(tmp_path: Path) -> None:
    """Of the right length, so that nothing is missing."""
    path = prepare(tmp_path, clusters(8), steps=4, validations=2)
    train(settings(path), quiet=True)
    log = tmp_path / "out" / "log.csv"
    sound = log.read_bytes()
    header, first, second, _ = sound.split(b"\n")
    damaged = {
        "line 1 ": [b"#" * len(sound), sound.replace(b"step", b"stop", 1), b"\n" + sound[1:]],
        "line 2 ": [
            b"\n".join([header, b"?" * len(first), second, b""]),
            b"\n".join([header, first.replace(b",", b"1", 1), second, b""]),
            b"\n".join([header, b"nan" + b"0" * (len(first) - 3), second, b""]),
            sound[: len(header) + 1] + bytes(len(sound) - len(header) - 1),
        ],
        "line 3 ": [b"\n".join([header, second, first, b""]), sound[:-1] + b"7"],
    }
    before = {one.name: one.read_bytes() for one in log.parent.iterdir() if one != log}
    for line, contents in damaged.items():
        for held in contents:
            assert len(held) == len(sound)
            log.write_bytes(held)
            with pytest.raises(FileError, match=rf"log\.csv is damaged: its {line}is not what the"):
                train(settings(path), resume=True, quiet=True)
            assert log.read_bytes() == held
    assert before == {one.name: one.read_bytes() for one in log.parent.iterdir() if one != log}
    log.write_bytes(sound)
    train(settings(path), resume=True, quiet=True)
    assert log.read_bytes() == sound


def test_what_is_chosen_by_default_is_no_other_training(tmp_path: Path) -> None:
    """Nor is one begun before there was that to choose."""
    path = prepare(tmp_path, clusters(8))
    plain, said, other = (
        settings(path, **changes)
        for changes in ({}, {"clip": 1.0, "muon_edges": False}, {"clip": 2.0})
    )
    with open_dataset(tmp_path / "set.h5") as dataset:
        assert training_hash(plain, dataset) == training_hash(said, dataset)
        assert training_hash(plain, dataset) != training_hash(other, dataset)


def test_other_batches_keep_the_share_of_the_epochs_that_is_done(tmp_path: Path) -> None:
    """12 of 20 steps are 6 of 10 epochs with two batches each, or with one."""
    path = prepare(tmp_path, clusters(11), steps=None, epochs=10, batch=4, shapes=1)
    training = Training(settings(path), resume=False, quiet=True)
    assert training.total == 20
    training.progress.step = training.progress.best_step = 12
    training._save()
    resumed = Training(settings(path, batch=8), resume=True, quiet=True)
    assert (resumed.total, resumed.progress.step, resumed.progress.best_step) == (10, 6, 6)
    assert Training(settings(path), resume=True, quiet=True).progress.step == 12


@pytest.mark.parametrize(("step", "back"), [(35, 30), (30, 20), (5, 0)])
def test_a_loss_that_is_not_finite_is_rolled_back_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    step: int,
    back: int,
) -> None:
    """The step before a look spoils the weights, and no loss tells of it yet."""
    path = prepare(tmp_path, clusters(16), steps=40, validations=4)
    spoiled = [step]
    run = step_module.TrainingStep.run

    def spoiling(self: Any, shape: int, controls: Any) -> None:
        run(self, shape, controls)
        spoiled[0] -= 1
        if spoiled[0] == 0:
            next(iter(self.parameters.values())).data.fill_(torch.nan)

    monkeypatch.setattr(step_module.TrainingStep, "run", spoiling)
    with caplog.at_level(logging.WARNING):
        training = Training(settings(path), resume=False, quiet=True)
        outcome = training.run()
    assert training.progress.log_bytes == (tmp_path / "out" / "log.csv").stat().st_size
    assert f"continues from step {back} with half the learning rate" in caplog.text
    assert training.progress.factor == 0.5
    assert outcome.steps == 40
    assert np.isfinite(outcome.metrics["validation"]["force_rmse_meV_per_A"])


def test_a_second_loss_that_is_not_finite_ends_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = prepare(tmp_path, clusters(16), steps=40, validations=4)
    run = step_module.TrainingStep.run

    def always(self: Any, shape: int, controls: Any) -> None:
        run(self, shape, controls)
        next(iter(self.parameters.values())).data.fill_(torch.nan)

    monkeypatch.setattr(step_module.TrainingStep, "run", always)
    with pytest.raises(MDGraphError, match="after one rollback already"):
        train(settings(path), quiet=True)


def test_a_first_loss_far_beyond_that_at_the_start_is_rolled_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No usual loss is known yet; a rate that is merely high is left alone."""
    path = prepare(tmp_path, clusters(8), steps=20, validations=2, warmup=0.0)
    with pytest.raises(MDGraphError, match=r"before 10 is \S+e\+.*lower learning_rate"):
        train(settings(path, learning_rate=30.0), quiet=True)
    assert "continues from step 0 with half the learning rate" in caplog.text
    caplog.clear()
    high = Training(
        settings(path, learning_rate=0.1, out=str(tmp_path / "high")), resume=False, quiet=True
    )
    high.run()
    assert high.progress.log_bytes == (tmp_path / "high" / "log.csv").stat().st_size
    assert high.progress.losses[0] > high.progress.start
    assert "half the learning rate" not in caplog.text


def test_a_batch_that_does_not_fit_is_halved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = prepare(tmp_path, clusters(16), batch=8, steps=None, epochs=4)
    run = step_module.TrainingStep.run

    def limited(self: Any, shape: int, controls: Any) -> None:
        if len(self.batches[shape]) > 2:
            raise torch.OutOfMemoryError("no room")
        run(self, shape, controls)

    monkeypatch.setattr(step_module.TrainingStep, "run", limited)
    with caplog.at_level(logging.WARNING):
        outcome = train(settings(path), quiet=True)
    assert "halved to 2 frames" in caplog.text
    assert outcome.steps == 4 * 12 // 2


def test_early_stop_and_plateau(tmp_path: Path) -> None:
    path = prepare(tmp_path, clusters(8), steps=200, validations=50)
    options = {"schedule": "plateau", "plateau_patience": 2, "learning_rate": 1e-9}
    config = settings(path, **options, final_learning_rate=0.0, patience=6)
    training = Training(config, resume=False, quiet=True)
    monotone = training.progress.judge
    training.progress.judge = lambda score: monotone(1.0)  # type: ignore[method-assign]
    outcome = training.run()
    assert outcome.steps == 28
    assert training.progress.factor == pytest.approx(0.125)


def test_lines_tell_the_time_left_between_validations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """That of the first step, within which kernels are compiled, does not count."""
    monkeypatch.setattr(progress_module, "_FIRST_LINE", 0.0)
    monkeypatch.setattr(progress_module, "_LINES_APART", 0.0)
    clock = itertools.count(0.0, 10.0)
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    config = settings(prepare(tmp_path, clusters(4)))
    with (
        caplog.at_level(logging.INFO),
        TrainingLog(config, tmp_path, Progress(), writes=True, quiet=False) as log,
    ):
        log.begin_at(4, 8)
        for _ in range(4):
            log.step()
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "Steps begin: 4 of 8 are done."
    assert [line.split(":")[0] for line in lines[1:]] == ["Step 6 of 8", "Step 7 of 8"]
    assert all(line.endswith(" left") for line in lines[1:])


def test_the_share_of_waiting_is_that_since_the_last_row(tmp_path: Path) -> None:
    """Also after a resume, when hours went before that nobody waited in."""
    config = settings(prepare(tmp_path, clusters(4)))
    progress = Progress(seconds=1e4)
    with TrainingLog(config, tmp_path, progress, writes=True, quiet=True) as log:
        for waited in (0.0, 0.05, 0.05):
            time.sleep(0.06)
            log.append(progress, 1.0, 1e-3, {}, waited)
    rows = np.genfromtxt(tmp_path / "log.csv", delimiter=",", names=True)
    shares = rows["waiting_share"]
    assert shares[0] == shares[2] == 0.0
    assert 0.02 < shares[1] < 1.0
    assert 1e4 + 0.18 <= progress.seconds < 1e4 + 60.0
