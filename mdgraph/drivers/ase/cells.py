"""What a cell filter of ASE asks for, in the engine's words."""

from dataclasses import dataclass

import numpy as np
from ase import Atoms
from ase.filters import ExpCellFilter, FrechetCellFilter, UnitCellFilter

from mdgraph.errors import InputError


@dataclass(frozen=True)
class CellChange:
    """How a cell may change in a relaxation.

    Attributes:
        ways: `isotropic`, `axes` or `full`, see `mdgraph.engine.deformation`; None keeps it.
        axes: which cell vectors may, for `axes`.
        pressure: eV/A^3, on a cell that changes.
    """

    ways: str | None = None
    axes: tuple[bool, ...] | None = None
    pressure: float = 0.0


def cell_change(atoms: Atoms | UnitCellFilter) -> tuple[Atoms, CellChange]:
    """The atoms behind a filter, and how it lets the cell change.

    Raises:
        InputError: another filter, a mask of shears or of directions along which no cell
            vector lies, or a volume that is to stay.
    """
    if isinstance(atoms, Atoms):
        return atoms, CellChange()
    if type(atoms) not in (FrechetCellFilter, UnitCellFilter, ExpCellFilter):
        raise InputError(
            f"mdgraph cannot relax {type(atoms).__name__}; give Atoms or FrechetCellFilter(atoms)."
        )
    if atoms.constant_volume:
        raise InputError("A cell cannot change at constant volume here; leave constant_volume out.")
    own: Atoms = atoms.atoms
    pressure = float(atoms.scalar_pressure)
    mask = np.asarray(atoms.mask, dtype=bool)
    if atoms.hydrostatic_strain and mask.all():
        return own, CellChange("isotropic", None, pressure)
    if mask.all():
        return own, CellChange("full", None, pressure)
    cell = own.cell.array
    upright = np.array_equal(cell, np.diag(np.diag(cell)))
    if atoms.hydrostatic_strain or not upright or (mask & ~np.eye(3, dtype=bool)).any():
        raise InputError(
            "A mask of the cell may name lengths of vectors along x, y and z alone; leave the "
            "mask out, or give one like [True, True, False, False, False, False]."
        )
    axes = tuple(bool(axis) for axis in np.diag(mask))
    return own, CellChange("axes", axes, pressure) if any(axes) else CellChange()
