"""Particles, bonds, boxes and units of OpenMM, and checks that lengths came with their unit.

Each constant is the size of one unit of OpenMM, so it multiplies OpenMM's numbers. The kJ/mol
is e N_A exactly; OpenMM's amu is 1 g/mol / N_A, which is that of CODATA 2018 to 3e-10, so kinetic
energies agree to as much.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import openmm
from numpy.typing import NDArray
from openmm import unit

from mdgraph.arguments import real_array
from mdgraph.engine.checks import check_lengths
from mdgraph.errors import InputError, name_some
from mdgraph.system import System, lower_triangular
from mdgraph.units import COVALENT_RADII, KILOJOULE_PER_MOLE, NANOMETRE, standard_masses

Array = NDArray[np.float64]


def reduced(cell: Any) -> tuple[Array, Array]:
    """The reduced box vectors of a lattice, and the rotation that leads to them.

    OpenMM wants a along x, b in the xy plane, and b and c to lean by at most half of the vectors
    before them. Every lattice has such vectors after a rotation. A box that has this form is
    returned as it is, with no rotation.

    Args:
        cell: (3, 3), one vector in each row, in any unit.

    Returns:
        The box (3, 3) in the unit of `cell`, and a rotation (3, 3), both float64. Positions,
        velocities and forces r become `r @ rotation`; its transpose turns them back.

    Raises:
        InputError: another shape, numbers that are not finite, or vectors without a volume.
    """
    box = real_array(cell)
    if box is None or box.shape != (3, 3) or not np.isfinite(box).all() or not np.linalg.det(box):
        raise InputError("The box is no three vectors that span a volume; give (3, 3) numbers.")
    if np.linalg.det(box) < 0.0:
        box[2] *= -1.0  # the same lattice, right-handed
    box, rotation = lower_triangular(box)
    a, b, c = box
    c -= b * np.round(c[1] / b[1])
    c -= a * np.round(c[0] / a[0])
    b -= a * np.round(b[0] / a[0])
    # The last digit may lie beyond the half that OpenMM allows.
    for vector, before, axis in ((b, a, 0), (c, a, 0), (c, b, 1)):
        vector[axis] = np.clip(vector[axis], -0.5 * before[axis], 0.5 * before[axis])
    return box, rotation


FORCE: Final = KILOJOULE_PER_MOLE / NANOMETRE
"""eV/A in one kJ/mol/nm."""


BAROSTATS: Final = (openmm.MonteCarloBarostat, openmm.MonteCarloMembraneBarostat)
"""Barostats of OpenMM that become stochastic cell rescaling."""


@dataclass(frozen=True)
class Particles:
    """The content of a Topology and a System, on the host, in mdgraph's units.

    Attributes:
        numbers: (N,) int64, atomic numbers.
        masses: (N,) float64, amu; standard masses for fixed atoms, whose mass in OpenMM is 0.
        fixed: indices of the atoms that do not move.
        bonds: (B, 2) int64, indices of atoms.
        box: (3, 3) A in OpenMM's reduced form, or None if nothing is periodic.
        barostat: of the System, one of `BAROSTATS`, or None.
        remove_momentum: steps from one removal of the momentum to the next; 0 for none.
        system: a copy of the System, or a new one with the masses alone.
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
    """Reads a Topology, and from a System masses, barostat and removal of momentum.

    Raises:
        InputError: atoms without an element, a System of other atoms or with another box, and
            everything in a System that the engine does not apply.
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
        check_no_box(own)
    else:
        _set_box(own, box)
    masses = np.array([own.getParticleMass(atom)._value for atom in range(len(numbers))])
    fixed = np.flatnonzero(masses == 0.0)
    masses[fixed] = standard_masses(numbers)[fixed]
    forces = own.getForces()
    barostats = [force for force in forces if isinstance(force, BAROSTATS) and force.getFrequency()]
    if barostats and box is None:
        raise InputError(
            f"The System has a {type(barostats[0]).__name__}, but the topology no periodic box; "
            "give it one with topology.setPeriodicBoxVectors."
        )
    if barostats and len(fixed):
        raise InputError(
            f"Atoms {name_some(fixed.tolist())} have mass 0, and fixed atoms would not follow a "
            "cell that varies; give them a mass, or leave the barostat out."
        )
    removals = [
        force.getFrequency() for force in forces if isinstance(force, openmm.CMMotionRemover)
    ]
    return Particles(
        numbers,
        masses,
        tuple(fixed.tolist()),
        np.array(bonds, dtype=np.int64).reshape(-1, 2),
        box,
        barostats[0] if barostats else None,
        min(removals, default=0),
        own,
    )


def numbers_of(topology: Any, atoms: Sequence[int] | None = None) -> NDArray[np.int64]:
    """Atomic numbers (n,) int64 of some atoms of a topology, or of all.

    Raises:
        InputError: atoms without an element.
    """
    elements = [atom.element for atom in topology.atoms()]
    chosen = range(len(elements)) if atoms is None else atoms
    missing = [atom for atom in chosen if elements[atom] is None]
    if missing:
        raise InputError(
            f"Atoms {name_some(missing)} of the topology have no element, as virtual sites have "
            "none; remove them."
        )
    return np.array([elements[atom].atomic_number for atom in chosen], dtype=np.int64)


def add_molecules(
    system: Any, bonds: Sequence[Sequence[int]], periodic: bool, group: int = 0
) -> None:
    """Adds bonds of zero strength, by which OpenMM knows the molecules that it wraps and scales.

    Args:
        system: an openmm.System; it stays as it is if there are no bonds.
        bonds: pairs of atoms.
        periodic: whether the force uses the box.
        group: of the force.
    """
    if not bonds:
        return
    force = openmm.HarmonicBondForce()
    force.setForceGroup(group)
    force.setUsesPeriodicBoundaryConditions(periodic)
    for first, second in bonds:
        force.addBond(first, second, 0.0, 0.0)
    system.addForce(force)


def check_no_box(system: Any) -> None:
    """Raises InputError for a System whose default box was set."""
    if not _has_initial_box(system):
        raise InputError(
            "A box is given, and the topology has none, so that nothing would be periodic; set "
            "it with topology.setPeriodicBoxVectors before the Simulation is made."
        )


def _check_applied(system: Any, atoms: int) -> None:
    """Raises InputError for the parts of a System that the engine does not apply."""
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
    applied = (openmm.CMMotionRemover, *BAROSTATS)
    names = [
        f"{type(force).__name__} (force {number})"
        for number, force in enumerate(system.getForces())
        if type(force) not in applied
    ]
    if names:
        raise InputError(
            f"The engine would not apply {name_some(names)} of the System; leave the System out, "
            "so that masses come from the topology, or mix force fields and potentials with "
            "openmm-ml."
        )
    if sum(isinstance(force, BAROSTATS) for force in system.getForces()) > 1:
        raise InputError("The System has more than one Monte Carlo barostat; leave one.")


def _box(topology: Any) -> Array | None:
    vectors = topology.getPeriodicBoxVectors()
    if vectors is None:
        return None
    box = np.array([list(row.value_in_unit(unit.nanometer)) for row in vectors]) * NANOMETRE
    # OpenMM has checked the form, but the last digit may have changed with the unit.
    return reduced(box)[0]


def _set_box(system: Any, box: Array) -> None:
    """Sets the box of the topology; raises InputError if the System has another one."""
    own = _default_box(system) * NANOMETRE
    if not _has_initial_box(system) and not np.allclose(own, box, rtol=0.0, atol=1e-4):
        raise InputError(
            "The default box of the System is not that of the topology; set both with "
            "setDefaultPeriodicBoxVectors and setPeriodicBoxVectors."
        )
    system.setDefaultPeriodicBoxVectors(*(box / NANOMETRE))


def _has_initial_box(system: Any) -> bool:
    """Whether the default box is the cube of 2 nm with which every System begins."""
    return np.array_equal(_default_box(system), 2.0 * np.eye(3))


def _default_box(system: Any) -> Array:
    """(3, 3) nm."""
    return np.array([list(row._value) for row in system.getDefaultPeriodicBoxVectors()])


LONG: Final = 4.0
TORN: Final = 2.0
"""A; positions came without their unit if half of all bonds are longer than LONG, and half of
them longer than TORN to the nearest image."""

MATTER: Final = (0.7, 1.3)
"""Distance to the nearest atom over the sum of covalent radii, in molecules and metals."""

GRID: Final = (3, 7)
"""Number of neighbors nearly as near as the nearest, for a gas on a simple grid; molecules have
fewer, and metals more."""

_FEWEST: Final = 8
"""Atoms; fewer may be apart on purpose."""

_SAMPLE: Final = (4, 16)
_DISTANCES: Final = 500_000
"""Fewest and most atoms whose neighbors are searched, and about how many distances in all."""

_NOBLE: Final = (2, 10, 18, 36, 54, 86)


def check_unit(structure: System, bonds: NDArray[np.int64]) -> None:
    """Refuses positions that came without their unit, since OpenMM reads plain numbers as nm.

    Args:
        structure: positions and box, A. A gas passes, and so does a molecule that a face of
            the box cuts.
        bonds: (B, 2) indices of atoms; without bonds, nearest neighbors are checked.

    Raises:
        InputError: bonds or neighbors ten times too far apart, or atoms closer to each other
            than `check_lengths` allows.
    """
    if len(bonds):
        _check_bonds(structure, bonds)
    else:
        _check_neighbors(structure)
    try:
        check_lengths([structure])
    except InputError:
        raise InputError(_crowded_text(structure)) from None


def _check_bonds(structure: System, bonds: NDArray[np.int64]) -> None:
    first, second = bonds.T
    vectors = structure.positions[second] - structure.positions[first]
    lengths = np.linalg.norm(vectors, axis=1)
    shortest = np.linalg.norm(_to_nearest_image(vectors, structure), axis=1)
    if np.median(lengths) > LONG and np.median(shortest) > TORN:
        raise InputError(
            f"Half of the topology's bonds are longer than {np.median(lengths):.3g} A; OpenMM "
            "reads plain numbers as nm, so give positions with their unit."
        )


def _check_neighbors(structure: System) -> None:
    """Refuses positions whose distances are those of matter only after division by ten."""
    if len(structure.numbers) < _FEWEST:
        return
    distances, sums = _distances(structure)
    if _is_matter(distances, sums):
        return
    # Either all lengths are ten times too large, or the box is right and positions leave it.
    wrong = _is_matter(0.1 * distances, sums) and not _is_grid(distances)
    if structure.pbc.any():
        fractions = structure.positions @ np.linalg.inv(structure.cell)
        tenth = structure.replace(positions=0.1 * structure.positions)
        wrong |= np.ptp(fractions, axis=0).max() > 2.0 and _is_matter(*_distances(tenth))
    if wrong:
        raise InputError(
            "Distances between atoms are those of matter at a tenth of the positions only; "
            "OpenMM reads plain numbers as nm, so give positions and box with their unit."
        )


def _distances(structure: System) -> tuple[Array, Array]:
    """Distances (K, N) from some atoms to all others, and the sums of covalent radii, A."""
    numbers, positions = structure.numbers, structure.positions
    count = len(numbers)
    sample = min(count, int(np.clip(_DISTANCES // count, *_SAMPLE)))
    chosen = np.arange(sample) * count // sample
    vectors = _to_nearest_image(positions - positions[chosen, None], structure)
    distances: Array = np.linalg.norm(vectors, axis=-1)
    distances[np.arange(sample), chosen] = np.inf
    noble = np.isin(numbers, _NOBLE)
    distances[noble | noble[chosen, None]] = np.inf  # noble gases have no bonds to judge by
    radii = COVALENT_RADII[numbers]
    return distances, radii + radii[chosen, None]


def _is_matter(distances: Array, sums: Array) -> bool:
    nearest = (distances / sums).min(axis=1)
    return bool(np.mean((nearest > MATTER[0]) & (nearest < MATTER[1])) >= 0.9)


def _is_grid(distances: Array) -> bool:
    near = distances < 1.3 * distances.min(axis=1, keepdims=True)
    neighbors = near.sum(axis=1)
    return bool(np.median(neighbors) >= GRID[0] and neighbors.max() <= GRID[1])


def _to_nearest_image(vectors: Array, structure: System) -> Array:
    if not structure.pbc.any():
        return vectors
    cell = structure.cell
    nearest: Array = vectors - np.round(vectors @ np.linalg.inv(cell)) @ cell
    return nearest


def _crowded_text(structure: System) -> str:
    room = f"{len(structure.numbers)} atoms span {_in_nm(np.ptp(structure.positions, axis=0))}"
    if structure.pbc.any():
        room += f" in a box of {_in_nm(np.linalg.norm(structure.cell, axis=1))}"
    return (
        f"{room}, closer to each other than in any matter; give positions and box with their "
        "unit, of which OpenMM reads plain numbers as nm, and not as fractions of the box."
    )


def _in_nm(lengths: Array) -> str:
    return " x ".join(f"{length / NANOMETRE:.3g}" for length in lengths) + " nm"
