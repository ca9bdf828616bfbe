"""Steered dynamics: the work of turning the hydroxyl group of ethanol, and its free energy.

python examples/12_steered_torsion.py --molecules 64 --steps 20000

Molecules run side by side. After they have settled under a spring, its centre moves from the gauche
to the trans form, and each of them takes its own way. The mean work is at least the free energy
between both ends; the exponential mean (Jarzynski, 10.1103/PhysRevLett.78.2690) is the free energy
itself, as far as the lowest works are sampled. Slower pulling brings both together. The work is
drawn in work.png.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from mdgraph.biases import Dihedral, MovingBias
from mdgraph.engine import LangevinMiddle, Simulation
from mdgraph.io.structures import read_system
from mdgraph.units import BOLTZMANN

ETHANOL = Path(__file__).resolve().parent.parent / "potentials" / "ethanol-pbe" / "start.extxyz"
KT = BOLTZMANN * 300.0
GAUCHE, TRANS = np.radians(-60.0), np.radians(-180.0)


class Work:
    """A reporter that keeps the centre of the spring and the work on each molecule."""

    interval = 10

    def __init__(self) -> None:
        self.rows: list[torch.Tensor] = []

    def report(self, simulation: Simulation) -> None:
        self.rows.append(simulation.observables().biases["moving.work"])


def main() -> None:
    parser = argparse.ArgumentParser(description="Pulls a torsion of ethanol.")
    parser.add_argument("--molecules", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2000, help="of 0.5 fs, for the way")
    parser.add_argument("--settle", type=int, default=500, help="steps before the spring moves")
    arguments = parser.parse_args()

    end = arguments.settle + arguments.steps
    simulation = Simulation(
        [read_system(ETHANOL)] * arguments.molecules,
        "ethanol-pbe",
        LangevinMiddle(0.5, 300.0, friction=5.0),
        seed=1,
        variables={"torsion": Dihedral([0, 1, 2, 3])},
        biases=[
            MovingBias(
                "torsion", steps=[arguments.settle, end], centres=[GAUCHE, TRANS], stiffness=2.0
            )
        ],
    )
    simulation.run(arguments.settle)
    recorded = Work()
    simulation.reporters.append(recorded)
    simulation.run(arguments.steps)

    work = torch.stack(recorded.rows).numpy()
    last = work[-1]
    free_energy = -KT * np.log(np.exp(-(last - last.min()) / KT).mean()) + last.min()
    torsions = np.degrees(simulation.observables().biases["torsion"].numpy())
    print(f"torsions at the end: {', '.join(f'{angle:.0f}' for angle in torsions)} degrees")
    print(f"mean work: {1e3 * last.mean():.0f} +- {1e3 * last.std() / len(last) ** 0.5:.0f} meV")
    print(f"free energy by the exponential mean: {1e3 * free_energy:.0f} meV")
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    shares = Work.interval * np.arange(1, len(work) + 1) / arguments.steps
    centres = np.degrees(GAUCHE + shares * (TRANS - GAUCHE))
    axes.plot(centres, 1e3 * work, color="tab:gray", linewidth=0.8)
    axes.plot(centres, 1e3 * work.mean(1), color="tab:blue", label="mean")
    axes.set(xlabel="centre of the spring, degrees", ylabel="work, meV")
    axes.legend(frameon=False)
    figure.savefig("work.png", dpi=150)


if __name__ == "__main__":
    main()
