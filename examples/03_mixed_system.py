"""One water molecule by a potential among others by a force field, through openmm-ml.

python examples/03_mixed_system.py        (needs openmm-ml: pip install openmmml)

The potential takes the place of what the force field says within the molecule. A parameter
leads from one description (0) to the other (1); the example samples halfway, as a step of a
thermodynamic integration. The shipped potential knows molecules of the liquid alone, not a
single one; for results take one that was made for molecules, by its path.
"""

import argparse
from pathlib import Path

import numpy as np
from openmm import LangevinMiddleIntegrator, Vec3, app, unit
from openmmml import MLPotential

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


def energy_at(simulation: app.Simulation, scale: float) -> float:
    """kJ/mol, of the atoms where they are, between force field (0) and potential (1)."""
    simulation.context.setParameter("lambda_interpolate", scale)
    energy = simulation.context.getState(energy=True).getPotentialEnergy()
    return energy.value_in_unit(unit.kilojoules_per_mole)


def main() -> None:
    parser = argparse.ArgumentParser(description="A mixed system of 27 water molecules.")
    parser.add_argument("--potential", default="water-pbe0", help="path or shipped name")
    parser.add_argument("--steps", type=int, default=1000, help="of 0.5 fs")
    arguments = parser.parse_args()

    topology, positions = water()
    force_field = app.ForceField("amber14/tip3p.xml")
    plain = force_field.createSystem(
        topology,
        nonbondedMethod=app.PME,
        nonbondedCutoff=0.45 * unit.nanometers,
        rigidWater=False,
    )
    potential = MLPotential("mdgraph", modelPath=arguments.potential)
    mixed = potential.createMixedSystem(topology, plain, atoms=[0, 1, 2], interpolate=True)

    integrator = LangevinMiddleIntegrator(
        300 * unit.kelvin, 2 / unit.picosecond, 0.5 * unit.femtoseconds
    )
    simulation = app.Simulation(topology, mixed, integrator)
    simulation.context.setPositions(positions)
    simulation.context.setVelocitiesToTemperature(300 * unit.kelvin)

    # Reference energies make the difference large; they cancel where free energies are compared.
    start = energy_at(simulation, 1.0) - energy_at(simulation, 0.0)
    print(f"potential minus force field at the start: {start:.2f} kJ/mol")
    differences = []
    for _ in range(max(2, arguments.steps // 10)):
        energy_at(simulation, 0.5)
        simulation.step(10)
        differences.append(energy_at(simulation, 1.0) - energy_at(simulation, 0.0) - start)
    print(f"mean change of it halfway: {np.mean(differences):.2f} kJ/mol")


if __name__ == "__main__":
    main()
