"""Times steps of many replicas of a small system that one graph advances together.

    python benchmarks/replicas.py [--replicas 128 512] [--exchange 100] [--device cuda]
    torchrun --nproc-per-node 4 benchmarks/replicas.py --replicas 512 --exchange 100

Langevin dynamics of clusters of eight water molecules, by TorchMD-Net's sizes and random
weights as in speed.py. Those hold no cluster together, so the time step is tiny and the atoms
stay where they are; without a skin, the list is built at every step all the same. Times are
those of `Simulation.run` with its looks and, if asked for, exchanges of temperature: the
median of five. "ns/day" counts a step as 0.5 fs, for a replica and for all of them. Memory is
all that torch held at most.

Under torchrun replicas are spread over ranks, one line each, at once on a GPU of its own.
"""

import argparse
import json
import time
from typing import Any

import numpy as np
import torch
from conditions import hardware
from structures import random_potential, water

from mdgraph import __version__
from mdgraph.devices import device_named
from mdgraph.engine import LangevinMiddle
from mdgraph.engine.ranks import Ranks
from mdgraph.engine.replica_exchange import ReplicaExchange
from mdgraph.engine.replicas import replica_simulation
from mdgraph.fused.choice import chosen_evaluator
from mdgraph.precision import PRECISIONS, precision_named

COUNTS = {"cuda": [1, 8, 32, 128, 512], "cpu": [1, 8]}
STEPS = {"cuda": 2000, "cpu": 4}
TIMESTEP, COUNTED_AS = 1e-6, 0.5  # fs
BATCHES = 5


def measured(count: int, ranks: Ranks, options: argparse.Namespace) -> dict[str, Any]:
    """The line of one rank."""
    device, steps = options.device, options.steps or STEPS[options.device.type]
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    precision = precision_named(options.precision)
    kelvins = np.linspace(300.0, 450.0, count).tolist()
    simulation = replica_simulation(
        [water(options.atoms)] * count,
        chosen_evaluator(random_potential(options.channels), precision, device, "auto"),
        LangevinMiddle(TIMESTEP, kelvins),
        ranks,
        device=device,
        precision=precision,
        skin=options.skin,
        graph="on" if on_gpu else "auto",
        check=False,
    )
    if options.exchange and count > 1:
        simulation.reporters.append(ReplicaExchange(simulation, options.exchange, ranks))
    simulation.run(steps)
    times = []
    for _ in range(BATCHES):
        begin = time.perf_counter()
        simulation.run(steps)
        times.append(time.perf_counter() - begin)
    own = simulation.state.grouping.systems
    milliseconds = 1e3 * float(np.median(times)) / steps
    speed = COUNTED_AS * 1e-6 * 86400e3 / milliseconds
    return {
        "rank": ranks.rank,
        "replicas": own,
        "step_ms": milliseconds,
        "ns_per_day_each": speed,
        "ns_per_day_all": speed * own,
        "memory_MB": torch.cuda.max_memory_reserved(device) / 1e6 if on_gpu else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", type=int, nargs="+", help="of all ranks together")
    parser.add_argument("--atoms", type=int, default=24, help="of a replica")
    parser.add_argument("--channels", type=int, default=128)
    parser.add_argument("--exchange", type=int, default=0, help="steps between exchanges")
    parser.add_argument("--precision", choices=PRECISIONS, default="mixed")
    parser.add_argument("--skin", type=float, default=0.0, help="A")
    parser.add_argument("--steps", type=int, help="timed together")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ranks = Ranks.join()
    options.device = device_named(options.device)
    if options.device.type == "cuda" and ranks.count > 1:
        options.device = torch.device("cuda", ranks.local)
        torch.cuda.set_device(options.device)
    if not (options.json or ranks.rank):
        print(f"{hardware(options.device)}, {ranks.count} rank(s), mdgraph {__version__}")
        print(f"{options.atoms} atoms a replica, {options.channels} channels, {options.precision}")
        titles = ("rank", "replicas", "ms/step", "ns/day each", "ns/day all", "MB")
        print(" ".join(f"{title:>12}" for title in titles))
    for count in options.replicas or COUNTS[options.device.type]:
        if count < ranks.count:
            continue
        row = measured(count, ranks, options)
        if options.json:
            print(json.dumps(row), flush=True)
        else:
            cells = ["-" if value is None else f"{value:.4g}" for value in row.values()]
            print(" ".join(f"{cell:>12}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
