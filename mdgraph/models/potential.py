"""Interfaces of potentials that run, are stored and are trained.

With what a stored one says of its training: the domain, and the level of theory of the labels.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import combinations_with_replacement
from math import inf, isfinite
from typing import Any, ClassVar, Final, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from mdgraph.errors import InputError, UnknownSpeciesError, name_some
from mdgraph.models.config import PotentialConfig
from mdgraph.neighbors.pairs import Pairs
from mdgraph.state import Grouping
from mdgraph.units import SYMBOLS

_DISPERSION: Final = (
    ("D2", r"D2"),
    ("D3(BJ)", r"D3\s*\(?BJ\)?"),
    ("D3(0)", r"D3\s*\(?(?:0|zero)\)?"),
    ("D3", r"D3"),
    ("D4", r"D4"),
    ("many-body dispersion", r"MBD(?:@rsSCS|-NL)?"),
    ("Tkatchenko-Scheffler", r"TS|TS-vdW|vdW-?TS"),
    ("VV10", r"r?VV10|NL"),
    ("XDM", r"XDM"),
)
"""Names of dispersions, and how they stand behind the name of a functional."""

_WITHIN: Final = (
    ("D2", r"\w+-D|wB97X-D"),
    ("D3", r"\w+-3c|wB97X-D3"),
    ("VV10", r"\w+-V"),
    ("a van der Waals functional", r"(?:rev-?)?vdW-?DF\w*|opt\w+-vdW|\w*BEEF-?vdW"),
    ("the dispersion of xTB", r"GFN\w*(?:-xTB)?|g-xTB"),
    ("wavefunctions", r"(?:RI-?|DLPNO-?)?(?:MP[2-4]|CCSD\(?T?\)?)"),
)
"""Methods that have a dispersion of their own."""


def functional_in(level: str) -> str:
    """The method of a level of theory such as `PBE-D3/def2-SVP`: `pbe`; empty if not stated.

    Case, hyphens and what stands behind a slash, a plus or a dispersion do not count.
    """
    method = _method(level)
    for _, pattern in _DISPERSION:
        method = re.sub(rf"[-+ ]+(?:{pattern})$", "", method, flags=re.IGNORECASE)
    return re.sub(r"[-\s]", "", method.partition("+")[0]).lower()


def dispersion_in(level: str) -> str:
    """The dispersion that a level of theory says is in its energies; empty if it says none."""
    method = _method(level)
    for name, pattern in _WITHIN:
        if re.fullmatch(rf"(?:{pattern})", method.replace("ω", "w"), flags=re.IGNORECASE):
            return name
    for name, pattern in _DISPERSION:
        if re.search(rf"(?:^|[-+ ])(?:{pattern})(?:$|[-+ ])", method, flags=re.IGNORECASE):
            return name
    return ""


def _method(level: str) -> str:
    """What stands before the basis set."""
    return level.partition("/")[0].strip()


@dataclass(frozen=True)
class AbsolutePositions:
    """Where atoms are, for energies that are no functions of pair vectors alone.

    Attributes:
        positions: (N, 3) float64, A, not wrapped into the cell.
        cell: (S, 3, 3) float64, A.
        pbc: (S, 3) bool.
        atom: (N,) int64, index of each atom within its own system.
    """

    positions: Tensor
    cell: Tensor
    pbc: Tensor
    atom: Tensor


@dataclass(frozen=True)
class Atoms:
    """The atoms of a batch.

    Attributes:
        numbers: (N,) int64, atomic numbers.
        elements: (E,) int64, the distinct atomic numbers, ascending.
        kinds: (N,) int64, index of each atom's number in `elements`.
        charge: (S,) e, total charge of each system.
        grouping: assigns atoms to systems.
        absolute: where they are; None unless the potential `uses_positions`.
    """

    numbers: Tensor
    elements: Tensor
    kinds: Tensor
    charge: Tensor
    grouping: Grouping
    absolute: AbsolutePositions | None = None


T = TypeVar("T")


@dataclass(frozen=True)
class ListRoles:
    """Which neighbor list each part of a potential reads. Parts may share a list.

    Attributes:
        cutoffs: A, range of each list.
        places: index in `cutoffs` of the list of each role: `network`, `coulomb`,
            `dispersion`, and `repulsion 0`, `repulsion 1` and so on, one for each repulsion.
    """

    cutoffs: tuple[float, ...]
    places: Mapping[str, int]

    @classmethod
    def of(cls, own: Mapping[str, float], within: Mapping[str, float]) -> Self:
        """Assigns a list to each role.

        Args:
            own: ranges (A) of roles that need a list of exactly this range; equal ranges share
                a list.
            within: ranges (A) of roles that skip pairs beyond their range. They read the
                shortest list that is long enough; if none is, a list is added.
        """
        cutoffs = list(dict.fromkeys(own.values()))
        longest = max(within.values(), default=0.0)
        if longest > max((cutoff for cutoff in cutoffs if isfinite(cutoff)), default=0.0):
            cutoffs.append(longest)
        places = {role: cutoffs.index(cutoff) for role, cutoff in own.items()}
        for role, cutoff in within.items():
            reaching = [place for place, reach in enumerate(cutoffs) if reach >= cutoff]
            places[role] = min(reaching, key=lambda place: cutoffs[place])
        return cls(tuple(cutoffs), places)

    def cutoff(self, role: str) -> float:
        """Range of the list that a role reads, A."""
        return self.cutoffs[self.places[role]]

    def assign(self, lists: Sequence[T]) -> dict[str, T]:
        """The list of each role, from a list for each of `cutoffs`."""
        return {role: lists[place] for role, place in self.places.items()}


class Potential(Protocol):
    """Computes the energy of each atom, which is all that a simulation needs."""

    @property
    def cutoffs(self) -> tuple[float, ...]:
        """Ranges of the pair lists, A; infinity means all pairs."""
        ...

    @property
    def species(self) -> tuple[int, ...] | None:
        """Atomic numbers it accepts; None accepts every element."""
        ...

    @property
    def uses_charge(self) -> bool:
        """Whether the total charge enters the energy."""
        ...

    def __call__(self, atoms: Atoms, pairs: tuple[Pairs, ...]) -> Tensor:
        """Energies (N,) float64 in eV, differentiable twice by the pair vectors.

        Args:
            atoms: the batch.
            pairs: one list for each of `cutoffs`, in their order.
        """
        ...


class PotentialModule(nn.Module):
    """A Potential that is built from a configuration, and saved and loaded.

    A subclass defines `cutoffs` and `forward`, takes a configuration as its only argument, and
    makes its tensors in float64.

    Attributes:
        config: everything but the tensors.
    """

    def __init__(self, config: PotentialConfig) -> None:
        super().__init__()
        self.config = config

    @property
    def cutoffs(self) -> tuple[float, ...]:
        """See Potential."""
        raise NotImplementedError

    @property
    def list_roles(self) -> ListRoles:
        """Which neighbor list each part reads; by default the first is `network`."""
        return ListRoles(self.cutoffs, {"network": 0} if self.cutoffs else {})

    @property
    def species(self) -> tuple[int, ...]:
        """Atomic numbers it accepts."""
        return self.config.species

    @property
    def uses_charge(self) -> bool:
        """Whether the total charge enters the energy."""
        return False

    @property
    def uses_positions(self) -> bool:
        """Whether it reads `Atoms.absolute`, beside pair vectors or instead of them."""
        return False

    @property
    def keeps_momentum(self) -> bool:
        """Whether its forces add up to zero, as those of functions of pair vectors do."""
        return True

    @property
    def has_repulsion(self) -> bool:
        """Whether a repulsion of nuclei keeps atoms apart that are nearer than in any data."""
        return False

    @property
    def stated_dispersion(self) -> str:
        """The dispersion that is in its energies, as far as it is stated; else empty."""
        return dispersion_in(self.config.level_of_theory)

    def check_atoms(self, numbers: Sequence[int]) -> None:
        """Raises InputError for a structure without atoms that the potential names.

        Args:
            numbers: (N,) atomic numbers of the structure.
        """

    def objection(self, potential: "PotentialModule") -> str | None:
        """Why it should not be added to a potential, as a sentence without its end, or None."""
        return None

    @property
    def device(self) -> torch.device:
        """The device of its tensors."""
        tensors = itertools.chain(self.parameters(), self.buffers())
        return next((tensor.device for tensor in tensors), torch.device("cpu"))

    @property
    def parameter_count(self) -> int:
        """Number of trainable weights."""
        return sum(parameter.numel() for parameter in self.parameters())

    def cast_(self, dtype: torch.dtype) -> None:
        """Casts the network to a dtype, in place."""
        self.to(dtype)

    def at_precision(self, dtype: torch.dtype) -> Self:
        """A copy for inference whose network has this dtype, with gradients off."""
        copy = self._with(self.config)
        copy.cast_(dtype)
        return copy.requires_grad_(False).eval()

    @property
    def has_latent(self) -> bool:
        """Whether `latent` gives features of atoms, of which uncertainties are made."""
        return False

    def latent(self, atoms: Atoms, pairs: tuple[Pairs, ...]) -> Tensor:
        """Features (N, H) of each atom in which the learned part of its energy is linear."""
        raise NotImplementedError

    def with_coulomb_cutoff(self, cutoff: float | None) -> Self:
        """A copy with the same weights and another range of the Coulomb energy.

        Args:
            cutoff: A, of the reaction field; None sums all pairs.

        Raises:
            InputError: it has no Coulomb energy, or the cutoff is not a positive number.
        """
        raise InputError(
            "A Coulomb cutoff is given, but the potential has no Coulomb energy; "
            "leave the cutoff out."
        )

    def details(self) -> dict[str, Any]:
        """The architecture's own settings for `describe`, ready for JSON."""
        common = PotentialConfig.model_fields
        return {
            "parameters": self.parameter_count,
            "cutoff_A": max(self.cutoffs, default=0.0),
            "uses_charge": self.uses_charge,
            **self.config.model_dump(mode="json", exclude=set(common)),
        }

    def flaw(self) -> str | None:
        """Why the weights are unusable, as the end of a sentence about their file, or None."""
        return None

    def _with(self, config: PotentialConfig) -> Self:
        copy = type(self)(config)
        copy.load_state_dict(self.state_dict())
        return copy.to(self.device)


class TrainablePotential(PotentialModule):
    """A PotentialModule that can be trained, with a scale, references and features of atoms.

    A subclass multiplies the energies of its parameters by `scale` and adds
    `constant_energies`. All parameters are trained.

    Attributes:
        scale: () float64, factor of the learned energies.
        shift: () float64, eV a system, distributed evenly over its atoms.
        references: (species,) float64, eV an atom of each species.
        rows: (119,) int64, row of each atomic number in tables of the species; -1 for none.
        species_tables: names of tensors that have a row for each species.
    """

    scale: Tensor
    shift: Tensor
    references: Tensor
    rows: Tensor
    species_tables: ClassVar[tuple[str, ...]] = ("references",)

    def __init__(self, config: PotentialConfig) -> None:
        super().__init__(config)
        self.register_buffer("scale", torch.ones((), dtype=torch.float64))
        self.register_buffer("shift", torch.zeros((), dtype=torch.float64))
        references = torch.zeros(len(config.species), dtype=torch.float64)
        self.register_buffer("references", references)
        rows = torch.full((len(SYMBOLS),), -1, dtype=torch.int64)
        rows[list(config.species)] = torch.arange(len(config.species))
        self.register_buffer("rows", rows, persistent=False)

    @property
    def predicts_charges(self) -> bool:
        """Whether it predicts partial charges, which make atoms depend on the whole system."""
        return False

    def cast_(self, dtype: torch.dtype) -> None:
        """Casts parameters, in place; scale, shift and references are large and stay float64."""
        for parameter in self.parameters():
            parameter.data = parameter.data.to(dtype)

    def energies_and_charges(
        self, atoms: Atoms, pairs: tuple[Pairs, ...]
    ) -> tuple[Tensor, Tensor | None]:
        """Energies as of `Potential`, and partial charges (N,) float64, e, or None."""
        return self(atoms, pairs), None

    @property
    def network_dtype(self) -> torch.dtype:
        """The dtype in which the network computes."""
        return next(self.parameters()).dtype

    @property
    def has_latent(self) -> bool:
        """See PotentialModule."""
        return True

    def distance_layers(self) -> set[nn.Module]:
        """Linear layers whose inputs are functions of the distance."""
        return set()

    def constant_energies(self, atoms: Atoms) -> Tensor:
        """References and shares of the shift (N,) float64, eV; independent of positions."""
        rows = self.rows.index_select(0, atoms.elements)
        references = self.references.index_select(0, rows).index_select(0, atoms.kinds)
        return self._reduce(references, atoms) + atoms.grouping.spread(
            self.shift / atoms.grouping.counts
        )

    def _reduce(self, energies: Tensor, atoms: Atoms) -> Tensor:
        """Energies (N,) as they enter the sum over the atoms of a system."""
        return energies


FINITE_COULOMB: Final = (
    "a file with a reaction field, which 'mdgraph convert IN OUT.safetensors "
    "--coulomb-cutoff-A 12' writes"
)
"""How to give a potential with a finite Coulomb cutoff where no option sets it."""


def check_coulomb_range(
    cutoffs: Sequence[float],
    periodic: bool,
    advice: str = FINITE_COULOMB,
    *,
    potential: str = "The potential",
) -> None:
    """Raises InputError for a Coulomb sum over all pairs in a periodic system.

    Args:
        cutoffs: A, of the potential.
        periodic: whether the system is periodic along any direction.
        advice: how to set a finite cutoff, as the end of the sentence.
        potential: its name, as the beginning.
    """
    if periodic and inf in cutoffs:
        raise InputError(
            f"{potential}'s Coulomb energy runs over all pairs, which have no end in a periodic "
            f"system; give {advice}."
        )


def check_species(
    potential_species: tuple[int, ...] | None,
    numbers: list[int],
    name: str = "The potential",
    advice: str = "choose another potential or change the structure",
) -> None:
    """Raises UnknownSpeciesError with the elements and atoms that a potential does not accept.

    Args:
        potential_species: atomic numbers; None for every element.
        numbers: of the atoms.
        name: of the potential, at the beginning of the sentence.
        advice: at its end.
    """
    if potential_species is None or {*numbers} <= {*potential_species}:
        return
    unknown = [atom for atom, number in enumerate(numbers) if number not in potential_species]
    elements = sorted({numbers[atom] for atom in unknown})
    accepted = [SYMBOLS[number] for number in sorted(potential_species)]
    raise UnknownSpeciesError(
        f"{name} does not know {name_some([SYMBOLS[number] for number in elements])} "
        f"(atoms {name_some(unknown)}); it was made for {name_some(accepted, 20)}, "
        f"so {advice}."
    )


@dataclass(frozen=True, eq=False)
class Domain:
    """Ranges of the training frames by element, and the matrices of the energy's uncertainty.

    A potential's energy is linear in the inputs phi_i of its readout's last layer. With
    f = sum_i (phi_i - mean of its element, 1) of a structure and C the mean of f f^T / n^2 over
    training frames of n atoms, the variance of its energy is alpha^2 f^T (C + ridge)^-1 f:
    last-layer prediction rigidity (DOI 10.1088/2632-2153/ad805f). Validation frames determine
    alpha. The same form of a single atom's term measures how well the training set covers the
    environment of that atom (DOI 10.1021/acs.jctc.3c00704).

    Attributes:
        species: (E,) int64, atomic numbers that the potential accepts, ascending. The ranges of
            an element without frames are empty.
        neighbors: (E, 4) float64, neighbors within the network's cutoff: minimum, 0.1 and
            99.9 % quantiles over atoms, maximum.
        shortest: (E, E) float64, A, shortest distances; infinite for pairs never within the
            cutoff.
        forces: (E, 2) float64, eV/A, labels: 99.9 % quantile over atoms and maximum.
        mean: (E, H) float64, mean of phi.
        factor: (H + 1, H + 1) float64, whose square is alpha^2 (C + ridge)^-1, eV^2; NaN if
            no frame has an energy.
        sigma: (E, 2) float64, eV: 99.9 % quantile over atoms and maximum.
    """

    species: Tensor
    neighbors: Tensor
    shortest: Tensor
    forces: Tensor
    mean: Tensor
    factor: Tensor
    sigma: Tensor

    def to(self, device: torch.device) -> Self:
        """A copy on a device."""
        return type(self)(*(getattr(self, field.name).to(device) for field in fields(self)))

    @property
    def calibrated(self) -> bool:
        """Whether sigma can be computed; syncs the GPU."""
        return bool(self.factor.isfinite().all())

    def rows(self, numbers: Tensor) -> Tensor:
        """Row of each atomic number (N,); does not sync."""
        return torch.searchsorted(self.species, numbers)

    def projected(self, latent: Tensor, numbers: Tensor) -> Tensor:
        """Vectors (N, H + 1) float64, eV, whose lengths are sigmas; does not sync.

        The sigma of an atom is the length of its vector, that of a structure the length of the
        sum over its atoms.

        Args:
            latent: (N, H), phi; see `TrainablePotential.latent`.
            numbers: (N,) atomic numbers.
        """
        centred = latent.double() - self.mean.index_select(0, self.rows(numbers))
        return torch.cat([centred, torch.ones_like(centred[:, :1])], dim=1) @ self.factor.T

    def lines(self) -> list[str]:
        """The ranges in words: one line for all elements without frames, and one for each other."""
        symbols = [SYMBOLS[number] for number in self.species.tolist()]
        ranges, forces = self.neighbors.tolist(), self.forces[:, 1].tolist()
        present = [row for row, (least, *_) in enumerate(ranges) if isfinite(least)]
        absent = [symbol for row, symbol in enumerate(symbols) if row not in present]
        lines = []
        if absent:
            names = name_some(absent, 4)
            lines.append(f"{names}: in no frame of several atoms that was trained on")
        lines += [
            f"{symbols[row]}: {ranges[row][0]:.0f} to {ranges[row][3]:.0f} neighbors, "
            f"forces up to {forces[row]:.3g} eV/A"
            for row in present
        ]
        shortest = self.shortest.tolist()
        pairs = [
            (f"{symbols[first]}-{symbols[second]}", shortest[first][second])
            for first, second in combinations_with_replacement(present, 2)
        ]
        near = [f"{pair} {distance:.3f} A" for pair, distance in pairs if isfinite(distance)]
        never = [pair for pair, distance in pairs if not isfinite(distance)]
        lines.append(f"shortest distances: {name_some(near, _MOST_PAIRS) or 'none'}")
        if never:
            lines.append(f"never near: {name_some(never, _MOST_PAIRS)}")
        return lines


_MOST_PAIRS: Final = 66
"""Most pairs of elements in a line about a domain: all pairs of eleven elements."""
