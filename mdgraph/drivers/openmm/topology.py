"""Particles, bonds, boxes and units of OpenMM, and the checks of their units.

Factors multiply OpenMM's numbers. The kJ/mol is e N_A exactly; OpenMM's amu is 1 g/mol / N_A,
which is that of CODATA 2018 to 3e-10, so kinetic energies agree to as much.
"""

import copy
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import openmm
from ase.data import covalent_radii
from numpy.typing import NDArray
from openmm import unit

from mdgraph.arguments import real_array
from mdgraph.engine.checks import check_lengths
from mdgraph.errors import InputError, name_some
from mdgraph.system import System
from mdgraph.units import ELEMENTARY_CHARGE, standard_masses

Array = NDArray[np.float64]


def reduced(cell: Any) -> tuple[Array, Array]:
    """The box by which OpenMM knows a lattice, and how to turn what lies in it.

    OpenMM wants a along x, b in the xy plane, and vectors no more than half of an earlier
    one to a side. Every lattice has such vectors once it is turned. A box that has the form
    comes back as it is, with no rotation.

    Args:
        cell: (3, 3), one vector a row, in any unit; three that span a volume.

    Returns:
        The box (3, 3), and a rotation (3, 3): positions, velocities and forces r become
        `r @ rotation`, and come back by its transpose.

    Raises:
        InputError: no such vectors.
    """
    box = real_array(cell)
    if box is None or box.shape != (3, 3) or not np.isfinite(box).all() or not np.linalg.det(box):
        raise InputError("The box is no three vectors that span a volume; give (3, 3) numbers.")
    rotation = np.eye(3)
    if np.linalg.det(box) < 0.0:
        box[2] *= -1.0  # the same lattice, right-handed
    if np.triu(box, 1).any() or (box.diagonal() < 0.0).any():
        rotation, upper = np.linalg.qr(box.T)
        signs = np.sign(upper.diagonal())
        rotation, box = rotation * signs, np.tril((upper * signs[:, None]).T)
    a, b, c = box
    c -= b * np.round(c[1] / b[1])
    c -= a * np.round(c[0] / a[0])
    b -= a * np.round(b[0] / a[0])
    # The last digit may lie beyond the half that OpenMM allows.
    for vector, before, axis in ((b, a, 0), (c, a, 0), (c, b, 1)):
        vector[axis] = np.clip(vector[axis], -0.5 * before[axis], 0.5 * before[axis])
    return box, rotation


def whole(positions: Array, cell: Array, bonds: NDArray[np.int64]) -> Array:
    """Positions with each molecule in one piece, by lattice vectors.

    Args:
        positions: (N, 3), anywhere; they come back unchanged where no bond is torn.
        cell: (3, 3).
        bonds: (B, 2) atoms.
    """
    first, second = bonds.T
    shifts = np.round((positions[second] - positions[first]) @ np.linalg.inv(cell))
    if not shifts.any():
        return positions
    neighbors: dict[int, list[tuple[int, Array]]] = {}
    for (one, other), shift in zip(bonds.tolist(), shifts, strict=True):
        neighbors.setdefault(one, []).append((other, -shift))
        neighbors.setdefault(other, []).append((one, shift))
    offsets: dict[int, Array] = {}
    for root in neighbors:
        if root in offsets:
            continue
        offsets[root] = np.zeros(3)
        queue = deque([root])
        while queue:
            atom = queue.popleft()
            for other, shift in neighbors[atom]:
                if other not in offsets:
                    offsets[other] = offsets[atom] + shift
                    queue.append(other)
    moved = positions.copy()
    moved[list(offsets)] += np.array(list(offsets.values())) @ cell
    return moved


AVOGADRO: Final = 6.02214076e23
"""1/mol."""

NANOMETRE: Final = 10.0
"""A."""

PICOSECOND: Final = 1000.0
"""fs."""

SPEED: Final = NANOMETRE / PICOSECOND
"""A/fs in one nm/ps."""

KILOJOULE_PER_MOLE: Final = 1e3 / (ELEMENTARY_CHARGE * AVOGADRO)
"""eV."""

FORCE: Final = KILOJOULE_PER_MOLE / NANOMETRE
"""eV/A in one kJ/mol/nm."""


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


LONG: Final = 4.0
TORN: Final = 2.0
"""A; where half of all bonds are longer, and half of them to the nearest image, positions came
without their unit."""

MATTER: Final = (0.7, 1.3)
"""Distances to the nearest atom, over the sum of covalent radii, in molecules and metals."""

GRID: Final = (3, 7)
"""Neighbors nearly as near as the nearest, in a gas on a simple grid; molecules have fewer of
them, and metals more."""

_FEWEST: Final = 8
"""Atoms; fewer of them may well be pulled apart on purpose."""

_LOOKED_AT: Final = (4, 16)
_DISTANCES: Final = 500_000
"""Fewest and most atoms whose neighbors are looked for, and distances between them."""

_NOBLE: Final = (2, 10, 18, 36, 54, 86)


def check_unit(structure: System, bonds: NDArray[np.int64]) -> None:
    """Refuses lengths that no matter has, as OpenMM reads plain numbers as nm.

    Args:
        structure: positions and box, A. A molecule that a face of the box cuts is no fault,
            nor is a gas.
        bonds: (B, 2) atoms; without any, nearest neighbors are looked at.

    Raises:
        InputError: bonds or neighbors ten times too far apart, or atoms that are closer to each
            other than `check_lengths` allows.
    """
    if len(bonds):
        _check_bonds(structure, bonds)
    else:
        _check_neighbors(structure)
    try:
        check_lengths(structure)
    except InputError:
        raise InputError(_crowded(structure)) from None


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
    """Refuses positions a tenth of which are matter, while they themselves are not."""
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
    looked_at = min(count, int(np.clip(_DISTANCES // count, *_LOOKED_AT)))
    chosen = np.arange(looked_at) * count // looked_at
    vectors = _to_nearest_image(positions - positions[chosen, None], structure)
    distances: Array = np.linalg.norm(vectors, axis=-1)
    distances[np.arange(looked_at), chosen] = np.inf
    noble = np.isin(numbers, _NOBLE)
    distances[noble | noble[chosen, None]] = np.inf  # they have no bonds by which to judge
    radii = covalent_radii[numbers]
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


def _crowded(structure: System) -> str:
    room = f"{len(structure.numbers)} atoms span {_in_nm(np.ptp(structure.positions, axis=0))}"
    if structure.pbc.any():
        room += f" in a box of {_in_nm(np.linalg.norm(structure.cell, axis=1))}"
    return (
        f"{room}, closer to each other than in any matter; give positions and box with their "
        "unit, of which OpenMM reads plain numbers as nm, and not as fractions of the box."
    )


def _in_nm(lengths: Array) -> str:
    return " x ".join(f"{one / NANOMETRE:.3g}" for one in lengths) + " nm"
