"""LabelledFrame: a structure with what a calculation said about it."""

from dataclasses import asdict, dataclass, field
from numbers import Real
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mdgraph.arguments import check_fields, shown
from mdgraph.elements import SYMBOLS
from mdgraph.errors import InputError
from mdgraph.system import FARTHEST

Array = NDArray[np.float64]

_LARGEST_ENERGY: Final = 2e6
"""eV an atom: with all its electrons the heaviest atom has 1.4e6."""


@dataclass(frozen=True)
class Provenance:
    """Where frames came from.

    Attributes:
        file: its name.
        sha256: of the file.
        importer: what read it.
        keys: what each label was called there.
        units: what its numbers were given in; they are stored in eV and A.
        level_of_theory: as stated by whoever imported it.
        licence: of the data.
    """

    file: str
    sha256: str = ""
    importer: str = ""
    keys: dict[str, str] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    level_of_theory: str = ""
    licence: str = ""

    def __post_init__(self) -> None:
        """Raises InputError for what is no text."""
        check_fields(self)

    def description(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class LabelledFrame:
    """N atoms and their labels; what is not known is NaN.

    Attributes:
        numbers: (N,) atomic numbers.
        positions: (N, 3) A.
        cell: (3, 3) A, one lattice vector a row.
        pbc: (3,) bool.
        energy: eV.
        forces: (N, 3) eV/A.
        stress: (3, 3) eV/A^3, tension positive.
        dipole: (3,) e A.
        charge: e, of all atoms together.
        weight: in the loss, beside frames of weight 1.
        force_weights: (N,) of the forces on each atom, beside `weight`; None is 1 for all.
        group: the kind of configuration or the molecule, for splits and tables.
    """

    numbers: NDArray[np.int64]
    positions: Array
    cell: Array = field(default_factory=lambda: np.zeros((3, 3)))
    pbc: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(3, dtype=bool))
    energy: float = np.nan
    forces: Array | None = None
    stress: Array | None = None
    dipole: Array | None = None
    charge: float = 0.0
    weight: float = 1.0
    force_weights: Array | None = None
    group: str = ""

    def __len__(self) -> int:
        return len(self.numbers)

    def check(self, where: str) -> None:
        """Raises InputError, beginning with `where`, for shapes and numbers that cannot be."""
        for name, kinds, needed in (
            ("numbers", "iu", True),
            ("positions", "fiu", True),
            ("cell", "fiu", True),
            ("pbc", "b", True),
            *((name, "fiu", False) for name in ("forces", "stress", "dipole", "force_weights")),
        ):
            value = getattr(self, name)
            if value is None and not needed:
                continue
            if not isinstance(value, np.ndarray) or value.dtype.kind not in kinds:
                raise InputError(
                    f"{where} has {name} {shown(value)}; give an array of "
                    f"{'truth values' if kinds == 'b' else 'numbers'}."
                )
        for name in ("energy", "charge", "weight"):
            value = getattr(self, name)
            if not isinstance(value, Real) or np.asarray(value).dtype.kind not in "fiu":
                raise InputError(f"{where} has the {name} {shown(value)}; give a number.")
        if not isinstance(self.group, str):
            raise InputError(f"{where} has the group {shown(self.group)}; give a text.")
        atoms = len(self.numbers)
        if atoms == 0:
            raise InputError(f"{where} has no atoms; remove it.")
        wrong = [int(n) for n in self.numbers.reshape(-1) if not 0 < n < len(SYMBOLS)]
        if wrong:
            raise InputError(f"{where} has an atomic number {wrong[0]}; repair it.")
        for name, value, shape in (
            ("numbers", self.numbers, (atoms,)),
            ("pbc", self.pbc, (3,)),
            ("positions", self.positions, (atoms, 3)),
            ("forces", self.forces, (atoms, 3)),
            ("cell", self.cell, (3, 3)),
            ("stress", self.stress, (3, 3)),
            ("dipole", self.dipole, (3,)),
            ("force_weights", self.force_weights, (atoms,)),
        ):
            if value is not None and np.shape(value) != shape:
                raise InputError(
                    f"{where} has {name} of shape {np.shape(value)} for {atoms} atoms, not "
                    f"{shape}; name the right key or repair the file."
                )
        if not (np.isfinite(self.positions).all() and np.isfinite(self.cell).all()):
            raise InputError(f"{where} has a position or cell that is not finite; repair it.")
        farthest = max(np.abs(self.positions).max(), np.abs(self.cell).max())
        if farthest > FARTHEST:
            raise InputError(
                f"{where} has a position or cell vector of {farthest:.3g} A; repair it, or give "
                "the right --length-unit."
            )
        if not abs(self.charge) <= self.numbers.sum() or abs(self.charge % 1.0 - 0.5) < 0.499:
            raise InputError(
                f"{where} has a charge of {self.charge:g} e, which must be whole and no larger "
                "than that of its nuclei; give the right --charge-key, or none."
            )
        if np.isfinite(self.energy) and abs(self.energy) > _LARGEST_ENERGY * atoms:
            raise InputError(
                f"{where} has an energy of {self.energy:.3g} eV, beyond that of all electrons of "
                "its atoms; give the right --energy-key and --energy-unit."
            )
        weights = np.array([self.weight])
        if self.force_weights is not None:
            weights = np.append(weights, self.force_weights)
        if not (np.isfinite(weights).all() and weights.min() >= 0.0):
            raise InputError(f"{where} has a weight that is no number from 0 on; repair it.")
        if self.pbc.any() and np.linalg.matrix_rank(self.cell[self.pbc]) < self.pbc.sum():
            raise InputError(f"{where} is periodic along a vector its cell lacks; repair it.")
