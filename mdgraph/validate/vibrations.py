"""Molecules at rest: minima to the last step, force constants and vibrations."""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mdgraph.engine.batches import Evaluate
from mdgraph.system import System
from mdgraph.units import SPEED_OF_LIGHT
from mdgraph.validate.verdicts import Check, Verdict

Array = NDArray[np.float64]

REST_FORCE: Final = 5e-4
REST_STEPS: Final = 100
LONGEST_STEP: Final = 0.1
"""eV/A at a minimum, most steps that begin with known force constants, and A that an atom moves at
most in one. FIRE would take thousands of steps in torsions, which are soft."""

SOFTEST: Final = 0.02
"""eV/A^2, smallest force constant by which such a step divides."""

STEP: Final = 0.02
"""A by which atoms are moved for force constants."""

IMAGINARY: Final = 50.0
"""cm^-1; softer imaginary modes may be due to the tolerances of the minimum."""

HIGHEST: Final = 4600.0
"""cm^-1; H2 has 4400, and no molecule more."""

CM: Final = 1.0 / (2.0 * math.pi * SPEED_OF_LIGHT)
"""cm^-1 in a rad/fs."""

_PER_FS2: Final = 9.648533212e-3
"""1/fs^2 in an eV/A^2/amu."""


def force_constants(system: System, evaluate: Evaluate) -> Array:
    """(3N, 3N) eV/A^2, symmetric, by differences of forces."""
    copies = []
    for coordinate in range(3 * len(system)):
        for sign in (1.0, -1.0):
            positions = system.positions.copy()
            positions.reshape(-1)[coordinate] += sign * STEP
            copies.append(system.replace(positions=positions))
    forces = np.array([result.forces.reshape(-1) for result in evaluate(copies, "displaced")])
    hessian = (forces[1::2] - forces[::2]) / (2.0 * STEP)
    return 0.5 * (hessian + hessian.T)


def brought_to_rest(system: System, evaluate: Evaluate) -> tuple[System, float, Array]:
    """Quasi-Newton steps from near a minimum, with the updates of Broyden and others.

    Args:
        system: a molecule whose forces are small.
        evaluate: energies and forces.

    Returns:
        The structure, its largest force (eV/A), and its (3N, 3N) force constants (eV/A^2).
    """
    hessian = force_constants(system, evaluate)
    forces = evaluate([system], "structure")[0].forces
    best = _largest(forces), system
    for _ in range(REST_STEPS):
        if best[0] < REST_FORCE or not np.isfinite(hessian).all():
            break
        values, vectors = np.linalg.eigh(hessian)
        step = vectors @ (vectors.T @ forces.reshape(-1) / np.maximum(np.abs(values), SOFTEST))
        step *= min(1.0, LONGEST_STEP / _largest(step.reshape(-1, 3)))
        system = system.replace(positions=system.positions + step.reshape(-1, 3))
        before, forces = forces, evaluate([system], "structure")[0].forces
        change, along = (before - forces).reshape(-1), hessian @ step
        if change @ step > 0.0:
            hessian = hessian + np.outer(change, change) / (change @ step)
            hessian -= np.outer(along, along) / (step @ along)
        best = min(best, (_largest(forces), system), key=lambda structure: structure[0])
    return best[1], best[0], force_constants(best[1], evaluate)


def _largest(vectors: Array) -> float:
    """Length of the longest of vectors (N, 3)."""
    return float(np.linalg.norm(vectors, axis=1).max())


def normal_modes(system: System, hessian: Array) -> tuple[Array, Array]:
    """Harmonic vibrations, in ascending order of their frequencies.

    Args:
        system: a molecule at a minimum.
        hessian: (3N, 3N) its force constants, eV/A^2.

    Returns:
        (V,) cm^-1, negative where imaginary, of 3N - 6 or 5 modes, and (V, N, 3) A, displacements
        that take 1 eV each where a mode is harmonic and not imaginary.
    """
    roots = np.sqrt(np.repeat(system.masses, 3))
    inner = _vibrations(system, roots)
    values, vectors = np.linalg.eigh(inner.T @ (hessian / np.outer(roots, roots)) @ inner)
    sizes = np.sqrt(2.0 / np.maximum(np.abs(values), 1e-12))
    displacements = (inner @ vectors / roots[:, None] * sizes).T.reshape(-1, len(system), 3)
    return np.sign(values) * np.sqrt(np.abs(values) * _PER_FS2) * CM, displacements


def _vibrations(system: System, roots: Array) -> Array:
    """(3N, V) orthonormal motions, weighted by masses, that neither shift nor turn."""
    centred = system.positions - np.average(system.positions, axis=0, weights=system.masses)
    shifts = [np.tile(axis, len(system)) for axis in np.eye(3)]
    turns = [np.cross(axis, centred).reshape(-1) for axis in np.eye(3)]
    outer = np.array([*shifts, *turns]).T * roots[:, None]
    vectors, sizes, _ = np.linalg.svd(outer, full_matrices=True)
    rank = int((sizes > 1e-4 * sizes[0]).sum())
    inner: Array = vectors[:, rank:]
    return inner


def vibration_check(title: str, system: System, hessian: Array) -> Check:
    """Whether vibrations of a molecule at rest are those of any molecule, and none is imaginary."""
    name = f"vibrations of {title}"
    if not np.isfinite(hessian).all():
        return Check(name, Verdict.WRONG, "Forces near the minimum are not finite.")
    modes, _ = normal_modes(system, hessian)
    imaginary = modes[modes < -IMAGINARY]
    numbers = {"frequencies_per_cm": np.round(modes, 1).tolist(), "imaginary": len(imaginary)}
    text = f"{len(modes)} modes from {modes[0]:.0f} to {modes[-1]:.0f} per cm"
    if modes[-1] > HIGHEST:
        text += f"; no molecule has more than {HIGHEST:.0f}."
        return Check(name, Verdict.WRONG, text, numbers)
    if len(imaginary):
        text += f"; {len(imaginary)} imaginary, so it rests on a saddle."
        return Check(name, Verdict.LOOK, text, numbers)
    beyond = f" beyond {IMAGINARY:.0f}" if modes[0] < 0.0 else ""
    return Check(name, Verdict.OK, f"{text}, none imaginary{beyond}.", numbers)
