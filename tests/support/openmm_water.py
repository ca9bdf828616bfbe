"""Water as OpenMM sees it, for the tests of its drivers."""

from typing import Any

import numpy as np
import openmm
import torch
from openmm import app, unit

from mdgraph.drivers.openmm import Simulation
from mdgraph.models import (
    CoulombConfig,
    RadialBasisConfig,
    ReadoutConfig,
    TensorNetConfig,
    TensorNetPotential,
)
from mdgraph.system import System

EV = 1.602176634e-19 * 6.02214076e23 / 1e3
"""kJ/mol."""

MOLECULE = np.array([[0.0, 0.0, 0.0], [0.96, 0.0, 0.0], [-0.24, 0.93, 0.0]])
EDGE = 7.5
"""A; nm and back without rounding."""


def topology(molecules: int = 4, box: Any = EDGE, bonds: bool = True) -> app.Topology:
    """Molecules one after the other; a box by its edge or vectors in A, or none."""
    found = app.Topology()
    chain = found.addChain()
    for _ in range(molecules):
        residue = found.addResidue("HOH", chain)
        atoms = [
            found.addAtom(name, app.element.get_by_symbol(name[0]), residue)
            for name in ("O", "H1", "H2")
        ]
        if bonds:
            found.addBond(atoms[0], atoms[1])
            found.addBond(atoms[0], atoms[2])
    if box is not None:
        vectors = np.eye(3) * box if np.ndim(box) == 0 else np.asarray(box)
        found.setPeriodicBoxVectors([openmm.Vec3(*row) for row in vectors] * unit.angstrom)
    return found


def positions(molecules: int = 4, seed: int = 0) -> np.ndarray:
    """(3 molecules, 3) A, on a grid of 3.5 A, slightly bent."""
    generator = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid(*[np.arange(2)] * 3, indexing="ij"), -1).reshape(-1, 1, 3)
    places = 3.5 * grid[:molecules] + MOLECULE + 1.0
    return (places + generator.normal(scale=0.03, size=places.shape)).reshape(-1, 3)


def velocities(molecules: int = 4, seed: int = 1) -> np.ndarray:
    """(3 molecules, 3) nm/ps, with a momentum."""
    return np.random.default_rng(seed).normal(scale=0.5, size=(3 * molecules, 3))


def charged(cutoff: float | None) -> TensorNetPotential:
    """A random potential that knows charges, with Coulomb energy to a cutoff or over all pairs."""
    torch.manual_seed(4)
    config = TensorNetConfig(
        architecture="tensornet2",
        species=(1, 8),
        channels=8,
        layers=1,
        cutoff=3.0,
        radial_basis=RadialBasisConfig(number=8),
        readout=ReadoutConfig(hidden=(8,)),
        charge_channels=2,
        coulomb=CoulombConfig(cutoff=cutoff),
    )
    return TensorNetPotential(config)


def verlet() -> openmm.VerletIntegrator:
    return openmm.VerletIntegrator(0.5 * unit.femtoseconds)


def langevin(seed: int = 5) -> openmm.LangevinMiddleIntegrator:
    integrator = openmm.LangevinMiddleIntegrator(
        300.0 * unit.kelvin, 2.0 / unit.picosecond, 0.5 * unit.femtoseconds
    )
    integrator.setRandomNumberSeed(seed)
    return integrator


def masses(molecules: int = 4) -> list[float]:
    return [atom.element.mass._value for atom in topology(molecules).atoms()]


def bare_system(molecules: int = 4) -> openmm.System:
    system = openmm.System()
    for mass in masses(molecules):
        system.addParticle(mass)
    return system


def simulation(
    potential: Any, integrator: Any, system: Any = None, *, start: bool = True, **options: Any
) -> Simulation:
    """Four molecules in a periodic box, with positions and velocities."""
    top = options.pop("topology", None) or topology()
    made = Simulation(
        top, potential, integrator, system, device="cpu", check=False, **{"skin": 0.3} | options
    )
    if start:
        made.context.setPositions(positions() * unit.angstrom)
        made.context.setVelocities(velocities())
    return made


def structure(box: np.ndarray | None = None) -> System:
    """The same start for the engine alone, by the same rounding."""
    return System(
        numbers=[8, 1, 1] * 4,
        positions=positions() * 0.1 * 10.0 if box is None else box,
        cell=np.eye(3) * EDGE,
        pbc=[True] * 3,
        masses=masses(),
        velocities=velocities() * 0.01,
    )


def shown(made: Simulation, **what: bool) -> Any:
    return made.context.getState(**what)
