"""OpenMM's units in those of mdgraph: nm, ps, kJ/mol, bar, amu, K.

Factors multiply OpenMM's numbers. The kJ/mol is e N_A exactly; OpenMM's amu is 1 g/mol / N_A,
which is that of CODATA 2018 to 3e-10, so kinetic energies agree to as much.
"""

from typing import Final

from mdgraph.units import ELEMENTARY_CHARGE

AVOGADRO: Final = 6.02214076e23
"""1/mol."""

NANOMETRE: Final = 10.0
"""A."""

PICOSECOND: Final = 1000.0
"""fs."""

SPEED: Final = NANOMETRE / PICOSECOND
"""A/fs in one nm/ps."""

KILOJOULE_PER_MOLE: Final = 1e3 / (ELEMENTARY_CHARGE * AVOGADRO)
"""eV."""

FORCE: Final = KILOJOULE_PER_MOLE / NANOMETRE
"""eV/A in one kJ/mol/nm."""
