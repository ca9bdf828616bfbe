"""What makes replays slower: one graph, timed again after each single change to its process.

    python benchmarks/replays.py [--atoms 24] [--seconds 0.3]

The graph is that of `speed.py`: list, energy, forces and virial of water, random weights. After
each change it is replayed without a pause and timed by the host's clock, median of five. What comes
last, streams that ran one kernel each, cannot be taken back.

With --profile torch's profiler looks at some more replays, which are slower under its eyes: "busy"
is the time in which any kernel runs, "idle" what is left from the first to the last of a replay.
"""

import argparse
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from command_line import run_script
from conditions import hardware
from kernels import launches
from structures import random_potential, water

from mdgraph.devices import device_named
from mdgraph.engine import Calculation, Simulation, VelocityVerlet
from mdgraph.engine.potentials import as_evaluator
from mdgraph.errors import InputError
from mdgraph.graphs import CapturedGraph
from mdgraph.precision import precision_named
from mdgraph.runs.timing import milliseconds, repeating

STREAMS = (4, 8, 16, 32)
TIMESTEP = 1e-6  # fs; the atoms stay where they are
STEPS = 512
PROFILED = 20


class Changes:
    """Things that programs do beside replays; what they make is kept."""

    def __init__(self, calculation: Calculation) -> None:
        self._calculation = calculation
        self._there = torch.rand(1000, device=calculation.device)
        self._here = torch.zeros(1000, pin_memory=True)
        self._kept: list[Any] = []

    def all(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """By their names, in order."""
        yield "nothing", lambda: None
        yield "kernels of torch", lambda: self._there.mul_(1.0).sum()
        yield "a copy to pinned memory", self._copy_back
        yield "a copy from pinned memory", self._copy_there
        yield "an event that is waited for", self._event
        yield "an evaluation without a graph", self._calculation.update_
        yield "another graph, captured", self._capture
        yield "that graph, replayed", self._again
        yield "a copy to pinned memory", self._copy_back
        yield "a third graph, captured and replayed", lambda: self._capture().replay()
        yield "both graphs dropped", self._kept.clear
        yield "a run in graphs of 32 steps", partial(self._run, 32)
        yield "that simulation dropped", self._kept.clear
        yield "a run that chose among graphs", partial(self._run, None)
        yield "more of it, on a stream of its own", self._run_aside
        yield "that simulation dropped", self._kept.clear
        for number in STREAMS:
            yield f"{number} streams more, a kernel each", partial(self._streams, number)

    def _copy_back(self) -> None:
        self._here.copy_(self._there, non_blocking=True)

    def _copy_there(self) -> None:
        self._there.copy_(self._here, non_blocking=True)

    def _event(self) -> None:
        event = torch.cuda.Event()
        event.record()
        event.synchronize()

    def _capture(self) -> CapturedGraph:
        graph = CapturedGraph(self._calculation.update_, self._calculation.device)
        self._kept.append(graph)
        return graph

    def _again(self) -> None:
        self._kept[-1].replay()

    def _run(self, steps_per_replay: int | None) -> None:
        system = water(self._calculation.state.grouping.atoms)
        simulation = Simulation(
            system,
            self._calculation.evaluator,
            VelocityVerlet(TIMESTEP),
            device=self._calculation.device,
            skin=0.0,
            graph="on",
            steps_per_replay=steps_per_replay,
            check=False,
        )
        simulation.run(STEPS)
        self._kept.append(simulation)

    def _run_aside(self) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            self._kept[-1].run(STEPS)
        self._kept.append(stream)

    def _streams(self, number: int) -> None:
        for _ in range(number):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._there.mul_(1.0)
            torch.cuda.current_stream().wait_stream(stream)
            self._kept.append(stream)


def busy_and_idle(graph: CapturedGraph) -> tuple[float, float]:
    """ms of a replay in which kernels run, and in which none does; medians."""
    seen = launches(graph, PROFILED)
    spans = sorted((event.time_range.start, event.time_range.end) for event in seen)
    kernels, left = divmod(len(spans), PROFILED)
    if left or not kernels:
        raise InputError(f"The profiler saw {len(spans)} kernels of {PROFILED} replays.")
    found = []
    for first in range(0, kernels * PROFILED, kernels):
        replay = spans[first : first + kernels]
        ends = np.maximum.accumulate([end for _, end in replay])
        starts = [start for start, _ in replay]
        idle = sum(max(0.0, start - end) for end, start in zip(ends, starts[1:], strict=False))
        found.append((ends[-1] - starts[0] - idle, idle))
    busy, idle = np.median(found, axis=0) / 1e3
    return float(busy), float(idle)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--atoms", type=int, default=24)
    parser.add_argument("--channels", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=0.3, help="for each time")
    parser.add_argument("--profile", action="store_true", help="kernels and what is between them")
    options = parser.parse_args()
    device = device_named("auto")
    if device.type != "cuda":
        raise InputError("Graphs need a CUDA device, and this machine has none.")
    # What a run says of the lengths of graphs it chose among.
    logging.basicConfig(format="          %(message)s", level=logging.INFO)
    potential = random_potential(options.channels)
    evaluator = as_evaluator(potential, precision_named("mixed"), device, "auto")
    structure = [water(options.atoms)]
    calculation = Calculation(structure, evaluator, device=device, skin=0.0, cell_varies=False)
    calculation.compute()
    graph = CapturedGraph(calculation.update_, device)
    print(f"{hardware(device)}, {options.atoms} atoms; ms a replay, after")
    for name, change in Changes(calculation).all():
        change()
        torch.cuda.synchronize()
        taken = milliseconds(repeating(graph.replay), device, options.seconds)
        print(f"{taken:8.4f}  {name}", flush=True)
        if options.profile:
            print("          busy {:.4f}, idle {:.4f}".format(*busy_and_idle(graph)), flush=True)


if __name__ == "__main__":
    run_script(main)
