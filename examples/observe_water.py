"""What a simulation can record within its steps: averages, g(r), diffusion.

python examples/observe_water.py

Writes a table, and a picture of each record, into the folder where it is run.
"""

import argparse
from pathlib import Path

from mdgraph.analysis.plots import recorded_figure
from mdgraph.engine import (
    Averages,
    MeanSquaredDisplacement,
    RadialDistributions,
    Simulation,
    StochasticVelocityRescaling,
    VelocityAutocorrelation,
)
from mdgraph.io.structures import read_system

WATER = Path(__file__).resolve().parent.parent / "data" / "water27.extxyz"
TIMESTEP = 0.5  # fs
EQUILIBRATION = 200  # steps that are not recorded


def main() -> None:
    parser = argparse.ArgumentParser(description="Records observables of 27 water molecules.")
    parser.add_argument("--steps", type=int, default=2000, help="of 0.5 fs")
    arguments = parser.parse_args()

    window = max(2, arguments.steps // 10)
    begin = EQUILIBRATION
    records = {
        "averages": Averages(start=begin),
        "rdf": RadialDistributions(every=10, start=begin),
        "msd": MeanSquaredDisplacement(window, every=2, start=begin),
        "vacf": VelocityAutocorrelation(window, every=2, start=begin),
    }
    # It rescales all velocities alike and so leaves diffusion nearly as it is.
    integrator = StochasticVelocityRescaling(TIMESTEP, 300.0)
    simulation = Simulation(
        read_system(WATER), "water-pbe0", integrator, seed=1, observe=list(records.values())
    )
    simulation.run(begin + arguments.steps)
    for name, record in records.items():
        result = record.result()
        result.save(Path(f"{name}.csv"), overwrite=True)
        recorded_figure(result).savefig(f"{name}.png", dpi=150)
    print(records["averages"].result().text())


if __name__ == "__main__":
    main()
