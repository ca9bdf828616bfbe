"""What a potential asks for to pull a hydrogen off a heavier atom: energies along every such bond.

    python benchmarks/stretching.py POTENTIAL STRUCTURE [--element C] [--frames 10] [--to 2.3]
        [--json]

Frames of dynamics hold bonds of some length and pairs of second neighbors, and nothing between.
A potential that fits them may still let a bond come apart, which is seen at higher temperatures.
In frames of STRUCTURE, evenly spaced, each hydrogen whose nearest heavy atom is of the element is
moved along that bond, with all else at rest; one on oxygen or nitrogen may go to another. Printed
are, in eV above the lowest point, the median over all these bonds and the least, at every second
length, then: "barrier", the least that a bond asks for on its way; "dip", the largest drop on that
way, the mean over bonds; the deepest dip, of which bond of which frame, and where the drop begins;
and how many bonds drop by more than 0.3 eV. A real bond takes 4 to 5 eV and has no dip; at 600 K
one of 0.3 eV lasts for picoseconds.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from cases import device_argument, run_script
from evaluated import evaluation
from numpy.typing import NDArray

from mdgraph.elements import NUMBERS, SYMBOLS
from mdgraph.errors import InputError
from mdgraph.io.structures import read_systems
from mdgraph.system import System

FROM, STEP = 1.0, 0.05
"""A; the first length of a bond, and from one to the next."""

HYDROGEN = 1


DEEP = 0.3
"""eV; a dip worth counting."""


def bonds_in(system: System, element: int) -> list[tuple[int, int]]:
    """Each hydrogen whose nearest heavy atom is of the element, and that atom."""
    found = []
    heavy = np.flatnonzero(system.numbers != HYDROGEN)
    for hydrogen in np.flatnonzero(system.numbers == HYDROGEN):
        distance = np.linalg.norm(system.positions[hydrogen] - system.positions[heavy], axis=1)
        nearest = heavy[distance.argmin()]
        if system.numbers[nearest] == element:
            found.append((int(hydrogen), int(nearest)))
    return found


def stretched(system: System, lengths: NDArray[np.float64], element: int) -> list[System]:
    """Copies with each hydrogen of such a bond in turn at each of the lengths."""
    copies = []
    for hydrogen, heavy in bonds_in(system, element):
        bond = system.positions[hydrogen] - system.positions[heavy]
        for length in lengths:
            positions = system.positions.copy()
            positions[hydrogen] = system.positions[heavy] + length * bond / np.linalg.norm(bond)
            copies.append(system.replace(positions=positions))
    return copies


def curves(systems: list[System], options: argparse.Namespace, lengths: Any) -> Any:
    """(bonds, lengths) eV, each bond above its lowest point."""
    element = NUMBERS[options.element]
    copies = [copy for system in systems for copy in stretched(system, lengths, element)]
    found = evaluation(options.potential, options.device)(copies, "stretched")
    energies = np.array([one.energy for one in found])
    rows = energies.reshape(-1, len(lengths))
    return rows - rows.min(axis=1, keepdims=True)


def drops(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """(bonds, lengths) eV below what an energy rose to after its lowest point."""
    after = np.arange(rows.shape[1]) >= rows.argmin(axis=1)[:, None]
    risen = np.maximum.accumulate(np.where(after, rows, 0.0), axis=1)
    found: NDArray[np.float64] = np.where(after, risen - rows, 0.0)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("potential")
    parser.add_argument("structure", type=Path)
    parser.add_argument("--element", default="C", help="that the hydrogen is pulled off")
    parser.add_argument("--frames", type=int, default=10)
    parser.add_argument("--to", type=float, default=2.3, help="A")
    parser.add_argument("--device", type=device_argument, default="auto")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    systems = read_systems(options.structure)
    every = np.unique(np.linspace(0, len(systems) - 1, options.frames).astype(int))
    chosen = [systems[place] for place in every]
    if options.element not in NUMBERS:
        raise InputError(f"--element {options.element} is no symbol; give one such as C.")
    bonds = [
        (int(frame), *(f"{SYMBOLS[system.numbers[atom]]} {atom}" for atom in bond))
        for frame, system in zip(every, chosen, strict=True)
        for bond in bonds_in(system, NUMBERS[options.element])
    ]
    if not bonds:
        raise InputError(
            f"{options.structure} has no bond of {options.element} to H; give organic molecules."
        )
    lengths = np.arange(FROM, options.to + STEP / 2, STEP)
    rows = curves(chosen, options, lengths)
    fallen = drops(rows)
    each = fallen.max(axis=1)
    worst = int(each.argmax())
    begin = int(rows[worst, : fallen[worst].argmax() + 1].argmax())
    barrier, dip = float(rows.max(axis=1).min()), float(each.mean())
    told = {"length_A": lengths, "median_eV": np.median(rows, 0), "least_eV": rows.min(0)}
    if options.json:
        found: dict[str, Any] = {name: values.round(3).tolist() for name, values in told.items()}
        found |= {"bonds": len(rows), "barrier_eV": round(barrier, 3), "dip_eV": round(dip, 3)}
        found |= {"deepest_dip_eV": round(float(each.max()), 3), "deepest_of": bonds[worst]}
        found |= {"deepest_from_A": round(float(lengths[begin]), 2)}
        print(json.dumps(found | {"deep": int((each > DEEP).sum())}))
        return
    for name, values in told.items():
        print(f"{name:<10}" + "".join(f"{value:6.2f}" for value in values[::2]))
    print(f"{len(rows)} bonds, barrier {barrier:.2f} eV, dip {dip:.2f} eV")
    frame, hydrogen, heavy = bonds[worst]
    print(
        f"deepest dip {each.max():.2f} eV, beyond {lengths[begin]:.2f} A, of {hydrogen} on {heavy} "
        f"in frame {frame}; {(each > DEEP).sum()} bonds drop by more than {DEEP} eV"
    )


if __name__ == "__main__":
    run_script(main)
