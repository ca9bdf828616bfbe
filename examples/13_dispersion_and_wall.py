"""A sum of terms: ethanol by PBE with D3 dispersion, above a soft wall that is switched on.

python examples/13_dispersion_and_wall.py --steps 4000

The network of ethanol-pbe has no dispersion, so D3(BJ) is added to it (pip install 'mdgraph[d3]'),
and a wall below the molecule, whose weight grows from 0 to 1 in the first half of the run. All of
it is one potential and one step. The script prints the energy of each term and the work of the
switch, and draws both in terms.png. docs/terms.md lists all terms.
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from mdgraph import Simulation, load
from mdgraph.engine import LangevinMiddle, Thermo
from mdgraph.io.structures import read_system
from mdgraph.models import with_terms

ETHANOL = Path(__file__).resolve().parent.parent / "potentials" / "ethanol-pbe" / "start.extxyz"


class Energies:
    """A reporter that keeps the energies of all terms and the work of weights that change."""

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self.rows: list[Thermo] = []

    def report(self, simulation: Simulation) -> None:
        self.rows.append(simulation.observables())


def main() -> None:
    parser = argparse.ArgumentParser(description="Ethanol with dispersion and a wall.")
    parser.add_argument("--steps", type=int, default=1000, help="of 0.5 fs")
    parser.add_argument("--every", type=int, default=10, help="steps between prints")
    arguments = parser.parse_args()

    half = arguments.steps // 2
    terms = ["d3bj:pbe@12", "0:1*walls:zmin=0/2"]
    whole = with_terms(load("ethanol-pbe"), terms, ramp_steps=half)
    simulation = Simulation(
        read_system(ETHANOL), whole, LangevinMiddle(0.5, 300.0, friction=5.0), seed=1
    )
    energies = Energies(arguments.every)
    simulation.reporters.append(energies)
    simulation.run(arguments.steps)

    last = energies.rows[-1]
    for name, energy in last.term_energies.items():
        print(f"{name}: {float(energy[0]):.4f} eV")
    work = [float(row.switching["switching_work_eV"][0]) for row in energies.rows]
    lowest = float(simulation.state.places()[:, 2].min())
    print(f"{work[-1]:.4f} eV of work have switched the wall on; lowest atom at z = {lowest:.2f} A")
    figure = Figure(figsize=(6, 6), layout="constrained")
    upper, lower = figure.subplots(2, sharex=True)
    times = [row.time for row in energies.rows]
    for name in [*last.term_energies][1:]:
        values = np.array([float(row.term_energies[name][0]) for row in energies.rows])
        upper.plot(times, values - values[0], label=name)
    upper.set(ylabel="change of energy, eV")
    upper.legend(frameon=False)
    lower.plot(times, work)
    lower.set(xlabel="time, fs", ylabel="work of the switch, eV")
    figure.savefig("terms.png", dpi=150)


if __name__ == "__main__":
    main()
