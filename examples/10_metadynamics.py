"""Metadynamics: the free energy of the hydroxyl group of ethanol as it turns.

python examples/10_metadynamics.py --walkers 16 --steps 20000

Molecules run side by side as walkers that fill one grid with hills, at the torsion angle where each
of them is. The hills, as many as there are, add up to the free energy, which the script prints and
draws in torsion.png. docs/biases.md has the equations; the same run from the command line writes
its hills for PLUMED.
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from mdgraph.biases import Dihedral, Metadynamics
from mdgraph.engine import LangevinMiddle, Simulation
from mdgraph.io.structures import read_system

ETHANOL = Path(__file__).resolve().parent.parent / "potentials" / "ethanol-pbe" / "start.extxyz"


def main() -> None:
    parser = argparse.ArgumentParser(description="Free energy of a torsion of ethanol.")
    parser.add_argument("--walkers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2000, help="of 0.5 fs")
    parser.add_argument("--every", type=int, default=50, help="steps between hills")
    arguments = parser.parse_args()

    walkers = [read_system(ETHANOL)] * arguments.walkers
    simulation = Simulation(
        walkers,
        "ethanol-pbe",
        LangevinMiddle(0.5, 300.0, friction=5.0),
        seed=1,
        variables={"torsion": Dihedral([0, 1, 2, 3])},
        biases=[
            Metadynamics(
                "torsion",
                sigma=np.radians(15.0),
                height=0.01,
                every=arguments.every,
                bias_factor=8.0,
                shared=True,
            )
        ],
    )
    simulation.run(arguments.steps)

    biases = simulation.calculation.biases
    assert biases is not None
    hills = biases.metadynamics()["metadynamics"]
    degrees = np.degrees(hills.grid.axis(0))
    free_energy = -1e3 * hills.factor * hills.potential()[0]
    free_energy -= free_energy.min()
    count = arguments.walkers * (arguments.steps // arguments.every)
    print(f"{count} hills of {arguments.walkers} walkers.")
    for name, angle in {"gauche": 60.0, "eclipsed": 120.0, "trans": 180.0}.items():
        near = np.abs(np.abs(degrees) - angle) < 10.0
        print(f"{name}: {free_energy[near].mean():.0f} meV")
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(degrees, free_energy)
    axes.set(xlabel="torsion C-C-O-H, degrees", ylabel="free energy, meV", xlim=(-180, 180))
    figure.savefig("torsion.png", dpi=150)


if __name__ == "__main__":
    main()
