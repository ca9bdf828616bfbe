"""Whether potentials hold a hydrogen in its bond while it is moved along its hydrogen bond.

    python benchmarks/hydrogen_bonds.py LARGE SMALL ... --structures FILE

The hydrogens of the shortest hydrogen bonds of each structure are moved, one at a time, towards
the heavy atom that accepts them. Energies are means over them, in eV above that of a bond of
0.95 A. The last column counts those that a potential pulls over, from 1.1 A on, and has its largest
mean force along the way between two lengths, eV/A. A small potential that pulls where the large one
holds lets outer steps run away.
"""

import argparse
from pathlib import Path
from typing import Final

import ase.geometry
import numpy as np
from cases import conditions, device_argument, run_script

from mdgraph.engine.batches import evaluate_with
from mdgraph.io.structures import read_systems
from mdgraph.system import System

LENGTHS: Final = (0.85, 0.95, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5)
"""A, of the bond."""


def moved(system: System, count: int) -> list[tuple[float, int, list[System]]]:
    """Of the shortest hydrogen bonds: H to acceptor, A, the hydrogen, and copies at `LENGTHS`."""
    hydrogens, heavy = np.flatnonzero(system.numbers == 1), np.flatnonzero(system.numbers != 1)
    vectors, distances = ase.geometry.get_distances(
        system.positions[hydrogens], system.positions[heavy], system.cell, system.pbc
    )
    near = np.argsort(distances, 1)[:, :2]
    found = []
    for place, (own, other) in enumerate(near):
        way = vectors[place, other] - vectors[place, own]
        length, copies = float(np.linalg.norm(way)), []
        for bond in LENGTHS:
            positions = system.positions.copy()
            positions[hydrogens[place]] += vectors[place, own] + bond * way / length
            copies.append(system.replace(positions=positions, velocities=None))
        found.append((float(distances[place, other]), int(hydrogens[place]), copies))
    return sorted(found, key=lambda one: one[0])[:count]


def main() -> None:
    """Prints a line for each potential."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("potentials", nargs="+")
    parser.add_argument("--structures", type=Path, required=True)
    parser.add_argument("--count", type=int, default=2, help="hydrogens of each structure")
    parser.add_argument("--device", type=device_argument, default="auto")
    options = parser.parse_args()
    found = [
        one for system in read_systems(options.structures) for one in moved(system, options.count)
    ]
    systems = [copy for _, _, copies in found for copy in copies]
    lengths = [length for length, _, _ in found]
    told = ", ".join(f"{name} {one}" for name, one in conditions(options.device, "mixed").items())
    print(f"{len(found)} hydrogen bonds of {min(lengths):.2f} to {max(lengths):.2f} A. {told}.")
    print("| potential | " + " | ".join(f"{bond:g} Å" for bond in LENGTHS) + " | pulls over |")
    print("|" + " --- |" * (len(LENGTHS) + 2))
    for name in options.potentials:
        results = evaluate_with(name, options.device)(systems, "a moved hydrogen")
        energies = np.array([result.energy for result in results])
        energies = energies.reshape(len(found), -1)
        energies -= energies[:, [1]]
        slopes = -np.diff(energies[:, 3:], axis=1) / np.diff(LENGTHS[3:])
        cells = [f"{energy:.2f}" for energy in energies.mean(0)]
        pulls = f"{(slopes.max(1) > 0.0).sum()} of {len(found)}, at most {slopes.max():+.1f}"
        print("| " + " | ".join([str(name), *cells, pulls]) + " |", flush=True)


if __name__ == "__main__":
    run_script(main)
