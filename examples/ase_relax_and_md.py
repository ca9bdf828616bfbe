"""Relaxes a small box of water with ASE, then heats it to 300 K with Langevin dynamics.

python examples/ase_relax_and_md.py
"""

import argparse

import numpy as np
from ase import Atoms, units
from ase.build import molecule
from ase.io.trajectory import Trajectory
from ase.md.langevin import Langevin
from ase.optimize import FIRE

from mdgraph.drivers.ase import MDGraphCalculator

SPACING = 3.1
"""A, of molecules on a lattice at the density of the liquid."""


def water_box(molecules_an_edge: int) -> Atoms:
    """Molecules that all point the same way."""
    water = molecule("H2O", cell=np.full(3, SPACING), pbc=True)
    return water.repeat(molecules_an_edge)


def main() -> None:
    parser = argparse.ArgumentParser(description="Relaxes and heats a box of water.")
    parser.add_argument("--edge", type=int, default=3, help="molecules along each axis")
    parser.add_argument("--steps", type=int, default=300, help="of dynamics, 0.5 fs each")
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
        fixcm=False,
        rng=np.random.default_rng(1),
    )

    def report() -> None:
        time = dynamics.get_time() / units.fs
        energy = atoms.get_potential_energy()
        pressure = -atoms.get_stress()[:3].mean() / units.GPa
        temperature = atoms.get_temperature()
        print(f"{time:6.1f} fs {energy:14.4f} eV {temperature:6.1f} K {pressure:7.2f} GPa")

    dynamics.attach(report, interval=50)
    with Trajectory("water.traj", "w", atoms) as trajectory:
        dynamics.attach(trajectory, interval=10)
        dynamics.run(arguments.steps)


if __name__ == "__main__":
    main()
