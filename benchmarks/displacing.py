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
from pathlib import Path

import numpy as np
import torch
from cases import device_argument, run_script
from evaluated import evaluation
from torch import Tensor

from mdgraph.engine.results import Result
from mdgraph.errors import InputError
from mdgraph.io.structures import read_systems
from mdgraph.system import System
from mdgraph.train.displaced import draw, misses, moves


def misses_of(systems: list[System], options: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """(M,) eV by which displaced frames lie too low, and too high."""
    results = evaluation(options.potential, options.device)
    most = max(map(len, systems))
    positions, forces = torch.zeros(2, len(systems), most, 3, dtype=torch.float64)
    rest = results(systems, "frame")
    for place, (system, result) in enumerate(zip(systems, rest, strict=True)):
        positions[place, : len(system)] = torch.tensor(system.positions)
        forces[place, : len(system)] = torch.tensor(np.array(result.forces))

    def energy_of(moved: Tensor) -> Tensor:
        copies = [
            one.replace(positions=one.positions + own[: len(one)].numpy())
            for one, own in zip(systems, moved, strict=True)
        ]
        return energies(results(copies, "displaced"))

    atoms = torch.tensor([len(system) for system in systems])
    drawn = torch.from_numpy(draw(options.seed, 0, len(systems), most))
    moved = moves(drawn, positions, atoms, options.largest)
    return misses(energy_of, energies(rest), forces, moved, options.depth)


def energies(results: list[Result]) -> Tensor:
    """(M,) eV."""
    return torch.tensor([one.energy for one in results], dtype=torch.float64)


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
    for name in ("frames", "largest", "depth"):
        if not (given := getattr(options, name)) > 0:
            raise InputError(f"--{name} is {given:g}; it should be greater than 0.")
    systems = [one for one in read_systems(options.structure) if len(one) > 1]
    if not systems:
        raise InputError(f"{options.structure} holds single atoms alone; give larger structures.")
    places = np.random.default_rng(options.seed).integers(0, len(systems), options.frames)
    found = misses_of([systems[place] for place in places], options)
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
