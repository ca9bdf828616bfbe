"""Umbrella sampling: the free energy of the hydroxyl group of ethanol by MBAR.

python examples/11_umbrella_sampling.py --windows 18 --steps 40000

Molecules run side by side, each with its torsion angle under a spring of its own, and neighboring
windows exchange their springs. MBAR joins their samples to the free energy without springs, which
the script prints with its errors and draws in umbrellas.png. docs/free_energies.md has the same
from the command line, which also finds where equilibrium begins and how far apart samples have to
be; here the first fifth is left out, and errors are too small where samples are correlated.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from mdgraph.analysis.free_energies import MOLAR_BOLTZMANN, profile_grid
from mdgraph.analysis.umbrellas import UmbrellaWindow, join_windows
from mdgraph.biases import Dihedral, HarmonicBias
from mdgraph.engine import LangevinMiddle, Simulation
from mdgraph.engine.replicas import UmbrellaExchange
from mdgraph.io.structures import read_system
from mdgraph.units import BOLTZMANN

ETHANOL = Path(__file__).resolve().parent.parent / "potentials" / "ethanol-pbe" / "start.extxyz"
KELVIN = 300.0
STIFFNESS = 0.6
"""eV/rad^2; windows 20 degrees apart overlap well."""


class Torsions:
    """A reporter that keeps the torsion in each window."""

    def __init__(self, exchange: UmbrellaExchange, interval: int) -> None:
        self.interval = interval
        self.rows: list[torch.Tensor] = []
        self._exchange = exchange

    def report(self, simulation: Simulation) -> None:
        angles = simulation.observables().biases["torsion"]
        self.rows.append(self._exchange.by_window(angles[None])[0].clone())


def main() -> None:
    parser = argparse.ArgumentParser(description="Umbrella sampling of a torsion of ethanol.")
    parser.add_argument("--windows", type=int, default=18)
    parser.add_argument("--steps", type=int, default=4000, help="of 0.5 fs")
    parser.add_argument("--every", type=int, default=20, help="steps between samples")
    parser.add_argument("--exchange", type=int, default=100, help="steps between exchanges")
    parser.add_argument("--first", type=float, default=-180.0, help="degrees, of the windows")
    parser.add_argument("--last", type=float, default=160.0, help="degrees, of the windows")
    arguments = parser.parse_args()

    centres = np.radians(np.linspace(arguments.first, arguments.last, arguments.windows))
    simulation = Simulation(
        [read_system(ETHANOL)] * arguments.windows,
        "ethanol-pbe",
        LangevinMiddle(0.5, KELVIN, friction=5.0),
        seed=1,
        variables={"torsion": Dihedral([0, 1, 2, 3])},
        biases=[HarmonicBias("torsion", centre=centres[:, None], stiffness=STIFFNESS)],
    )
    exchange = UmbrellaExchange(simulation, arguments.exchange)
    torsions = Torsions(exchange, arguments.every)
    simulation.reporters += [exchange, torsions]
    simulation.run(arguments.steps)

    rows = torch.stack(torsions.rows).numpy()
    rows = rows[len(rows) // 5 :]
    apart = np.remainder(rows.T[:, None] - centres[:, None] + np.pi, 2.0 * np.pi) - np.pi
    energies = 0.5 * STIFFNESS / (BOLTZMANN * KELVIN) * apart**2  # (window of sample, window, n)
    windows = [
        UmbrellaWindow(str(number), (centre,), rows[:, number, None], energies[number])
        for number, centre in enumerate(centres.tolist())
    ]
    grid = profile_grid(["torsion"], rows.reshape(-1, 1), [(-np.pi, np.pi)])
    joined = join_windows(windows, grid, MOLAR_BOLTZMANN * KELVIN, resamples=20)

    rates = [f"{rate:.0%}" for rate in exchange.record.rates()]
    print(f"{rows.size} samples in {arguments.windows} windows; exchanges: {' '.join(rates)}")
    for well in joined.profile.wells():
        angle = np.degrees(well.place[0])
        print(f"well at {angle:.0f} degrees: {well.height:.2f} +- {well.error:.2f} kJ/mol")
    figure = Figure(figsize=(6, 6), layout="constrained")
    upper, lower = figure.subplots(2, sharex=True)
    degrees = np.degrees(grid.centers[0])
    upper.plot(degrees, joined.profile.values - np.nanmin(joined.profile.values))
    upper.set(ylabel="free energy, kJ/mol")
    for column in rows.T:
        lower.hist(np.degrees(column), bins=60, range=(-180, 180), histtype="step")
    lower.set(xlabel="torsion C-C-O-H, degrees", ylabel="samples", xlim=(-180, 180))
    figure.savefig("umbrellas.png", dpi=150)


if __name__ == "__main__":
    main()
