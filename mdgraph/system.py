"""System: what is simulated, as host arrays; and the concatenation of systems into a batch."""

import copy
import itertools
import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mdgraph.arguments import real_number
from mdgraph.errors import InputError, name_some, printable
from mdgraph.units import SYMBOLS, standard_masses

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FARTHEST: Final = 1e7
"""A, 1 mm: beyond it a position in float64 resolves no more than 2e-9 A, and the smallest step of
a molecule is lost. Atoms that drift out of their cell in a run of 1 s stay within it."""

FASTEST: Final = 2997.92458
"""A/fs, the speed of light."""

_MASSES: Final = (1e-6, 1e30)
"""amu: from far below an electron's to what holds an atom in its place."""

_REGULAR: Final = 1e-12
"""Volume over the cubed Frobenius norm of a cell that has rank 3 for certain."""

_SHORTEST: Final = 1e-3
"""A, least length of a vector of a cell along a periodic direction."""

_SINGULAR: Final = 1e-8
"""Gram determinant of unit vectors of a cell below which these are linearly dependent."""

_SUBJECTS: Final = {"numbers": "atomic numbers", "cell": "cell vectors"}
"""What the fields of a `System` are called in a sentence, where it is not their name."""


@dataclass(frozen=True, eq=False)
class Topology:
    """Names of atoms and residues, and bonds, as a PDB file has them; nothing moves by them.

    Arrays are converted and are read-only afterwards.

    Attributes:
        names: (N,) str, names of atoms within their residues, such as CA.
        residue_names: (N,) str, such as SER.
        residues: (N,) str, numbers of residues, with their insertion codes.
        chains: (N,) str.
        bonds: (B, 2) int64, indices of atoms; empty where the file has none.
    """

    names: NDArray[np.str_]
    residue_names: NDArray[np.str_]
    residues: NDArray[np.str_]
    chains: NDArray[np.str_]
    bonds: NDArray[np.int64] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        for name in ("names", "residue_names", "residues", "chains"):
            texts = np.array(getattr(self, name), dtype=np.str_)
            texts.flags.writeable = False
            object.__setattr__(self, name, texts)
        bonds = np.array([] if self.bonds is None else self.bonds, dtype=np.int64).reshape(-1, 2)
        bonds.flags.writeable = False
        object.__setattr__(self, "bonds", bonds)

    def __len__(self) -> int:
        return len(self.names)

    def select(self, atoms: ArrayLike) -> "Topology":
        """The topology of some atoms, by their indices in ascending order."""
        indices = np.asarray(atoms, dtype=np.int64)
        place = np.full(len(self), -1)
        place[indices] = np.arange(len(indices))
        bonds = place[self.bonds]
        return Topology(
            names=self.names[indices],
            residue_names=self.residue_names[indices],
            residues=self.residues[indices],
            chains=self.chains[indices],
            bonds=bonds[(bonds >= 0).all(axis=1)],
        )


@dataclass(frozen=True, eq=False)
class System:
    """One molecule, cluster or periodic cell.

    Arrays are converted, copied and checked on construction and are read-only afterwards.

    Attributes:
        numbers: (N,) int64, atomic numbers.
        positions: (N, 3) float64, A; need not be wrapped into the cell.
        cell: (3, 3) float64, A, one lattice vector a row; zeros where there is none.
        pbc: (3,) bool, periodic directions.
        masses: (N,) float64, amu; standard atomic weights unless given.
        velocities: (N, 3) float64, A/fs, or None.
        charge: total charge, e; None where nobody said, which counts as 0.
        topology: names and residues of the atoms, or None.
        fixed: (N,) bool, atoms that stay where they are when others move; None for none.

    Raises:
        InputError: zero atoms, wrong shapes, text or complex numbers, numbers that are not
            finite, unknown elements, masses that are not positive, a singular cell along periodic
            directions, positions or cell vectors beyond 1e7 A, atoms faster than light, a charge
            beyond that of all nuclei.
    """

    numbers: NDArray[np.int64]
    positions: NDArray[np.float64]
    cell: NDArray[np.float64] = field(default_factory=lambda: np.zeros((3, 3)))
    pbc: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(3, dtype=bool))
    masses: NDArray[np.float64] = None  # type: ignore[assignment]
    velocities: NDArray[np.float64] | None = None
    charge: float | None = None
    topology: Topology | None = None
    fixed: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        numbers = self._array("numbers", self.numbers, np.int64, (-1,))
        count = len(numbers)
        if count == 0:
            raise InputError("The structure has no atoms; give one with at least one atom.")
        if not (numbers.min() >= 1 and numbers.max() < len(SYMBOLS)):
            unknown = np.flatnonzero((numbers < 1) | (numbers >= len(SYMBOLS)))
            raise InputError(
                f"Atoms {name_some(unknown)} have atomic numbers "
                f"{name_some(sorted(set(numbers[unknown].tolist())))} that are not elements; "
                f"give numbers from 1 to {len(SYMBOLS) - 1}."
            )
        positions = self._array("positions", self.positions, np.float64, (count, 3))
        cell = self._array("cell", self.cell, np.float64, (3, 3))
        pbc = _periodic(self.pbc)
        masses = standard_masses(numbers) if self.masses is None else self.masses
        masses = self._array("masses", masses, np.float64, (count,))
        lightest, heaviest = _MASSES
        if not (masses.min() >= lightest and masses.max() <= heaviest):
            wrong = np.flatnonzero((masses < lightest) | (masses > heaviest))
            raise InputError(
                f"Atoms {name_some(wrong)} have a mass that is not positive, or beyond all bounds "
                f"({masses[wrong[0]]:g} amu); give every atom one from {lightest:g} to "
                f"{heaviest:g} amu."
            )
        _check_within("positions", positions, FARTHEST, "A")
        _check_within("cell", cell, FARTHEST, "A")
        if self.velocities is not None:
            velocities = self._array("velocities", self.velocities, np.float64, (count, 3))
            _check_within("velocities", velocities, FASTEST, "A/fs")
            object.__setattr__(self, "velocities", velocities)
        if self.charge is not None:
            object.__setattr__(self, "charge", _checked_charge(self.charge, numbers))
        if self.topology is not None and not isinstance(self.topology, Topology):
            raise InputError("The topology is not an mdgraph.system.Topology; give one, or None.")
        if self.topology is not None and len(self.topology) != count:
            raise InputError(
                f"The topology names {len(self.topology)} atoms, and the structure has {count}; "
                "give one of the same atoms."
            )
        if self.fixed is not None:
            object.__setattr__(self, "fixed", _flags_of_atoms(self.fixed, count))
        for name, value in (
            ("numbers", numbers),
            ("positions", positions),
            ("cell", cell),
            ("pbc", pbc),
            ("masses", masses),
        ):
            object.__setattr__(self, name, value)
        self._check_cell()

    @staticmethod
    def _array(name: str, value: ArrayLike, dtype: type, shape: tuple[int, ...]) -> NDArray[Any]:
        subject = _SUBJECTS.get(name, name)
        try:
            given = np.asarray(value)
            # Objects may be whole numbers beyond all bounds, and a sequence of unequal rows.
            array = given.astype(np.float64) if given.dtype.kind in "iufO" else None
        except (TypeError, ValueError, OverflowError, RuntimeError):
            array = None
        expected = str(shape).replace("-1", "N")
        if array is None:
            raise InputError(
                f"The {subject} are not all numbers; give an array of shape {expected}."
            )
        if array.ndim != len(shape) or (shape[0] >= 0 and array.shape != shape):
            raise InputError(f"The {subject} have shape {array.shape}; they must have {expected}.")
        if np.ma.is_masked(value):
            raise InputError(f"Some of the {subject} are masked; give numbers for all.")
        if not np.isfinite(array).all():
            bad = np.argwhere(~np.isfinite(array))
            raise InputError(
                f"{_rows(name, np.unique(bad[:, 0]))} not finite "
                f"({array[tuple(bad[0])]}); repair the structure."
            )
        if dtype is np.int64:
            if (np.abs(array) > 2**31).any() or (array != np.rint(array)).any():
                raise InputError(f"The {subject} are not whole; give integers from 1 to 118.")
            array = array.astype(np.int64)
        array.flags.writeable = False
        return array

    def _check_cell(self) -> None:
        vectors = self.cell[self.pbc]
        if len(vectors) == 0:
            return
        lengths = np.linalg.norm(vectors, axis=1)
        if lengths.min() < _SHORTEST:
            raise InputError(
                "The cell has no vector along a periodic direction; "
                "give the missing cell vector or turn pbc off along it."
            )
        gram = (vectors / lengths[:, None]) @ (vectors / lengths[:, None]).T
        if np.linalg.det(gram) < _SINGULAR:
            raise InputError(
                "The cell is singular: its periodic vectors are linearly dependent; "
                "give three independent vectors or turn pbc off."
            )

    @property
    def symbols(self) -> list[str]:
        """Chemical symbols, one an atom."""
        return [SYMBOLS[number] for number in self.numbers]

    @property
    def volume(self) -> float:
        """Volume of the cell, A^3; zero where the cell has not rank 3."""
        volume = float(abs(np.linalg.det(self.cell)))
        # The smallest singular value over the largest is no less than this, which spares the rank.
        if volume > _REGULAR * float(np.vdot(self.cell, self.cell)) ** 1.5:
            return volume
        return 0.0 if np.linalg.matrix_rank(self.cell) < 3 else volume

    @property
    def fixed_atoms(self) -> list[int]:
        """Indices of the atoms that stay where they are, ascending."""
        return [] if self.fixed is None else np.flatnonzero(self.fixed).tolist()

    def __len__(self) -> int:
        return len(self.numbers)

    def select(self, atoms: ArrayLike) -> "System":
        """The system of some atoms, by their indices in ascending order; its charge is unknown."""
        indices = np.asarray(atoms, dtype=np.int64)
        return self.replace(
            numbers=self.numbers[indices],
            positions=self.positions[indices],
            masses=self.masses[indices],
            velocities=None if self.velocities is None else self.velocities[indices],
            charge=None,
            topology=None if self.topology is None else self.topology.select(indices),
            fixed=None if self.fixed is None else self.fixed[indices],
        )

    def replace(self, **changes: Any) -> "System":
        """Returns a copy with some fields changed, checked again."""
        if [*changes] == ["charge"] and changes["charge"] is not None:
            # The arrays, which are read-only, are shared: streams set the charge of each frame.
            system = copy.copy(self)
            charge = _checked_charge(changes["charge"], self.numbers)
            object.__setattr__(system, "charge", charge)
            return system
        return replace(self, **changes)


def _checked_charge(charge: float, numbers: NDArray[np.int64]) -> float:
    """A total charge, e; raises InputError for one beyond that of all nuclei."""
    charge = real_number(charge, "The total charge", "e")
    if abs(charge) > (most := int(numbers.sum())):
        raise InputError(
            f"The total charge is {charge:g} e, and all nuclei together have {most}; give "
            "the charge of the whole structure in e."
        )
    return charge


def _periodic(value: Any) -> NDArray[np.bool_]:
    """(3,) bool, read-only, of one or three truth values."""
    try:
        given = np.asarray(value)
        flags = np.broadcast_to(given, 3).astype(bool)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        given = flags = np.zeros(0)
    # A text such as 'no' would be true.
    fits = flags.shape == (3,) and given.ndim < 2 and bool(((given == 0) | (given == 1)).all())
    if given.dtype.kind not in "biuf" or not fits:
        raise InputError(f"pbc is {printable(repr(value), 100)}; give one or three truth values.")
    flags.flags.writeable = False
    return flags


def _flags_of_atoms(value: Any, count: int) -> NDArray[np.bool_] | None:
    """(N,) bool, read-only; None where none is set."""
    flags = np.array(value)
    if flags.shape != (count,) or flags.dtype != np.bool_:
        raise InputError(
            f"The fixed atoms have shape {flags.shape} and type {flags.dtype}; give {count} truth "
            "values, or None."
        )
    flags.flags.writeable = False
    return flags if flags.any() else None


def _rows(name: str, rows: NDArray[np.int64]) -> str:
    """Rows of a field and the verb, as a sentence begins."""
    several = "s" * (len(rows) > 1)
    if name == "cell":
        return f"Cell vector{several} {name_some(rows)} {'are' if several else 'is'}"
    return f"The {_SUBJECTS.get(name, name)} of atom{several} {name_some(rows)} are"


def _check_within(name: str, array: NDArray[np.float64], most: float, unit: str) -> None:
    """Raises InputError for rows beyond what can be."""
    if max(array.max(), -array.min()) <= most:
        return
    far = np.flatnonzero((np.abs(array) > most).any(axis=1))
    worst = array[far[0], np.argmax(np.abs(array[far[0]]))]
    where = (
        ""
        if name == "velocities"
        else (f", where float64 resolves no more than {np.spacing(abs(worst)):.1g} A")
    )
    raise InputError(
        f"{_rows(name, far)} beyond {most:g} {unit} ({worst:g}){where}; check the "
        "unit, or repair the structure."
    )


@dataclass(frozen=True, eq=False)
class SystemArrays(Sequence[System]):
    """Systems side by side, so that many cost little; each is a `System` where it is asked for.

    Made by `of`, of systems that were checked. Arrays are read-only.

    Attributes:
        sizes: (S,) int64, atoms of each.
        numbers: (N,) int64, atomic numbers of all atoms.
        positions: (N, 3) float64, A.
        masses: (N,) float64, amu.
        cells: (S, 3, 3) float64, A.
        pbc: (S, 3) bool.
        charges: (S,) float64, e; not a number where nobody said.
        complete: by their places, the systems that hold more than these arrays: those with
            velocities, a topology or fixed atoms.
    """

    sizes: NDArray[np.int64]
    numbers: NDArray[np.int64]
    positions: NDArray[np.float64]
    masses: NDArray[np.float64]
    cells: NDArray[np.float64]
    pbc: NDArray[np.bool_]
    charges: NDArray[np.float64]
    complete: Mapping[int, System] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for array in self._arrays():
            array.flags.writeable = False

    def __reduce__(self) -> Any:
        return SystemArrays, (*self._arrays(), self.complete)

    def _arrays(self) -> tuple[NDArray[Any], ...]:
        of_systems = (self.cells, self.pbc, self.charges)
        return self.sizes, self.numbers, self.positions, self.masses, *of_systems

    @classmethod
    def of(cls, systems: Sequence[System]) -> "SystemArrays":
        """The same systems, at least one, side by side."""
        if isinstance(systems, SystemArrays):
            return systems
        charges = [math.nan if one.charge is None else one.charge for one in systems]
        return cls(
            np.array([len(one) for one in systems]),
            np.concatenate([one.numbers for one in systems]),
            np.concatenate([one.positions for one in systems]),
            np.concatenate([one.masses for one in systems]),
            np.stack([one.cell for one in systems]),
            np.stack([one.pbc for one in systems]),
            np.array(charges, dtype=np.float64),
            {
                place: one
                for place, one in enumerate(systems)
                if not (one.velocities is None and one.topology is None and one.fixed is None)
            },
        )

    @classmethod
    def checked(
        cls,
        *,
        sizes: NDArray[np.int64],
        numbers: NDArray[np.int64],
        positions: NDArray[np.float64],
        masses: NDArray[np.float64],
        cells: NDArray[np.float64],
        pbc: NDArray[np.bool_],
        charges: NDArray[np.float64],
    ) -> "SystemArrays | None":
        """The systems of arrays, as the attributes have them, if none can be refused.

        None where a `System` must be made of each, which then says what is wrong, if anything is:
        also of systems that are periodic along one or two directions.
        """
        lightest, heaviest = _MASSES
        within = (
            sizes.min() > 0
            and numbers.min() >= 1
            and numbers.max() < len(SYMBOLS)
            and masses.min() >= lightest
            and masses.max() <= heaviest
            # Not a number is not within these bounds either.
            and np.abs(positions).max() <= FARTHEST
            and np.abs(cells).max() <= FARTHEST
        )
        if not within:  # first, as squares of what is beyond all bounds overflow
            return None
        nuclei = np.add.reduceat(numbers, sizes.cumsum() - sizes)
        periodic, lengths = pbc.all(axis=1), np.linalg.norm(cells, axis=2)
        vectors = cells[periodic] / np.maximum(lengths[periodic], _SHORTEST)[:, :, None]
        sound = (
            (np.abs(np.nan_to_num(charges)) <= nuclei).all()
            and (periodic | ~pbc.any(axis=1)).all()
            and lengths[periodic].min(initial=1.0) >= _SHORTEST
            and np.square(np.linalg.det(vectors)).min(initial=1.0) > 2.0 * _SINGULAR
        )
        return cls(sizes, numbers, positions, masses, cells, pbc, charges) if sound else None

    @cached_property
    def volumes(self) -> NDArray[np.float64]:
        """(S,) float64, A^3, as of each system."""
        volumes = np.abs(np.linalg.det(self.cells))
        sizes = np.square(self.cells).sum(axis=(1, 2)) ** 1.5
        for place in np.flatnonzero(volumes <= 2.0 * _REGULAR * sizes).tolist():
            volumes[place] = self[place].volume
        return volumes

    def with_charges(self, charges: NDArray[np.float64]) -> "SystemArrays":
        """The same systems with total charges (S,), e."""
        complete = {
            place: one.replace(charge=float(charges[place])) for place, one in self.complete.items()
        }
        return replace(self, charges=charges, complete=complete)

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """(S,) int64, where the atoms of each end among all."""
        return self.sizes.cumsum()

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, place: int) -> System: ...

    @overload
    def __getitem__(self, place: slice) -> "SystemArrays": ...

    def __getitem__(self, place: int | slice) -> "System | SystemArrays":
        if isinstance(place, slice):
            return self._between(*place.indices(len(self)))
        place = range(len(self))[place]
        if place in self.complete:
            return self.complete[place]
        end = int(self.ends[place])
        atoms = slice(end - int(self.sizes[place]), end)
        charge = float(self.charges[place])
        system = System.__new__(System)  # which was checked
        vars(system).update(
            numbers=self.numbers[atoms],
            positions=self.positions[atoms],
            cell=self.cells[place],
            pbc=self.pbc[place],
            masses=self.masses[atoms],
            velocities=None,
            charge=None if math.isnan(charge) else charge,
            topology=None,
            fixed=None,
        )
        return system

    def _between(self, start: int, end: int, step: int) -> "SystemArrays":
        if step != 1:
            raise ValueError("systems side by side have slices without a step alone")
        end = max(start, end)
        first = int(self.ends[start - 1]) if start else 0
        last = int(self.ends[end - 1]) if end else 0
        systems, atoms = slice(start, end), slice(first, last)
        complete = {
            place - start: one for place, one in self.complete.items() if start <= place < end
        }
        return self._select(systems, atoms, complete)

    def _select(self, systems: Any, atoms: Any, complete: Mapping[int, System]) -> "SystemArrays":
        return SystemArrays(
            self.sizes[systems],
            self.numbers[atoms],
            self.positions[atoms],
            self.masses[atoms],
            self.cells[systems],
            self.pbc[systems],
            self.charges[systems],
            complete,
        )

    def take(self, places: Sequence[int]) -> "SystemArrays":
        """Those at some places, in that order; views where the places follow each other.

        Args:
            places: at least one, each from 0 to the number of systems - 1.

        Raises:
            IndexError: no places are given, or one at which there is no system.
        """
        if len(places) == 0 or min(places) < 0 or max(places) >= len(self):
            raise IndexError(f"{len(self)} systems side by side have no such places")
        if [*places] == [*range(places[0], places[0] + len(places))]:
            return self[places[0] : places[0] + len(places)]
        indices = np.array(places)
        sizes = self.sizes[indices]
        # Of each atom, its place among all, less that among the atoms that are taken.
        shifts = self.ends[indices] - sizes.cumsum()
        atoms = shifts.repeat(sizes) + np.arange(sizes.sum())
        complete = {
            new: self.complete[place] for new, place in enumerate(places) if place in self.complete
        }
        return self._select(indices, atoms, complete)

    def followed_by(self, systems: "SystemArrays") -> "SystemArrays":
        """These and then others, all copied; raises nothing, as each was checked."""
        complete = {len(self) + place: one for place, one in systems.complete.items()}
        both = zip(self._arrays(), systems._arrays(), strict=True)
        sizes, numbers, positions, masses, cells, pbc, charges = map(np.concatenate, both)
        return SystemArrays(
            sizes, numbers, positions, masses, cells, pbc, charges, {**self.complete, **complete}
        )


def are_among(numbers: NDArray[np.int64], elements: Sequence[int]) -> bool:
    """Whether all atomic numbers are those of some elements; by a table, as atoms are many."""
    table = np.zeros(len(SYMBOLS), dtype=bool)
    table[[element for element in elements if element < len(SYMBOLS)]] = True
    return bool(table[numbers].all())


def total_charge(system: System, charge: float | None = None) -> float:
    """The charge that counts: the argument, else the system's own, else 0."""
    if charge is not None:
        return float(charge)
    return 0.0 if system.charge is None else system.charge


Array = NDArray[Any]


def hill_formula(numbers: Iterable[int]) -> str:
    """Elements and their counts, carbon and hydrogen first, such as C2H6O, of atomic numbers."""
    counts = Counter(SYMBOLS[number] for number in numbers)
    order = sorted(counts, key=lambda symbol: (symbol != "C", symbol != "H", symbol))
    return "".join(f"{symbol}{counts[symbol] if counts[symbol] > 1 else ''}" for symbol in order)


NEAR: Final = 4.0
"""A, from the origin, within which a small system stays where it is."""


def make_whole(
    positions: NDArray[np.float64], cell: NDArray[np.float64], bonds: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Moves atoms by lattice vectors, so that each molecule is in one piece.

    Args:
        positions: (N, 3); returned as they are where no bond crosses a face of the cell.
        cell: (3, 3), in the same unit.
        bonds: (B, 2) indices of atoms.
    """
    first, second = bonds.T
    shifts = np.round((positions[second] - positions[first]) @ np.linalg.inv(cell))
    if not shifts.any():
        return positions
    neighbors: dict[int, list[tuple[int, NDArray[np.float64]]]] = {}
    for (atom, other), shift in zip(bonds.tolist(), shifts, strict=True):
        neighbors.setdefault(atom, []).append((other, -shift))
        neighbors.setdefault(other, []).append((atom, shift))
    offsets: dict[int, NDArray[np.float64]] = {}
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


def completed_cell(cell: Array, pbc: NDArray[np.bool_]) -> Array:
    """The cell (3, 3), A, with unit vectors normal to all others where it is not periodic.

    On the host as `mdgraph.neighbors.geometry.complete_cell` does on a device.
    """
    if pbc.all():
        return cell
    complete = np.eye(3)
    complete[pbc] = cell[pbc]
    missing = np.flatnonzero(~pbc)
    if len(missing) == 2:
        direction = complete[pbc][0] / np.linalg.norm(complete[pbc][0])
        axis = np.abs(direction).argmin()
        normal = np.eye(3)[axis] - direction[axis] * direction
        complete[missing[0]] = normal / np.linalg.norm(normal)
        complete[missing[1]] = np.cross(direction, complete[missing[0]])
    elif len(missing) == 1:
        after, last = complete[(missing[0] + 1) % 3], complete[(missing[0] + 2) % 3]
        normal = np.cross(after, last)
        complete[missing[0]] = normal / np.linalg.norm(normal)
    return complete


def compaction(lattice: Array, periodic: ArrayLike = True) -> Array:
    """Whole numbers (3, 3) that reduce a lattice (3, 3) as Minkowski does.

    Each periodic vector of the product is the shortest of its sums and differences with others.
    """
    axes = np.broadcast_to(np.asarray(periodic, dtype=bool), 3)
    others = axes[:, None] & axes & ~np.eye(3, dtype=bool)
    nearest = np.array(list(itertools.product((0.0, 1.0, -1.0), repeat=3))) * others[:, None]
    reduction = np.eye(3)
    while True:
        rows = reduction @ lattice
        products = rows @ rows.T
        squares = products.diagonal()
        # What the projections on others suggest shortens long vectors in few rounds.
        shares = np.round(products / squares) * others
        changes = np.concatenate([nearest, shares[:, None], shares[:, None] * np.eye(3)], axis=1)
        gains = np.square(rows[:, None] - changes @ rows).sum(-1) / squares[:, None]
        axis, change = np.unravel_index(gains.argmin(), gains.shape)
        if gains[axis, change] >= 1.0 - 1e-9:
            return reduction
        reduction[axis] -= changes[axis, change] @ reduction


def compact_cell(lattice: Array, periodic: ArrayLike = True) -> Array:
    """The most compact cell (3, 3) A of a lattice (3, 3) A of full rank; see `compaction`.

    On the host as `mdgraph.neighbors.geometry.compact_cells` does on a device.
    """
    return compaction(lattice, periodic) @ lattice


def lower_triangular(cell: Array) -> tuple[Array, Array]:
    """A right-handed cell with a along x and b in the plane of x and y, and the rotation to it.

    Args:
        cell: (3, 3) float64, one vector in each row, in any unit.

    Returns:
        The cell (3, 3) and a rotation (3, 3), both float64: vectors r become `r @ rotation`. A
        cell that has this form is returned as it is, with no rotation.
    """
    if not np.triu(cell, 1).any() and (cell.diagonal() > 0.0).all():
        return cell, np.eye(3)
    rotation, upper = np.linalg.qr(cell.T)
    signs = np.sign(upper.diagonal())
    return np.tril((upper * signs[:, None]).T), rotation * signs


def concatenate_systems(systems: Sequence[System], dtype: "torch.dtype") -> "dict[str, Tensor]":
    """What systems hold, by the names that `State` has for it.

    Args:
        systems: at least one; without velocities they are at rest.
        dtype: of what is real.
    """
    import torch  # here, as processes that only read and write structures do without

    arrays = SystemArrays.of(systems)
    sizes, ends = arrays.sizes, arrays.ends
    velocities, fixed = np.zeros(arrays.positions.shape), np.zeros(len(arrays.numbers), dtype=bool)
    for place, one in arrays.complete.items():
        atoms = slice(ends[place] - sizes[place], ends[place])
        velocities[atoms] = 0.0 if one.velocities is None else one.velocities
        fixed[atoms] = False if one.fixed is None else one.fixed
    given = {
        "numbers": torch.tensor(arrays.numbers),
        "masses": torch.tensor(arrays.masses, dtype=dtype),
        "positions": torch.tensor(arrays.positions, dtype=dtype),
        "velocities": torch.tensor(velocities, dtype=dtype),
        "cell": torch.tensor(arrays.cells, dtype=dtype),
        "pbc": torch.tensor(arrays.pbc),
        "charge": torch.tensor(np.nan_to_num(arrays.charges), dtype=dtype),
        "atom": torch.tensor(np.arange(len(arrays.numbers)) - (ends - sizes).repeat(sizes)),
        "fixed": torch.tensor(fixed),
    }
    if dtype != torch.float64:
        positions = np.split(arrays.positions, ends[:-1])
        given |= centred(positions, [*arrays.cells], [*arrays.pbc], dtype)
    return given


def centred(
    positions: Sequence[Array], cells: Sequence[Array], pbc: Sequence[Array], dtype: "torch.dtype"
) -> "dict[str, Tensor]":
    """Positions that fewer digits can hold, and what was taken off them.

    A system far from the origin is moved there, atom by atom into the cell and then as a whole,
    before its positions are rounded; one that would gain little stays where it is.

    Args:
        positions: (N, 3) A of each system.
        cells: (3, 3) A of each.
        pbc: (3,) of each.
        dtype: of the positions.

    Returns:
        `positions`, `turns`, `offset` and `offset_cell`, as in State.
    """
    import torch

    away = [_away(*one) for one in zip(positions, cells, pbc, strict=True)]
    offsets = [turns @ cell + centre for (turns, centre), cell in zip(away, cells, strict=True)]
    offset = torch.tensor(np.concatenate(offsets))
    return {
        "positions": (torch.tensor(np.concatenate(positions)) - offset).to(dtype),
        "turns": torch.tensor(np.concatenate([turns for turns, _ in away])),
        "offset": offset,
        "offset_cell": torch.tensor(np.stack(cells)).to(dtype).double(),
    }


def _away(positions: Array, cell: Array, pbc: Array) -> tuple[Array, Array]:
    """Lattice translations (N, 3) and a point (3,), A, to be taken off the positions."""
    turns = np.zeros_like(positions)
    if pbc.any():
        turns[:, pbc] = np.floor(positions @ np.linalg.pinv(cell[pbc]))
    inside = positions - turns @ cell
    centre = inside.mean(axis=0)
    if np.abs(positions).max() <= 2.0 * np.abs(inside - centre).max() + NEAR:
        return np.zeros_like(turns), np.zeros(3)
    return turns, centre
