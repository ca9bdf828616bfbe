"""Times steps of many replicas of a small system that one graph advances together.

    python benchmarks/replicas.py [--replicas 128 512] [--exchange 100] [--device cuda]
    torchrun --nproc-per-node 4 benchmarks/replicas.py --replicas 512 --exchange 100

Langevin dynamics of clusters of eight water molecules, by TorchMD-Net's sizes and random
weights as in speed.py. Those hold no cluster together, so the atoms fly freely from where they
are, at the temperatures of their baths and with steps of 0.5 fs; each time of a stretch begins
there again. The skin is what measurement before a run chooses, unless --skin is given, and lists
are built when they are due, every so many steps. Times are those of `Simulation.run` with its
looks and, if asked for, exchanges of temperature: the median of nine stretches. "ns/day" is that
of a replica and of all of them. Memory is all that torch held at most.

Under torchrun replicas are spread over ranks, one line each, at once on a GPU of its own.
"""

import argparse
import json
from typing import Any

import numpy as np
import torch
from cases import FreeFlight, Table, hardware, random_potential, run_script, water

from mdgraph import __version__
from mdgraph.devices import device_named
from mdgraph.engine import LangevinMiddle
from mdgraph.engine.autotune import stopwatch
from mdgraph.engine.replicas import ReplicaExchange, replica_simulation
from mdgraph.engine.replicas.ranks import Ranks
from mdgraph.engine.simulation import WORTHWHILE
from mdgraph.fused.evaluator import chosen_evaluator
from mdgraph.precision import PRECISIONS, precision_named
from mdgraph.runs.bench import begin_peak

COUNTS = {"cuda": [1, 8, 32, 128, 512], "cpu": [1, 8]}
STEPS = {"cuda": 128, "cpu": 4}
"""Of a stretch, after which few atoms have left a cluster."""

TIMESTEP = 0.5  # fs
STRETCHES = 9
TABLE = Table(
    (
        ("rank", "rank", ""),
        ("replicas", "replicas", ","),
        ("skin A", "skin_A", "g"),
        ("steps a list", "steps_a_list", ".3g"),
        ("ms/step", "step_ms", ".4g"),
        ("ns/day each", "ns_per_day_each", ".4g"),
        ("ns/day all", "ns_per_day_all", ".4g"),
        ("MB", "memory_MB", ",.0f"),
    ),
    width=13,
)


def measured(count: int, ranks: Ranks, options: argparse.Namespace) -> dict[str, Any]:
    """The line of one rank."""
    device = options.device
    on_gpu = device.type == "cuda"
    precision = precision_named(options.precision)
    evaluator = chosen_evaluator(random_potential(options.channels), precision, device, "auto")
    simulation = replica_simulation(
        [water(options.atoms)] * count,
        FreeFlight(evaluator),
        LangevinMiddle(TIMESTEP, np.linspace(300.0, 450.0, count).tolist()),
        ranks,
        device=device,
        precision=precision,
        skin=options.skin,
        graph="on" if on_gpu else "auto",
        check=False,
    )
    simulation.choose(WORTHWHILE)
    begin_peak(device)
    steps = options.steps or STEPS[device.type]
    if options.exchange and count > 1:
        simulation.reporters.append(ReplicaExchange(simulation, options.exchange, ranks))
        # As many exchanges as a long run has.
        steps = max(1, round(steps / options.exchange)) * options.exchange
    timer = stopwatch(device)
    times, built = [], 0
    for _ in range(STRETCHES + 1):
        (rows,) = simulation.calculation.lists
        with simulation.unchanged():
            before = int(rows.rebuilds)
            times.append(timer(lambda: simulation.run(steps)))
            built = int(rows.rebuilds) - before
    own = simulation.state.grouping.systems
    milliseconds = 1e3 * float(np.median(times[1:])) / steps
    speed = TIMESTEP * 1e-6 * 86400e3 / milliseconds
    return {
        "rank": ranks.rank,
        "replicas": own,
        "skin_A": simulation.calculation.skin,
        "steps_a_list": steps / max(1, built),
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
    parser.add_argument("--skin", type=float, help="A; else by measurement")
    parser.add_argument("--steps", type=int, help="of a stretch")
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
        print(TABLE.titles())
    for count in options.replicas or COUNTS[options.device.type]:
        if count < ranks.count:
            continue
        row = measured(count, ranks, options)
        print(json.dumps(row) if options.json else TABLE.text(row), flush=True)


if __name__ == "__main__":
    run_script(main)
