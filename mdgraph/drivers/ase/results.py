"""What ASE wants to know of an evaluation, as arrays on the host."""

from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import PropertyNotImplementedError
from ase.stress import full_3x3_to_voigt_6_stress

from mdgraph.engine import Calculation
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
    state = calculation.state
    forces = state.forces.to("cpu", torch.float64, copy=True).numpy()
    energies = state.energies.to("cpu", copy=True).numpy()
    bad = np.flatnonzero(~np.isfinite(forces).all(axis=1) | ~np.isfinite(energies))
    if len(bad):
        calculation.check_coincident()
        raise InputError(
            f"The energies or forces of atoms {name_some(bad.tolist())} are not finite; check the "
            "structure and that the potential knows such ones."
        )
    energy = float(state.energy[0])
    found = {"energy": energy, "free_energy": energy, "energies": energies, "forces": forces}
    if volume > 0.0:
        stress = -state.virial[0].cpu().numpy() / volume
        found["stress"] = full_3x3_to_voigt_6_stress(stress)
    return found


def volume_of(atoms: Atoms) -> float:
    """A^3; 0 where the three cell vectors do not span one, NaN where they are not finite."""
    cell = atoms.cell.array
    spans = np.isfinite(cell).all() and np.linalg.matrix_rank(cell) == 3
    return abs(float(np.linalg.det(cell))) if spans else 0.0 * float(cell.sum())
