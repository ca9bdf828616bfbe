"""Dynamics from Python, with a reporter that prints.

python examples/run_md.py
"""

from mdgraph.checkpoints import shipped_potentials
from mdgraph.engine import LangevinMiddle, Simulation
from mdgraph.io.structures import read_system


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
    start = read_system(shipped_potentials()["water-pbe0"] / "start.extxyz")
    integrator = LangevinMiddle(timestep=0.5, temperature=300.0, friction=1.0)
    simulation = Simulation(start, "water-pbe0", integrator, seed=1)
    simulation.reporters.append(Thermometer())
    simulation.run(100)


if __name__ == "__main__":
    main()
