"""Energies of pairs of atoms by distance: Lennard-Jones, Morse, and repulsion of nuclei.

All end smoothly at a cutoff: the energy is multiplied by S, which falls from 1 at a distance of
`switch` before the cutoff to 0 at it, with two continuous derivatives.

    lj:Ar=EPSILON/SIGMA@CUTOFF        4 e ((s/r)^12 - (s/r)^6)
    morse:Cu-Cu=D/A/R0@CUTOFF         D ((1 - exp(-a (r - r0)))^2 - 1)
    zbl@CUTOFF                        see `mdgraph.models.repulsion`

Energies are in eV, lengths in A and `a` in 1/A. A name is a pair such as `O-H`, or an element for
a pair of it. Pairs of two elements that are named alone mix in Lennard-Jones terms by Lorentz and
Berthelot, e = sqrt(e1 e2) and s = (s1 + s2) / 2. Other pairs have no energy.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Annotated, Any, Final, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from mdgraph.errors import InputError, name_some
from mdgraph.models.architectures import Architecture, register
from mdgraph.models.config import Element, PotentialConfig, Range, RepulsionConfig
from mdgraph.models.ops.messages import sum_slots
from mdgraph.models.potential import Atoms, PotentialModule
from mdgraph.models.repulsion import repulsion
from mdgraph.models.terms import EVERY_ELEMENT, assignments, element, with_cutoff
from mdgraph.neighbors.pairs import Pairs
from mdgraph.units import SYMBOLS

_SWITCH: Final = 1.0
"""A, over which energies end unless the configuration says otherwise."""

_Positive = Annotated[float, Field(gt=0.0, le=1e6)]


def switched(distance: Tensor, cutoff: float, width: float) -> Tensor:
    """S(r): 1 up to cutoff - width, 0 from the cutoff on, a quintic between.

    Args:
        distance: A, of any shape.
        cutoff: A.
        width: A; 0 ends energies at once.
    """
    inside = (distance < cutoff).to(distance.dtype)
    if width == 0.0:
        return inside
    u = ((distance - (cutoff - width)) / width).clamp(0.0, 1.0)
    return inside * (1.0 - u**3 * (10.0 - 15.0 * u + 6.0 * u**2))


class _ElementPair(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    first: Element
    second: Element

    @property
    def label(self) -> str:
        """Such as O-H."""
        return f"{SYMBOLS[self.first]}-{SYMBOLS[self.second]}"


class LennardJonesPair(_ElementPair):
    """Constants of a pair of elements."""

    epsilon: _Positive
    """eV, depth of the well."""
    sigma: _Positive
    """A, where the energy is zero."""


class MorsePair(_ElementPair):
    """Constants of a pair of elements."""

    depth: _Positive
    """D, eV."""
    inverse_width: _Positive
    """a, 1/A."""
    distance: _Positive
    """r0, A, of the minimum."""


class PairPotentialConfig(PotentialConfig):
    """Fields of both; each pair of elements comes once."""

    cutoff: Range
    switch: Annotated[float, Field(ge=0.0)] = _SWITCH
    """A, over which energies end before the cutoff."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.switch > self.cutoff:
            raise ValueError("switch is longer than the cutoff")
        pairs = [tuple(sorted((pair.first, pair.second))) for pair in self.all_pairs]
        if len(set(pairs)) < len(pairs):
            raise ValueError("a pair of elements comes twice")
        return self

    @property
    def all_pairs(self) -> tuple[Any, ...]:
        """Constants of the pairs of elements."""
        return ()


class LennardJonesConfig(PairPotentialConfig):
    """Configuration of a LennardJonesPotential."""

    architecture: Literal["lj"] = "lj"
    pairs: Annotated[tuple[LennardJonesPair, ...], Field(min_length=1, max_length=10_000)]

    @property
    def all_pairs(self) -> tuple[LennardJonesPair, ...]:
        """See PairPotentialConfig."""
        return self.pairs


class MorseConfig(PairPotentialConfig):
    """Configuration of a MorsePotential."""

    architecture: Literal["morse"] = "morse"
    pairs: Annotated[tuple[MorsePair, ...], Field(min_length=1, max_length=10_000)]

    @property
    def all_pairs(self) -> tuple[MorsePair, ...]:
        """See PairPotentialConfig."""
        return self.pairs


class ZBLConfig(PotentialConfig):
    """Configuration of a ZBLPotential."""

    architecture: Literal["zbl"] = "zbl"
    cutoff: Range


class PairPotential(PotentialModule):
    """Base class: a table of constants by pair of elements, and an energy by them.

    Attributes:
        constants: (C, 119, 119) float64.
        acts: (119, 119) bool, pairs that have an energy.
    """

    config: PairPotentialConfig
    fields: tuple[str, ...]
    constants: Tensor
    acts: Tensor

    def __init__(self, config: PairPotentialConfig) -> None:
        super().__init__(config)
        rows = len(SYMBOLS)
        constants = torch.ones(len(self.fields), rows, rows, dtype=torch.float64)
        acts = torch.zeros(rows, rows, dtype=torch.bool)
        for pair in config.all_pairs:
            for one, other in ((pair.first, pair.second), (pair.second, pair.first)):
                acts[one, other] = True
                for row, name in enumerate(self.fields):
                    constants[row, one, other] = getattr(pair, name)
        self.register_buffer("constants", constants, persistent=False)
        self.register_buffer("acts", acts, persistent=False)

    @property
    def cutoffs(self) -> tuple[float, ...]:
        """See Potential."""
        return (self.config.cutoff,)

    def cast_(self, dtype: torch.dtype) -> None:
        """Constants stay float64."""

    def objection(self, potential: PotentialModule) -> str | None:
        """See PotentialModule: elements that the potential lacks, so that no pair has an energy."""
        known = set(potential.species)
        if any({pair.first, pair.second} <= known for pair in self.config.all_pairs):
            return None
        labels = name_some([pair.label for pair in self.config.all_pairs])
        name = potential.config.name or "The potential"
        return (
            f"{name} does not know all elements of {labels}, so the term {self.config.name} has no "
            "energy in any structure"
        )

    def energy(self, distance: Tensor, *constants: Tensor) -> Tensor:
        """eV, of pairs at a distance in A."""
        raise NotImplementedError

    def forward(self, atoms: Atoms, pairs: tuple[Pairs, ...]) -> Tensor:
        """See Potential; each atom gets half the energy of its pairs."""
        numbers = atoms.numbers
        total = torch.zeros(len(numbers), dtype=torch.float64, device=numbers.device)
        for block in pairs[0].blocks:
            neighbor = numbers.index_select(0, block.index.flatten()).view_as(block.index)
            own = numbers[:, None]
            distance = torch.linalg.vector_norm(block.vectors.double(), dim=-1)
            energy = self.energy(distance, *self.constants[:, own, neighbor])
            energy = energy * switched(distance, self.config.cutoff, self.config.switch)
            within = block.valid & self.acts[own, neighbor] & (distance < self.config.cutoff)
            total = total + sum_slots(torch.where(within, energy, 0.0))
        return 0.5 * total

    def details(self) -> dict[str, Any]:
        """See PotentialModule."""
        names = ", ".join(name.replace("_", " ") for name in self.fields)
        numbers = [
            "/".join(f"{getattr(pair, name):g}" for name in self.fields)
            for pair in self.config.all_pairs
        ]
        return {
            "cutoff_A": self.config.cutoff,
            "switch_A": self.config.switch,
            "pairs": [
                f"{pair.label}: {names} {text}"
                for pair, text in zip(self.config.all_pairs, numbers, strict=True)
            ],
        }


class LennardJonesPotential(PairPotential):
    """4 e ((s/r)^12 - (s/r)^6) S(r)."""

    fields = ("epsilon", "sigma")

    def energy(self, distance: Tensor, *constants: Tensor) -> Tensor:
        """See PairPotential."""
        epsilon, sigma = constants
        power = (sigma / distance) ** 6
        return 4.0 * epsilon * (power**2 - power)


class MorsePotential(PairPotential):
    """D ((1 - exp(-a (r - r0)))^2 - 1) S(r)."""

    fields = ("depth", "inverse_width", "distance")

    def energy(self, distance: Tensor, *constants: Tensor) -> Tensor:
        """See PairPotential."""
        depth, inverse_width, minimum = constants
        decay = torch.exp(-inverse_width * (distance - minimum))
        return depth * (decay**2 - 2.0 * decay)


class ZBLPotential(PotentialModule):
    """Screened nuclear repulsion of all elements, with the universal constants.

    It is MatGL's form in `mdgraph.models.repulsion`, whose window lowers the energy from zero
    distance on until it is 0 at the cutoff.
    """

    config: ZBLConfig

    def __init__(self, config: ZBLConfig) -> None:
        super().__init__(config)
        self.repulsion = repulsion(RepulsionConfig(kind="matgl", cutoff=config.cutoff))
        self.requires_grad_(False)

    @property
    def has_repulsion(self) -> bool:
        """See PotentialModule."""
        return True

    @property
    def cutoffs(self) -> tuple[float, ...]:
        """See Potential."""
        return (self.config.cutoff,)

    def cast_(self, dtype: torch.dtype) -> None:
        """Constants stay float64."""

    def forward(self, atoms: Atoms, pairs: tuple[Pairs, ...]) -> Tensor:
        """See Potential."""
        energies: Tensor = self.repulsion(atoms.numbers, pairs[0]).double()
        return energies

    def details(self) -> dict[str, Any]:
        """See PotentialModule."""
        return {"cutoff_A": self.config.cutoff}


def _named(name: str) -> tuple[int, int]:
    """The elements of a pair such as O-H, or of an element alone."""
    first, _, second = name.partition("-")
    return element(first), element(second or first)


def _parse_lennard_jones(arguments: str, cutoff: float | None) -> LennardJonesConfig:
    example = "lj:Ar=0.0104/3.4@10"
    pairs = []
    values = ("epsilon in eV", "sigma in A")
    for name, (epsilon, sigma) in assignments(arguments, values, example):
        first, second = _named(name)
        pairs.append(LennardJonesPair(first=first, second=second, epsilon=epsilon, sigma=sigma))
    return LennardJonesConfig(
        species=EVERY_ELEMENT,
        name=f"lj:{arguments}@{with_cutoff('lj', cutoff, example):g}",
        cutoff=cutoff,
        switch=min(_SWITCH, cutoff or _SWITCH),
        pairs=(*pairs, *_mixed(pairs)),
    )


def _mixed(pairs: Sequence[LennardJonesPair]) -> Iterator[LennardJonesPair]:
    """Pairs of two elements whose own pairs are there, as far as they are not there themselves."""
    alone = {pair.first: pair for pair in pairs if pair.first == pair.second}
    present = {frozenset((pair.first, pair.second)) for pair in pairs}
    for first, second in combinations(alone, 2):
        one, other = alone[first], alone[second]
        if frozenset((first, second)) not in present:
            yield LennardJonesPair(
                first=first,
                second=second,
                epsilon=math.sqrt(one.epsilon * other.epsilon),
                sigma=0.5 * (one.sigma + other.sigma),
            )


def _parse_morse(arguments: str, cutoff: float | None) -> MorseConfig:
    example = "morse:Cu=0.343/1.36/2.87@8"
    pairs = []
    for name, (depth, inverse_width, distance) in assignments(
        arguments, ("D in eV", "a in 1/A", "r0 in A"), example
    ):
        first, second = _named(name)
        pairs.append(
            MorsePair(
                first=first,
                second=second,
                depth=depth,
                inverse_width=inverse_width,
                distance=distance,
            )
        )
    return MorseConfig(
        species=EVERY_ELEMENT,
        name=f"morse:{arguments}@{with_cutoff('morse', cutoff, example):g}",
        cutoff=cutoff,
        switch=min(_SWITCH, cutoff or _SWITCH),
        pairs=tuple(pairs),
    )


def _parse_zbl(arguments: str, cutoff: float | None) -> ZBLConfig:
    if arguments:
        raise InputError(f"The term zbl has no arguments; write zbl@3, not zbl:{arguments}.")
    return ZBLConfig(
        species=EVERY_ELEMENT,
        name=f"zbl@{with_cutoff('zbl', cutoff, 'zbl@3'):g}",
        cutoff=cutoff,
    )


for _word, _title, _config, _build, _parse in (
    ("lj", "Lennard-Jones", LennardJonesConfig, LennardJonesPotential, _parse_lennard_jones),
    ("morse", "Morse", MorseConfig, MorsePotential, _parse_morse),
    ("zbl", "ZBL repulsion", ZBLConfig, ZBLPotential, _parse_zbl),
):
    register(Architecture(_word, _title, _config, _build, simple=True, parse=_parse))
