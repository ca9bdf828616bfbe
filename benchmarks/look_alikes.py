"""Errors on a held-out part with and without the frames that training holds almost the same.

    python benchmarks/look_alikes.py copper-pbe copper.h5 copper.json [--part test] [--near 0.01]

A frame of the part is left out where a training frame of its composition lies within `--near`, by
the measure of `mdgraph data check`: random displacements of that size an atom would make as much of
a difference. Mean absolute errors.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from cases import device_argument, run_script
from evaluated import evaluation

from mdgraph.data import LabelledFrame, open_dataset
from mdgraph.data.likeness import describe_frame, response
from mdgraph.errors import InputError
from mdgraph.system import System


def alike(
    frames: Sequence[LabelledFrame], others: Sequence[LabelledFrame], near: float
) -> list[bool]:
    """Whether each frame is almost the same as one of the others."""
    kinds = sorted({int(number) for one in (*frames, *others) for number in one.numbers})
    described = [(np.sort(one.numbers), describe_frame(one, kinds)) for one in others]
    found = []
    for frame in frames:
        numbers, own = np.sort(frame.numbers), describe_frame(frame, kinds)
        reach = near * response(frame, kinds)
        found.append(
            any(
                np.array_equal(numbers, their_numbers) and np.linalg.norm(own - theirs) <= reach
                for their_numbers, theirs in described
            )
        )
    return found


def main() -> None:
    """Prints both rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("potential")
    parser.add_argument("data", type=Path)
    parser.add_argument("split", type=Path)
    parser.add_argument("--part", default="test", choices=["test", "validation"])
    parser.add_argument("--near", type=float, default=0.01, help="A an atom")
    parser.add_argument("--device", type=device_argument, default="cpu")
    options = parser.parse_args()
    split = json.loads(options.split.read_text(encoding="utf-8"))
    with open_dataset(options.data) as dataset:
        held_out = list(dataset.frames(split[options.part]))
        training = list(dataset.frames(split["train"]))
    if not held_out:
        raise InputError(f"{options.split} holds no frames for {options.part}.")
    copies = np.array(alike(held_out, training, options.near))
    systems = [System(one.numbers, one.positions, cell=one.cell, pbc=one.pbc) for one in held_out]
    results = evaluation(options.potential, options.device)(systems, "frame")
    rows = zip(held_out, results, strict=True)
    errors = [
        ((result.energy - frame.energy) / len(frame), result.forces - frame.forces)
        for frame, result in rows
    ]
    print(f"{'':<24}{'frames':>8}{'energy, meV/atom':>18}{'forces, meV/A':>16}")
    for name, chosen in (("all", np.full(len(copies), True)), ("without look-alikes", ~copies)):
        if not chosen.any():
            continue
        energy = np.mean([abs(errors[place][0]) for place in np.flatnonzero(chosen)])
        forces = np.concatenate([errors[place][1].ravel() for place in np.flatnonzero(chosen)])
        print(f"{name:<24}{chosen.sum():>8}{1e3 * energy:>18.3f}{1e3 * abs(forces).mean():>16.2f}")


if __name__ == "__main__":
    run_script(main)
