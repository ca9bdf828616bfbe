"""Checks and times exported modules under the real TorchForce; run by `.ci/torchforce`.

    python benchmarks/torchforce.py

For OpenMM's Reference and CPU platforms, with and without `setOutputsForces`: energy and forces
of 27 water molecules by the shipped potential against the engine in float64; 200 steps of
VerletIntegrator against velocity Verlet of the engine from the same start; energy and forces by
random weights that know charges, in a box and isolated, for a charge of 1 e as a global parameter
of the force; and a list that is too short, which must stop the run. Prints a line each, and ends
with status 1 where a relative difference exceeds 1e-5.

Two lines more: milliseconds of a step of 27 and of 216 molecules, by VerletIntegrator with
TorchForce on the CPU platform, forces by autograd, and by velocity Verlet of the engine, both in
`mixed` precision on the same CPU.
"""

import sys
import tempfile
from importlib.metadata import version
from itertools import product
from pathlib import Path

import torch  # first: OpenMM's plugin needs libraries that torch has loaded

# isort: split
import numpy as np
import openmm
import openmmtorch
from cases import hardware, run_script
from openmm import unit

from mdgraph import System, load
from mdgraph.drivers.torchforce import export_torchforce
from mdgraph.engine import Simulation, VelocityVerlet
from mdgraph.io.structures import from_ase, read_system, to_ase
from mdgraph.models import (
    CoulombConfig,
    RadialBasisConfig,
    ReadoutConfig,
    TensorNetConfig,
    TensorNetPotential,
)
from mdgraph.runs.bench import Repeated, milliseconds

WATER = Path(__file__).resolve().parent.parent / "data" / "water27.extxyz"
EV = 1.602176634e-19 * 6.02214076e23 / 1e3  # kJ/mol
TIMESTEP = 0.5  # fs
STEPS = 200
TOLERANCE = 1e-5
CHARGE = 1.0  # e
SECONDS = 5.0
"""For each time, roughly."""


def context_of(
    water: System, path: Path, forces: bool, platform: str, charge: float | None = None
) -> openmm.Context:
    """A Context at the positions of the water, with a global parameter where a charge is given."""
    periodic = bool(water.pbc.any())
    system = openmm.System()
    for mass in water.masses:
        system.addParticle(mass)
    if periodic:
        system.setDefaultPeriodicBoxVectors(*(water.cell / 10.0))
    force = openmmtorch.TorchForce(str(path))
    force.setUsesPeriodicBoundaryConditions(periodic)
    force.setOutputsForces(forces)
    if charge is not None:
        force.addGlobalParameter("charge", 0.0)
    system.addForce(force)
    integrator = openmm.VerletIntegrator(TIMESTEP * unit.femtoseconds)
    where = openmm.Platform.getPlatformByName(platform)
    context = openmm.Context(system, integrator, where)
    context.setPositions(water.positions / 10.0)
    if charge is not None:
        context.setParameter("charge", charge)
    return context


def engine_of(
    water: System, potential: TensorNetPotential, precision: str = "double"
) -> Simulation:
    options = {"device": "cpu", "precision": precision, "check": False, "temperature": 0.0}
    return Simulation(water, potential, VelocityVerlet(TIMESTEP), **options)


def relative(forces: np.ndarray, right: np.ndarray) -> float:
    return float(np.abs(forces - right).max() / np.abs(right).max())


def compared(context: openmm.Context, engine: Simulation) -> list[float]:
    """Relative differences of energy and forces."""
    state = context.getState(getEnergy=True, getForces=True)
    energy = state.getPotentialEnergy()._value / EV
    forces = state.getForces(asNumpy=True)._value / EV / 10.0
    return [
        abs(energy / float(engine.state.energy[0]) - 1.0),
        relative(forces, engine.state.forces.numpy()),
    ]


def moving(water: System, folder: Path, forces: bool, platform: str) -> list[float]:
    """Relative differences of energy, forces and of what 200 steps moved."""
    potential = load("water-pbe0")
    path = folder / f"water-{forces}-{platform}.pt"
    export_torchforce(potential, water, path, forces=forces)
    engine = engine_of(water, potential)
    context = context_of(water, path, forces, platform)
    differences = compared(context, engine)
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


def charged(
    water: System, folder: Path, forces: bool, platform: str, periodic: bool
) -> list[float]:
    """Relative differences of energy and forces of an ion, exported without its charge."""
    torch.manual_seed(4)
    config = TensorNetConfig(
        architecture="tensornet2",
        species=(1, 8),
        channels=16,
        layers=1,
        cutoff=5.0,
        radial_basis=RadialBasisConfig(number=16),
        readout=ReadoutConfig(hidden=(16,)),
        charge_channels=4,
        coulomb=CoulombConfig(cutoff=6.0 if periodic else None),
    )
    potential = TensorNetPotential(config)
    if not periodic:
        water = water.replace(cell=np.zeros((3, 3)), pbc=np.zeros(3, dtype=bool))
    path = folder / f"charged-{forces}-{platform}-{periodic}.pt"
    export_torchforce(potential, water, path, forces=forces)
    context = context_of(water, path, forces, platform, CHARGE)
    return compared(context, engine_of(water.replace(charge=CHARGE), potential))


def stops(water: System, folder: Path, forces: bool, platform: str) -> bool:
    """Whether a list that is too short stops the run."""
    wide = water.replace(positions=water.positions * 3.0, cell=water.cell * 3.0)
    path = folder / f"short-{forces}-{platform}.pt"
    export_torchforce(load("water-pbe0"), wide, path, forces=forces)
    context = context_of(water, path, forces, platform)
    try:
        context.getIntegrator().step(3)
        energy = context.getState(getEnergy=True).getPotentialEnergy()._value
    except openmm.OpenMMException:
        return True
    return bool(np.isnan(energy))


def step(run: Repeated) -> float:
    """ms; the first steps compile what TorchScript has seen by then."""
    run(3)
    return milliseconds(run, torch.device("cpu"), SECONDS)


def timed(water: System, folder: Path) -> tuple[float, float]:
    """ms of a step by TorchForce on the CPU platform, and by the engine."""
    potential = load("water-pbe0")
    path = folder / f"timed-{len(water)}.pt"
    export_torchforce(potential, water, path)
    context = context_of(water, path, False, "CPU")
    engine = engine_of(water, potential, "mixed")
    return step(context.getIntegrator().step), step(engine.run)


def main() -> None:
    names = ("openmm", "openmmtorch")
    print(f"torch {torch.__version__},", ", ".join(f"{name} {version(name)}" for name in names))
    water = read_system(WATER).replace(velocities=np.zeros((81, 3)))
    good = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for platform, forces in product(("Reference", "CPU"), (False, True)):
            kind = f"{platform:9s} {'forces of the module' if forces else 'forces by autograd':20s}"
            energy, force, moved = differences = moving(water, folder, forces, platform)
            print(f"{kind} energy {energy:.1e}, forces {force:.1e}, {STEPS} steps {moved:.1e}")
            for periodic in (True, False):
                energy, force = ion = charged(water, folder, forces, platform, periodic)
                where = "in a box" if periodic else "isolated"
                print(f"{kind} energy {energy:.1e}, forces {force:.1e} of an ion {where}")
                differences += ion
            halted = stops(water, folder, forces, platform)
            print(f"{kind} a list too short: {'stops' if halted else 'GOES ON'}")
            good = good and halted and max(differences) < TOLERANCE
        print(hardware(torch.device("cpu")))
        for box in (water, from_ase(to_ase(water).repeat(2))):
            torchforce, engine = timed(box, folder)
            print(f"{len(box)} atoms: TorchForce {torchforce:.2f} ms, engine {engine:.2f} ms")
    if not good:
        sys.exit("TorchForce differs from the engine")


if __name__ == "__main__":
    run_script(main)
