"""Conversion of imported numbers to eV and A, on request only (CODATA 2018)."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mdgraph.errors import InputError

ENERGY: Final = {
    "eV": 1.0,
    "meV": 1e-3,
    "hartree": 27.211386245988,
    "rydberg": 13.605693122994,
    "kcal/mol": 0.0433641042374,
    "kJ/mol": 0.0103642696562,
}
"""eV in one."""

LENGTH: Final = {"A": 1.0, "bohr": 0.529177210903, "nm": 10.0, "pm": 0.01}
"""A in one."""

DEBYE: Final = 0.2081943332
"""e A in one."""

PRESSURE: Final = {"GPa": 1.0 / 160.2176634, "kbar": 1.0 / 1602.176634}
"""eV/A^3 in one, beside any energy over a length cubed."""

_ALIASES: Final = {
    "ev": "eV",
    "mev": "meV",
    "ha": "hartree",
    "hartrees": "hartree",
    "a.u.": "hartree",
    "ry": "rydberg",
    "kcalmol": "kcal/mol",
    "kcal/mole": "kcal/mol",
    "kj/mole": "kJ/mol",
    "ang": "A",
    "angstrom": "A",
    "angstroms": "A",
    "å": "A",
    "bohrs": "bohr",
    "nanometer": "nm",
}


def unit_named(text: str, table: dict[str, float]) -> str:
    """The name a unit has in a table; raises InputError naming those that are known."""
    lower = {name.lower(): name for name in table}
    name = lower.get(text.strip().lower()) or _ALIASES.get(text.strip().lower(), "")
    if name not in table:
        raise InputError(f"The unit '{text}' is not known; choose one of {', '.join(table)}.")
    return name


@dataclass(frozen=True)
class Units:
    """What the numbers of a file are given in.

    Attributes:
        energy: of energies.
        length: of positions and cells.
        forces: energy over length, such as hartree/bohr; None takes the two above.
        stress: an energy over a length cubed such as eV/A^3, GPa or kbar; None as for forces.
        dipole: debye, or e times a length such as e*bohr; None takes that above.
    """

    energy: str = "eV"
    length: str = "A"
    forces: str | None = None
    stress: str | None = None
    dipole: str | None = None

    @property
    def energy_factor(self) -> float:
        """Of energies, in eV."""
        return ENERGY[unit_named(self.energy, ENERGY)]

    @property
    def length_factor(self) -> float:
        """Of lengths, in A."""
        return LENGTH[unit_named(self.length, LENGTH)]

    @property
    def force_factor(self) -> float:
        """Of forces, in eV/A."""
        if self.forces is None:
            return self.energy_factor / self.length_factor
        energy, _, length = self.forces.rpartition("/")
        if not energy:
            raise InputError(
                f"The unit '{self.forces}' of forces is no energy over a length; give one such as "
                "eV/A or hartree/bohr."
            )
        return ENERGY[unit_named(energy, ENERGY)] / LENGTH[unit_named(length, LENGTH)]

    @property
    def stress_factor(self) -> float:
        """Of stresses, in eV/A^3."""
        if self.stress is None:
            return self.energy_factor / self.length_factor**3
        if self.stress in PRESSURE:
            return PRESSURE[self.stress]
        energy, _, length = self.stress.removesuffix("^3").rpartition("/")
        if not self.stress.endswith("^3"):
            raise InputError(
                f"The unit '{self.stress}' of stress is not known; give GPa, kbar or eV/A^3."
            )
        return ENERGY[unit_named(energy, ENERGY)] / LENGTH[unit_named(length, LENGTH)] ** 3

    @property
    def dipole_factor(self) -> float:
        """Of dipoles, in e A."""
        if self.dipole is None:
            return self.length_factor
        if self.dipole.lower() in ("debye", "d"):
            return DEBYE
        charge, _, length = self.dipole.partition("*")
        if charge != "e":
            raise InputError(
                f"The unit '{self.dipole}' of dipoles is not known; give debye, e*A or e*bohr."
            )
        return LENGTH[unit_named(length, LENGTH)]

    def stress_of(
        self, name: str, value: Any, cell: NDArray[np.float64]
    ) -> NDArray[np.float64] | None:
        """Stress (3, 3) in eV/A^3, or None of a virial without a volume.

        Args:
            name: what the file calls it: a virial is minus the stress times the volume, in the
                unit of energies.
            value: nine numbers, or six in Voigt's order xx, yy, zz, yz, xz, xy.
            cell: (3, 3) A.
        """
        flat = np.asarray(value, dtype=float).ravel()
        matrix = (flat if len(flat) == 9 else flat[[0, 5, 4, 5, 1, 3, 4, 3, 2]]).reshape(3, 3)
        if "virial" not in name.lower():
            return matrix * self.stress_factor
        volume = abs(float(np.linalg.det(cell)))
        return -matrix * self.energy_factor / volume if volume > 0.0 else None

    def description(self) -> dict[str, str]:
        """For the provenance; raises InputError for an unknown unit."""
        for factor in (self.force_factor, self.stress_factor, self.dipole_factor):
            assert factor > 0.0
        return {
            "energy": unit_named(self.energy, ENERGY),
            "length": unit_named(self.length, LENGTH),
            "forces": self.forces or f"{self.energy}/{self.length}",
            "stress": self.stress or f"{self.energy}/{self.length}^3",
            "dipole": self.dipole or f"e*{self.length}",
        }
