"""What ASE wants to know of an evaluation, as arrays on the host."""

from typing import Any

import numpy as np
from ase import Atoms
from ase.calculators.calculator import PropertyNotImplementedError
from ase.stress import full_3x3_to_voigt_6_stress

from mdgraph.engine import Calculation, batches
from mdgraph.engine.batches import Result
from mdgraph.errors import InputError, StressUndefinedError, name_some


class NoStressError(StressUndefinedError, PropertyNotImplementedError):
    """Stress asked for where the cell has no volume; ASE knows it as not implemented."""


def results_of(calculation: Calculation, volume: float) -> dict[str, Any]:
    """Copies of what was computed for one system, by ASE's names; reads the device.

    Args:
        calculation: of one system.
        volume: A^3; without one there is no stress.

    Raises:
        InputError: energies or forces that are not finite.
    """
    (result,) = batches.results_of(calculation, 1)
    energies, forces = result.energies, result.forces
    bad = np.flatnonzero(~np.isfinite(forces).all(axis=1) | ~np.isfinite(energies))
    if len(bad):
        calculation.check_coincident()
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
        found["stress"] = full_3x3_to_voigt_6_stress(-result.virial / volume)
    return found


def volume_of(atoms: Atoms) -> float:
    """A^3; 0 where the three cell vectors do not span one, NaN where they are not finite."""
    cell = atoms.cell.array
    spans = np.isfinite(cell).all() and np.linalg.matrix_rank(cell) == 3
    return abs(float(np.linalg.det(cell))) if spans else 0.0 * float(cell.sum())
