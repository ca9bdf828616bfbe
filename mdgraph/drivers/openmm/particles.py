"""What a Topology and a System of OpenMM say about the atoms, and what they may not."""

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import openmm
from numpy.typing import NDArray
from openmm import unit

from mdgraph.drivers.openmm.boxes import Array, reduced
from mdgraph.drivers.openmm.units import NANOMETRE
from mdgraph.elements import standard_masses
from mdgraph.errors import InputError, name_some


@dataclass(frozen=True)
class Particles:
    """The atoms, on the host, in mdgraph's units.

    Attributes:
        numbers: (N,) atomic numbers.
        masses: (N,) amu; standard ones for fixed atoms, whose mass OpenMM gives as 0.
        fixed: atoms that stay where they are.
        bonds: (B, 2) atoms.
        box: (3, 3) A in OpenMM's form, or None without periodic directions.
        barostat: MonteCarloBarostat of the System, or None.
        remove_momentum: steps from one removal of the momentum to the next, or 0.
        system: a System of one's own, with everything that was given.
    """

    numbers: NDArray[np.int64]
    masses: Array
    fixed: tuple[int, ...]
    bonds: NDArray[np.int64]
    box: Array | None
    barostat: Any
    remove_momentum: int
    system: Any


def particles_of(topology: Any, system: Any = None) -> Particles:
    """Reads a Topology, and a System where masses, a barostat or a removal of momentum are given.

    Raises:
        InputError: atoms without an element, a System of other atoms or of another box, and
            everything in a System that the engine would not apply.
    """
    numbers = numbers_of(topology)
    box = _box(topology)
    bonds = [(bond[0].index, bond[1].index) for bond in topology.bonds()]
    if system is None:
        own = openmm.System()
        for atom in topology.atoms():
            own.addParticle(atom.element.mass)
    else:
        own = copy.deepcopy(system)
        _check_applied(own, len(numbers))
    if box is None:
        check_boxless(own)
    else:
        _set_box(own, box)
    masses = np.array([own.getParticleMass(n)._value for n in range(len(numbers))])
    fixed = np.flatnonzero(masses == 0.0)
    masses[fixed] = standard_masses(numbers)[fixed]
    forces = own.getForces()
    barostats = [
        one for one in forces if isinstance(one, openmm.MonteCarloBarostat) and one.getFrequency()
    ]
    if barostats and box is None:
        raise InputError(
            "The System has a MonteCarloBarostat, but the topology no periodic box; give it one "
            "with topology.setPeriodicBoxVectors."
        )
    if barostats and len(fixed):
        raise InputError(
            f"Atoms {name_some(fixed.tolist())} have mass 0, and fixed atoms would not follow a "
            "cell that varies; give them a mass, or leave the barostat out."
        )
    removers = [one.getFrequency() for one in forces if isinstance(one, openmm.CMMotionRemover)]
    return Particles(
        numbers,
        masses,
        tuple(fixed.tolist()),
        np.array(bonds, dtype=np.int64).reshape(-1, 2),
        box,
        barostats[0] if barostats else None,
        min(removers, default=0),
        own,
    )


def numbers_of(topology: Any) -> NDArray[np.int64]:
    """Atomic numbers (N,) of a topology; raises InputError for atoms without an element."""
    elements = [atom.element for atom in topology.atoms()]
    missing = [number for number, element in enumerate(elements) if element is None]
    if missing:
        raise InputError(
            f"Atoms {name_some(missing)} of the topology have no element, as virtual sites have "
            "none; remove them."
        )
    return np.array([element.atomic_number for element in elements], dtype=np.int64)


def check_boxless(system: Any) -> None:
    """Raises InputError for a default box other than that of every System of OpenMM."""
    if not _has_openmms_box(system):
        raise InputError(
            "A box is given, and the topology has none, so that nothing would be periodic; set "
            "it with topology.setPeriodicBoxVectors before the Simulation is made."
        )


def _check_applied(system: Any, atoms: int) -> None:
    """Refuses by name what the engine would not do."""
    if system.getNumParticles() != atoms:
        raise InputError(
            f"The System has {system.getNumParticles()} particles, the topology {atoms} atoms; "
            "give those that belong together."
        )
    sites = [number for number in range(atoms) if system.isVirtualSite(number)]
    if sites:
        raise InputError(
            f"Particles {name_some(sites)} of the System are virtual sites, which a potential of "
            "atoms does not know; remove them."
        )
    if system.getNumConstraints():
        first, second, _ = system.getConstraintParameters(0)
        raise InputError(
            f"The System has {system.getNumConstraints()} constraints, the first between atoms "
            f"{first} and {second}, and the engine keeps none; make it with constraints=None and "
            "rigidWater=False."
        )
    taken = (openmm.CMMotionRemover, openmm.MonteCarloBarostat)
    # Exact types: the barostats for single axes and for membranes derive from the same base.
    names = [
        f"{type(force).__name__} (force {number})"
        for number, force in enumerate(system.getForces())
        if type(force) not in taken
    ]
    if names:
        raise InputError(
            f"The engine would not apply {name_some(names)} of the System; leave the System out, "
            "so that masses come from the topology, or mix force fields and potentials with "
            "openmm-ml."
        )
    if sum(isinstance(force, openmm.MonteCarloBarostat) for force in system.getForces()) > 1:
        raise InputError("The System has more than one MonteCarloBarostat; leave one.")


def _box(topology: Any) -> Array | None:
    vectors = topology.getPeriodicBoxVectors()
    if vectors is None:
        return None
    given = np.array([list(row.value_in_unit(unit.nanometer)) for row in vectors]) * NANOMETRE
    # OpenMM has checked the form, which the change of unit may have cost a last digit.
    return reduced(given)[0]


def _set_box(system: Any, box: Array) -> None:
    """The box of the topology, unless the System was given another one."""
    own = _default_box(system) * NANOMETRE
    if not _has_openmms_box(system) and not np.allclose(own, box, rtol=0.0, atol=1e-4):
        raise InputError(
            "The default box of the System is not that of the topology; set both with "
            "setDefaultPeriodicBoxVectors and setPeriodicBoxVectors."
        )
    system.setDefaultPeriodicBoxVectors(*(box / NANOMETRE))


def _has_openmms_box(system: Any) -> bool:
    return np.array_equal(_default_box(system), 2.0 * np.eye(3))


def _default_box(system: Any) -> Array:
    """(3, 3) nm."""
    return np.array([list(row._value) for row in system.getDefaultPeriodicBoxVectors()])
