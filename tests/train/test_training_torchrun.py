"""Trainings that torchrun starts, over gloo and over NCCL: as one process, and when one is lost."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from repository import SUPPORT
from training_sets import assert_near, clusters, crystals, prepare, settings

from mdgraph.train.loop import train
from mdgraph.train.progress import CHECKPOINT, read_checkpoint

pytestmark = pytest.mark.usefixtures("without_report")


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu(2))]


def started(*arguments: object) -> tuple[int, str]:
    """Status of a job of two processes, and what all of them and torchrun said."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    with subprocess.Popen(
        [*torchrun, "--nproc-per-node=2", *map(str, arguments)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as job:
        try:
            said, _ = job.communicate(timeout=200)
        finally:
            job.terminate()  # one that hangs: torchrun then ends its processes
    return job.returncode, said


@pytest.mark.parametrize("device", DEVICES[1:])  # of CPUs test_training_ranks.py has it
def test_two_processes_of_torchrun_are_one_with_twice_the_batch(
    tmp_path: Path, device: str
) -> None:
    frames = [*clusters(16), *crystals(8)]
    options = {"shapes": 2, "steps": 12, "precision": "double", "device": device}
    train(settings(prepare(tmp_path, frames, **options, batch=4)), quiet=True)
    path = prepare(tmp_path, frames, **options, batch=2, out=str(tmp_path / "two"))
    status, said = started("-m", "mdgraph", "train", path)
    assert status == 0, said
    assert "run eagerly" not in said
    one, two = (
        np.genfromtxt(tmp_path / name / "log.csv", delimiter=",", names=True)
        for name in ("out", "two")
    )
    np.testing.assert_allclose(two["loss"], one["loss"], rtol=1e-6)
    assert_near(tmp_path / "out", tmp_path / "two")


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_a_killed_process_ends_the_job_and_one_goes_on(tmp_path: Path, device: str) -> None:
    """Where the other one waits for it without end, torchrun ends that too, after 30 s."""
    options = {"steps": 30, "precision": "double", "checkpoint_interval": 5, "validations": 1}
    options["device"] = device
    train(settings(prepare(tmp_path, clusters(16), **options, batch=6)), quiet=True)
    path = prepare(tmp_path, [], **options, batch=3, out=str(tmp_path / "two"))
    status, said = started(SUPPORT / "lost_rank.py", 13, "train", path)
    assert time.time() - path.with_suffix(".lost").stat().st_mtime < 120.0
    assert status != 0
    assert "exitcode  : -9" in said
    if device == "cpu":
        assert "Another process of the training is gone" in said
    assert not (tmp_path / "two" / "model.safetensors").exists()
    assert read_checkpoint(tmp_path / "two" / CHECKPOINT).progress.step == 10
    train(settings(path), resume=True, quiet=True)
    assert_near(tmp_path / "out", tmp_path / "two")
