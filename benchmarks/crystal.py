"""Lattice constant, bulk modulus and elastic constants of a cubic crystal at rest.

    python benchmarks/crystal.py copper-pbe [--element Cu]

Energies of cells around the least are fitted by a cubic in V^(-2/3) (Birch and Murnaghan), and
stresses of strains of 1e-3 give the elastic constants, in double precision on a CPU. PBE has for
copper some 3.63 A, 138 GPa and 177, 132 and 82 GPa (DOI 10.1038/s41524-021-00559-9).
"""

import argparse

import numpy as np
from ase import Atoms
from ase.build import bulk
from ase.units import GPa
from cases import run_script
from numpy.typing import NDArray

from mdgraph.drivers.ase import MDGraphCalculator

STRAIN = 1e-3


def equation_of_state(atoms: Atoms) -> tuple[float, float]:
    """Lattice constant in A and bulk modulus in GPa of a cubic cell."""
    start = atoms.cell.lengths()[0]
    constants = start * np.linspace(0.97, 1.03, 25)
    energies = []
    for constant in constants:
        strained = atoms.copy()
        strained.set_cell(np.eye(3) * constant, scale_atoms=True)
        strained.calc = atoms.calc
        energies.append(strained.get_potential_energy())
    fit = np.polynomial.Polynomial.fit(constants**-2.0, energies, 3)
    roots = fit.deriv().roots()
    real = roots[np.isreal(roots)].real
    least = real[(real > min(constants**-2.0)) & (real < max(constants**-2.0))][0]
    volume = least**-1.5
    # dE/dx is zero there, x = V^(-2/3), so V d2E/dV2 = V (dx/dV)^2 d2E/dx2.
    slope = -2.0 / 3.0 * volume ** (-5.0 / 3.0)
    return least**-0.5, float(volume * slope**2 * fit.deriv(2)(least) / GPa)


def stress(atoms: Atoms, strain: NDArray[np.float64]) -> NDArray[np.float64]:
    """(6,) GPa of a strained cell."""
    strained = atoms.copy()
    strained.set_cell(atoms.cell.array @ (np.eye(3) + strain), scale_atoms=True)
    strained.calc = atoms.calc
    found: NDArray[np.float64] = strained.get_stress() / GPa
    return found


def elastic_constants(atoms: Atoms) -> tuple[float, float, float]:
    """C11, C12 and C44 in GPa."""
    along, shear = np.zeros((2, 3, 3))
    along[0, 0] = STRAIN
    shear[1, 2] = shear[2, 1] = STRAIN / 2
    tension = (stress(atoms, along) - stress(atoms, -along)) / (2 * STRAIN)
    shearing = (stress(atoms, shear) - stress(atoms, -shear)) / (2 * STRAIN)
    return float(tension[0]), float(tension[1]), float(shearing[3])


def main() -> None:
    """Prints them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("potential")
    parser.add_argument("--element", default="Cu", help="of a cubic crystal that ASE knows")
    options = parser.parse_args()
    calculator = MDGraphCalculator(options.potential, device="cpu", precision="double")
    atoms = bulk(options.element, cubic=True)
    atoms.calc = calculator
    constant, modulus = equation_of_state(atoms)
    rested = atoms.copy()
    rested.set_cell(np.eye(3) * constant, scale_atoms=True)
    rested.calc = calculator
    constants = elastic_constants(rested)
    print(f"lattice constant {constant:.4f} A, bulk modulus {modulus:.1f} GPa")
    print("C11 {:.1f}, C12 {:.1f}, C44 {:.1f} GPa".format(*constants))


if __name__ == "__main__":
    run_script(main)
