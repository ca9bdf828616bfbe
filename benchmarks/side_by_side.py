"""Processes side by side on one device, which a small training leaves idle most of the time."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_POLL = 0.2
_PATIENCE = 30.0
"""s, for the first process under MPS, and for processes that were asked to stop."""


@dataclass(frozen=True)
class Job:
    """A command.

    Attributes:
        words: of it.
        folder: where it runs.
        log: file that its output is added to.
    """

    words: tuple[str, ...]
    folder: Path
    log: Path


@dataclass
class Outcome:
    """Of a queue: jobs that failed, with status, and those that were stopped or not begun."""

    failed: list[tuple[Job, int]] = field(default_factory=list)
    left: list[Job] = field(default_factory=list)


def run_side_by_side(
    jobs: Sequence[Job], parallel: int, environment: Mapping[str, str], deadline: float
) -> Outcome:
    """Runs jobs, so many at a time, until all are done or the deadline (of time.monotonic)."""
    waiting, running, outcome = list(jobs), {}, Outcome()
    try:
        while (waiting or running) and time.monotonic() < deadline:
            while waiting and len(running) < parallel:
                job = waiting.pop(0)
                with job.log.open("a", encoding="utf-8") as log:
                    running[job] = subprocess.Popen(
                        job.words,
                        cwd=job.folder,
                        env=dict(environment),
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
            time.sleep(_POLL)
            for job, process in list(running.items()):
                if process.poll() is not None:
                    del running[job]
                    if process.returncode:
                        outcome.failed.append((job, process.returncode))
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE)
            process.kill()
    outcome.left = [*running, *waiting]
    return outcome


def share_of_cores(parallel: int) -> dict[str, str]:
    """The environment, with threads for so many processes at a time unless it says how many."""
    threads = str(max(1, (os.cpu_count() or 1) // parallel))
    return {"OMP_NUM_THREADS": threads} | os.environ


@contextlib.contextmanager
def multi_process_service(environment: dict[str, str], wanted: bool) -> Iterator[bool]:
    """Starts NVIDIA's Multi-Process Service where it is to be had, and stops it in the end.

    With it kernels of several processes run at the same time; without it they take turns.

    Args:
        environment: gets the service's variables where it works.
        wanted: False does nothing.
    """
    control = shutil.which("nvidia-cuda-mps-control") if wanted else None
    if control is None or "CUDA_MPS_PIPE_DIRECTORY" in environment:
        yield control is not None
        return
    with tempfile.TemporaryDirectory() as folder:
        own = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        served = environment | own
        try:
            works = _answers([control, "-d"], served) and _answers(
                [sys.executable, "-c", "import torch; torch.zeros(1, device='cuda')"], served
            )
            if works:
                environment |= own
            yield works
        finally:
            for name in own:
                environment.pop(name, None)
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                subprocess.run(
                    [control],
                    input="quit\n",
                    env=served,
                    text=True,
                    timeout=10.0,
                    check=False,
                    capture_output=True,
                )


def _answers(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    try:
        done = subprocess.run(
            words,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0
