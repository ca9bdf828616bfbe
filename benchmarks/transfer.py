"""The barrier of a hydrogen that goes from one oxygen to the other within a molecule.

    python benchmarks/transfer.py acac-pbe train_300K.xyz [--images 9]

The first frame is relaxed, the same with the hydrogen mirrored onto the other oxygen too, and a
climbing nudged elastic band between them gives the barrier; double precision, on a CPU.
"""

import argparse
from pathlib import Path

import ase.io
import numpy as np
from ase import Atoms
from ase.mep import NEB
from ase.optimize import BFGS, FIRE
from cases import run_script

from mdgraph.drivers.ase import MDGraphCalculator
from mdgraph.errors import InputError


def transferred(atoms: Atoms) -> Atoms:
    """The molecule with the hydrogen between two oxygens on the farther one."""
    hydrogens, oxygens = (np.flatnonzero(atoms.numbers == number) for number in (1, 8))
    if len(oxygens) != 2:
        raise InputError("The molecule has not two oxygens; give one that has.")
    distances = np.array([atoms.get_distances(one, oxygens) for one in hydrogens])
    moved = hydrogens[distances.sum(axis=1).argmin()]
    near, far = oxygens[np.argsort(atoms.get_distances(moved, oxygens))]
    after = atoms.copy()
    along = atoms.positions[near] - atoms.positions[far]
    length = atoms.get_distance(moved, near)
    towards = atoms.positions[moved] - atoms.positions[near]
    axis = along / np.linalg.norm(along)
    mirrored = towards - 2 * (towards @ axis) * axis
    after.positions[moved] = atoms.positions[far] + mirrored * length / np.linalg.norm(mirrored)
    return after


def main() -> None:
    """Prints the barrier."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("potential")
    parser.add_argument("structure", type=Path)
    parser.add_argument("--images", type=int, default=9, help="between the two ends")
    options = parser.parse_args()
    first = ase.io.read(options.structure, 0)
    calculator = MDGraphCalculator(options.potential, device="cpu", precision="double")
    start = Atoms(first.numbers, first.positions, calculator=calculator)
    BFGS(start, logfile=None).run(fmax=0.005, steps=300)
    end = transferred(start)
    end.calc = calculator
    BFGS(end, logfile=None).run(fmax=0.005, steps=300)
    images = [start, *(start.copy() for _ in range(options.images)), end]
    for image in images:
        image.calc = calculator
    band = NEB(images, climb=True, method="improvedtangent", allow_shared_calculator=True)
    band.interpolate("idpp")
    done = FIRE(band, logfile=None).run(fmax=0.02, steps=300)
    energies = np.array([image.get_potential_energy() for image in images])
    print(f"ends {1e3 * (energies[-1] - energies[0]):.1f} meV apart; settled: {done}")
    print(f"barrier {1e3 * (energies.max() - energies[0]):.1f} meV")


if __name__ == "__main__":
    run_script(main)
