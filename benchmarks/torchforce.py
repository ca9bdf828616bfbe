"""Checks exported modules under the real TorchForce; run by `.ci/torchforce`.

    python benchmarks/torchforce.py

For OpenMM's Reference and CPU platforms, with and without `setOutputsForces`: energy and forces
of 27 water molecules by the shipped potential against the engine in float64; 200 steps of
VerletIntegrator against velocity Verlet of the engine from the same start; and a list that is
too short, which must stop the run. Prints a line each, and ends with status 1 where a relative
difference exceeds 1e-5.
"""

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import torch  # first: OpenMM's plugin needs libraries that torch has loaded

# isort: split
import numpy as np
import openmm
import openmmtorch
from command_line import run_script
from openmm import unit

from mdgraph import System, load
from mdgraph.drivers.torchforce import export_torchforce
from mdgraph.engine import Simulation, VelocityVerlet
from mdgraph.io.structures import read_system

WATER = Path(__file__).resolve().parent.parent / "data" / "water27.extxyz"
EV = 1.602176634e-19 * 6.02214076e23 / 1e3  # kJ/mol
TIMESTEP = 0.5  # fs
STEPS = 200
TOLERANCE = 1e-5


def context_of(water: System, path: Path, forces: bool, platform: str) -> openmm.Context:
    system = openmm.System()
    for mass in water.masses:
        system.addParticle(mass)
    system.setDefaultPeriodicBoxVectors(*(water.cell / 10.0))
    force = openmmtorch.TorchForce(str(path))
    force.setUsesPeriodicBoundaryConditions(True)
    force.setOutputsForces(forces)
    system.addForce(force)
    integrator = openmm.VerletIntegrator(TIMESTEP * unit.femtoseconds)
    where = openmm.Platform.getPlatformByName(platform)
    context = openmm.Context(system, integrator, where)
    context.setPositions(water.positions / 10.0)
    return context


def relative(found: np.ndarray, right: np.ndarray) -> float:
    return float(np.abs(found - right).max() / np.abs(right).max())


def checked(water: System, folder: Path, forces: bool, platform: str) -> list[float]:
    """Relative differences of energy, forces and of what 200 steps moved."""
    potential = load("water-pbe0")
    path = folder / f"water-{forces}-{platform}.pt"
    export_torchforce(potential, water, path, forces=forces)
    options = {"device": "cpu", "precision": "double", "check": False, "temperature": 0.0}
    engine = Simulation(water, potential, VelocityVerlet(TIMESTEP), **options)
    context = context_of(water, path, forces, platform)
    state = context.getState(getEnergy=True, getForces=True)
    energy = state.getPotentialEnergy()._value / EV
    found = state.getForces(asNumpy=True)._value / EV / 10.0
    differences = [
        abs(energy / float(engine.state.energy[0]) - 1.0),
        relative(found, engine.state.forces.numpy()),
    ]
    # OpenMM's velocities are half a step behind its positions; both start from rest at t = 0.
    start = engine.state.forces.numpy() / water.masses[:, None] * 9.648533e-3
    context.setVelocities(-0.5 * TIMESTEP * start * 100.0)
    context.getIntegrator().step(STEPS)
    engine.run(STEPS)
    moved = context.getState(getPositions=True).getPositions(asNumpy=True)._value * 10.0
    differences.append(
        relative(moved - water.positions, engine.state.positions.numpy() - water.positions)
    )
    return differences


def stops(water: System, folder: Path, platform: str) -> bool:
    """Whether a list that is too short stops the run."""
    wide = water.replace(positions=water.positions * 3.0, cell=water.cell * 3.0)
    path = folder / f"short-{platform}.pt"
    export_torchforce(load("water-pbe0"), wide, path)
    context = context_of(water, path, False, platform)
    try:
        context.getIntegrator().step(3)
        energy = context.getState(getEnergy=True).getPotentialEnergy()._value
    except openmm.OpenMMException:
        return True
    return bool(np.isnan(energy))


def main() -> None:
    names = ("openmm", "openmmtorch")
    print(f"torch {torch.__version__},", ", ".join(f"{name} {version(name)}" for name in names))
    water = read_system(WATER).replace(velocities=np.zeros((81, 3)))
    good = True
    with tempfile.TemporaryDirectory() as folder:
        for platform in ("Reference", "CPU"):
            for forces in (False, True):
                found = checked(water, Path(folder), forces, platform)
                good = good and max(found) < TOLERANCE
                kind = "forces of the module" if forces else "forces by autograd"
                energy, force, moved = found
                print(
                    f"{platform:9s} {kind:21s} energy {energy:.1e}, forces {force:.1e}, "
                    f"{STEPS} steps {moved:.1e}"
                )
            halted = stops(water, Path(folder), platform)
            good = good and halted
            print(f"{platform:9s} a list too short: {'stops' if halted else 'GOES ON'}")
    if not good:
        sys.exit("TorchForce differs from the engine")


if __name__ == "__main__":
    run_script(main)
