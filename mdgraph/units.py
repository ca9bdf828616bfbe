"""Units inside mdgraph (eV, Angstrom, fs, amu, K, e), and elements by symbol and mass.

Constants are CODATA 2018. ASE 3.x carries CODATA 2014, so its numbers differ in the
eighth digit; `docs/units.md` lists where that shows.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

BOLTZMANN: Final = 8.617333262e-5
"""Boltzmann constant, eV/K."""

ELEMENTARY_CHARGE: Final = 1.602176634e-19
"""C, so also J in one eV."""

ATOMIC_MASS_UNIT: Final = 1.66053906660e-27
"""kg."""

ACCELERATION: Final = ELEMENTARY_CHARGE / ATOMIC_MASS_UNIT * 1e-10
"""Acceleration in A/fs^2 of one amu under a force of one eV/A (9.6485e-3)."""

KINETIC_ENERGY: Final = 1.0 / ACCELERATION
"""Energy in eV of one amu A^2/fs^2 (103.64)."""

AVOGADRO: Final = 6.02214076e23
"""1/mol."""

KILOJOULE_PER_MOLE: Final = 1e3 / (ELEMENTARY_CHARGE * AVOGADRO)
"""One kJ/mol in eV (1.0364e-2)."""

NANOMETRE: Final = 10.0
"""A."""

PICOSECOND: Final = 1000.0
"""fs."""

NANOMETRE_PER_PICOSECOND: Final = NANOMETRE / PICOSECOND
"""A/fs."""

SPEED_OF_LIGHT: Final = 2.99792458e-5
"""cm/fs: a period in fs is 1 over this and the wavenumber in 1/cm."""

DENSITY: Final = 1e27 * ATOMIC_MASS_UNIT
"""One amu/A^3 in g/cm^3 (1.6605)."""

DIFFUSION: Final = 1e4
"""One A^2/fs in 1e-5 cm^2/s."""

BAR: Final = 1e-25 / ELEMENTARY_CHARGE
"""One bar in eV/A^3 (6.2415e-7)."""


_PERIODIC_TABLE: Final = """
X H He
Li Be B C N O F Ne
Na Mg Al Si P S Cl Ar
K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr
Rb Sr Y Zr Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe
Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb Lu
Hf Ta W Re Os Ir Pt Au Hg Tl Pb Bi Po At Rn
Fr Ra Ac Th Pa U Np Pu Am Cm Bk Cf Es Fm Md No Lr
Rf Db Sg Bh Hs Mt Ds Rg Cn Nh Fl Mc Lv Ts Og
"""

SYMBOLS: Final = tuple(_PERIODIC_TABLE.split())
"""Symbol of each atomic number; index 0 is no element."""

NUMBERS: Final = {symbol: number for number, symbol in enumerate(SYMBOLS) if number}
"""Atomic number of each symbol."""

HEAVY_HYDROGEN: Final = {"D": 2.014, "T": 3.016}
"""amu of the isotopes of hydrogen that have symbols of their own."""

# Of single bonds (Cordero et al. 2008, DOI 10.1039/b801115j), up to curium; with 2 A beyond,
# and 0.2 A of no element, as ASE has them.
# fmt: off
_RADII: Final = (
    0.2, 0.31, 0.28, 1.28, 0.96, 0.84, 0.76, 0.71, 0.66, 0.57, 0.58, 1.66, 1.41, 1.21,
    1.11, 1.07, 1.05, 1.02, 1.06, 2.03, 1.76, 1.7, 1.6, 1.53, 1.39, 1.39, 1.32, 1.26,
    1.24, 1.32, 1.22, 1.22, 1.2, 1.19, 1.2, 1.2, 1.16, 2.2, 1.95, 1.9, 1.75, 1.64, 1.54,
    1.47, 1.46, 1.42, 1.39, 1.45, 1.44, 1.42, 1.39, 1.39, 1.38, 1.39, 1.4, 2.44, 2.15,
    2.07, 2.04, 2.03, 2.01, 1.99, 1.98, 1.98, 1.96, 1.94, 1.92, 1.92, 1.89, 1.9, 1.87,
    1.87, 1.75, 1.7, 1.62, 1.51, 1.44, 1.41, 1.36, 1.36, 1.32, 1.45, 1.46, 1.48, 1.4,
    1.5, 1.5, 2.6, 2.21, 2.15, 2.06, 2.0, 1.96, 1.9, 1.87, 1.8, 1.69,
)
# fmt: on

COVALENT_RADII: Final = np.array([*_RADII, *[2.0] * (len(SYMBOLS) - len(_RADII))])
"""(119,) float64 A, by atomic number."""

BOND_FACTOR: Final = 1.25
"""A bond is shorter than this times the sum of both covalent radii."""

# IUPAC abridged standard atomic weights; elements without stable isotopes carry the mass
# number of a long-lived one.
# fmt: off
_WEIGHTS: Final = np.array(
    [
        0.0, 1.008, 4.002602, 6.94, 9.0121831, 10.81, 12.011, 14.007, 15.999, 18.9984032, 20.1797,
        22.9897693, 24.305, 26.9815385, 28.085, 30.973762, 32.06, 35.45, 39.948, 39.0983, 40.078,
        44.955908, 47.867, 50.9415, 51.9961, 54.938044, 55.845, 58.933194, 58.6934, 63.546, 65.38,
        69.723, 72.63, 74.921595, 78.971, 79.904, 83.798, 85.4678, 87.62, 88.90584, 91.224,
        92.90637, 95.95, 97.90721, 101.07, 102.9055, 106.42, 107.8682, 112.414, 114.818, 118.71,
        121.76, 127.6, 126.90447, 131.293, 132.905452, 137.327, 138.90547, 140.116, 140.90766,
        144.242, 144.91276, 150.36, 151.964, 157.25, 158.92535, 162.5, 164.93033, 167.259,
        168.93422, 173.054, 174.9668, 178.49, 180.94788, 183.84, 186.207, 190.23, 192.217,
        195.084, 196.966569, 200.592, 204.38, 207.2, 208.9804, 208.98243, 209.98715, 222.01758,
        223.01974, 226.02541, 227.02775, 232.0377, 231.03588, 238.02891, 237.04817, 244.06421,
        243.06138, 247.07035, 247.07031, 251.07959, 252.083, 257.09511, 258.09843, 259.101,
        262.11, 267.122, 268.126, 271.134, 270.133, 269.1338, 278.156, 281.165, 281.166, 285.177,
        286.182, 289.19, 289.194, 293.204, 293.208, 294.214,
    ]
)
# fmt: on


def standard_masses(numbers: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard atomic weights in amu, (N,) float64."""
    masses: NDArray[np.float64] = _WEIGHTS[numbers]
    return masses


def duration_text(seconds: float) -> str:
    """A time in its two largest units, such as 1 h 27 min."""
    minutes = round(seconds / 60.0)
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = round(seconds / 3600.0)
    return f"{hours // 24} d {hours % 24} h"
