"""Water from ASE: relaxes a small box, heats it to 300 K and averages over 300 K.

python examples/01_water_ase.py

Only the import differs from a script that runs on `ase.md` and `ase.optimize`: between two
calls of an observer the engine runs by itself, on a GPU as replays of one graph.
"""

import argparse

import numpy as np
from ase import Atoms, units
from ase.build import molecule

from mdgraph.drivers.ase import FIRE, Langevin, MDGraphCalculator

SPACING = 3.1
"""A, of molecules on a lattice at the density of the liquid."""


def water_box(molecules_an_edge: int) -> Atoms:
    """Molecules that all point the same way."""
    water = molecule("H2O", cell=np.full(3, SPACING), pbc=True)
    return water.repeat(molecules_an_edge)


def main() -> None:
    parser = argparse.ArgumentParser(description="Relaxes and heats a box of water.")
    parser.add_argument("--edge", type=int, default=3, help="molecules along each axis")
    parser.add_argument("--steps", type=int, default=1000, help="of dynamics, 0.5 fs each")
    arguments = parser.parse_args()

    atoms = water_box(arguments.edge)
    atoms.calc = MDGraphCalculator("water-pbe0")
    FIRE(atoms).run(fmax=0.05, steps=100)

    # From rest; the bath heats the water to 300 K within a few of its times of 50 fs.
    dynamics = Langevin(
        atoms,
        timestep=0.5 * units.fs,
        temperature_K=300,
        friction=1 / (50 * units.fs),
        fixcm=False,  # so that there are 3N degrees of freedom, as ASE counts them
        seed=1,
        trajectory="water.traj",
        logfile="-",
        loginterval=50,
    )
    temperatures = []
    dynamics.attach(lambda: temperatures.append(atoms.get_temperature()), interval=10)
    dynamics.run(arguments.steps)

    late = np.array(temperatures[len(temperatures) // 2 :])
    print(f"mean of the second half: {late.mean():.0f} K")


if __name__ == "__main__":
    main()
