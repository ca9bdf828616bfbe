"""Time of each kernel of an evaluation on an NVIDIA GPU, as torch's profiler sees it.

    python benchmarks/kernels.py [--atoms 648] [--precision mixed] [--potential FILE]

Water as in `speed.py`, with its random weights or a potential of those elements. One line a
kernel: launches in an evaluation with its list, microseconds of one, and of all. The sum is
the work of the card; the time of a replay is shorter where kernels overlap and longer where
they wait for each other.
"""

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from command_line import run_script
from conditions import hardware
from structures import random_potential, water
from torch.profiler import ProfilerActivity, profile

from mdgraph import load
from mdgraph.engine import Calculation
from mdgraph.graphs import CapturedGraph, captured
from mdgraph.precision import PRECISIONS
from mdgraph.runs.timing import milliseconds, repeating

REPLAYS = 5


def launches(graph: CapturedGraph, replays: int) -> list[Any]:
    """What torch's profiler saw on the card in so many replays, after one more."""
    graph.replay()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
        for _ in range(replays):
            graph.replay()
        torch.cuda.synchronize()
    return [one for one in seen.events() if one.device_type == torch.autograd.DeviceType.CUDA]


def kernel_times(graph: CapturedGraph) -> dict[str, list[float]]:
    """Microseconds of every launch in `REPLAYS` replays, by kernel."""
    times = defaultdict(list)
    for event in launches(graph, REPLAYS):
        times[event.name].append(event.device_time)
    return times


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--atoms", type=int, default=648, help="of water")
    parser.add_argument("--precision", default="mixed", choices=PRECISIONS)
    parser.add_argument("--potential", type=Path, help="file, instead of random weights")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("There is no CUDA device to profile; run this on a machine with an NVIDIA GPU.")
    device = torch.device("cuda")
    model = load(options.potential) if options.potential else random_potential()
    calculation = Calculation(
        [water(options.atoms)],
        model,
        device=device,
        precision=options.precision,
        cell_varies=False,
    )
    calculation.compute()
    graph = captured(calculation.update_, device)
    if graph is None:
        sys.exit("The evaluation could not be captured as a CUDA graph.")
    replay = milliseconds(repeating(graph.replay), device, seconds=0.5)
    times = kernel_times(graph)
    total = sum(map(sum, times.values())) / REPLAYS
    print(f"{hardware(device)}, torch {torch.__version__}, {options.precision}")
    print(f"{options.atoms:,} atoms: a replay {1e3 * replay:.1f} us, kernels {total:.1f} us")
    print(f"{'kernel':<40}{'launches':>10}{'us each':>10}{'us':>10}")
    for name, spent in sorted(times.items(), key=lambda item: -sum(item[1])):
        launches = len(spent) / REPLAYS
        each = sum(spent) / len(spent)
        print(f"{name[:38]:<40}{launches:>10.0f}{each:>10.1f}{launches * each:>10.1f}")


if __name__ == "__main__":
    run_script(main)
