"""Lattice constant, bulk modulus and elastic constants of a cubic crystal at rest."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from mdgraph.errors import InputError
from mdgraph.system import System
from mdgraph.units import BAR
from mdgraph.validate.probes import Evaluate

GPA: Final = 1e4 * BAR
"""One GPa in eV/A^3."""

STRAIN: Final = 1e-3
"""Strain of the cells whose stresses give the elastic constants."""

SPREAD: Final = 0.03
POINTS: Final = 25
"""Range and number of the lattice constants."""


def equation_of_state(crystal: System, evaluate: Evaluate) -> tuple[float, float]:
    """Lattice constant in A and bulk modulus in GPa, of a cubic cell.

    Energies are fitted by a cubic polynomial in V^(-2/3) (Birch and Murnaghan).

    Args:
        crystal: with a cubic cell, whose lattice constant is within 3 % of that at rest.
        evaluate: see `evaluate_with`; best in double precision.

    Raises:
        InputError: there is no minimum of the energy within that range.
    """
    start = float(np.linalg.norm(crystal.cell[0]))
    constants = start * np.linspace(1.0 - SPREAD, 1.0 + SPREAD, POINTS)
    cells = [with_cell(crystal, np.eye(3) * constant) for constant in constants]
    energies = [result.energy for result in evaluate(cells, "crystal")]
    x = constants**-2.0
    fit = np.polynomial.Polynomial.fit(x, energies, 3)
    roots = fit.deriv().roots()
    real = roots[np.isreal(roots)].real
    inside = real[(real > x.min()) & (real < x.max())]
    if not len(inside):
        raise InputError(f"No energy is least within {SPREAD:.0%} of {start:.3f} A.")
    least = inside[0]
    volume = least**-1.5
    # dE/dx is zero there, x = V^(-2/3), so V d2E/dV2 = V (dx/dV)^2 d2E/dx2.
    slope = -2.0 / 3.0 * volume ** (-5.0 / 3.0)
    return float(least**-0.5), float(volume * slope**2 * fit.deriv(2)(least) / GPA)


def elastic_constants(crystal: System, evaluate: Evaluate) -> tuple[float, float, float]:
    """C11, C12 and C44 in GPa; atoms keep their fractional positions.

    Args:
        crystal: at rest, with a cubic cell.
        evaluate: see `evaluate_with`; best in double precision.
    """
    along, shear = np.zeros((2, 3, 3))
    along[0, 0] = STRAIN
    shear[1, 2] = shear[2, 1] = STRAIN / 2
    strains = (along, -along, shear, -shear)
    cells = [with_cell(crystal, crystal.cell @ (np.eye(3) + strain)) for strain in strains]
    results = evaluate(cells, "strained crystal")
    longer, shorter, one_way, other_way = (
        -result.virial / GPA / abs(np.linalg.det(cell.cell))
        for cell, result in zip(cells, results, strict=True)
    )
    tension, shearing = (longer - shorter) / (2 * STRAIN), (one_way - other_way) / (2 * STRAIN)
    return float(tension[0, 0]), float(tension[1, 1]), float(shearing[1, 2])


def with_cell(system: System, cell: NDArray[np.float64]) -> System:
    """The system with another cell (3, 3) A and the same fractional positions."""
    positions = system.positions @ np.linalg.inv(system.cell) @ cell
    return system.replace(positions=positions, cell=cell)
