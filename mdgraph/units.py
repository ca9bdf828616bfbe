"""Units inside mdgraph: eV, Angstrom, femtosecond, atomic mass unit, Kelvin, elementary charge.

Constants are CODATA 2018. ASE 3.x carries CODATA 2014, so its numbers differ in the
eighth digit; `docs/units.md` lists where that shows.
"""

from typing import Final

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

BAR: Final = 1e-25 / ELEMENTARY_CHARGE
"""One bar in eV/A^3 (6.2415e-7)."""
