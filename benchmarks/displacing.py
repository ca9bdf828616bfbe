"""How often energies lie too low or too high where a few atoms of a frame are moved at random.

    python benchmarks/displacing.py POTENTIAL STRUCTURE [--frames 500] [--largest 1] [--depth 4]
        [--json]

A network that fits its frames may have energies far off between them, and hot dynamics finds
them. Frames of STRUCTURE, drawn at random, some more than once, are displaced and judged as by the
loss of a training (`mdgraph/train/displaced.py`), but with lists of their own: printed are the
shares of those that lie lower and higher than they may, the mean over all of how much, and the
worst. Of molecules by potentials that know broken bonds less than 1 % lie outside.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from command_line import device_argument, run_script
from torch import Tensor

from mdgraph import load
from mdgraph.engine.batches import Batches
from mdgraph.engine.potentials import as_evaluator
from mdgraph.engine.results import Result
from mdgraph.errors import InputError
from mdgraph.io.structures import read_systems
from mdgraph.precision import precision_named
from mdgraph.system import System
from mdgraph.train.displaced import corridor, draw, harmonic_rise, moves


def misses(systems: list[System], options: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """(M,) eV by which displaced frames lie too low, and too high."""
    device, precision = options.device, precision_named("mixed")
    batches = Batches(
        as_evaluator(load(options.potential), precision, device, "auto"), device, precision
    )
    most = max(map(len, systems))
    positions, forces = torch.zeros(2, len(systems), most, 3, dtype=torch.float64)
    for place, system in enumerate(systems):
        positions[place, : len(system)] = torch.tensor(system.positions)

    def results(moved: Tensor) -> Iterator[tuple[int, Result]]:
        copies = [
            one.replace(positions=one.positions + own[: len(one)].numpy())
            for one, own in zip(systems, moved, strict=True)
        ]
        return batches.evaluate(copies, ["displaced"] * len(copies))

    def energy_of(moved: Tensor) -> Tensor:
        energies = torch.empty(len(systems), dtype=torch.float64)
        for place, result in results(moved):
            energies[place] = result.energy
        return energies

    atoms = torch.tensor([len(system) for system in systems])
    drawn = torch.from_numpy(draw(options.seed, 0, len(systems), most))
    moved = moves(drawn, positions, atoms, options.largest)
    energy = torch.empty(len(systems), dtype=torch.float64)
    for place, result in results(torch.zeros_like(moved)):
        energy[place] = result.energy
        forces[place, : len(systems[place])] = torch.tensor(np.array(result.forces))
    rise = harmonic_rise(energy_of, energy, moved)
    displaced = energy_of(moved)
    low, high = corridor(energy, forces, moved, rise, options.depth)
    return (low - displaced).clamp(min=0.0), (displaced - high).clamp(min=0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("potential")
    parser.add_argument("structure", type=Path)
    parser.add_argument("--frames", type=int, default=500, help="that are displaced")
    parser.add_argument("--largest", type=float, default=1.0, help="A that an atom is moved")
    parser.add_argument("--depth", type=float, default=4.0, help="eV, of the Morse curves")
    parser.add_argument("--seed", type=int, default=0, help="of frames and moves")
    parser.add_argument("--device", type=device_argument, default="auto")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    systems = [one for one in read_systems(options.structure) if len(one) > 1]
    if not systems:
        raise InputError(f"{options.structure} holds single atoms alone; give larger structures.")
    places = np.random.default_rng(options.seed).integers(0, len(systems), options.frames)
    found = misses([systems[place] for place in places], options)
    told = {
        name: {
            "share": round(float((off > 0.0).double().mean()), 4),
            "mean_meV": round(1e3 * float(off.mean()), 2),
            "worst_eV": round(float(off.max()), 3),
        }
        for name, off in zip(("low", "high"), found, strict=True)
    }
    if options.json:
        print(json.dumps({"frames": options.frames, **told}))
        return
    print(f"Of {options.frames} displaced frames lie too")
    for name, one in told.items():
        print(
            f"{name:<4} {one['share']:6.1%}, by {one['mean_meV']:g} meV in the mean over all and "
            f"{one['worst_eV']:g} eV at worst"
        )


if __name__ == "__main__":
    run_script(main)
