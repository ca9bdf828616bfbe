"""Names of labels in imported files, and conversion of their units to eV and Angstrom."""

import logging
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from mdgraph.errors import InputError, name_some, similar_names

logger = logging.getLogger(__name__)

ENERGY: Final = {
    "eV": 1.0,
    "meV": 1e-3,
    "hartree": 27.211386245988,
    "rydberg": 13.605693122994,
    "kcal/mol": 0.0433641042374,
    "kJ/mol": 0.0103642696562,
}
"""eV per unit."""

LENGTH: Final = {"A": 1.0, "bohr": 0.529177210903, "nm": 10.0, "pm": 0.01}
"""A per unit."""

DEBYE: Final = 0.2081943332
"""e A per debye."""

PRESSURE: Final = {"GPa": 1.0 / 160.2176634, "kbar": 1.0 / 1602.176634}
"""eV/A^3 per unit; a stress may also be an energy over a length cubed."""

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


def unit_name(text: str, table: dict[str, float]) -> str:
    """The name of a unit in a table; raises InputError with all names if it is unknown."""
    lower = {name.lower(): name for name in table}
    name = lower.get(text.strip().lower()) or _ALIASES.get(text.strip().lower(), "")
    if name not in table:
        raise InputError(f"The unit '{text}' is not known; choose one of {', '.join(table)}.")
    return name


@dataclass(frozen=True)
class Units:
    """Units of the numbers in a file.

    Attributes:
        energy: unit of energies.
        length: unit of positions and cells.
        forces: energy over length, such as hartree/bohr; None means `energy` over `length`.
        stress: energy over length cubed, such as eV/A^3, or GPa or kbar; None means `energy`
            over `length` cubed.
        dipole: debye, or e times a length, such as e*bohr; None means e times `length`.
    """

    energy: str = "eV"
    length: str = "A"
    forces: str | None = None
    stress: str | None = None
    dipole: str | None = None

    @property
    def energy_factor(self) -> float:
        """Energy unit in eV."""
        return ENERGY[unit_name(self.energy, ENERGY)]

    @property
    def length_factor(self) -> float:
        """Length unit in A."""
        return LENGTH[unit_name(self.length, LENGTH)]

    @property
    def force_factor(self) -> float:
        """Force unit in eV/A."""
        if self.forces is None:
            return self.energy_factor / self.length_factor
        energy, _, length = self.forces.rpartition("/")
        if not energy:
            raise InputError(
                f"The unit '{self.forces}' of forces is no energy over a length; give one such as "
                "eV/A or hartree/bohr."
            )
        return ENERGY[unit_name(energy, ENERGY)] / LENGTH[unit_name(length, LENGTH)]

    @property
    def stress_factor(self) -> float:
        """Stress unit in eV/A^3."""
        if self.stress is None:
            return self.energy_factor / self.length_factor**3
        pressure = {name.lower(): factor for name, factor in PRESSURE.items()}
        if self.stress.lower() in pressure:
            return pressure[self.stress.lower()]
        energy, _, length = self.stress.removesuffix("^3").rpartition("/")
        if not self.stress.endswith("^3"):
            raise InputError(
                f"The unit '{self.stress}' of stress is not known; give GPa, kbar or eV/A^3."
            )
        return ENERGY[unit_name(energy, ENERGY)] / LENGTH[unit_name(length, LENGTH)] ** 3

    @property
    def dipole_factor(self) -> float:
        """Dipole unit in e A."""
        if self.dipole is None:
            return self.length_factor
        if self.dipole.lower() in ("debye", "d"):
            return DEBYE
        charge, _, length = self.dipole.partition("*")
        if charge != "e":
            raise InputError(
                f"The unit '{self.dipole}' of dipoles is not known; give debye, e*A or e*bohr."
            )
        return LENGTH[unit_name(length, LENGTH)]

    def stress_of(
        self, name: str, value: Any, cell: NDArray[np.float64]
    ) -> NDArray[np.float64] | None:
        """Stress (3, 3) in eV/A^3; None for a virial if the cell has no volume.

        Args:
            name: name of the array. If it contains "virial" and not "stress", the value is minus
                the stress times the volume, in the unit of energies.
            value: nine numbers, or six in Voigt order xx, yy, zz, yz, xz, xy.
            cell: (3, 3) A.
        """
        flat = np.asarray(value, dtype=float).ravel()
        matrix = (flat if len(flat) == 9 else flat[[0, 5, 4, 5, 1, 3, 4, 3, 2]]).reshape(3, 3)
        if not is_virial(name):
            return matrix * self.stress_factor
        volume = abs(float(np.linalg.det(cell)))
        return -matrix * self.energy_factor / volume if volume > 0.0 else None

    def description(self) -> dict[str, str]:
        """All units by name, for the provenance; raises InputError for an unknown unit."""
        for factor in (self.force_factor, self.stress_factor, self.dipole_factor):
            assert factor > 0.0
        return {
            "energy": unit_name(self.energy, ENERGY),
            "length": unit_name(self.length, LENGTH),
            "forces": self.forces or f"{self.energy}/{self.length}",
            "stress": self.stress or f"{self.energy}/{self.length}^3",
            "dipole": self.dipole or f"e*{self.length}",
        }


Missing = Literal["refuse", "drop", "keep"]
"""Treatment of frames without a label that other frames have: error, leave out, or keep."""

NONE: Final = "none"
"""As a key: ignore the label."""


@dataclass(frozen=True)
class Keys:
    """Names of the labels in a file; None takes the only candidate, `none` ignores the label.

    Attributes:
        energy, forces, stress, dipole, charge, group: see LabelledFrame.
        weight: one number is the weight of the frame, one per atom are weights of forces.
            Weights and dipoles are read only if their key is set.
    """

    energy: str | None = None
    forces: str | None = None
    stress: str | None = None
    dipole: str | None = None
    charge: str | None = None
    group: str | None = None
    weight: str | None = None


@dataclass(frozen=True)
class Request:
    """Options of an import."""

    keys: Keys = field(default_factory=Keys)
    units: Units = field(default_factory=Units)
    missing: Missing = "refuse"


def is_virial(name: str) -> bool:
    """Whether an array of this name holds minus the stress times the volume.

    A "virial_stress", as LAMMPS calls the sum over atoms by the volume, is a stress.
    """
    return "virial" in name.lower() and "stress" not in name.lower()


_NAMED_UNITS: Final = {
    "kcal": "kcal/mol",
    "kcalmol": "kcal/mol",
    "kj": "kJ/mol",
    "kjmol": "kJ/mol",
    "hartree": "hartree",
    "ha": "hartree",
    "rydberg": "rydberg",
    "ry": "rydberg",
    "ev": "eV",
    "mev": "meV",
    "gpa": "GPa",
    "kbar": "kbar",
}
"""Units of energies and stresses by the words of a name that tell them."""


def _warn_of_named_unit(file: str, label: str, name: str, units: Units) -> None:
    """Warns if the name of a label tells another unit than the one that its numbers are taken in.

    Args:
        file: name of the file, for messages.
        label: energy, forces or stress.
        name: its name in the file.
        units: those of the import.
    """
    energy_like = label == "energy" or is_virial(name)
    taken = units.description()["energy" if energy_like else label]
    unit_taken = taken if energy_like else taken.rpartition("/")[0] or taken
    for word in re.split(r"[^a-z]+", name.lower()):
        unit = _NAMED_UNITS.get(word)
        if (
            unit is not None
            and unit.lower() != _ALIASES.get(unit_taken.lower(), unit_taken).lower()
        ):
            logger.warning(
                "%s: the name of '%s' tells %s, but its numbers are read as %s; if they are not, "
                "give --%s-unit",
                file,
                name,
                unit,
                taken,
                "energy" if energy_like else label.replace("forces", "force"),
            )


def looks_like(label: str, name: str) -> bool:
    """Whether a name could be that of the label: energy, forces, stress or charge."""
    if label == "charge":
        return name == "q" or name.lower().endswith("charge")
    text = name.rpartition(".")[2].lower() if label == "energy" else name.lower()
    if label == "energy":
        is_other_energy = any(
            word in text for word in ("kinetic", "per_atom", "correction", "weight")
        )
        return text in ("e", "energies", "u0") or ("energy" in text and not is_other_energy)
    if label == "forces":
        return name == "F" or "force" in text or "gradient" in text
    return "stress" in text or "virial" in text


def choose_key(
    label: str,
    all_names: Collection[str],
    user_key: str | None,
    candidates: Collection[str],
    same: Callable[[str, str], bool] | None,
    file: str,
) -> str | None:
    """The key of a label; None if the file lacks it or the user ignores it.

    Args:
        label: energy, forces, stress or charge; its option is `--LABEL-key`.
        all_names: all names in the file.
        user_key: the user's choice or None.
        candidates: the names that could be the label and have a fitting shape.
        same: whether two names hold equal numbers in all frames with both; None asks for a key
            without comparing them.
        file: name of the file, for messages.

    Raises:
        InputError: the file lacks the user's key, or there are several candidates.
    """
    option = f"--{label}-key"
    if user_key == NONE:
        return None
    if user_key is not None:
        if user_key in all_names:
            return user_key
        near = similar_names(user_key, all_names) or sorted(all_names)
        raise InputError(
            f"{file} has no '{user_key}'; it has {name_some(near, 12)}, so give one with {option}."
        )
    names = sorted(candidates, key=lambda name: (name != label, name))
    distinct = [
        name
        for place, name in enumerate(names)
        if same is None or not any(same(name, earlier) for earlier in names[:place])
    ]
    if len(distinct) > 1:
        differ = "" if same is None else ", which differ"
        if {"energy", "free_energy"} == set(distinct):  # as of metals, whose electrons are smeared
            differ += " (ASE's free_energy is what forces are the derivatives of)"
        raise InputError(
            f"{file} may have its {label} in {name_some(distinct, 12)}{differ}; "
            f"choose one with {option}, or leave it out with {option} none."
        )
    if distinct and distinct[0] != label:
        logger.info("%s: '%s' is taken for the %s", file, distinct[0], label)
    return distinct[0] if distinct else None


def check_labels(
    file: str, labels: Mapping[str, str], all_names: Collection[str], request: Request, largest: int
) -> None:
    """Raises InputError if there is no energy; warns of missing forces and of units in names.

    Args:
        file: name of the file, for messages.
        labels: the labels of the file, with their names.
        all_names: all names in the file.
        request: the user's choices.
        largest: atoms of the largest frame; with one, forces may be missing.
    """
    keys = request.keys
    among = f" among {name_some(sorted(all_names), 12)}" if all_names else ""
    if "energy" not in labels and keys.energy != NONE:
        raise InputError(f"{file}: no energy is found{among}, so name it with --energy-key.")
    if largest > 1 and "forces" not in labels and keys.forces != NONE:
        logger.warning(
            "%s: no forces are found%s; name them with --forces-key, or say that there are none "
            "with --forces-key none",
            file,
            among,
        )
    for label in ("energy", "forces", "stress"):
        if label in labels:
            _warn_of_named_unit(file, label, labels[label], request.units)


class MissingLabels:
    """Counts frames without a label, and refuses, drops or keeps them."""

    def __init__(self, file: str, missing: Missing) -> None:
        self._file, self._missing, self._count = file, missing, 0

    def keeps(self, number: int, missing_label: str | None) -> bool:
        """Whether to keep a frame; `missing_label` names the label that it lacks, or is None.

        Raises:
            InputError: a label is missing, and such frames are refused.
        """
        if missing_label is None:
            return True
        if self._missing == "refuse":
            raise InputError(
                f"Frame {number} of {self._file} has no finite {missing_label}; leave such frames "
                "out with --missing drop, or keep what they have with --missing keep."
            )
        self._count += 1
        return self._missing == "keep"

    def log(self) -> None:
        """Logs the number of frames without a label."""
        if self._count:
            treatment = "kept" if self._missing == "keep" else "left out"
            logger.warning(
                "%s: %d frames lack a label and are %s", self._file, self._count, treatment
            )
