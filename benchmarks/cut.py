"""Cuts drops, slabs or single molecules out of a liquid: whether they hold, `stability.py` tells.

    python benchmarks/cut.py LIQUID OUT.extxyz --shape drop|slab|molecule
    python benchmarks/stability.py POTENTIAL OUT.extxyz --frames TRAINING --starts 3 --ps 5

Of every frame of LIQUID, whose molecules are those of `stability.py`, a drop is all of them without
a cell, a slab lies in a cell three times as high, with nothing above it, and a molecule is the
first one alone. A potential that was trained on a liquid has seen none of them.
"""

import argparse
from pathlib import Path

import ase.io
import numpy as np
import torch
from bonds import Bonds
from command_line import run_script
from numpy.typing import NDArray

from mdgraph.drivers.openmm.boxes import whole
from mdgraph.errors import InputError
from mdgraph.io.atoms import to_ase
from mdgraph.io.files import refuse_existing
from mdgraph.io.structures import read_systems
from mdgraph.system import System

HEIGHT = 3
"""Of a slab's cell, in those of the liquid."""


def cut(liquid: System, shape: str) -> System:
    """A drop, slab or molecule at rest; molecules stay where their first atoms are."""
    if not liquid.pbc.all():
        raise InputError("The liquid has an open side; give one that is periodic in all three.")
    places = torch.tensor(liquid.positions)[None]
    bonds = Bonds(liquid, np.zeros((119, 119)), places.device)
    bonded = (bonds.distances(places)[0] < bonds.reach).numpy()
    positions = whole(liquid.positions, liquid.cell, np.argwhere(np.triu(bonded)))
    rest = liquid.replace(positions=positions, velocities=None)
    if shape == "slab":
        return rest.replace(cell=liquid.cell * [[1], [1], [HEIGHT]])
    kept = first_molecule(bonded) if shape == "molecule" else np.full(len(liquid), True)
    return System(liquid.numbers[kept], positions[kept])


def first_molecule(bonded: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(N,) which atoms hang together with the first, of (N, N) bonds."""
    found, more = np.arange(len(bonded)) < 0, np.arange(len(bonded)) < 1
    while not np.array_equal(found, more):
        found, more = more, more | bonded[more].any(0)
    return found


def main() -> None:
    """Writes what was cut."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("liquid", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", choices=("drop", "slab", "molecule"), default="drop")
    options = parser.parse_args()
    refuse_existing(options.out)
    systems = [cut(one, options.shape) for one in read_systems(options.liquid)]
    ase.io.write(options.out, [to_ase(one) for one in systems], format="extxyz")


if __name__ == "__main__":
    run_script(main)
