"""System: what is simulated, as plain arrays on the host."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mdgraph.elements import SYMBOLS, standard_masses
from mdgraph.errors import InputError, name_some


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

    Raises:
        InputError: zero atoms, wrong shapes, non-finite numbers, unknown elements,
            masses that are not positive, a singular cell along periodic directions.
    """

    numbers: NDArray[np.int64]
    positions: NDArray[np.float64]
    cell: NDArray[np.float64] = field(default_factory=lambda: np.zeros((3, 3)))
    pbc: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(3, dtype=bool))
    masses: NDArray[np.float64] = None  # type: ignore[assignment]
    velocities: NDArray[np.float64] | None = None
    charge: float | None = None

    def __post_init__(self) -> None:
        numbers = self._array("numbers", self.numbers, np.int64, (-1,))
        if (np.asarray(self.numbers, dtype=float) != numbers).any():
            raise InputError("The atomic numbers are not whole; give integers.")
        count = len(numbers)
        if count == 0:
            raise InputError("The structure has no atoms; give one with at least one atom.")
        unknown = np.flatnonzero((numbers < 1) | (numbers >= len(SYMBOLS)))
        if len(unknown):
            raise InputError(
                f"Atoms {name_some(unknown)} have atomic numbers "
                f"{name_some(sorted(set(numbers[unknown].tolist())))} that are no elements; "
                f"give numbers from 1 to {len(SYMBOLS) - 1}."
            )
        positions = self._array("positions", self.positions, np.float64, (count, 3))
        cell = self._array("cell", self.cell, np.float64, (3, 3))
        try:
            pbc = np.broadcast_to(np.asarray(self.pbc, dtype=bool), 3).copy()
        except ValueError:
            raise InputError(f"pbc is {self.pbc}; give one or three truth values.") from None
        pbc.flags.writeable = False
        masses = standard_masses(numbers) if self.masses is None else self.masses
        masses = self._array("masses", masses, np.float64, (count,))
        light = np.flatnonzero(masses <= 0)
        if len(light):
            raise InputError(
                f"Atoms {name_some(light)} have a mass that is not positive; "
                "give every atom a mass above zero in amu."
            )
        if self.velocities is not None:
            velocities = self._array("velocities", self.velocities, np.float64, (count, 3))
            object.__setattr__(self, "velocities", velocities)
        if self.charge is not None:
            object.__setattr__(self, "charge", _finite(self.charge, "total charge", "e"))
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
        try:
            array: NDArray[Any] = np.array(value, dtype=dtype)
        except (TypeError, ValueError):
            raise InputError(f"The {name} are not numbers; give an array of {shape}.") from None
        if array.ndim != len(shape) or any(
            want not in (-1, have) for want, have in zip(shape, array.shape, strict=True)
        ):
            wanted = str(shape).replace("-1", "N")
            raise InputError(f"The {name} have shape {array.shape}; they must have {wanted}.")
        if not np.isfinite(array).all():
            rows = np.unique(np.argwhere(~np.isfinite(array))[:, 0])
            kind = "row" if name == "cell" else "atom"
            raise InputError(
                f"The {name} of {kind} {name_some(rows)} are not finite; repair the structure."
            )
        array.flags.writeable = False
        return array

    def _check_cell(self) -> None:
        vectors = self.cell[self.pbc]
        if len(vectors) == 0:
            return
        lengths = np.linalg.norm(vectors, axis=1)
        if lengths.min() < 1e-3:
            raise InputError(
                "The cell has no vector along a periodic direction; "
                "give the missing cell vector or turn pbc off along it."
            )
        gram = (vectors / lengths[:, None]) @ (vectors / lengths[:, None]).T
        if np.linalg.det(gram) < 1e-8:
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
        if np.linalg.matrix_rank(self.cell) < 3:
            return 0.0
        return float(abs(np.linalg.det(self.cell)))

    def __len__(self) -> int:
        return len(self.numbers)

    def replace(self, **changes: Any) -> "System":
        """Returns a copy with some fields changed, checked again."""
        return replace(self, **changes)


def _finite(value: Any, name: str, unit: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError(f"The {name} is {value!r}, no number; give it in {unit}.") from None
    if not np.isfinite(number):
        raise InputError(f"The {name} is not finite; give it in {unit}.")
    return number


def total_charge(system: System, charge: float | None = None) -> float:
    """The charge that counts: the argument, else the system's own, else 0."""
    if charge is not None:
        return float(charge)
    return 0.0 if system.charge is None else system.charge
