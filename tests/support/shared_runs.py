"""Runs of replicas that two processes share."""

import os
import signal
import socket
from pathlib import Path
from typing import Any

from mdgraph.engine import Simulation
from mdgraph.engine.replicas import ReplicaExchange
from mdgraph.errors import LostRankError
from mdgraph.runs.config import MDConfig
from mdgraph.runs.md import resume, start


def _share(rank: int, port: int, configuration: MDConfig, again: bool, dies_at: int) -> None:
    """A rank of two, of which the second may be killed right after an exchange.

    At minus a step, a signal asks it to stop instead.
    """
    os.environ |= {"WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    exchange = ReplicaExchange.report

    def report(self: ReplicaExchange, simulation: Simulation) -> None:
        exchange(self, simulation)
        if rank and simulation.step == abs(dies_at):
            os.kill(os.getpid(), signal.SIGKILL if dies_at > 0 else signal.SIGTERM)

    ReplicaExchange.report = report  # type: ignore[method-assign]
    out = Path(configuration.out)
    try:
        outcome = resume(out) if again else start(configuration)
    except LostRankError as error:
        (out.parent / "said").write_text(str(error), encoding="utf-8")
    else:
        said = f"{outcome.steps} {outcome.ranks} {outcome.signal!r}"
        (out.parent / f"said-{rank}").write_text(said, encoding="utf-8")


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
