"""Converts TorchMD-Net and MatGL models: settings, priors, layout, and the network's tensors."""

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
"""A length that the checkpoint itself decides."""

_MANY: Final = 30
"""Tensors that do not fit, after which the others are no longer looked at."""


class Tensors:
    """Hands out tensors once each, and says at the end what was missing, left or misshapen."""

    def __init__(self, values: Mapping[str, object], where: Path) -> None:
        self._values = dict(values)
        self._where = where
        self._left = set(self._values)
        self._missing: list[str] = []
        self._misshapen: list[str] = []
        self._infinite: list[str] = []

    def __contains__(self, name: object) -> bool:
        return name in self._values

    @property
    def names(self) -> list[str]:
        """All names, in the file's order."""
        return list(self._values)

    def shape(self, name: str) -> tuple[int, ...]:
        """Lengths of a tensor that may or may not be there."""
        value = self._values.get(name)
        return tuple(value.shape) if isinstance(value, Tensor) else ()

    def take(self, name: str, *shape: int, unused: int = 0) -> Tensor:
        """A tensor in float64; zeros where it is wrong, which `finish` then reports.

        Args:
            name: what the checkpoint calls it.
            shape: its lengths.
            unused: rows at the start that may hold anything.
        """
        stand_in = torch.zeros((), dtype=torch.float64).expand([max(n, 1) for n in shape])
        self._left.discard(name)
        value = self._values.get(name)
        if not isinstance(value, Tensor):
            self._missing.append(name)
            self._stop_at_many()
            return stand_in
        lengths = zip(shape, value.shape, strict=False)
        if value.dim() != len(shape) or any(want not in (ANY, have) for want, have in lengths):
            self._misshapen.append(f"{name} ({_sizes(value.shape)} instead of {_sizes(shape)})")
            self._stop_at_many()
            return stand_in
        if not _is_stored(value):
            self._misshapen.append(f"{name} (no array of real numbers that are all stored)")
            return stand_in
        value = value.detach().to(torch.float64)
        if not bool(value[unused:].isfinite().all() if unused else value.isfinite().all()):
            self._infinite.append(name)
        return value

    def take_scalar(self, name: str) -> Tensor:
        """A single number () in float64, whatever its dimensions in the file."""
        value = self._values.get(name)
        if isinstance(value, Tensor) and value.numel() == 1 and _is_stored(value):
            self._values[name] = value.reshape(())
        return self.take(name)

    def other_version(self, used: str, other: str, values: object = None) -> list[str]:
        """A sentence where the checkpoint holds numbers a second time and they differ, or none.

        Args:
            used: name of the tensor that counts.
            other: what the second version is called, or the name of its tensor.
            values: the second version; None takes the tensor of that name.
        """
        first, second = self._values.get(used), self._values.get(other, values)
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
        text = f"{used} is used as stored; {other} holds other values of the same"
        return [f"{text}, by up to {change:.3g}, and is not used"]

    def _stop_at_many(self) -> None:
        """A description may ask for more than there is memory for, of what is not there."""
        if len(self._missing) + len(self._misshapen) > _MANY:
            self.check()

    def ignore(self, *names: str) -> None:
        """Names that may be there and do not matter."""
        self._left.difference_update(names)

    def check(self) -> None:
        """Raises CheckpointError, one sentence for everything taken that did not fit."""
        self._report([])

    def finish(self) -> None:
        """Raises CheckpointError for what did not fit and for what nobody took."""
        self._report(sorted(self._left))

    def _report(self, left: list[str]) -> None:
        parts = [
            f"{what} {printable(name_some(names), 1000)}"
            for what, names in (
                ("lacks", self._missing),
                ("has wrong shapes in", self._misshapen),
                ("holds numbers that are not finite in", self._infinite),
                ("holds unknown", left),
            )
            if names
        ]
        if parts:
            raise CheckpointError(
                f"{self._where} does not hold the tensors that its own description asks for: "
                f"it {' and '.join(parts)}; save it again with the program that trained it."
            )


def _is_stored(value: Tensor) -> bool:
    """Whether it is an ordinary array of real numbers, and not a few of them many times over."""
    if value.layout != torch.strided or value.is_complex() or value.is_quantized:
        return False
    return value.numel() * value.element_size() <= value.untyped_storage().nbytes()


def _sizes(shape: Sequence[int]) -> str:
    sizes = ["any" if length == ANY else str(length) for length in shape]
    return " x ".join(sizes) or "one number"


T = TypeVar("T")

_BEYOND: Final = 2**31
"""What no length or count of a network reaches."""


class Settings:
    """Read access to hyper-parameters, with a sentence for each that is missing or wrong."""

    def __init__(self, values: Mapping[Any, Any], where: Path) -> None:
        self._where = where
        self._values = {str(name): _plain(value) for name, value in values.items()}

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def get(self, name: str, default: Any = None) -> Any:
        """The value as it is, or the default where there is none; no array, which has no truth."""
        value = self._values.get(name, default)
        if isinstance(value, Tensor | np.ndarray):
            raise self._wrong(name, value)
        return value

    def is_none(self, name: str) -> bool:
        """Whether it is not there, or None."""
        return self._values.get(name) is None

    def integer(self, name: str) -> int:
        """A whole number."""
        value = self._required(name)
        number = math.nan if isinstance(value, bool | str) else float(value)
        if not number.is_integer() or abs(number) >= _BEYOND:
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
        """What one of several words stands for.

        Args:
            name: of the setting.
            choices: meaning of each word that can be used.
            advice: what to do about any other, the end of a sentence.
        """
        word = self.text(name)
        if word not in choices:
            raise CheckpointError(
                f"{self._where} has {name} {shown(word)}, which cannot be used here; {advice}."
            )
        return choices[word]

    def _required(self, name: str, kind: Callable[[Any], Any] = float) -> Any:
        if self._values.get(name) is None:
            raise CheckpointError(
                f"{self._where} does not say its {name}; "
                "save it again with the program that trained it."
            )
        try:
            kind(self._values[name])
        except (TypeError, ValueError, OverflowError, RuntimeError):
            raise self._wrong(name, self._values[name]) from None
        return self._values[name]

    def _wrong(self, name: str, value: object) -> CheckpointError:
        return CheckpointError(
            f"{self._where} has a {name} of {shown(value)}, which cannot be; "
            "save it again with the program that trained it."
        )


def _plain(value: Any) -> Any:
    """Scalars of NumPy and torch as Python's own."""
    if isinstance(value, np.generic) or (isinstance(value, Tensor) and value.numel() == 1):
        return value.item()
    return value


def shown(value: object) -> str:
    """A value in a few characters, however deep or long it is."""
    if isinstance(value, Tensor | np.ndarray):
        return f"an array of shape {tuple(value.shape)}"
    try:
        return printable(reprlib.repr(value), 200)
    except (ValueError, RecursionError):  # an integer of thousands of digits
        return f"some {type(value).__name__}"


def checked_config(where: Path, **fields: Any) -> TensorNetConfig:
    """A configuration, or a CheckpointError naming the first field that cannot be."""
    try:
        return TensorNetConfig(**fields)
    except ValidationError as error:
        raise invalid_config(where, error) from error


def invalid_config(where: Path, error: ValidationError) -> CheckpointError:
    """One sentence for the first thing that a configuration got wrong."""
    first = error.errors()[0]
    field = printable(".".join(str(part) for part in first["loc"]), 200)
    subject = f"the setting {field}" if field else "its settings"
    reason = first["msg"].removeprefix("Value error, ")
    return CheckpointError(
        f"{where} describes no potential that can be built, by {subject}: {reason}; "
        "save it again with the program that trained it."
    )


Layout = Literal["auto", "before-3.0", "3.0"]
"""`auto` decides by what is in the file; the others say it."""


@dataclass(frozen=True)
class Ordering:
    """How a release orders what it puts into one tensor.

    Attributes:
        gate_by_channel: the embedding's gate comes as (F, 3), not (3, F).
        edges_by_channel: so do the weights of a message.
        neighbor_first: the embedding of a pair takes its neighbor before its atom.
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
        prefix: what all names begin with.
        config: the potential to be filled.
        rows: (species,) int64, row of the species table for each species.
        table: length of the species table.
        ordering: how the release orders its tensors.

    Returns:
        float64 tensors under the names of a TensorNetPotential.
    """
    channels, radial = config.channels, config.radial_basis.number
    tensors: dict[str, Tensor] = {}

    def linear(own: str, name: str, outputs: int, inputs: int, by_channel: bool = False) -> None:
        for kind, shape in (("weight", (outputs, inputs)), ("bias", (outputs,))):
            value = source.take(f"{prefix}{name}.{kind}", *shape)
            tensors[f"network.{own}.{kind}"] = parts_first(value) if by_channel else value

    def norm(own: str, name: str, width: int) -> None:
        for kind in ("weight", "bias"):
            tensors[f"network.{own}.{kind}"] = source.take(f"{prefix}{name}.{kind}", width)

    def mixing(own: str, name: str, first: int) -> None:
        for part in range(3):
            value = source.take(f"{prefix}{name}.{first + part}.weight", channels, channels)
            tensors[f"network.{own}.parts.{part}.weight"] = value

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
        for kind, shape in (("weight", (channels, radial)), ("bias", (channels,))):
            names = [f"{prefix}{embedding}.distance_proj{part}.{kind}" for part in (1, 2, 3)]
            parts = [source.take(name, *shape) for name in names]
            tensors[f"network.embedding.distance.{kind}"] = torch.cat(parts)
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
        own, name = f"layers.{layer}", f"layers.{layer}"
        widths = (radial + 2 * config.charge_channels, channels, 2 * channels, 3 * channels)
        for step in range(3):
            linear(
                f"{own}.edge_network.linears.{step}",
                f"{name}.linears_scalar.{step}",
                widths[step + 1],
                widths[step],
                ordering.edges_by_channel and step == 2,
            )
        mixing(f"{own}.before", f"{name}.linears_tensor", 0)
        mixing(f"{own}.after", f"{name}.linears_tensor", 3)
    norm("norm", "out_norm", 3 * channels)
    linear("linear", "linear", channels, 3 * channels)
    return tensors


def perceptron_tensors(
    source: Tensors, own: str, name: str, widths: tuple[int, ...]
) -> dict[str, Tensor]:
    """Takes a perceptron whose activations count as layers, so that every other has weights.

    Args:
        source: the checkpoint's tensors.
        own: what the names of a TensorNetPotential begin with.
        name: what the checkpoint's names begin with.
        widths: from the inputs to the outputs.
    """
    tensors = {}
    for place, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        layer = f"{name}.{2 * place}"
        tensors[f"{own}.{place}.weight"] = source.take(f"{layer}.weight", outputs, inputs)
        tensors[f"{own}.{place}.bias"] = source.take(f"{layer}.bias", outputs)
    return tensors


def parts_first(value: Tensor) -> Tensor:
    """Reorders (3 F, ...) rows from (F, 3) to (3, F)."""
    return value.unflatten(0, (-1, 3)).transpose(0, 1).flatten(0, 1).contiguous()


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
