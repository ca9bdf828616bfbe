"""Does a potential hold a structure together? Many starts as one batch, k of n that did.

    python benchmarks/stability.py POTENTIAL STRUCTURE [--frames TRAINING] [--temperature 300]
        [--ps 1000] [--starts 10] [--transfer | --crystal] [--minutes 9] [--json]

The starts are the frames of STRUCTURE in turn, each with velocities and Langevin noise of its
own. Every --every-fs it is looked at; a start fails where

- the covalent graph is another one than at first, at two looks in a row: bonds are shorter than
  1.25 times the sum of both covalent radii, and a stretched bond comes back before the next look.
  With --transfer a hydrogen may move from one heavy atom to another, but not be lost. With
  --crystal it is the nearest neighbors of the first frame that must stay each other's;
- a distance is below 0.7 of the shortest that TRAINING has of these elements (without --frames:
  that STRUCTURE has);
- its forces stop being finite, or its temperature runs away: the others go on without it;
- its mean temperature, after --bath-ps, is more than 5 standard errors off the bath. They come
  from blocks of at least 5 / friction; a run of less than four such blocks tells none.

The interval is Wilson's, 95 %, DOI 10.1080/01621459.1927.10502953.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
from bonds import Bonds, Neighbors, shortest_distances
from cases import device_argument, hardware, run_script
from looks import Watch, judge_temperatures, wilson

from mdgraph.engine import LangevinMiddle, Simulation
from mdgraph.errors import InputError, SimulationError
from mdgraph.io.structures import read_systems
from mdgraph.precision import PRECISIONS
from mdgraph.system import System

SIGMAS = 5.0
MEMORIES = 5.0
"""Times 1 / friction, after which the energy of an oscillator has forgotten itself."""


def simulate(systems: list[System], options: argparse.Namespace) -> Watch:
    """Runs all starts to the end, or as far as time allows."""
    deadline = time.monotonic() + 60.0 * options.minutes
    every = max(1, round(options.every_fs / options.timestep))
    simulation = _simulation(systems, options, check=True)
    shortest = shortest_distances(options.frames or options.structure)
    device = simulation.state.device
    if options.crystal:
        bonds: Bonds = Neighbors(systems[0], shortest, device)
    else:
        bonds = Bonds(systems[0], shortest, device, options.transfer)
    watch = Watch(bonds, simulation, every, options.bath_ps)
    steps = max(every, round(1e3 * options.ps / options.timestep / every) * every)
    done = 0
    simulation.choose(steps)
    simulation.reporters.append(watch)
    while done < steps and watch.running and time.monotonic() < deadline:
        begin = simulation.step
        try:
            simulation.run(min(every * 50, steps - done))
        except SimulationError as error:
            atoms = len(systems[0])
            places = {error.atoms[0] // atoms} if error.atoms else set(range(len(watch.running)))
            rest = _others(simulation, systems[0], places)
            done += simulation.step - begin
            watch.lose(places, simulation)
            if rest:
                simulation = _simulation(rest, options, check=False, seed=options.seed + done)
                simulation.reporters.append(watch)
            continue
        done += simulation.step - begin
    options.done_ps = 1e-3 * done * options.timestep
    return watch


def _others(simulation: Simulation, system: System, places: set[int]) -> list[System]:
    """All starts but those at some places, as they stand."""
    state, atoms = simulation.state, len(system)
    parts = zip(state.positions.split(atoms), state.velocities.split(atoms), strict=True)
    return [
        system.replace(positions=x.double().cpu().numpy(), velocities=v.double().cpu().numpy())
        for place, (x, v) in enumerate(parts)
        if place not in places
    ]


def _simulation(
    systems: list[System], options: argparse.Namespace, check: bool, seed: int | None = None
) -> Simulation:
    return Simulation(
        systems,
        options.potential,
        LangevinMiddle(options.timestep, options.temperature, options.friction),
        device=options.device,
        precision=options.precision,
        seed=options.seed if seed is None else seed,
        check=check,
    )


def report(watch: Watch, options: argparse.Namespace) -> dict[str, Any]:
    """Everything found; temperatures are judged here."""
    forgotten = math.ceil(1e3 * MEMORIES / options.friction / options.every_fs)
    deviations = judge_temperatures(watch.starts, options.temperature, forgotten)
    for start, deviation in zip(watch.starts, deviations, strict=True):
        if abs(deviation) > SIGMAS:
            start.failures["temperature"] = options.done_ps
    stable = sum(not start.failures for start in watch.starts)
    return {
        "potential": options.potential,
        "structure": options.structure.name,
        "hardware": hardware(options.device),
        "temperature_K": options.temperature,
        "timestep_fs": options.timestep,
        "ps": options.done_ps,
        "asked_ps": options.ps,
        "starts": len(watch.starts),
        "stable": stable,
        "interval": [round(end, 3) for end in wilson(stable, len(watch.starts))],
        "mean_K": [float(np.mean(one.kelvin)) if one.kelvin else None for one in watch.starts],
        "deviation_sigma": [None if math.isnan(one) else round(one, 2) for one in deviations],
        "closest": [round(one.closest, 3) for one in watch.starts],
        "failures": [one.failures for one in watch.starts],
    }


def text(found: dict[str, Any]) -> str:
    """For people."""
    low, high = found["interval"]
    what = f"{found['potential']}, {found['structure']}, {found['temperature_K']:g} K"
    count = f"{found['stable']} of {found['starts']} stable"
    lines = [
        f"{what}, {found['ps']:g} ps: {count}, 95 % interval {low:.2f} to {high:.2f}",
        f"closest contact {min(found['closest']):.2f} of the shortest in training",
    ]
    told = [abs(one) for one in found["deviation_sigma"] if one is not None]
    if told:
        lines.append(f"mean temperatures within {max(told):.1f} standard errors of the bath")
    else:
        lines.append("too short to tell temperatures")
    for number, failures in enumerate(found["failures"]):
        for kind, moment in failures.items():
            lines.append(f"start {number} failed after {moment:g} ps: {kind}")
    if found["ps"] < 0.999 * found["asked_ps"]:
        lines.append(f"It was stopped before {found['asked_ps']:g} ps.")
    return "\n".join(lines)


def read_starts(options: argparse.Namespace) -> list[System]:
    """Frames of the structure in turn, without their velocities."""
    frames = read_systems(options.structure)
    if any(not np.array_equal(one.numbers, frames[0].numbers) for one in frames):
        raise InputError(f"The frames of {options.structure} differ in their atoms; give one kind.")
    places = np.linspace(0, len(frames) - 1, options.starts).round().astype(int)
    return [frames[place].replace(velocities=None) for place in places]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("potential")
    parser.add_argument("structure", type=Path)
    parser.add_argument("--frames", type=Path, help="of training: the shortest distances")
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--temperature", type=float, default=300.0, help="K")
    parser.add_argument("--ps", type=float, default=1000.0)
    parser.add_argument("--bath-ps", type=float, default=10.0, help="before means are taken")
    parser.add_argument("--timestep", type=float, default=0.5, help="fs")
    parser.add_argument("--friction", type=float, default=1.0, help="1/ps")
    parser.add_argument("--every-fs", type=float, default=100.0, help="from look to look")
    graph = parser.add_mutually_exclusive_group()
    graph.add_argument("--transfer", action="store_true", help="hydrogens may move")
    graph.add_argument("--crystal", action="store_true", help="neighbors count, not bonds")
    parser.add_argument("--precision", default="mixed", choices=PRECISIONS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=math.inf, help="then it stops")
    parser.add_argument("--device", type=device_argument, default="auto")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Prints k of n."""
    options = arguments()
    found = report(simulate(read_starts(options), options), options)
    print(json.dumps(found) if options.json else text(found))


if __name__ == "__main__":
    run_script(main)
