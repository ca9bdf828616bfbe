"""Shapes of molecules along a trajectory: bond lengths, angles, and RMSD after superposition."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from mdgraph.engine.observables import ObservableResult
from mdgraph.engine.observables.base import Row
from mdgraph.system import compaction, hill_formula
from mdgraph.units import SYMBOLS

Array = NDArray[np.float64]

_LENGTH_WIDTH: Final = 0.01
"""A, of a bin of bond lengths."""

_ANGLE_WIDTH: Final = 1.0
"""Degrees, of a bin of angles."""

_LONGEST: Final = 10.0
"""A; longer bonds, which are broken, are counted here."""

SMALLEST_MOLECULE: Final = 4
"""Atoms of a molecule that is superimposed; three always lie in a plane."""


@dataclass(frozen=True, eq=False, kw_only=True)
class HistogramResult(ObservableResult):
    """Distributions of a quantity for T types, such as C-H for bonds or H-O-H for angles.

    Attributes:
        column: name of the quantity with its unit.
        types: names by elements.
        terms: (T,) int64, number of bonds or angles of each type.
        middle: (B,) float64, middle of each bin, A or degrees.
        counts: (T, B) int64, over all terms and frames.
        mean: (T,) float64, A or degrees.
        deviation: (T,) float64, standard deviation over terms and frames, A or degrees.
    """

    column: ClassVar[str]
    types: tuple[str, ...]
    terms: NDArray[np.int64]
    middle: Array
    counts: NDArray[np.int64]
    mean: Array
    deviation: Array

    def density(self) -> Array:
        """(T, B) float64, share of a type in each bin over the width of a bin; integrates to 1."""
        width = self.middle[1] - self.middle[0]
        density: Array = self.counts / (self.counts.sum(1, keepdims=True) * width)
        return density

    def rows(self, system: int | None = None) -> list[Row]:
        """See ObservableResult; a row for each type and bin, from its first count to its last."""
        unit = self.column.rpartition("_")[2]
        rows: list[Row] = []
        for name, counts, density in zip(self.types, self.counts, self.density(), strict=True):
            filled = np.flatnonzero(counts)
            rows += [
                {
                    "type": name,
                    self.column: float(self.middle[place]),
                    f"density_per_{unit}": float(density[place]),
                    "count": int(counts[place]),
                }
                for place in range(filled[0], filled[-1] + 1)
            ]
        return rows


class BondLengthResult(HistogramResult):
    """Distributions of bond lengths, A."""

    kind: ClassVar[str] = "bond lengths"
    column: ClassVar[str] = "length_A"


class AngleResult(HistogramResult):
    """Distributions of angles between bonds, degrees."""

    kind: ClassVar[str] = "angles"
    column: ClassVar[str] = "angle_degrees"


_Result = TypeVar("_Result", bound=HistogramResult)


class _Histogram:
    """Counts values by type in bins, with their sums."""

    def __init__(self, types: Sequence[str], width: float, largest: float) -> None:
        """Sorts the types by name.

        Args:
            types: of each value of a frame.
            width: of a bin, from 0 on.
            largest: greater values count in the last bin.
        """
        self.names, self._type = np.unique(np.array(types, dtype=np.str_), return_inverse=True)
        self._bins, self._width = round(largest / width), width
        self.terms = np.bincount(self._type)
        self._counts = np.zeros((len(self.names), self._bins), dtype=np.int64)
        self._first: Array | None = None
        self._sums = np.zeros((2, len(self.names)))
        self._frames = 0

    def add(self, values: Array) -> None:
        """Adds the values of a frame."""
        place = np.minimum((values / self._width).astype(np.int64), self._bins - 1)
        flat = self._type * self._bins + place
        self._counts += np.bincount(flat, minlength=self._counts.size).reshape(self._counts.shape)
        if self._first is None:
            # Sums of squares relative to a mean keep the digits of a narrow distribution.
            self._first = np.bincount(self._type, weights=values) / self.terms
        change = values - self._first[self._type]
        self._sums += [np.bincount(self._type, weights=change**power) for power in (1, 2)]
        self._frames += 1

    def result(self, result_class: type[_Result], every: int) -> _Result:
        """Of all frames so far, at least one."""
        assert self._first is not None
        change, square = self._sums / (self.terms * self._frames)
        return result_class(
            samples=self._frames,
            every=every,
            types=tuple(self.names.tolist()),
            terms=self.terms,
            middle=self._width * np.arange(0.5, self._bins),
            counts=self._counts,
            mean=self._first + change,
            deviation=np.sqrt(np.maximum(square - change**2, 0.0)),
        )


class BondedTerms:
    """Lengths of bonds and angles between them, by the elements of their atoms.

    The bonds are those of one frame and stay. A bond vector follows its atoms: of its periodic
    images, it is the one nearest to that of the frame before, so wrapped positions do no harm.

    Attributes:
        bonds: (B, 2) int64, indices of atoms.
        angles: (A, 2) int64, pairs of bonds with a common atom.
    """

    def __init__(
        self,
        numbers: NDArray[np.int64],
        bonds: NDArray[np.int64],
        shifts: NDArray[np.int64],
        pbc: NDArray[np.bool_],
        atoms: Sequence[int] | None = None,
    ) -> None:
        """Lists the angles.

        Args:
            numbers: (N,) atomic numbers.
            bonds: (B, 2) indices of atoms.
            shifts: (B, 3) lattice vectors to add to the second atom, in the first frame.
            pbc: (3,) periodic directions.
            atoms: indices; terms with other atoms do not count. None for all.
        """
        if atoms is not None:
            within = np.isin(bonds, atoms).all(axis=1)
            bonds, shifts = bonds[within], shifts[within]
        self.bonds, self._shifts, self._pbc = bonds, shifts, pbc
        self._previous: Array | None = None
        self._compaction: Array | None = None
        symbols = np.array(SYMBOLS)[numbers]
        pairs = [sorted(pair, key=SYMBOLS.index) for pair in symbols[bonds].tolist()]
        self._lengths = _Histogram(["-".join(pair) for pair in pairs], _LENGTH_WIDTH, _LONGEST)
        # Both ends of each bond, sorted by atom: the bonds of an atom stand together.
        ends = np.concatenate([bonds[:, 0], bonds[:, 1]])
        order = np.argsort(ends, kind="stable")
        angles: list[tuple[int, int]] = []
        names: list[str] = []
        signs: list[float] = []
        count = len(bonds)
        for group in np.split(order, np.flatnonzero(np.diff(ends[order])) + 1) if count else []:
            middle = symbols[ends[group[0]]]
            outer = [symbols[bonds[end % count, int(end < count)]] for end in group]
            for first in range(len(group)):
                for second in range(first):
                    one, other = int(group[first]), int(group[second])
                    angles.append((one % count, other % count))
                    # Vectors lead from the first atom of a bond to the second.
                    signs.append(1.0 if (one < count) == (other < count) else -1.0)
                    low, high = sorted((outer[first], outer[second]), key=SYMBOLS.index)
                    names.append(f"{low}-{middle}-{high}")
        self.angles = np.array(angles, dtype=np.int64).reshape(-1, 2)
        self._signs = np.array(signs)
        self._angles = _Histogram(names, _ANGLE_WIDTH, 180.0)

    def add(self, positions: Array, cell: Array) -> None:
        """Adds a frame.

        Args:
            positions: (N, 3) A.
            cell: (3, 3) A, of full rank, with any vectors along directions that are not periodic.
        """
        if self._compaction is None:
            self._compaction = compaction(cell, self._pbc)
        vectors = positions[self.bonds[:, 1]] - positions[self.bonds[:, 0]] + self._shifts @ cell
        if self._previous is not None:
            # Whole turns lead to the nearest image where the cell is compact.
            turns = (vectors - self._previous) @ np.linalg.inv(self._compaction @ cell)
            whole = np.where(self._pbc, np.rint(turns), 0.0) @ self._compaction
            jumps = whole.astype(np.int64)
            if jumps.any():
                self._shifts = self._shifts - jumps
                vectors = vectors - jumps @ cell
        self._previous = vectors
        lengths = np.linalg.norm(vectors, axis=1)
        self._lengths.add(lengths)
        if len(self.angles):
            unit = vectors / lengths[:, None]
            first, second = unit[self.angles[:, 0]], unit[self.angles[:, 1]]
            cosines = self._signs * np.einsum("ij,ij->i", first, second)
            self._angles.add(np.degrees(np.arccos(cosines.clip(-1.0, 1.0))))

    def length_result(self, every: int) -> BondLengthResult:
        """Distributions of bond lengths; `every` is the number of steps between frames."""
        return self._lengths.result(BondLengthResult, every)

    def angle_result(self, every: int) -> AngleResult:
        """Distributions of angles; `every` is the number of steps between frames."""
        return self._angles.result(AngleResult, every)


def superposition_rmsd(positions: Array, reference: Array) -> Array:
    """RMSD (M,) in A of M molecules of n atoms after the best superposition, without masses.

    The rotation follows from the singular values of the covariance of both sets of positions;
    a reflection is no rotation. DOI 10.1107/S0567739476001873, 10.1107/S0567739478001680.

    Args:
        positions: (M, n, 3) A.
        reference: (M, n, 3) A.
    """
    moved = positions - positions.mean(axis=1, keepdims=True)
    fixed = reference - reference.mean(axis=1, keepdims=True)
    left, _, right = np.linalg.svd(np.swapaxes(moved, 1, 2) @ fixed)
    signs = np.ones((len(moved), 3))
    signs[:, 2] = np.sign(np.linalg.det(left) * np.linalg.det(right))
    rotations = (left * signs[:, None]) @ right
    squares = np.square(moved @ rotations - fixed).sum(axis=-1)
    rmsd: Array = np.sqrt(squares.mean(axis=1))
    return rmsd


@dataclass(frozen=True, eq=False, kw_only=True)
class RMSDResult(ObservableResult):
    """RMSD of molecules from the first frame, a mean over molecules of the same atoms.

    Attributes:
        time: (F,) float64, ps.
        molecules: number of molecules of each formula.
        value: (F,) float64, A, for each formula.
    """

    kind: ClassVar[str] = "RMSD"
    time: Array
    molecules: dict[str, int]
    value: dict[str, Array]

    def rows(self, system: int | None = None) -> list[Row]:
        """See ObservableResult; a row for each frame, a column for each formula."""
        return [
            {
                "time_ps": float(time),
                **{f"rmsd_{name}_A": float(value[place]) for name, value in self.value.items()},
            }
            for place, time in enumerate(self.time)
        ]


class MoleculeRMSD:
    """RMSD of each molecule from its shape in the first frame, without turns and translations."""

    def __init__(
        self,
        numbers: NDArray[np.int64],
        labels: NDArray[np.int64],
        finite: NDArray[np.bool_],
        atoms: Sequence[int] | None = None,
    ) -> None:
        """Groups molecules of the same elements in the same order.

        Args:
            numbers: (N,) atomic numbers.
            labels: (N,) molecule of each atom.
            finite: (M,) whether a molecule ends before its own periodic image.
            atoms: indices; others are left out. None for all.
        """
        chosen = np.arange(len(numbers)) if atoms is None else np.array(atoms)
        order = chosen[np.argsort(labels[chosen], kind="stable")]
        groups: dict[tuple[int, ...], list[NDArray[np.int64]]] = {}
        for members in np.split(order, np.flatnonzero(np.diff(labels[order])) + 1):
            if len(members) >= SMALLEST_MOLECULE and finite[labels[members[0]]]:
                groups.setdefault(tuple(numbers[members].tolist()), []).append(members)
        self._members: dict[str, NDArray[np.int64]] = {}
        for elements, molecules in groups.items():
            name = hill_formula(elements)
            number = 1 + sum(known.partition("_")[0] == name for known in self._members)
            self._members[name if number == 1 else f"{name}_{number}"] = np.array(molecules)
        self._references: dict[str, Array] = {}
        self._values: dict[str, list[float]] = {name: [] for name in self._members}
        self._times: list[float] = []

    @property
    def empty(self) -> bool:
        """Whether there is no molecule of enough atoms."""
        return not self._members

    def add(self, time: float, positions: Array) -> None:
        """Adds a frame at a time in ps, with positions (N, 3) in A of whole molecules."""
        self._times.append(time)
        for name, members in self._members.items():
            reference = self._references.setdefault(name, positions[members])
            rmsd = superposition_rmsd(positions[members], reference)
            self._values[name].append(float(rmsd.mean()))

    def result(self, every: int) -> RMSDResult:
        """Of all frames so far; `every` is the number of steps between frames."""
        return RMSDResult(
            samples=len(self._times),
            every=every,
            time=np.array(self._times),
            molecules={name: len(members) for name, members in self._members.items()},
            value={name: np.array(values) for name, values in self._values.items()},
        )
