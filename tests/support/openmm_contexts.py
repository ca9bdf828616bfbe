"""Contexts of OpenMM, their energies and forces, and a force field of flexible water."""

import numpy as np
import openmm
from openmm import app, unit
from openmm_water import masses, positions


def context_of(
    system: openmm.System, places: np.ndarray | None = None, platform: str = "Reference"
) -> openmm.Context:
    integrator = openmm.VerletIntegrator(0.5 * unit.femtoseconds)
    context = openmm.Context(system, integrator, openmm.Platform.getPlatformByName(platform))
    context.setPositions((positions() if places is None else places) * unit.angstrom)
    return context


def looked(context: openmm.Context) -> tuple[float, np.ndarray]:
    state = context.getState(energy=True, forces=True)
    return state.getPotentialEnergy()._value, state.getForces(asNumpy=True)._value


def force_field(top: app.Topology) -> openmm.System:
    """Flexible water with charges, as a force field would describe it."""
    system = openmm.System()
    system.setDefaultPeriodicBoxVectors(*top.getPeriodicBoxVectors())
    for mass in masses(top.getNumResidues()):
        system.addParticle(mass)
    bonds, angles = openmm.HarmonicBondForce(), openmm.HarmonicAngleForce()
    charges = openmm.NonbondedForce()
    charges.setNonbondedMethod(openmm.NonbondedForce.PME)
    charges.setCutoffDistance(0.35)
    for start in range(0, top.getNumAtoms(), 3):
        for charge, sigma, epsilon in ((-0.8, 0.3, 0.6), (0.4, 0.1, 0.0), (0.4, 0.1, 0.0)):
            charges.addParticle(charge, sigma, epsilon)
        for other in (1, 2):
            bonds.addBond(start, start + other, 0.1, 4e5)
            charges.addException(start, start + other, 0.0, 1.0, 0.0)
        charges.addException(start + 1, start + 2, 0.0, 1.0, 0.0)
        angles.addAngle(start + 1, start, start + 2, 1.82, 400.0)
    for force in (bonds, angles, charges):
        system.addForce(force)
    return system
