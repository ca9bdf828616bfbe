"""Cuts drops, slabs or single molecules out of a liquid: whether they hold, `stability.py` tells.

    python benchmarks/cut.py LIQUID OUT.extxyz --shape drop|slab|molecule
    python benchmarks/stability.py POTENTIAL OUT.extxyz --frames TRAINING --starts 3 --ps 2

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
from cases import run_script
from numpy.typing import NDArray

from mdgraph.drivers.openmm.boxes import whole
from mdgraph.errors import InputError
from mdgraph.io.atoms import to_ase
from mdgraph.io.files import refuse_existing, write_atomically
from mdgraph.io.structures import read_systems
from mdgraph.system import System

HEIGHT = 3
"""Of a slab's cell, in those of the liquid."""


def cut(liquid: System, shape: str) -> System:
    """A drop, slab or molecule at rest; first atoms of molecules lie within the liquid's cell."""
    if not liquid.pbc.all():
        raise InputError("The liquid has an open side; give one that is periodic in all three.")
    if liquid.charge:
        raise InputError("The liquid is charged, and nothing tells where; give a neutral one.")
    places = torch.tensor(liquid.positions)[None]
    bonds = Bonds(liquid, np.zeros((119, 119)), places.device)
    bonded = (bonds.distances(places)[0] < bonds.reach).numpy()
    first = first_atoms(bonded)
    if not first.any():
        raise InputError("All atoms of a frame hang together; give a liquid of molecules.")
    positions = whole(liquid.positions, liquid.cell, np.argwhere(np.triu(bonded)))
    cells = np.floor(positions[first] @ np.linalg.inv(liquid.cell))
    positions = positions - cells @ liquid.cell
    if shape == "slab":
        high = liquid.cell * [[1], [1], [HEIGHT]]
        return liquid.replace(positions=positions, cell=high, velocities=None)
    kept = first == 0 if shape == "molecule" else np.full(len(liquid), True)
    return System(liquid.numbers[kept], positions[kept])


def first_atoms(bonded: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(N,) the first atom of each atom's molecule, of (N, N) bonds."""
    found, before = np.arange(len(bonded)), np.zeros(0)
    bonded = bonded | np.eye(len(bonded), dtype=bool)
    while not np.array_equal(found, before):
        found, before = np.where(bonded, found, len(bonded)).min(1), found
    return found


def main() -> None:
    """Writes what was cut."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("liquid", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", choices=("drop", "slab", "molecule"), default="drop")
    options = parser.parse_args()
    refuse_existing(options.out)
    atoms = [to_ase(cut(one, options.shape)) for one in read_systems(options.liquid)]
    write_atomically(options.out, lambda path: ase.io.write(path, atoms, format="extxyz"))


if __name__ == "__main__":
    run_script(main)
