"""Converts TorchMD-Net and MatGL models: settings, priors, layout and tensors."""

import itertools
import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from mdgraph.errors import CheckpointError, name_some, printable
from mdgraph.models import TensorNetConfig
from mdgraph.units import ELEMENTARY_CHARGE, SYMBOLS

ANY = -1
"""In an expected shape: any length."""

_MANY: Final = 30
"""Number of missing or misshapen tensors after which reading stops."""


class Tensors:
    """The tensors of a checkpoint, with a report of missing, unused and misshapen ones.

    `take` returns one tensor each; `finish` raises one error for everything that did not fit.
    """

    def __init__(self, values: Mapping[str, object], where: Path) -> None:
        self._values = dict(values)
        self._where = where
        self._unused = set(self._values)
        self._missing: list[str] = []
        self._misshapen: list[str] = []
        self._infinite: list[str] = []

    def __contains__(self, name: object) -> bool:
        return name in self._values

    @property
    def names(self) -> list[str]:
        """All names, in the order of the file."""
        return list(self._values)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor; () if there is no such tensor."""
        value = self._values.get(name)
        return tuple(value.shape) if isinstance(value, Tensor) else ()

    def take(self, name: str, *shape: int, unused: int = 0) -> Tensor:
        """A tensor in float64; if it does not fit, zeros, and `finish` reports it.

        Args:
            name: its name in the checkpoint.
            shape: its expected shape; `ANY` accepts any length.
            unused: number of first rows that may hold NaN.
        """
        placeholder = torch.zeros((), dtype=torch.float64).expand([max(n, 1) for n in shape])
        self._unused.discard(name)
        value = self._values.get(name)
        if not isinstance(value, Tensor):
            self._missing.append(name)
            self._stop_at_many()
            return placeholder
        lengths = zip(shape, value.shape, strict=False)
        if value.dim() != len(shape) or any(
            length not in (ANY, actual) for length, actual in lengths
        ):
            self._misshapen.append(f"{name} ({_sizes(value.shape)} instead of {_sizes(shape)})")
            self._stop_at_many()
            return placeholder
        if not _is_stored(value):
            self._misshapen.append(f"{name} (no array of real numbers that are all stored)")
            return placeholder
        value = value.detach().to(torch.float64)
        if not bool(value[unused:].isfinite().all() if unused else value.isfinite().all()):
            self._infinite.append(name)
        return value

    def take_scalar(self, name: str) -> Tensor:
        """A single number () in float64; in the file it may have any number of dimensions."""
        value = self._values.get(name)
        if isinstance(value, Tensor) and value.numel() == 1 and _is_stored(value):
            self._values[name] = value.reshape(())
        return self.take(name)

    def differing_copy(self, name: str, copy: str, values: object = None) -> list[str]:
        """Compares a tensor with a second copy; returns a sentence if they differ, else nothing.

        Args:
            name: name of the tensor that the potential uses.
            copy: name of the tensor with the second copy, or a description of the copy.
            values: the second copy; None takes the tensor named `copy`.
        """
        first, second = self._values.get(name), self._values.get(copy, values)
        try:
            second = torch.as_tensor(second, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError):
            return []
        if not isinstance(first, Tensor) or first.numel() != second.numel():
            return []
        if not (_is_stored(first) and _is_stored(second) and first.numel()):
            return []
        change = (first.to(torch.float64).flatten() - second.flatten()).abs().max().item()
        if change == 0.0:
            return []
        text = f"{name} is used as stored; {copy} holds other values of the same"
        return [f"{text}, by up to {change:.3g}, and is not used"]

    def _stop_at_many(self) -> None:
        """Raises CheckpointError if many tensors do not fit.

        Placeholders for tensors that are not in the file could fill the memory.
        """
        if len(self._missing) + len(self._misshapen) > _MANY:
            self.check()

    def ignore(self, *names: str) -> None:
        """Names that the file may hold and that are not used."""
        self._unused.difference_update(names)

    def check(self) -> None:
        """Raises one CheckpointError for all tensors taken so far that did not fit."""
        self._report([])

    def finish(self) -> None:
        """Raises one CheckpointError for all tensors that did not fit or were not used."""
        self._report(sorted(self._unused))

    def _report(self, unused: list[str]) -> None:
        parts = [
            f"{verb} {printable(name_some(names), 1000)}"
            for verb, names in (
                ("lacks", self._missing),
                ("has wrong shapes in", self._misshapen),
                ("holds numbers that are not finite in", self._infinite),
                ("holds unknown", unused),
            )
            if names
        ]
        if parts:
            raise CheckpointError(
                f"{self._where} does not hold the tensors that its own description asks for: "
                f"it {' and '.join(parts)}; save it again with the program that trained it."
            )


def _is_stored(value: Tensor) -> bool:
    """Whether it is a strided array of real numbers, without elements that share memory."""
    if value.layout != torch.strided or value.is_complex() or value.is_quantized:
        return False
    return value.numel() * value.element_size() <= value.untyped_storage().nbytes()


def _sizes(shape: Sequence[int]) -> str:
    sizes = ["any" if length == ANY else str(length) for length in shape]
    return " x ".join(sizes) or "one number"


T = TypeVar("T")

_INTEGER_LIMIT: Final = 2**31
"""Upper limit of lengths and counts of a network."""


class Settings:
    """Reads hyper-parameters; raises CheckpointError for one that is missing or wrong."""

    def __init__(self, values: Mapping[Any, Any], where: Path) -> None:
        self._where = where
        self._values = {str(name): _plain(value) for name, value in values.items()}

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def get(self, name: str, default: Any = None) -> Any:
        """The value, or the default if there is none; raises CheckpointError for an array."""
        value = self._values.get(name, default)
        if isinstance(value, Tensor | np.ndarray):
            raise self._wrong(name, value)
        return value

    def is_none(self, name: str) -> bool:
        """Whether the value is absent or None."""
        return self._values.get(name) is None

    def integer(self, name: str) -> int:
        """A whole number."""
        value = self._required(name)
        number = math.nan if isinstance(value, bool | str) else float(value)
        if not number.is_integer() or abs(number) >= _INTEGER_LIMIT:
            raise self._wrong(name, value)
        return int(value)

    def number(self, name: str) -> float:
        """A number."""
        value = float(self._required(name))
        if not math.isfinite(value):
            raise self._wrong(name, value)
        return value

    def text(self, name: str) -> str:
        """A word."""
        value = self._required(name, lambda _: None)
        if not isinstance(value, str):
            raise self._wrong(name, value)
        return value

    def choice(self, name: str, choices: Mapping[str, T], advice: str) -> T:
        """The meaning of a word.

        Args:
            name: name of the setting.
            choices: meaning of each supported word.
            advice: end of the error sentence for any other word.
        """
        word = self.text(name)
        if word not in choices:
            raise CheckpointError(
                f"{self._where} has {name} {excerpt(word)}, which cannot be used here; {advice}."
            )
        return choices[word]

    def _required(self, name: str, conversion: Callable[[Any], Any] = float) -> Any:
        if self._values.get(name) is None:
            raise CheckpointError(
                f"{self._where} does not say its {name}; "
                "save it again with the program that trained it."
            )
        try:
            conversion(self._values[name])
        except (TypeError, ValueError, OverflowError, RuntimeError):
            raise self._wrong(name, self._values[name]) from None
        return self._values[name]

    def _wrong(self, name: str, value: object) -> CheckpointError:
        return CheckpointError(
            f"{self._where} has a {name} of {excerpt(value)}, which cannot be; "
            "save it again with the program that trained it."
        )


def _plain(value: Any) -> Any:
    """Converts scalars of NumPy and torch to Python numbers."""
    if isinstance(value, np.generic) or (isinstance(value, Tensor) and value.numel() == 1):
        return value.item()
    return value


def excerpt(value: object) -> str:
    """A value as a short text."""
    if isinstance(value, Tensor | np.ndarray):
        return f"an array of shape {tuple(value.shape)}"
    try:
        return printable(reprlib.repr(value), 200)
    except (ValueError, RecursionError):  # an integer with thousands of digits
        return f"some {type(value).__name__}"


def validate_config(where: Path, **fields: Any) -> TensorNetConfig:
    """Builds a configuration; raises CheckpointError that names the first invalid field."""
    try:
        return TensorNetConfig(**fields)
    except ValidationError as error:
        raise invalid_config(where, error) from error


def invalid_config(where: Path, error: ValidationError) -> CheckpointError:
    """The CheckpointError for the first invalid field of a configuration."""
    first = error.errors()[0]
    field = printable(".".join(str(part) for part in first["loc"]), 200)
    subject = f"the setting {field}" if field else "its settings"
    reason = first["msg"].removeprefix("Value error, ")
    return CheckpointError(
        f"{where} describes no potential that can be built, by {subject}: {reason}; "
        "save it again with the program that trained it."
    )


Layout = Literal["auto", "before-3.0", "3.0"]
"""Releases before or from 3.0; `auto` decides by the content of the file."""


@dataclass(frozen=True)
class Ordering:
    """The order of values within tensors, which depends on the release.

    Attributes:
        gate_by_channel: the embedding's gate has the order (F, 3), not (3, F).
        edges_by_channel: the weights of a message have the order (F, 3), not (3, F).
        neighbor_first: the embedding of a pair has its neighbor before its atom.
    """

    gate_by_channel: bool
    edges_by_channel: bool
    neighbor_first: bool = False


def network_tensors(
    source: Tensors,
    prefix: str,
    config: TensorNetConfig,
    rows: Tensor,
    table: int,
    ordering: Ordering,
) -> dict[str, Tensor]:
    """Takes embedding, layers and the linear layer before the readout.

    Args:
        source: the checkpoint's tensors.
        prefix: prefix of all names.
        config: the configuration of the potential.
        rows: (species,) int64, row of the species table for each species.
        table: length of the species table.
        ordering: how the release orders its tensors.

    Returns:
        float64 tensors under the names of a TensorNetPotential.
    """
    channels, radial = config.channels, config.radial_basis.number
    tensors: dict[str, Tensor] = {}

    def linear(target: str, name: str, outputs: int, inputs: int, by_channel: bool = False) -> None:
        for parameter, shape in (("weight", (outputs, inputs)), ("bias", (outputs,))):
            value = source.take(f"{prefix}{name}.{parameter}", *shape)
            tensors[f"network.{target}.{parameter}"] = parts_first(value) if by_channel else value

    def norm(target: str, name: str, width: int) -> None:
        for parameter in ("weight", "bias"):
            tensors[f"network.{target}.{parameter}"] = source.take(
                f"{prefix}{name}.{parameter}", width
            )

    def mixing(target: str, name: str, first: int) -> None:
        for part in range(3):
            value = source.take(f"{prefix}{name}.{first + part}.weight", channels, channels)
            tensors[f"network.{target}.parts.{part}.weight"] = value

    embedding = "tensor_embedding"
    species = source.take(f"{prefix}{embedding}.emb.weight", table, channels)
    tensors["network.embedding.species.weight"] = species[rows]
    pair = source.take(f"{prefix}{embedding}.emb2.weight", channels, 2 * channels)
    halves = pair.chunk(2, dim=1)
    atom, neighbor = halves[::-1] if ordering.neighbor_first else halves
    tensors["network.embedding.atom.weight"] = atom
    tensors["network.embedding.atom.bias"] = source.take(f"{prefix}{embedding}.emb2.bias", channels)
    tensors["network.embedding.neighbor.weight"] = neighbor
    if f"{prefix}{embedding}.distance_proj.weight" in source:
        linear("embedding.distance", f"{embedding}.distance_proj", 3 * channels, radial)
    else:
        for parameter, shape in (("weight", (channels, radial)), ("bias", (channels,))):
            names = [f"{prefix}{embedding}.distance_proj{part}.{parameter}" for part in (1, 2, 3)]
            parts = [source.take(name, *shape) for name in names]
            tensors[f"network.embedding.distance.{parameter}"] = torch.cat(parts)
    norm("embedding.norm", f"{embedding}.init_norm", channels)
    linear("embedding.gate.0", f"{embedding}.linears_scalar.0", 2 * channels, channels)
    linear(
        "embedding.gate.1",
        f"{embedding}.linears_scalar.1",
        3 * channels,
        2 * channels,
        ordering.gate_by_channel,
    )
    mixing("embedding.mixing", f"{embedding}.linears_tensor", 0)
    for layer in range(config.layers):
        target, name = f"layers.{layer}", f"layers.{layer}"
        widths = (radial + 2 * config.charge_channels, channels, 2 * channels, 3 * channels)
        for step in range(3):
            linear(
                f"{target}.edge_network.linears.{step}",
                f"{name}.linears_scalar.{step}",
                widths[step + 1],
                widths[step],
                ordering.edges_by_channel and step == 2,
            )
        mixing(f"{target}.before", f"{name}.linears_tensor", 0)
        mixing(f"{target}.after", f"{name}.linears_tensor", 3)
    norm("norm", "out_norm", 3 * channels)
    linear("linear", "linear", channels, 3 * channels)
    return tensors


def perceptron_tensors(
    source: Tensors, target: str, name: str, widths: tuple[int, ...]
) -> dict[str, Tensor]:
    """Takes a perceptron; its activations are numbered as layers, so only even layers have weights.

    Args:
        source: the checkpoint's tensors.
        target: prefix of the names in a TensorNetPotential.
        name: prefix of the names in the checkpoint.
        widths: widths from the inputs to the outputs.
    """
    tensors = {}
    for number, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        layer = f"{name}.{2 * number}"
        tensors[f"{target}.{number}.weight"] = source.take(f"{layer}.weight", outputs, inputs)
        tensors[f"{target}.{number}.bias"] = source.take(f"{layer}.bias", outputs)
    return tensors


def parts_first(value: Tensor) -> Tensor:
    """Reorders (3 F, ...) rows from (F, 3) to (3, F)."""
    return value.unflatten(0, (-1, 3)).transpose(0, 1).flatten(0, 1).contiguous()


_ANGSTROM: Final = 1e-10
_COULOMB_CONSTANT: Final = 2.30707755e-28
"""J m, with the digits of TorchMD-Net."""

_PER_MOLE: Final = 6.02214076e23
"""With the digits of TorchMD-Net."""

_REFUSED: Final = {
    "Coulomb": "a Coulomb energy of charges that the positions do not determine",
}


@dataclass
class Priors:
    """The priors of one checkpoint.

    Attributes:
        references: of each prior with references, (rows,) eV per atom of each species row.
        row_limit: number of rows of the species table that every prior supports.
        numbers: atomic number of each row, if a prior states it.
        heaviest: largest atomic number that every prior supports.
        repulsion_cutoffs: A, of each ZBL repulsion.
        repulsion_constants: (), eV A, of each ZBL repulsion.
        dispersion_cutoff: A, of the dispersion, or None.
        dispersion_tensors: tensors of the dispersion, by name in a Dispersion.
        assumptions: sentences about what the file left open.
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
        """Whether a prior states that the units are eV and A."""
        return bool(self.repulsion_cutoffs or self.dispersion_tensors)

    def species(self, table: int, where: Path) -> tuple[tuple[int, ...], Tensor]:
        """Supported atomic numbers, and the row of each.

        Args:
            table: number of rows of the network's species table.
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


def _prior_arguments(settings: Settings) -> list[tuple[str, Mapping[str, Any]]]:
    """Names and arguments of the priors; `prior_args` takes precedence."""
    models = settings.get("prior_model") or []
    names: list[str] = []
    arguments: list[Mapping[str, Any]] = []
    for prior in models if isinstance(models, list) else [models]:
        entries = prior.items() if isinstance(prior, Mapping) else [(prior, None)]
        for name, values in entries:
            names.append(name if isinstance(name, str) else f"of type {type(name).__name__}")
            arguments.append(values if isinstance(values, Mapping) else {})
    prior_args = settings.get("prior_args")
    if prior_args is not None:
        arguments = prior_args if isinstance(prior_args, list) else [prior_args]
    plain = [values if isinstance(values, Mapping) else {} for values in arguments]
    return list(zip(names, plain, strict=False))


def read_priors(source: Tensors, settings: Settings, where: Path) -> Priors:
    """Takes the tensors of all priors.

    Raises:
        CheckpointError: a prior is not supported.
    """
    priors = Priors()
    for number, (name, arguments) in enumerate(_prior_arguments(settings)):
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
    # The species depend on these tensors.
    source.check()
    return priors


def _read_references(priors: Priors, source: Tensors, prefix: str, enabled: bool) -> None:
    weight_name, initial_name = f"{prefix}atomref.weight", f"{prefix}initial_atomref"
    source.ignore(initial_name)
    values = source.take(weight_name, ANY, 1).squeeze(1)
    if enabled:
        priors.assumptions.extend(source.differing_copy(weight_name, initial_name))
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
    # Row 0 belongs to no element and holds NaN.
    coefficients = source.take(f"{prefix}C_6", ANY, unused=1)
    radii = source.take(f"{prefix}R_r", len(coefficients), unused=1)
    count = min(len(coefficients), len(SYMBOLS))
    priors.heaviest = min(priors.heaviest, count - 1)
    tables = {"coefficients": coefficients, "radii": radii}
    for name, table in tables.items():
        padded = torch.ones(len(SYMBOLS), dtype=torch.float64)
        padded[1:count] = table[1:count]
        priors.dispersion_tensors[name] = padded
    # The dispersion computes in nm and J/mol.
    for name, scale in (("length", length * 1e9), ("energy", energy * _PER_MOLE)):
        priors.dispersion_tensors[name] = torch.tensor(scale, dtype=torch.float64)
    priors.dispersion_cutoff = arguments.number("cutoff_distance")
    priors.assumptions.append(
        "the dispersion D2 sees all images in a periodic system, where TorchMD-Net leaves the cell "
        "out of it"
    )


def _read_numbers(priors: Priors, source: Tensors, name: str, where: Path) -> None:
    """Takes the atomic number of each row; raises CheckpointError if priors disagree."""
    numbers = [int(value) for value in source.take(name, ANY)]
    earlier_numbers = priors.numbers or numbers
    common = min(len(earlier_numbers), len(numbers))
    if earlier_numbers[:common] != numbers[:common]:
        raise CheckpointError(
            f"{where} holds priors that disagree about the elements of its species; "
            "use it with TorchMD-Net."
        )
    priors.numbers = numbers[:common]


def _units(arguments: Settings, prior: str, where: Path) -> tuple[float, float]:
    """The energy unit in J and the length unit in m; checks that they are eV and A."""
    energy, length = arguments.number("energy_scale"), arguments.number("distance_scale")
    if abs(energy / ELEMENTARY_CHARGE - 1.0) > 1e-4 or abs(length / _ANGSTROM - 1.0) > 1e-4:
        raise CheckpointError(
            f"{where} has units of {energy:g} J and {length:g} m by its {prior} prior, not eV and "
            "A; train it on a data set in eV and A."
        )
    return energy, length


def species_text(species: tuple[int, ...]) -> str:
    """Up to eight elements by name, else their number and the first and last element."""
    if len(species) <= 8:
        return name_some([SYMBOLS[number] for number in species])
    return f"{len(species)} from {SYMBOLS[species[0]]} to {SYMBOLS[species[-1]]}"
