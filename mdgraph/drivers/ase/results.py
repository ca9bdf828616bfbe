"""What ASE wants to know of an evaluation, as arrays on the host."""

from typing import Any, Final

import numpy as np
from ase import Atoms
from ase.calculators.calculator import PropertyNotImplementedError

from mdgraph.engine import Calculation
from mdgraph.engine.results import Answer, Result
from mdgraph.errors import InputError, StressUndefinedError, name_some

_VOIGT: Final = (0, 4, 8, 5, 2, 1)
"""Places of xx, yy, zz, yz, xz, xy in a matrix, row by row."""


class NoStressError(StressUndefinedError, PropertyNotImplementedError):
    """Stress asked for where the cell has no volume; ASE knows it as not implemented."""


def results_of(calculation: Calculation, answer: Answer, volume: float) -> dict[str, Any]:
    """Copies of what was computed for one system, by ASE's names.

    Args:
        calculation: of one system.
        answer: what it gave.
        volume: A^3; without one there is no stress.

    Raises:
        InputError: energies or forces that are not finite.
    """
    (result,) = answer.results(1)
    if not answer.finite:
        calculation.check_coincident()
        bad = np.flatnonzero(
            ~np.isfinite(result.forces).all(axis=1) | ~np.isfinite(result.energies)
        )
        raise InputError(
            f"The energies or forces of atoms {name_some(bad.tolist())} are not finite; check the "
            "structure and that the potential knows such ones."
        )
    return named(result, volume)


def named(result: Result, volume: float) -> dict[str, Any]:
    """A result by ASE's names, with stress where there is a volume (A^3)."""
    found: dict[str, Any] = {
        "energy": result.energy,
        "free_energy": result.energy,
        "energies": result.energies,
        "forces": result.forces,
    }
    if volume > 0.0:
        virial = 0.5 * (result.virial + result.virial.T)
        found["stress"] = virial.take(_VOIGT) / -volume
    return found


def volume_of(atoms: Atoms) -> float:
    """A^3; 0 where the three cell vectors do not span one, NaN where they are not finite."""
    cell = atoms.cell.array
    spans = np.isfinite(cell).all() and np.linalg.matrix_rank(cell) == 3
    return abs(float(np.linalg.det(cell))) if spans else 0.0 * float(cell.sum())
