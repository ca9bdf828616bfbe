"""TorchMD-Net's priors: what its energies hold besides the network."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from mdgraph.checkpoints.settings import Settings
from mdgraph.checkpoints.tensors import ANY, Tensors
from mdgraph.elements import SYMBOLS
from mdgraph.errors import CheckpointError, name_some, printable
from mdgraph.units import ELEMENTARY_CHARGE

_ANGSTROM: Final = 1e-10
# J m, as TorchMD-Net writes it.
_COULOMB_CONSTANT: Final = 2.30707755e-28

_PER_MOLE: Final = 6.02214076e23
"""As TorchMD-Net writes it."""

_REFUSED: Final = {
    "Coulomb": "a Coulomb energy of charges that the positions do not determine",
}


@dataclass
class Priors:
    """What the priors of one checkpoint add up to.

    Attributes:
        references: (rows,) eV an atom of each, for the rows of the species table.
        row_limit: rows of the species table that every prior knows.
        numbers: atomic number of each row where a prior says it.
        heaviest: atomic number up to which every prior knows elements.
        repulsion_cutoffs: A, of each ZBL repulsion.
        repulsion_constants: (), eV A, of each.
        dispersion_cutoff: A, of the dispersion, or None.
        dispersion_tensors: its tensors, by name in a Dispersion.
        assumptions: what was decided.
    """

    references: list[Tensor] = field(default_factory=list)
    row_limit: int = len(SYMBOLS)
    numbers: list[int] | None = None
    repulsion_cutoffs: list[float] = field(default_factory=list)
    repulsion_constants: list[Tensor] = field(default_factory=list)
    dispersion_cutoff: float | None = None
    dispersion_tensors: dict[str, Tensor] = field(default_factory=dict)
    heaviest: int = len(SYMBOLS) - 1
    assumptions: list[str] = field(default_factory=list)

    @property
    def state_units(self) -> bool:
        """Whether a prior says that the units are eV and A."""
        return bool(self.repulsion_cutoffs or self.dispersion_tensors)

    def species(self, table: int, where: Path) -> tuple[tuple[int, ...], Tensor]:
        """Atomic numbers that can be used, and the row of each.

        Args:
            table: rows of the network's species table.
            where: the file, for the error.
        """
        limit = min(table, self.row_limit)
        numbers = self.numbers or list(range(min(limit, len(SYMBOLS))))
        limit = min(limit, len(numbers))
        rows = [row for row in range(limit) if 0 < numbers[row] <= self.heaviest]
        species = tuple(numbers[row] for row in rows)
        if len(set(species)) != len(species):
            raise CheckpointError(
                f"{where} gives one element several rows of its species table, so atomic numbers "
                "do not say which to use; train it with atomic numbers as species."
            )
        return species, torch.tensor(rows, dtype=torch.int64)

    def reference_energies(self, rows: Tensor) -> Tensor:
        """(species,) eV, the sum over all priors."""
        total = torch.zeros(len(rows), dtype=torch.float64)
        for references in self.references:
            total = total + references[rows]
        return total


def _named(settings: Settings) -> list[tuple[str, Mapping[str, Any]]]:
    """Names and arguments of the priors; `prior_args` replaces arguments given in place."""
    stated = settings.get("prior_model") or []
    names: list[str] = []
    arguments: list[Mapping[str, Any]] = []
    for prior in stated if isinstance(stated, list) else [stated]:
        entries = prior.items() if isinstance(prior, Mapping) else [(prior, None)]
        for name, values in entries:
            names.append(name if isinstance(name, str) else f"of type {type(name).__name__}")
            arguments.append(values if isinstance(values, Mapping) else {})
    replaced = settings.get("prior_args")
    if replaced is not None:
        arguments = replaced if isinstance(replaced, list) else [replaced]
    plain = [values if isinstance(values, Mapping) else {} for values in arguments]
    return list(zip(names, plain, strict=False))


def read_priors(source: Tensors, settings: Settings, where: Path) -> Priors:
    """Takes the tensors of all priors.

    Raises:
        CheckpointError: a prior that cannot be part of a potential here.
    """
    priors = Priors()
    for number, (name, arguments) in enumerate(_named(settings)):
        prefix = f"prior_model.{number}."
        if name in ("Atomref", "LearnableAtomref"):
            _read_references(priors, source, prefix, bool(arguments.get("enable", True)))
        elif name == "ZBL":
            _read_repulsion(priors, source, prefix, Settings(arguments, where), where)
        elif name == "D2" and priors.dispersion_cutoff is None:
            _read_dispersion(priors, source, prefix, Settings(arguments, where), where)
        else:
            reason = _REFUSED.get(name, "which is unknown here")
            raise CheckpointError(
                f"{where} adds the prior {printable(name, 100)}, {reason}; use it with TorchMD-Net "
                "or train a potential without it."
            )
    # Species follow from these.
    source.check()
    return priors


def _read_references(priors: Priors, source: Tensors, prefix: str, enabled: bool) -> None:
    used, initial = f"{prefix}atomref.weight", f"{prefix}initial_atomref"
    source.ignore(initial)
    values = source.take(used, ANY, 1).squeeze(1)
    if enabled:
        priors.assumptions.extend(source.other_version(used, initial))
        priors.references.append(values)
        priors.row_limit = min(priors.row_limit, len(values))
    else:
        priors.assumptions.append(
            "energies come without the atomic references, which the file holds but disables"
        )


def _read_repulsion(
    priors: Priors, source: Tensors, prefix: str, arguments: Settings, where: Path
) -> None:
    source.ignore(f"{prefix}distance.box")
    _read_numbers(priors, source, f"{prefix}atomic_number", where)
    energy, length = _units(arguments, "ZBL", where)
    priors.repulsion_cutoffs.append(arguments.number("cutoff_distance"))
    constant = torch.tensor(_COULOMB_CONSTANT / energy / length, dtype=torch.float64)
    priors.repulsion_constants.append(constant)


def _read_dispersion(
    priors: Priors, source: Tensors, prefix: str, arguments: Settings, where: Path
) -> None:
    source.ignore(f"{prefix}distances.box")
    _read_numbers(priors, source, f"{prefix}Z_map", where)
    energy, length = _units(arguments, "D2", where)
    # Of no element, not a number.
    coefficients = source.take(f"{prefix}C_6", ANY, unused=1)
    radii = source.take(f"{prefix}R_r", len(coefficients), unused=1)
    known = min(len(coefficients), len(SYMBOLS))
    priors.heaviest = min(priors.heaviest, known - 1)
    tables = {"coefficients": coefficients, "radii": radii}
    for name, table in tables.items():
        padded = torch.ones(len(SYMBOLS), dtype=torch.float64)
        padded[1:known] = table[1:known]
        priors.dispersion_tensors[name] = padded
    # It counts in nm and J/mol.
    for name, scale in (("length", length * 1e9), ("energy", energy * _PER_MOLE)):
        priors.dispersion_tensors[name] = torch.tensor(scale, dtype=torch.float64)
    priors.dispersion_cutoff = arguments.number("cutoff_distance")
    priors.assumptions.append(
        "the dispersion D2 sees all images in a periodic system, where TorchMD-Net leaves the cell "
        "out of it"
    )


def _read_numbers(priors: Priors, source: Tensors, name: str, where: Path) -> None:
    """Takes the atomic number of each row, about which priors must agree."""
    numbers = [int(value) for value in source.take(name, ANY)]
    before = priors.numbers or numbers
    common = min(len(before), len(numbers))
    if before[:common] != numbers[:common]:
        raise CheckpointError(
            f"{where} holds priors that disagree about the elements of its species; "
            "use it with TorchMD-Net."
        )
    priors.numbers = numbers[:common]


def _units(arguments: Settings, prior: str, where: Path) -> tuple[float, float]:
    """J of a unit of energy and m of one of length, which are eV and A."""
    energy, length = arguments.number("energy_scale"), arguments.number("distance_scale")
    if abs(energy / ELEMENTARY_CHARGE - 1.0) > 1e-4 or abs(length / _ANGSTROM - 1.0) > 1e-4:
        raise CheckpointError(
            f"{where} has units of {energy:g} J and {length:g} m by its {prior} prior, not eV and "
            "A; train it on a data set in eV and A."
        )
    return energy, length


def named_species(species: tuple[int, ...]) -> str:
    """A few words for a sentence: the first and last element, or all where they are few."""
    if len(species) <= 8:
        return name_some([SYMBOLS[number] for number in species])
    return f"{len(species)} from {SYMBOLS[species[0]]} to {SYMBOLS[species[-1]]}"
