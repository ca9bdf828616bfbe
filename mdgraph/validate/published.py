"""Published properties of elemental crystals, each with its source."""

from dataclasses import dataclass
from typing import Final

_LANDOLT_BOERNSTEIN: Final = "ISBN 978-3-540-54410-4"
"""Every and McCurdy, Landolt-Börnstein III/29a, table 3: measured at 300 K."""

_CRC: Final = "CRC Handbook of Chemistry and Physics, 82nd edition"
"""Measured at room temperature."""

_ANGSTEN: Final = "DOI 10.1088/1367-2630/16/1/015018"
"""Angsten and others, table A.1: PBE, 108 atoms; nickel with spins."""

_MA: Final = "DOI 10.1103/PhysRevMaterials.3.013605"
"""Ma and Dudarev, table IV: PBE."""

_BARTOK: Final = "DOI 10.1103/PhysRevX.8.041048"
"""Bartók and others, whose results are in github.com/libAtoms/silicon-testing-framework: PW91."""

_TRAN: Final = "DOI 10.1038/sdata.2016.80"
"""Tran and others: PBE surface energies of elements."""

_EPJAP: Final = "https://www.epjap.org/articles/epjap/full_html/2022/01/ap210276/T1.html"
"""Energies of silicon's bare, unreconstructed surfaces by density functionals."""

_LINDA: Final = "DOI 10.48550/arXiv.2405.04876"
"""Linda and others, table 1: PBE."""

_PARKER: Final = "DOI 10.1103/PhysRev.155.712"
"""Parker and others: Raman scattering at 300 K, 520.2 and 300.7 per cm."""

_SVENSSON: Final = "DOI 10.1103/PhysRev.155.619"
"""Svensson and others, table I: neutrons at 296 K, longitudinal at L."""

_BIRGENEAU: Final = "DOI 10.1103/PhysRev.136.A1359"
"""Birgeneau and others, table I: neutrons at 296 K, longitudinal at L."""


@dataclass(frozen=True)
class Value:
    """A published number.

    Attributes:
        value: in the unit of its name.
        source: DOI of the paper, or what else names the publication.
    """

    value: float
    source: str


def _values(source: str, **numbers: float) -> dict[str, Value]:
    return {name: Value(number, source) for name, number in numbers.items()}


PUBLISHED: Final[dict[str, dict[str, Value]]] = {
    "Cu": {
        **_values(_LANDOLT_BOERNSTEIN, C11_GPa=169.0, C12_GPa=122.0, C44_GPa=75.3),
        **_values(_ANGSTEN, vacancy_eV=1.07),
        **_values(
            _TRAN, surface_100_J_per_m2=1.47, surface_110_J_per_m2=1.56, surface_111_J_per_m2=1.31
        ),
        **_values(_LINDA, stacking_fault_mJ_per_m2=42.4),
        **_values(_SVENSSON, highest_THz=7.40),
    },
    "Si": {
        **_values(_CRC, C11_GPa=165.8, C12_GPa=63.9, C44_GPa=79.6),
        **_values(_BARTOK, vacancy_eV=3.67),
        **_values(_EPJAP, surface_100_J_per_m2=2.28, surface_110_J_per_m2=1.70),
        **_values(_PARKER, highest_THz=15.60),
    },
    "Ge": {
        **_values(_CRC, C11_GPa=128.4, C12_GPa=48.2, C44_GPa=66.7),
        **_values(_PARKER, highest_THz=9.01),
    },
    "Li": _values(_LANDOLT_BOERNSTEIN, C11_GPa=13.4, C12_GPa=11.3, C44_GPa=9.6),
    "Mo": {
        **_values(_LANDOLT_BOERNSTEIN, C11_GPa=465.0, C12_GPa=163.0, C44_GPa=109.0),
        **_values(_MA, vacancy_eV=2.80),
        **_values(_TRAN, surface_100_J_per_m2=3.18, surface_110_J_per_m2=2.80),
    },
    "Ni": {
        **_values(_LANDOLT_BOERNSTEIN, C11_GPa=247.0, C12_GPa=153.0, C44_GPa=122.0),
        **_values(_ANGSTEN, vacancy_eV=1.43),
        **_values(
            _TRAN, surface_100_J_per_m2=2.21, surface_110_J_per_m2=2.29, surface_111_J_per_m2=1.92
        ),
        **_values(_BIRGENEAU, highest_THz=8.88),
    },
}
"""By symbol: elastic constants and formation energy of a vacancy, surface energies in J/m^2,
energy of the intrinsic stacking fault in mJ/m^2 and the highest frequency of a phonon. Elastic
constants and frequencies are measured, the rest is computed. What no source could be read for is
missing. Lattice constants of all elements come from ASE's reference states, which are measured."""
