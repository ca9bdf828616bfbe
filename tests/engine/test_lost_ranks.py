"""A rank that is gone or stopped ends the others, also where their main threads are held."""

import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from prepared import PreparedProcess, prepared_ranks

SCRIPT = """
import os, sys, time
from mdgraph.decomposition import heartbeat
heartbeat.PERIOD, heartbeat.SILENCE, heartbeat.GRACE, heartbeat.CLOSING = 0.1, 10, 3, 3
from mdgraph.decomposition.exchange import ProcessExchange
exchange = ProcessExchange.joined()
print("joined", flush=True)
number = int(sys.argv[1])
if number and not exchange.leads:
    os.kill(os.getpid(), number)
with heartbeat.adding(lambda: "That is the way on."):
    time.sleep(100.0)  # as a main thread that waits for a GPU
"""


def ranks(processes: Any, number: int, folder: Path) -> list[PreparedProcess]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return prepared_ranks(processes, ["-c", SCRIPT, number], 2, cwd=folder, **pipes)


def ended(processes: list[PreparedProcess]) -> None:
    for process in processes:
        if process.poll() is None:
            process.kill()
        if not process.stdout.closed:
            process.communicate()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda one: one.name)
def test_a_rank_that_is_lost_ends_one_that_waits(
    processes: Any, tmp_path: Path, number: signal.Signals
) -> None:
    both = ranks(processes, int(number), tmp_path)
    try:
        _, said = both[0].communicate(timeout=60)
        assert both[0].returncode == 1
        lines = [line for line in said.splitlines() if line.startswith("mdgraph:")]
        assert len(lines) == 1
        assert lines[0] == (
            "mdgraph: error: Rank 0 of 2 lost rank 1; a run continues from its last checkpoint, on "
            "as many ranks or others. That is the way on."
        )
    finally:
        ended(both)


def test_ranks_that_are_suspended_together_go_on(processes: Any, tmp_path: Path) -> None:
    """As by a batch system, and longer than a rank may be silent; then the first is killed."""
    both = ranks(processes, 0, tmp_path)
    try:
        for process in both:
            assert process.stdout.readline() == "joined\n"
        for process in both:
            process.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        for process in both:
            process.send_signal(signal.SIGCONT)
        time.sleep(1.0)
        assert [process.poll() for process in both] == [None, None]
        both[0].kill()
        _, said = both[1].communicate(timeout=60)
        assert both[1].returncode == 1
        assert "Rank 1 of 2 lost rank 0; a run continues" in said
    finally:
        ended(both)
