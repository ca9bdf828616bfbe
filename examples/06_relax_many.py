"""Relaxes many structures at once: how far above its minima is liquid water?

python examples/06_relax_many.py --structures 1000

Snapshots of the liquid fall to their nearest minima, all side by side. Were the water
harmonic, the nine coordinates of a molecule would hold kT/2 each above them. The picture,
minima.png, shows the energies before and after.
"""

import argparse
import time
from pathlib import Path

import ase.io
import numpy as np
from ase import Atoms, units
from matplotlib.figure import Figure

from mdgraph.drivers.ase import Langevin, MDGraphCalculator, relax

WATER = Path(__file__).resolve().parent.parent / "data" / "water27.extxyz"


def snapshots(
    calculator: MDGraphCalculator, kelvin: float, number: int, every: int
) -> list[tuple[Atoms, float]]:
    """Structures of the liquid with their energies, so many steps of 0.5 fs apart."""
    atoms = ase.io.read(WATER)
    atoms.calc = calculator
    found: list[tuple[Atoms, float]] = []
    bath = {"temperature_K": kelvin, "friction": 1 / (100 * units.fs)}
    dynamics = Langevin(atoms, 0.5 * units.fs, **bath, seed=1)
    dynamics.run(4 * every)  # to settle
    dynamics.attach(lambda: found.append((atoms.copy(), atoms.get_potential_energy())), every)
    dynamics.run(number * every)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Minima below 27 molecules of liquid water.")
    parser.add_argument("--structures", type=int, default=8)
    parser.add_argument("--every", type=int, default=50, help="steps from one to the next")
    parser.add_argument("--steps", type=int, default=300, help="of the relaxation, at most")
    parser.add_argument("--temperature", type=float, default=300.0, help="K, of the liquid")
    arguments = parser.parse_args()

    calculator = MDGraphCalculator("water-pbe0")
    liquid = snapshots(calculator, arguments.temperature, arguments.structures, arguments.every)
    structures = [atoms for atoms, _ in liquid]
    before = np.array([energy for _, energy in liquid]) / 27
    start = time.perf_counter()
    rests = relax(structures, calculator, fmax=0.05, steps=arguments.steps)
    spent = time.perf_counter() - start
    print(f"{rests.sum()} of {len(rests)} structures rest after {spent:.1f} s")

    after = np.array([atoms.get_potential_energy() for atoms in structures]) / 27
    harmonic = 9 / 2 * units.kB * arguments.temperature
    print(f"The liquid is {1e3 * (before - after).mean():.0f} meV a molecule above its minima;")
    print(f"a harmonic one would be {1e3 * harmonic:.0f} meV above them.")
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    energies = [1e3 * (before - after.min()), 1e3 * (after - after.min())]
    axes.hist(energies, bins=20, label=["liquid", "its minima"])
    axes.set(xlabel="energy, meV a molecule", ylabel="structures")
    axes.legend()
    figure.savefig("minima.png", dpi=150)


if __name__ == "__main__":
    main()
