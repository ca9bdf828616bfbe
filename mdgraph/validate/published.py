"""Published properties of elemental crystals, with the paper that each comes from."""

from dataclasses import dataclass
from typing import Final

ACE: Final = "10.1038/s41524-021-00559-9"
"""PBE for copper and PW91 for silicon, computed beside the fit of an atomic cluster expansion."""

ZUO: Final = "10.1021/acs.jpca.9b08723"
"""PBE, computed beside a comparison of six potentials."""

TRAN: Final = "10.1038/sdata.2016.80"
"""PBE surface energies of elements."""


@dataclass(frozen=True)
class Value:
    """A published number.

    Attributes:
        value: in the unit of its name.
        doi: of the paper.
    """

    value: float
    doi: str


def _values(doi: str, **numbers: float) -> dict[str, Value]:
    return {name: Value(number, doi) for name, number in numbers.items()}


PUBLISHED: Final[dict[str, dict[str, Value]]] = {
    "Cu": {
        **_values(ACE, C11_GPa=177.0, C12_GPa=132.0, C44_GPa=82.0, vacancy_eV=1.07),
        **_values(
            ACE, surface_100_J_per_m2=1.51, surface_110_J_per_m2=1.57, surface_111_J_per_m2=1.36
        ),
        **_values(ACE, stacking_fault_mJ_per_m2=41.0),
        **_values("10.1103/PhysRev.155.619", highest_THz=7.3),
    },
    "Si": {
        **_values(ACE, C11_GPa=147.0, C12_GPa=50.0, C44_GPa=73.0, vacancy_eV=3.67),
        **_values(
            ACE, surface_100_J_per_m2=2.17, surface_110_J_per_m2=1.52, surface_111_J_per_m2=1.56
        ),
        **_values("10.1103/PhysRevB.6.3777", highest_THz=15.5),
    },
    "Ge": {
        **_values(ZUO, C11_GPa=116.0, C12_GPa=48.0, C44_GPa=58.0, vacancy_eV=2.19),
        **_values("10.1103/PhysRevB.3.364", highest_THz=9.1),
    },
    "Li": _values(ZUO, C11_GPa=15.0, C12_GPa=13.0, C44_GPa=11.0, vacancy_eV=0.62),
    "Mo": {
        **_values(ZUO, C11_GPa=472.0, C12_GPa=158.0, C44_GPa=106.0, vacancy_eV=2.70),
        **_values(TRAN, surface_100_J_per_m2=3.18, surface_110_J_per_m2=2.80),
    },
    "Ni": {
        **_values(ZUO, C11_GPa=276.0, C12_GPa=159.0, C44_GPa=132.0, vacancy_eV=1.49),
        **_values(
            TRAN, surface_100_J_per_m2=2.21, surface_110_J_per_m2=2.29, surface_111_J_per_m2=1.92
        ),
        **_values("10.1103/PhysRev.136.A1359", highest_THz=8.9),
    },
}
"""By symbol: elastic constants and formation energy of a vacancy, surface energies in J/m^2,
energy of the intrinsic stacking fault in mJ/m^2 and the highest frequency of a phonon. Frequencies
are measured, the rest is computed. Lattice constants of all elements come from ASE's reference
states, which are measured at room temperature."""
