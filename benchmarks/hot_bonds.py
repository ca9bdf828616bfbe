"""How hot a bond to hydrogen has to be to run away under a step, without a run.

    python benchmarks/hot_bonds.py LARGE SMALL --structures FILE --steps 1.75 1.4x3 --out FILE

The hydrogens of all structures are moved along their bonds, every --apart-th at a time, from 0.74
to 1.7 A with the rest where it is, which gives the force along each bond by both potentials. On
these curves an oscillator of the bond's reduced mass, with --friction, goes --ps by each of
--steps, from the least energy of its curve, with the kinetic energy of a column, towards and away
from the other atom, at and between the impulses. A bond that comes beyond an end of its curve has
run away: a hot bond leaves the lengths that either potential was trained at, where a wall that is
too stiff or a difference that is too large adds to its energy. Without motion of the rest it tells
which steps and potentials are worse, not how often a run ends.

The first table has the mean force of LARGE at some lengths, and what SMALL lacks of it, with their
scatter over bonds. A kT is 0.026 eV at 300 K: in a nanosecond of 64 water molecules some bond has
0.35 eV or more once.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from bond_stiffness import Bonds, bond_groups, bond_parser
from cases import conditions, run_script
from multiple_time_steps import Array, Steps
from scipy.interpolate import CubicSpline
from slow_observables import steps_of

from mdgraph.engine.batches import evaluate_with
from mdgraph.io.files import write_atomically
from mdgraph.io.structures import read_systems
from mdgraph.system import System
from mdgraph.units import KINETIC_ENERGY

LENGTHS: Final = np.append(np.arange(0.74, 1.29, 0.02), np.arange(1.3, 1.71, 0.05)).round(3)
"""A, where forces are computed."""

TOLD: Final = (0.76, 0.8, 0.84, 0.9, 1.1, 1.16, 1.2, 1.26, 1.3)
"""A, whose forces are printed."""

ENERGIES: Final = np.array([0.2, 0.3, 0.35, 0.4, 0.5, 0.6, 0.8, 1.0])
"""eV, of bonds."""

FINE: Final = np.linspace(LENGTHS[0], LENGTHS[-1], 400)
"""A, between which forces are linear."""

UNBROKEN: Final = 1.15
"""A, beyond which no bond is at rest."""

ALIGN: Final = 0.05
"""fs, of plain steps to a place between two impulses."""


def moved(
    systems: Sequence[System], apart: int, mass: float
) -> tuple[list[System], list[Bonds], Array]:
    """Copies with moved hydrogens; the bonds of each group; reduced masses, amu."""
    copies, groups, masses = [], [], []
    for system in systems:
        own = bond_groups(system, apart)
        bonded = np.bincount(np.concatenate([bonds.others for bonds in own]))
        for bonds in own:
            copies += [bonds.moved(system, (new - bonds.lengths)[:, None]) for new in LENGTHS]
            lost = bonded[bonds.others] * (mass - system.masses[bonds.hydrogens])
            other = system.masses[bonds.others] - lost
            masses.append(mass * other / (mass + other))
        groups += own
    return copies, groups, np.concatenate(masses)


def curves(name: str, copies: list[System], groups: list[Bonds], device: str) -> Array:
    """Forces on hydrogens along their bonds (bonds, lengths), eV/A."""
    results = evaluate_with(name, device)
    forces = [
        np.asarray(result.forces)
        for first in range(0, len(copies), 32)
        for result in results(copies[first : first + 32], "a moved hydrogen")
    ]
    found = np.array(forces).reshape(len(groups), len(LENGTHS), -1, 3)
    along = [
        (own[:, bonds.hydrogens] * bonds.directions).sum(-1).T
        for own, bonds in zip(found, groups, strict=True)
    ]
    return np.concatenate(along)


class Curve:
    """Forces of bonds between their lengths."""

    def __init__(self, forces: Array) -> None:
        self.values = CubicSpline(LENGTHS, forces, axis=1)(FINE)
        self.rows = np.arange(len(forces))[:, None]

    def __call__(self, lengths: Array) -> Array:
        place = np.clip((lengths - FINE[0]) / (FINE[1] - FINE[0]), 0.0, len(FINE) - 1.001)
        left = place.astype(int)
        share = place - left
        values: Array = self.values[self.rows, left] * (1.0 - share)
        return values + self.values[self.rows, left + 1] * share

    def rest(self) -> Array:
        """Lengths of the least energy of an unbroken bond (bonds,)."""
        inside = self.values[:, FINE < UNBROKEN]
        energies = np.cumsum(-0.5 * (inside[:, 1:] + inside[:, :-1]), axis=1)
        lengths: Array = FINE[1 + energies.argmin(1)]
        return lengths


def run_away(
    large: Array, small: Array, masses: Array, steps: Steps, ps: float = 0.4, friction: float = 5.0
) -> Array:
    """Share of bonds that leave their curves, for each of `ENERGIES`.

    Args:
        large, small: forces (bonds, lengths), eV/A.
        masses: amu, of bonds.
        steps: time steps; of plain ones, of the large potential alone.
        ps: of the motion.
        friction: 1/ps.
    """
    whole = Curve(large)
    inner = Curve(small) if steps.inner > 1 else whole
    mass = KINETIC_ENERGY * masses[:, None]
    half, decay = 0.5 * steps.timestep, np.exp(-1e-3 * friction * steps.timestep)
    shares = []
    for sign, part in ((1.0, 0.0), (-1.0, 0.0), (1.0, 0.5), (-1.0, 0.5)):
        r = np.repeat(whole.rest()[:, None], len(ENERGIES), 1)
        v = sign * np.sqrt(2.0 * ENERGIES / mass)
        for _ in range(round(part * steps.outer / ALIGN)):
            v = v + 0.5 * ALIGN * whole(r) / mass
            r = r + ALIGN * v
            v = v + 0.5 * ALIGN * whole(r) / mass
        lost = np.zeros(r.shape, dtype=bool)
        for _ in range(round(1e3 * ps / steps.outer)):
            v = v + 0.5 * steps.outer * (whole(r) - inner(r)) / mass
            for _ in range(steps.inner):
                v = v + half * inner(r) / mass
                r = r + half * v
                v = v * decay
                r = r + half * v
                v = v + half * inner(r) / mass
                lost |= (r < LENGTHS[0]) | (r > LENGTHS[-1])
            v = v + 0.5 * steps.outer * (whole(r) - inner(r)) / mass
            v = np.where(lost, 0.0, v)
        shares.append(lost.mean(0))
    found: Array = np.mean(shares, 0)
    return found


def tables(large: Array, small: Array, masses: Array, options: argparse.Namespace) -> list[str]:
    """The lines of both."""
    places = [int(np.abs(LENGTHS - length).argmin()) for length in TOLD]
    lines = ["| force, eV/A | " + " | ".join(f"{length:g} Å" for length in TOLD) + " |"]
    lines.append("|" + " --- |" * (len(TOLD) + 1))
    for name, forces in ((options.large, large), ("less that of the small one", large - small)):
        cells = [f"{forces[:, one].mean():+.2f} ± {forces[:, one].std():.2f}" for one in places]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    titles = " | ".join(f"{energy:g} eV" for energy in ENERGIES)
    lines += ["", f"| step, fs | outer, fs | {titles} |", "|" + " --- |" * (len(ENERGIES) + 2)]
    for text in options.steps:
        steps = steps_of(text)
        shares = run_away(large, small, masses, steps, options.ps, options.friction)
        cells = [f"{100.0 * share:.1f} %" for share in shares]
        lines.append(f"| {steps.text()} | {steps.outer:g} | " + " | ".join(cells) + " |")
    return lines


def arguments() -> argparse.Namespace:
    parser = bond_parser(__doc__)
    parser.add_argument("small", help="inner potential")
    parser.add_argument("--steps", nargs="+", default=["1.75", "1.4x3"], help="fs, as 1.4x3")
    parser.add_argument("--count", type=int, default=1, help="structures that are taken")
    parser.add_argument("--ps", type=float, default=0.4, help="of each bond")
    parser.add_argument("--out", type=Path, help="file of the tables")
    return parser.parse_args()


def main() -> None:
    """Prints both tables."""
    options = arguments()
    systems = read_systems(options.structures)[: options.count]
    copies, groups, masses = moved(systems, options.apart, options.hydrogen_mass)
    large, small = (
        curves(name, copies, groups, options.device) for name in (options.large, options.small)
    )
    told = ", ".join(f"{name} {one}" for name, one in conditions(options.device, "mixed").items())
    lines = [f"{len(masses)} bonds. {told}.", "", *tables(large, small, masses, options), ""]
    text = "\n".join(lines)
    if options.out:
        write_atomically(options.out, text)
    print(text)


if __name__ == "__main__":
    run_script(main)
