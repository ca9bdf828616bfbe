"""Collective variables: functions of atoms and cell on which biases act, and what they read."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mdgraph.arguments import check_fields, real_array, real_number, shown, whole_numbers
from mdgraph.errors import InputError, name_some, printable
from mdgraph.selection import check_selection, select_atoms
from mdgraph.system import System

Group = int | str | Sequence[int]
"""An atom by its index within its system, a selection such as `resname LIG`, or indices."""

AXES: Final = {"x": (1.0, 0.0, 0.0), "y": (0.0, 1.0, 0.0), "z": (0.0, 0.0, 1.0)}
"""Directions by name."""


@dataclass(frozen=True, eq=False)
class CollectiveVariable:
    """Base of variables. Indices count the atoms of a system from 0, in each system of a batch.

    Groups of several atoms stand for their centre of mass. Along the order of its atoms, each is
    taken at the image that is nearest to the one before, so that neighbors in that order are
    nearer than half the smallest distance between opposite faces of the cell.

    Attributes:
        kind: its word in configurations.
        unit: of its values.
        period: of its values, in that unit; 0 of variables that are not periodic.
    """

    kind: ClassVar[str]
    unit: ClassVar[str] = "A"
    period: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        """Raises InputError for fields that no system could satisfy."""
        check_fields(self)
        for group in self.atom_groups():
            check_group(group)

    def atom_groups(self) -> list[Any]:
        """The groups of atoms that it reads, as they were given."""
        return []

    def groups_in(self, system: System) -> list[list[int]]:
        """The atoms of each group in a system; raises InputError where there are none."""
        return [indices_of(group, system) for group in self.atom_groups()]

    def holds(self, system: System) -> bool:
        """Whether it changes as all atoms of a system move or, without a cell, turn together."""
        return False

    def settings(self) -> dict[str, Any]:
        """What restart files hold of it."""
        return {"kind": self.kind}


def check_group(group: Any) -> None:
    """Raises InputError for what can be no group of atoms."""
    if isinstance(group, str):
        check_selection(group)
    elif not _is_index(group) and not whole_numbers(group, "The atoms of a variable"):
        raise InputError("A group of a variable is empty; name its atoms.")


def _is_index(group: Any) -> bool:
    return isinstance(group, int | np.integer) and not isinstance(group, bool)


def indices_of(group: Group, system: System) -> list[int]:
    """The atoms of a group in a system.

    Raises:
        InputError: an atom that is not there or named twice; see `select_atoms`.
    """
    if isinstance(group, str):
        return select_atoms(group, system)
    atoms = [int(group)] if isinstance(group, int) else whole_numbers(group, "The atoms")
    wrong = [atom for atom in atoms if not 0 <= atom < len(system)]
    if wrong:
        raise InputError(
            f"A group names {name_some(wrong)}, and the structure has the atoms 0 to "
            f"{len(system) - 1}; correct it."
        )
    twice = sorted({atom for atom in atoms if atoms.count(atom) > 1})
    if twice:
        raise InputError(f"A group names {name_some(twice)} twice; name each atom once.")
    return atoms


def _several(groups: Any, count: int, kind: str) -> list[Any]:
    """Groups as a list of the right length; raises InputError."""
    several = isinstance(groups, Sequence | np.ndarray) and not isinstance(groups, str | bytes)
    if not several or len(groups) != count:
        given = f"{len(groups)}" if several else shown(groups)
        raise InputError(
            f"A {kind} is of {count} atoms or groups, not of {given}; give a list of {count}."
        )
    return list(groups)


@dataclass(frozen=True, eq=False)
class PointVariable(CollectiveVariable):
    """Base of variables of some atoms, or of centres of mass of groups.

    Attributes:
        groups: as many as the variable has points.
    """

    points: ClassVar[int]

    groups: Sequence[Group]

    def atom_groups(self) -> list[Any]:
        """See CollectiveVariable; raises InputError for a point that is there twice."""
        groups = _several(self.groups, self.points, self.kind)
        texts = [str(one.tolist() if isinstance(one, np.ndarray) else one) for one in groups]
        twice = [text for text in dict.fromkeys(texts) if texts.count(text) > 1]
        if twice:
            raise InputError(
                f"A {self.kind} names {printable(twice[0], 100)} twice; give {self.points} "
                "different points."
            )
        return groups


@dataclass(frozen=True, eq=False)
class Distance(PointVariable):
    """r = |r_2 - r_1| to the nearest image, A."""

    kind: ClassVar[str] = "distance"
    points: ClassVar[int] = 2


@dataclass(frozen=True, eq=False)
class Angle(PointVariable):
    """The angle at the second of three points, from 0 to pi, rad."""

    kind: ClassVar[str] = "angle"
    unit: ClassVar[str] = "rad"
    points: ClassVar[int] = 3


@dataclass(frozen=True, eq=False)
class Dihedral(PointVariable):
    """The torsion angle of four points about the line of the middle two, from -pi to pi, rad.

    0 is cis, and the sign is that of IUPAC.
    """

    kind: ClassVar[str] = "dihedral"
    unit: ClassVar[str] = "rad"
    period: ClassVar[float] = 2.0 * math.pi
    points: ClassVar[int] = 4


@dataclass(frozen=True, eq=False)
class Position(CollectiveVariable):
    """The coordinate of a point along an axis, A: its own, or from another group to it.

    Without `origin` it is measured from the origin of coordinates, along which atoms are never
    wrapped; it moves with all atoms, so momentum is not conserved.

    Attributes:
        group: the point.
        axis: `x`, `y`, `z` or a direction of three numbers, of any length.
        origin: the group from which it is measured, to the nearest image; or None.
    """

    kind: ClassVar[str] = "position"

    group: Group
    axis: str | Sequence[float] = "z"
    origin: Group | None = None

    def __post_init__(self) -> None:
        """See CollectiveVariable."""
        super().__post_init__()
        self.direction()

    def direction(self) -> NDArray[np.float64]:
        """The unit vector (3,) along the axis; raises InputError for another axis."""
        given = AXES.get(self.axis, ()) if isinstance(self.axis, str) else self.axis
        vector = real_array(given)
        if vector is not None and vector.shape == (3,) and np.isfinite(vector).all():
            length = float(np.linalg.norm(vector))
            if 0.0 < length < math.inf:
                return np.asarray(vector / length)
        raise InputError(
            f"The axis of a position is {shown(self.axis)}; give x, y, z or three numbers."
        )

    def atom_groups(self) -> list[Any]:
        """See CollectiveVariable."""
        return [self.group] if self.origin is None else [self.origin, self.group]

    def holds(self, system: System) -> bool:
        """See CollectiveVariable."""
        return self.origin is None or not system.pbc.any()

    def settings(self) -> dict[str, Any]:
        """See CollectiveVariable."""
        return {"kind": self.kind, "axis": self.direction().tolist()}


@dataclass(frozen=True, eq=False)
class CoordinationNumber(CollectiveVariable):
    """The number of pairs between two groups that are near, smoothly.

    s = sum_ij 1 / (1 + (r_ij / r0)^n)   over i of the first group and j of the second, i != j

    which is the rational function (1 - x^n) / (1 - x^2n) of x = r / r0.

    Attributes:
        groups: two, which may have atoms in common or be the same.
        r0: A, where a pair counts one half.
        exponent: n, 2 to 32.
    """

    kind: ClassVar[str] = "coordination"
    unit: ClassVar[str] = ""

    groups: Sequence[Group]
    r0: float
    exponent: int = 6

    def __post_init__(self) -> None:
        """See CollectiveVariable."""
        super().__post_init__()
        real_number(self.r0, "The r0 of a coordination number", "A", above=0.0)
        if not 2 <= self.exponent <= 32:
            raise InputError(
                f"The exponent of a coordination number is {self.exponent}; give 2 to 32."
            )

    def atom_groups(self) -> list[Any]:
        """See CollectiveVariable."""
        return _several(self.groups, 2, "coordination number")

    def settings(self) -> dict[str, Any]:
        """See CollectiveVariable."""
        return {"kind": self.kind, "r0_A": self.r0, "exponent": self.exponent}


@dataclass(frozen=True, eq=False)
class RadiusOfGyration(CollectiveVariable):
    """R = sqrt(sum_i m_i |r_i - c|^2 / sum_i m_i) about the centre of mass c, A.

    Attributes:
        group: of two atoms at least.
    """

    kind: ClassVar[str] = "radius_of_gyration"

    group: Group

    def atom_groups(self) -> list[Any]:
        """See CollectiveVariable."""
        return [self.group]

    def groups_in(self, system: System) -> list[list[int]]:
        """See CollectiveVariable."""
        return _at_least(super().groups_in(system), 2, "A radius of gyration")


@dataclass(frozen=True, eq=False)
class RMSD(CollectiveVariable):
    """The root mean square distance of atoms to a reference after optimal superposition, A.

    All atoms weigh the same. At the reference itself, where the gradient has no limit, it is 0.

    Attributes:
        group: of three atoms at least, which are not on a line in the reference.
        reference: (n, 3) A, one place for each atom of the group, whole: no boundary of a cell
            is between them; default: the initial positions of each system.
    """

    kind: ClassVar[str] = "rmsd"

    group: Group
    reference: ArrayLike | None = None

    def __post_init__(self) -> None:
        """See CollectiveVariable."""
        super().__post_init__()
        if self.reference is not None:
            self._points(self.reference)

    def _points(self, points: Any) -> NDArray[np.float64]:
        array = real_array(points)
        if array is None or array.ndim != 2 or array.shape[1] != 3 or not np.isfinite(array).all():
            raise InputError(
                "The reference of an rmsd is not a list of places; give (n, 3) numbers."
            )
        singular = np.linalg.svd(array - array.mean(axis=0), compute_uv=False)
        if len(array) < 3 or singular[1] < 1e-3:
            raise InputError(
                "The reference of an rmsd has fewer than three atoms, or all on a line, so nothing "
                "says how to turn it; name more atoms."
            )
        return array

    def atom_groups(self) -> list[Any]:
        """See CollectiveVariable."""
        return [self.group]

    def reference_in(self, system: System, unwrapped: NDArray[np.float64]) -> NDArray[np.float64]:
        """The reference (n, 3) A of a system; raises InputError where it does not fit.

        Args:
            system: initial structure.
            unwrapped: (n, 3) A, positions of its atoms of the group, at images that are together.
        """
        points = self._points(unwrapped if self.reference is None else self.reference)
        if points.shape != unwrapped.shape:
            raise InputError(
                f"The reference of an rmsd has {len(points)} places for {len(unwrapped)} atoms; "
                "give one for each."
            )
        return points

    def settings(self) -> dict[str, Any]:
        """See CollectiveVariable."""
        given = self.reference
        reference = None if given is None else np.asarray(given, dtype=float).tolist()
        return {"kind": self.kind, "reference_A": reference}


def _at_least(groups: list[list[int]], count: int, what: str) -> list[list[int]]:
    for group in groups:
        if len(group) < count:
            raise InputError(f"{what} is of {count} atoms at least; name more.")
    return groups


@dataclass(frozen=True, eq=False)
class CellVolume(CollectiveVariable):
    """V = |det h| of the cell h, A^3; of systems that are periodic along three directions."""

    kind: ClassVar[str] = "volume"
    unit: ClassVar[str] = "A^3"

    def groups_in(self, system: System) -> list[list[int]]:
        """See CollectiveVariable."""
        if not system.pbc.all():
            raise InputError("Without a cell that is periodic along x, y and z there is no volume.")
        return []


@dataclass(frozen=True, eq=False)
class PotentialEnergy(CollectiveVariable):
    """The potential energy of a system before its biases, with restraints, eV."""

    kind: ClassVar[str] = "energy"
    unit: ClassVar[str] = "eV"


@dataclass(frozen=True, eq=False)
class Combination(CollectiveVariable):
    """A linear combination of other variables, s = sum_k c_k s_k, in their unit.

    Dihedrals with whole coefficients give a periodic one.

    Attributes:
        coefficients: c by name of the other variable.
    """

    kind: ClassVar[str] = "combination"

    coefficients: Mapping[str, float]

    def __post_init__(self) -> None:
        """See CollectiveVariable."""
        if not isinstance(self.coefficients, Mapping) or not self.coefficients:
            raise InputError(
                f"The coefficients of a combination are {shown(self.coefficients)}; give a number "
                "by name of each variable."
            )
        for name, value in self.coefficients.items():
            real_number(value, f"The coefficient of {printable(name, 100)}", "a combination")

    def settings(self) -> dict[str, Any]:
        """See CollectiveVariable."""
        return {"kind": self.kind, "coefficients": dict(self.coefficients)}


VARIABLES: Final[dict[str, type[CollectiveVariable]]] = {
    cls.kind: cls
    for cls in (
        Distance,
        Angle,
        Dihedral,
        Position,
        CoordinationNumber,
        RadiusOfGyration,
        RMSD,
        CellVolume,
        PotentialEnergy,
        Combination,
    )
}
"""Variables by their words."""
