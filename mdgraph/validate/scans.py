"""Scans of a molecule: structures along bonds, angles, torsions, contacts, transfers and dimers."""

from collections import deque
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mdgraph.data.bonding import bonded
from mdgraph.system import System
from mdgraph.units import SYMBOLS

Array = NDArray[np.float64]

HYDROGEN: Final = 1

SHORTEST: Final = 0.7
JUDGED_TO: Final = 1.6
SHOWN_TO: Final = 2.5
"""Times the length of a bond at rest. Beyond `JUDGED_TO` methods that pair all electrons fail,
among them the labels, so that energies there are shown but not judged."""

BENDS: Final = 30.0
"""Degrees to each side of an angle at rest."""

CLOSEST_HYDROGENS: Final = 0.9
LARGEST_PUSH: Final = 0.6
FARTHEST_HYDROGENS: Final = 3.5
"""A: pairs of hydrogens within `FARTHEST_HYDROGENS` are pushed together down to the first, and
each by no more than `LARGEST_PUSH`, which stretches its bond 1.6 times."""

MODE_ENERGY: Final = 3.0
STIFF: Final = 200.0
"""eV to which a vibration is followed, or to `LARGEST_PUSH`, and cm^-1, below which it is none that
is straight: atoms of a torsion move on circles."""

ACCEPTORS: Final = (7, 8, 9, 16)
LONGEST_BRIDGE: Final = 2.2
"""Elements between which a hydrogen bond lets a proton go (N, O, F, S), and A from the hydrogen to
the farther one; beyond, the straight way over is no way that it takes."""

PAIRS: Final = (180, 30)
PAIR_TURNS: Final = (30.0, 330.0)
"""Structures with two sides turned at once, and with `--quick`, and degrees of each turn. Of 60, in
a second of a core, 41, 11 and 7 were walls of what shipped as acac-pbe, 3bpa-wb97x and aspirin-pbe
until 2026-11-24, and none of AceFF-1.1. It takes more to find a narrow wall of aspirin-pbe."""

DIMER: Final = (1.0, 4.0)
"""A, closest distance between two molecules."""


@dataclass(frozen=True, eq=False)
class Scan:
    """Structures along one path.

    Attributes:
        family: such as "bonds".
        name: of the path within the molecule, such as "C0-H5".
        x: (P,) coordinate of the structures.
        systems: P structures.
        judged: (P,) bool, whether an energy is compared with that of a judge.
        x_label: name and unit of the coordinate.
        copies: of the molecule within a structure.
        moved: four atoms of a torsion, else empty.
        points: what each structure is, where the coordinate does not tell.
    """

    family: str
    name: str
    x: Array
    systems: list[System]
    judged: NDArray[np.bool_]
    x_label: str
    copies: int = 1
    moved: tuple[int, ...] = ()
    points: tuple[str, ...] = ()

    def where(self, place: int) -> str:
        """A structure in words."""
        if self.points:
            return self.points[place]
        unit = self.x_label.rpartition("(")[2].rstrip(")") if "(" in self.x_label else "lengths"
        return f"{self.name} at {self.x[place]:.3g} {unit}"


class Molecule:
    """Atoms and bonds of one structure.

    Attributes:
        system: the structure.
        bonds: pairs of bonded atoms, the lower index first.
        neighbors: bonded atoms of each atom.
    """

    def __init__(self, system: System) -> None:
        """Finds bonds by covalent radii; ignores the cell."""
        self.system = system
        pairs = np.argwhere(np.triu(bonded(system.numbers, system.positions), 1))
        self.bonds = [(int(first), int(second)) for first, second in pairs]
        self.neighbors: list[list[int]] = [[] for _ in range(len(system))]
        for first, second in self.bonds:
            self.neighbors[first].append(second)
            self.neighbors[second].append(first)

    def label(self, *atoms: int) -> str:
        """Elements and indices, such as C0-H5."""
        return "-".join(f"{SYMBOLS[self.system.numbers[atom]]}{atom}" for atom in atoms)

    def steps_from(self, atom: int, without: set[frozenset[int]]) -> dict[int, int]:
        """Number of bonds from an atom to each atom that it is connected with.

        Args:
            atom: where paths begin.
            without: bonds that are not walked.
        """
        steps, queue = {atom: 0}, deque([atom])
        while queue:
            here = queue.popleft()
            for other in self.neighbors[here]:
                if other not in steps and frozenset((here, other)) not in without:
                    steps[other] = steps[here] + 1
                    queue.append(other)
        return steps

    def side(self, first: int, second: int) -> list[int]:
        """Atoms on the side of `second` of a bond; all connected ones if it is in a ring."""
        return sorted(self.steps_from(second, {frozenset((first, second))}))

    @cached_property
    def bridges(self) -> set[frozenset[int]]:
        """Bonds that are in no ring."""
        return {
            frozenset(bond) for bond in self.bonds if bond[0] not in self.side(bond[0], bond[1])
        }

    def shares(self, first: int, second: int) -> Array:
        """(N,) share of half a bond's stretching by which each atom moves, -1 to 1.

        In a ring, the stretching is spread over all of its atoms, and what hangs on one of them
        moves with it.
        """
        bond = frozenset((first, second))
        shares = np.zeros(len(self.system))
        if bond in self.bridges:
            shares[self.side(first, second)] = 1.0
            shares[self.side(second, first)] = -1.0
            return shares
        without = self.bridges | {bond}
        from_first = self.steps_from(first, without)
        from_second = self.steps_from(second, without)
        for atom, steps in from_first.items():
            share = (steps - from_second[atom]) / (steps + from_second[atom])
            hanging = self.steps_from(
                atom,
                {
                    frozenset((atom, other))
                    for other in self.neighbors[atom]
                    if frozenset((atom, other)) not in self.bridges
                },
            )
            for other in hanging:
                shares[other] = share
        return shares


def rotated(
    positions: Array, atoms: list[int], origin: Array, axis: Array, degrees: float
) -> Array:
    """(N, 3) A, with some atoms turned about an axis through a point."""
    unit = axis / np.linalg.norm(axis)
    cross = np.cross(np.eye(3), unit)
    angle = np.radians(degrees)
    turn = np.eye(3) + np.sin(angle) * cross + (1.0 - np.cos(angle)) * (cross @ cross)
    places = positions.copy()
    places[atoms] = origin + (positions[atoms] - origin) @ turn.T
    return places


def bond_scans(molecule: Molecule, quick: bool) -> list[Scan]:
    """Every bond from 0.7 to 2.5 times its length; with `quick` as far as it is judged."""
    step, longest = (0.1, JUDGED_TO) if quick else (0.05, SHOWN_TO)
    factors = np.round(np.arange(SHORTEST, longest + step / 2, step), 3)
    judged = factors <= JUDGED_TO
    scans = []
    for first, second in molecule.bonds:
        positions = molecule.system.positions
        bond = positions[second] - positions[first]
        share = 0.5 * molecule.shares(first, second)[:, None]
        copies = [
            molecule.system.replace(positions=positions + (factor - 1.0) * share * bond)
            for factor in factors
        ]
        name = molecule.label(first, second)
        label = "length of the bond / that at rest"
        scans.append(Scan("bonds", name, factors, copies, judged, label))
    return scans


def angle_scans(molecule: Molecule, quick: bool) -> list[Scan]:
    """Angles with an arm that is in no ring, by up to 30 degrees to both sides."""
    bends = np.arange(-BENDS, BENDS + 1.0, 15.0 if quick else 10.0)
    judged = np.full(len(bends), True)
    scans = []
    for middle, arms in enumerate(molecule.neighbors):
        for pair in combinations(arms, 2):
            first, last = pair
            if frozenset((middle, last)) not in molecule.bridges:
                first, last = last, first
            if frozenset((middle, last)) not in molecule.bridges:
                continue
            positions = molecule.system.positions
            arm, other = positions[last] - positions[middle], positions[first] - positions[middle]
            axis = np.cross(other, arm)
            if np.linalg.norm(axis) < 0.1 * np.linalg.norm(other) * np.linalg.norm(arm):
                continue  # straight: every axis bends it the same way
            atoms = molecule.side(middle, last)
            copies = [
                molecule.system.replace(
                    positions=rotated(positions, atoms, positions[middle], axis, degrees)
                )
                for degrees in bends
            ]
            name = molecule.label(first, middle, last)
            scans.append(Scan("angles", name, bends, copies, judged, "angle - that at rest (°)"))
    return scans


def torsion_scans(molecule: Molecule, quick: bool) -> list[Scan]:
    """One side of each bond that is in no ring turned about it.

    These are the families "turns" (by half a turn, of CH3 and NH2) and "torsions" (of the smaller
    side).
    """
    scans = []
    for first, second in _turned_bonds(molecule):
        outer = [
            next(atom for atom in molecule.neighbors[end] if atom not in (first, second))
            for end in (first, second)
        ]
        group = _group(molecule, first, second)
        turns = np.arange(0.0, 181.0 if group else 360.0, 30.0 if quick else 15.0)
        copies = [
            _turned(molecule, molecule.system, first, second, degrees) for degrees in turns.tolist()
        ]
        path = (outer[0], first, second, outer[1])
        name = molecule.label(first, second) + (f" ({group})" if group else "")
        family, judged = "turns" if group else "torsions", turns % 30.0 == 0.0
        scans.append(Scan(family, name, turns, copies, judged, "turned by (°)", moved=path))
    return scans


def pair_scans(molecule: Molecule, quick: bool, seed: int) -> list[Scan]:
    """Sides of two bonds turned at once, each by a random angle: what one turn alone does not meet.

    Bonds are those of `torsion_scans`, and each pair of them has about as many structures.
    """
    random = np.random.default_rng(seed)
    pairs = list(combinations(_turned_bonds(molecule), 2))
    order = random.permutation(len(pairs)).tolist()
    counts = np.bincount(np.arange(PAIRS[quick]) % max(1, len(pairs)), minlength=len(pairs))
    scans = []
    for number, count in zip(order, counts.tolist(), strict=False):
        copies, points = [], []
        for turns in random.uniform(*PAIR_TURNS, size=(count, 2)).tolist():
            system = molecule.system
            for (first, second), degrees in zip(pairs[number], turns, strict=True):
                system = _turned(molecule, system, first, second, degrees)
            copies.append(system)
            points.append(
                " and ".join(
                    f"{molecule.label(*bond)} by {degrees:.0f} °"
                    for bond, degrees in zip(pairs[number], turns, strict=True)
                )
            )
        if copies:
            name = " and ".join(molecule.label(*bond) for bond in pairs[number])
            x, judged = np.arange(1.0, count + 1.0), np.full(count, True)
            scan = Scan("pairs of turns", name, x, copies, judged, "number", points=tuple(points))
            scans.append(scan)
    return scans


def _turned_bonds(molecule: Molecule) -> list[tuple[int, int]]:
    """Bonds in no ring with atoms beyond both ends; the second end's side is a group or smaller."""
    bonds = []
    for bond in molecule.bonds:
        if frozenset(bond) not in molecule.bridges:
            continue
        first, second = max(
            (bond, bond[::-1]),
            key=lambda ends: (_group(molecule, *ends) != "", -len(molecule.side(*ends))),
        )
        if all(len(molecule.neighbors[end]) > 1 for end in bond):
            bonds.append((first, second))
    return bonds


def _turned(molecule: Molecule, system: System, first: int, second: int, degrees: float) -> System:
    """A structure of a molecule with the side of `second` turned about a bond."""
    positions = system.positions
    axis, part = positions[second] - positions[first], molecule.side(first, second)
    return system.replace(positions=rotated(positions, part, positions[second], axis, degrees))


def _group(molecule: Molecule, first: int, second: int) -> str:
    """CH3 or NH2 where `second` is the middle of one beyond a bond, else nothing."""
    numbers = molecule.system.numbers
    outer = [int(numbers[atom]) for atom in molecule.neighbors[second] if atom != first]
    groups = {(6, 3): "CH3", (7, 2): "NH2"}
    only_hydrogen = set(outer) == {HYDROGEN}
    return groups.get((int(numbers[second]), len(outer)), "") if only_hydrogen else ""


def hydrogen_scans(molecule: Molecule, quick: bool) -> list[Scan]:
    """The nearest pairs of hydrogens of different atoms, pushed together."""
    system = molecule.system
    hydrogens = np.flatnonzero(system.numbers == HYDROGEN).tolist()
    pairs = []
    for first, second in combinations(hydrogens, 2):
        near = set(molecule.neighbors[first]) | {first}
        distance = float(np.linalg.norm(system.positions[second] - system.positions[first]))
        apart = not near & (set(molecule.neighbors[second]) | {second})
        if apart and 1.2 < distance < FARTHEST_HYDROGENS:
            pairs.append((distance, first, second))
    scans = []
    for distance, first, second in sorted(pairs)[: 3 if quick else 6]:
        nearest = max(CLOSEST_HYDROGENS, distance - 2.0 * LARGEST_PUSH)
        x = np.linspace(nearest, distance, 4 if quick else 7)
        along = (system.positions[second] - system.positions[first]) / distance
        copies = []
        for length in x:
            positions = system.positions.copy()
            positions[first] += 0.5 * (distance - length) * along
            positions[second] -= 0.5 * (distance - length) * along
            copies.append(system.replace(positions=positions))
        judged = np.full(len(x), True)
        name = molecule.label(first, second)
        scans.append(Scan("hydrogens", name, x, copies, judged, "H-H distance (Å)"))
    return scans


def transfer_scans(molecule: Molecule, quick: bool) -> list[Scan]:
    """Hydrogens of hydrogen bonds moved straight from one heavy atom to the other.

    All else stays, and at the end the new bond is as long as the old one was.
    """
    system, scans = molecule.system, []
    x = np.linspace(0.0, 1.0, 6 if quick else 11)
    for hydrogen in np.flatnonzero(system.numbers == HYDROGEN).tolist():
        if len(molecule.neighbors[hydrogen]) != 1:
            continue
        (donor,) = molecule.neighbors[hydrogen]
        apart = np.linalg.norm(system.positions - system.positions[hydrogen], axis=1)
        for acceptor in np.flatnonzero(np.isin(system.numbers, ACCEPTORS)).tolist():
            way = apart[acceptor] - apart[donor]
            near = acceptor != donor and way > 0.0 and apart[acceptor] < LONGEST_BRIDGE
            bonded = acceptor in molecule.neighbors[donor]  # as in H2O2: no hydrogen bond
            if not near or bonded or system.numbers[donor] not in ACCEPTORS:
                continue
            along = (system.positions[acceptor] - system.positions[hydrogen]) / apart[acceptor]
            copies = []
            for share in x:
                positions = system.positions.copy()
                positions[hydrogen] += share * way * along
                copies.append(system.replace(positions=positions))
            name = molecule.label(donor, hydrogen, acceptor)
            judged = np.full(len(x), True)
            scans.append(Scan("transfers", name, x, copies, judged, "share of the way"))
    return scans


def dimer_scans(molecule: Molecule, quick: bool, seed: int) -> list[Scan]:
    """Two copies, one turned at random, approached along random directions."""
    random = np.random.default_rng(seed)
    system = molecule.system
    centred = system.positions - system.positions.mean(axis=0)
    x = np.linspace(*DIMER, 7 if quick else 13)
    judged = np.arange(len(x)) % 2 == 0
    scans = []
    for number in range(2 if quick else 3):
        matrix, _ = np.linalg.qr(random.normal(size=(3, 3)))
        turned = centred @ (matrix * np.linalg.det(matrix))
        direction = random.normal(size=3)
        direction /= np.linalg.norm(direction)
        apart = (turned[None] - centred[:, None]).reshape(-1, 3)
        along = apart @ direction
        across = (apart**2).sum(axis=1) - along**2
        copies = []
        for distance in x:
            touching = across <= distance**2
            if not touching.any():
                shift = 0.0
            else:
                shift = float((np.sqrt(distance**2 - across[touching]) - along[touching]).max())
            positions = np.concatenate([centred, turned + shift * direction])
            charge = None if system.charge is None else 2.0 * system.charge
            copies.append(System(np.tile(system.numbers, 2), positions, charge=charge))
        name, label = f"orientation {number + 1}", "closest distance (Å)"
        scans.append(Scan("dimers", name, x, copies, judged, label, copies=2))
    return scans


def mode_scans(
    molecule: Molecule, frequencies: Array, displacements: Array, quick: bool
) -> list[Scan]:
    """Along each vibration to both sides, as far as 3 eV if it were harmonic.

    Args:
        molecule: at rest.
        frequencies: (V,) cm^-1; soft and imaginary modes are left out.
        displacements: (V, N, 3) A, of 1 eV each.
        quick: fewer points.
    """
    scans, positions = [], molecule.system.positions
    steps = np.linspace(-1.0, 1.0, 5 if quick else 9)
    for number, (frequency, unit) in enumerate(zip(frequencies, displacements, strict=True)):
        if frequency < STIFF:
            continue
        largest = float(np.linalg.norm(unit, axis=1).max())
        size = min(LARGEST_PUSH / largest, MODE_ENERGY**0.5)
        copies = [
            molecule.system.replace(positions=positions + size * step * unit) for step in steps
        ]
        x, judged = size * largest * steps, np.full(len(steps), True)
        name = f"mode {number + 1} ({frequency:.0f} per cm)"
        scans.append(Scan("modes", name, x, copies, judged, "largest displacement (Å)"))
    return scans


def all_scans(molecule: Molecule, quick: bool, seed: int) -> list[Scan]:
    """All families, rigid."""
    return [
        *bond_scans(molecule, quick),
        *angle_scans(molecule, quick),
        *torsion_scans(molecule, quick),
        *pair_scans(molecule, quick, seed),
        *hydrogen_scans(molecule, quick),
        *transfer_scans(molecule, quick),
        *dimer_scans(molecule, quick, seed),
    ]
