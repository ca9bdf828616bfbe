"""Water from OpenMM, with its own reporters.

python examples/02_water_openmm.py

Only the line that makes the Simulation differs from an OpenMM script: it names a potential
where a force field would stand. Between two reports the engine runs by itself, on a GPU as
replays of one graph.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from openmm import LangevinMiddleIntegrator, Vec3, app, unit

from mdgraph.drivers.openmm import Simulation
from mdgraph.io.structures import read_system

WATER = Path(__file__).resolve().parent.parent / "data" / "water27.extxyz"


def water() -> tuple[app.Topology, unit.Quantity]:
    """What `app.PDBFile` would read from a PDB file: molecules with bonds, a box, positions."""
    system = read_system(WATER)
    topology = app.Topology()
    chain = topology.addChain()
    for _ in range(0, len(system), 3):
        residue = topology.addResidue("HOH", chain)
        oxygen = topology.addAtom("O", app.element.oxygen, residue)
        for name in ("H1", "H2"):
            hydrogen = topology.addAtom(name, app.element.hydrogen, residue)
            topology.addBond(oxygen, hydrogen)
    topology.setPeriodicBoxVectors([Vec3(*row) for row in system.cell] * unit.angstrom)
    return topology, system.positions * unit.angstrom


def main() -> None:
    parser = argparse.ArgumentParser(description="Dynamics of 27 water molecules from OpenMM.")
    parser.add_argument("--steps", type=int, default=1000, help="of 0.5 fs")
    steps = parser.parse_args().steps

    topology, positions = water()
    integrator = LangevinMiddleIntegrator(
        300 * unit.kelvin, 2 / unit.picosecond, 0.5 * unit.femtoseconds
    )
    simulation = Simulation(topology, "water-pbe0", integrator)
    simulation.context.setPositions(positions)
    simulation.context.setVelocitiesToTemperature(300 * unit.kelvin)

    every = max(1, steps // 20)
    simulation.reporters += [
        app.StateDataReporter(
            sys.stdout, every, step=True, potentialEnergy=True, temperature=True, speed=True
        ),
        app.StateDataReporter("water.csv", every, time=True, temperature=True, totalEnergy=True),
        # Molecules are written whole, their centres within the box.
        app.DCDReporter("water.dcd", every),
        app.CheckpointReporter("water.chk", every),
    ]
    simulation.step(steps)

    simulation.reporters.clear()  # closes the files
    temperatures = np.genfromtxt("water.csv", delimiter=",")[:, 2]
    print(f"mean temperature: {temperatures.mean():.0f} K")


if __name__ == "__main__":
    main()
