"""Runs of replicas that two processes share."""

import os
import signal
import socket
from pathlib import Path
from typing import Any

from mdgraph.engine import Simulation
from mdgraph.engine.replicas import ReplicaExchange
from mdgraph.engine.replicas.ranks import RanksReporter, SharedHills
from mdgraph.errors import LostRankError
from mdgraph.runs.config import MDConfig
from mdgraph.runs.md import resume, start


def _share(rank: int, port: int, configuration: MDConfig, again: bool, dies_at: int) -> None:
    """A rank of two, of which the second may be killed right after a meeting.

    At minus a step, a signal asks it to stop instead.
    """
    os.environ |= {"WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for kind in (ReplicaExchange, SharedHills):
        _end_after(kind, dies_at if rank else 0)
    out = Path(configuration.out)
    try:
        outcome = resume(out) if again else start(configuration)
    except LostRankError as error:
        (out.parent / "said").write_text(str(error), encoding="utf-8")
    else:
        said = f"{outcome.steps} {outcome.ranks} {outcome.signal!r}"
        (out.parent / f"said-{rank}").write_text(said, encoding="utf-8")


def _end_after(kind: Any, dies_at: int) -> None:
    meet = kind.report

    def report(self: RanksReporter, simulation: Simulation) -> None:
        meet(self, simulation)
        if simulation.step == abs(dies_at):
            os.kill(os.getpid(), signal.SIGKILL if dies_at > 0 else signal.SIGTERM)

    kind.report = report


def run_shared(processes: Any, configuration: MDConfig, again: bool, dies_at: int) -> list[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    both = [
        processes.Process(target=_share, args=(rank, port, configuration, again, dies_at))
        for rank in (0, 1)
    ]
    for process in both:
        process.start()
    for process in both:
        process.join(90)
    return [process.exitcode for process in both]
