"""How much of the stiffness of bonds to hydrogen a small potential lacks, and what that biases.

    python benchmarks/bond_stiffness.py LARGE SMALL ... --structures FILE --steps 1.4x3 2.1x2
    python benchmarks/bond_stiffness.py LARGE SMALL --structures FILE --times 1.012 --out FILE

Hydrogens are moved along their bonds by --move both ways, --apart of them from one another in the
order of the atoms at a time; k is the slope of the force. The share d/k of the large potential's k
that the small one lacks is left to impulses, and lets the configurational temperature of the
element err: for an oscillator under Langevin dynamics the error is known exactly, and the columns
of --steps have its mean over the bonds, weighted by k as that temperature is. It comes on top of
the bias of the inner steps, which bonds have as they are not harmonic, and two biases of opposite
signs cancel: --times F writes the small potential with all forces of its network F times as large.
"""

import argparse
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import ase.geometry
import numpy as np
from cases import conditions, device_argument, run_script
from multiple_time_steps import Array, Steps
from numpy.typing import NDArray
from slow_observables import steps_of

from mdgraph import load
from mdgraph.checkpoints import save
from mdgraph.engine.batches import evaluate_with
from mdgraph.errors import InputError
from mdgraph.io.structures import read_systems
from mdgraph.system import System
from mdgraph.units import KINETIC_ENERGY

LONGEST: Final = 1.25
"""A, of a bond that is measured."""


@dataclass(frozen=True, eq=False)
class Bonds:
    """Some bonds to hydrogen of a structure.

    Attributes:
        hydrogens: (n,) int64.
        others: (n,) int64, the nearest other atom of each.
        lengths: (n,) A.
        directions: (n, 3), unit vectors from the others to the hydrogens.
    """

    hydrogens: NDArray[np.int64]
    others: NDArray[np.int64]
    lengths: Array
    directions: Array

    def moved(self, system: System, by: float | Array) -> System:
        """The structure with longer bonds, by A of all or of each, (n, 1)."""
        positions = system.positions.copy()
        positions[self.hydrogens] += by * self.directions
        return system.replace(positions=positions, velocities=None)


def bond_groups(system: System, apart: int, longest: float = math.inf) -> list[Bonds]:
    """All bonds to hydrogen below a length, A, in groups; see `--apart`."""
    hydrogens, heavy = np.flatnonzero(system.numbers == 1), np.flatnonzero(system.numbers != 1)
    vectors, distances = ase.geometry.get_distances(
        system.positions[heavy], system.positions[hydrogens], system.cell, system.pbc
    )
    nearest, groups = distances.argmin(0), []
    for first in range(min(apart, len(hydrogens))):
        chosen = np.arange(first, len(hydrogens), apart)
        chosen = chosen[distances[nearest[chosen], chosen] < longest]
        if len(chosen):
            own = nearest[chosen]
            lengths = distances[own, chosen]
            directions = vectors[own, chosen] / lengths[:, None]
            groups.append(Bonds(hydrogens[chosen], heavy[own], lengths, directions))
    return groups


@dataclass(frozen=True, eq=False)
class StretchedBonds:
    """A structure in which some bonds to hydrogen are longer, and in which they are shorter.

    Attributes:
        longer, shorter: the structures.
        bonds: those that are moved.
        masses: (n,) amu, of the other atoms.
    """

    longer: System
    shorter: System
    bonds: Bonds
    masses: Array


def stretched(system: System, move: float, apart: int) -> list[StretchedBonds]:
    """All bonds to hydrogen, in groups; see `--apart`."""
    return [
        StretchedBonds(
            bonds.moved(system, move),
            bonds.moved(system, -move),
            bonds,
            system.masses[bonds.others],
        )
        for bonds in bond_groups(system, apart, LONGEST)
    ]


def stiffness(name: str, groups: list[StretchedBonds], move: float, device: str) -> Array:
    """eV/A^2 of all bonds."""
    systems = [system for group in groups for system in (group.longer, group.shorter)]
    results = iter(evaluate_with(name, device)(systems, "a moved hydrogen"))
    slopes = []
    for group in groups:
        bonds = group.bonds
        longer, shorter = (np.asarray(next(results).forces)[bonds.hydrogens] for _ in range(2))
        slopes.append(-((longer - shorter) * bonds.directions).sum(1) / (2.0 * move))
    return np.concatenate(slopes)


def configurational_error(omega: float, share: float, steps: Steps, friction: float) -> float:
    """Relative error of <k x^2> at outer steps of an oscillator under Langevin dynamics.

    For slow ones it is (1 - 1/n^2) (omega times outer step)^2 / 6 of the share, n inner steps.

    `omega` in 1/fs, `friction` in 1/ps; `share` of k acts as impulses. The covariance C of position
    and velocity is the fixed point of C = A C A' + N, of linear maps.
    """
    half, decay = 0.5 * steps.timestep, math.exp(-1e-3 * friction * steps.timestep)
    drift = np.array([[1.0, half], [0.0, 1.0]])
    noise = drift @ np.diag([0.0, 1.0 - decay**2]) @ drift.T
    through, spread = np.eye(2), np.zeros((2, 2))
    for step in range(steps.inner):
        impulses = share * (steps.inner if step == 0 else 0.0)
        force = omega**2 * (1.0 - share + impulses)
        kick = np.array([[1.0, 0.0], [-force * steps.timestep, 1.0]])
        one = drift @ np.diag([1.0, decay]) @ drift @ kick
        through, spread = one @ through, one @ spread @ one.T + noise
    fixed = np.linalg.solve(np.eye(4) - np.kron(through, through), spread.ravel())
    return float(omega**2 * fixed[0] - 1.0)


def bond_parser(text: str) -> argparse.ArgumentParser:
    """A command line about bonds to hydrogen, without the small potential and its steps."""
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    parser.add_argument("large", help="potential whose dynamics these are")
    parser.add_argument("--structures", type=Path, required=True)
    parser.add_argument("--hydrogen-mass", type=float, default=3.024, help="amu")
    parser.add_argument("--friction", type=float, default=5.0, help="1/ps")
    parser.add_argument("--apart", type=int, default=8, help="every n-th hydrogen at a time")
    parser.add_argument("--device", type=device_argument, default="auto")
    return parser


def arguments() -> argparse.Namespace:
    parser = bond_parser(__doc__)
    parser.add_argument("small", nargs="+", help="inner potentials")
    parser.add_argument("--steps", nargs="*", default=["1.4x3"], help="fs, as 1.4x3")
    parser.add_argument("--move", type=float, default=0.03, help="A")
    parser.add_argument("--times", type=float, help="factor of the forces of SMALL in --out")
    parser.add_argument("--out", type=Path, help="file of the scaled potential, .safetensors")
    options = parser.parse_args()
    if (options.times is None) != (options.out is None):
        parser.error("--times and --out belong together")
    if options.times is not None and len(options.small) > 1:
        parser.error("--times takes one small potential")
    return options


def main() -> None:
    """Prints a line for each small potential, and writes the scaled one."""
    options = arguments()
    names = list(options.small)
    if options.times is not None:
        scaled = load(names[0])
        scaled.scale.mul_(options.times)
        save(scaled, options.out)
        names.append(str(options.out))
    groups = [
        group
        for system in read_systems(options.structures)
        for group in stretched(system, options.move, options.apart)
    ]
    if not groups:
        raise InputError(f"No hydrogen of '{options.structures}' has a bond.")
    large = stiffness(options.large, groups, options.move, options.device)
    other = np.concatenate([group.masses for group in groups])
    reduced = other * options.hydrogen_mass / (other + options.hydrogen_mass)
    if large.min() <= 0.0:
        raise InputError(f"A bond of '{options.structures}' is none to {options.large}: k <= 0.")
    omega = np.sqrt(large / (KINETIC_ENERGY * reduced))
    told = ", ".join(f"{name} {one}" for name, one in conditions(options.device, "mixed").items())
    print(
        f"{len(large)} bonds of {large.mean():.1f} eV/A^2, which scatter by {large.std():.1f}; "
        f"their period is {2.0 * math.pi / omega.mean():.1f} fs. {told}."
    )
    print("| small potential | d/k, % | scatter, % | ", end="")
    print(" | ".join(f"T conf at {text} fs, %" for text in options.steps) + " |")
    print("|" + " --- |" * (3 + len(options.steps)))
    for name in names:
        lacking = large - stiffness(name, groups, options.move, options.device)
        unit = 100.0 / large.mean()
        error = 2.0 * unit * lacking.std() / math.sqrt(len(lacking))
        cells = [f"{unit * lacking.mean():+.2f} ± {error:.2f}", f"{unit * lacking.std():.2f}"]
        for text in options.steps:
            steps = steps_of(text)
            errors = [
                configurational_error(own, share, steps, options.friction)
                for own, share in zip(omega, lacking / large, strict=True)
            ]
            cells.append(f"{unit * float((large * errors).mean()):+.2f}")
        print("| " + " | ".join([str(name), *cells]) + " |", flush=True)


if __name__ == "__main__":
    run_script(main)
