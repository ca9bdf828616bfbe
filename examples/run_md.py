"""Dynamics from Python, with a reporter that prints.

python examples/run_md.py
"""

import argparse
from pathlib import Path

from mdgraph.engine import LangevinMiddle, Simulation
from mdgraph.io.structures import read_system

WATER = Path(__file__).resolve().parent.parent / "data" / "water27.extxyz"


class Thermometer:
    """Anything with an interval and a `report` is a reporter."""

    interval = 10

    def report(self, simulation: Simulation) -> None:
        seen = simulation.observables()
        print(
            f"{seen.time:6.1f} fs  {float(seen.temperature[0]):6.1f} K  "
            f"{float(seen.potential_energy[0]):.3f} eV"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Dynamics of 27 water molecules.")
    parser.add_argument("--steps", type=int, default=200, help="of 0.5 fs")
    arguments = parser.parse_args()

    integrator = LangevinMiddle(timestep=0.5, temperature=300.0, friction=1.0)
    simulation = Simulation(read_system(WATER), "water-pbe0", integrator, seed=1)
    simulation.reporters.append(Thermometer())
    simulation.run(arguments.steps)


if __name__ == "__main__":
    main()
