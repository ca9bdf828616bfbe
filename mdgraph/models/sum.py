"""SumPotential: a weighted sum of potentials of any architecture, which is a potential itself.

A training on what a baseline leaves over writes one: the baseline's weights and, as the last term,
the network that was trained on the differences.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SerializeAsAny, model_validator
from torch import Tensor, nn

from mdgraph.arguments import real_number, whole_number
from mdgraph.errors import InputError, UnknownSpeciesError
from mdgraph.models.architectures import Architecture, KeptNumbers, architecture_named, register
from mdgraph.models.config import PotentialConfig, Text
from mdgraph.models.potential import Atoms, ListRoles, PotentialModule
from mdgraph.neighbors.pairs import Pairs

WORD: Final = "sum"


def _term_config(value: Any) -> Any:
    """The configuration of a term, of the class of its architecture."""
    if isinstance(value, PotentialConfig):
        return value
    if not isinstance(value, dict):
        raise ValueError("a term needs the configuration of a potential")
    word = value.get("architecture")
    if word == WORD:
        raise ValueError("a term of a sum is no sum itself")
    try:
        architecture = architecture_named(str(word))
    except InputError as error:
        raise ValueError(str(error)) from error
    return architecture.config.model_validate(value)


class SumTerm(BaseModel):
    """One term of a sum."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    weight: float = 1.0
    """Its energy, forces and virial are multiplied by this."""
    potential: Annotated[SerializeAsAny[PotentialConfig], BeforeValidator(_term_config)]
    sha256: Text = ""
    """Of the file that its weights were read from; empty for weights made with the sum."""


class SumConfig(PotentialConfig):
    """Configuration of a SumPotential."""

    architecture: Literal["sum"] = "sum"
    terms: Annotated[tuple[SumTerm, ...], Field(min_length=1, max_length=16)]
    learned: Annotated[int, Field(ge=0)] | None = None
    """The term that was trained on what the others leave over, if one was."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for term in self.terms:
            missing = set(self.species) - set(term.potential.species)
            if missing:
                raise ValueError(f"a term lacks the element of number {min(missing)}")
        if self.learned is not None and self.learned >= len(self.terms):
            raise ValueError("learned is no place of a term")
        return self

    @property
    def fewest_weights(self) -> int:
        """See PotentialConfig."""
        return sum(term.potential.fewest_weights for term in self.terms)


@dataclass(frozen=True)
class WeightRamps:
    """Weights that change linearly along a run, which is not at equilibrium then.

    Attributes:
        ends: of all terms, weights at the last step of the ramp and from then on; at step 0 they
            are those of the configuration.
        steps: length of the ramp.
    """

    ends: tuple[float, ...]
    steps: int


Weight = float | tuple[float, float]
"""Of a term: a number, or one at the start and one at the end of a ramp."""


class SumPotential(PotentialModule):
    """Energies of atoms, e_i = sum_k w_k e_ik over the terms k.

    Terms whose neighbor lists have the same cutoff share them. Weights may change along the run of
    a Simulation (`ramps`); files do not hold that, and whatever evaluates the sum alone takes the
    weights of the start.

    Attributes:
        config: see SumConfig.
        terms: the potentials, in the order of the configuration.
        ramps: how the weights change; None if they rest.
    """

    config: SumConfig
    ramps: WeightRamps | None = None

    def __init__(self, config: SumConfig) -> None:
        super().__init__(config)
        self.terms = nn.ModuleList(
            architecture_named(term.potential.architecture).build(term.potential)
            for term in config.terms
        )

    @classmethod
    def of(
        cls,
        terms: Iterable[tuple[PotentialModule, Weight]],
        *,
        learned: int | None = None,
        sha256: Iterable[str] = (),
        ramp_steps: int | None = None,
        **about: Any,
    ) -> Self:
        """The sum of potentials, whose tensors are copied.

        Args:
            terms: potentials, which may be sums, and their weights; two numbers for one that
                changes from the first to the second along a run.
            learned: see SumConfig.
            sha256: of the files of the terms, in their order.
            ramp_steps: over which weights of two numbers change.
            about: further fields of the configuration, such as `name`.

        Raises:
            UnknownSpeciesError: no element is known to all.
            InputError: a weight of two numbers without `ramp_steps`, or that is no number; all
                weights are 0.
        """
        hashes, ends = list(sha256), list[float]()
        configs: list[SumTerm] = []
        parts: list[PotentialModule] = []
        for number, (potential, given) in enumerate(terms):
            digest = hashes[number] if number < len(hashes) else ""
            weight, last = _start_and_end(given)
            if isinstance(potential, SumPotential):
                if potential.ramps is not None:
                    raise InputError(
                        "A sum whose weights change cannot be part of another one; give all terms "
                        "to one sum."
                    )
                # A term of a sum keeps the digest of its own file, or else has that of the sum.
                for inner, part in zip(potential.config.terms, potential.parts, strict=True):
                    changed = {"weight": weight * inner.weight, "sha256": inner.sha256 or digest}
                    configs.append(inner.model_copy(update=changed))
                    parts.append(part)
                    ends.append(last * inner.weight)
            else:
                configs.append(SumTerm(weight=weight, potential=potential.config, sha256=digest))
                parts.append(potential)
                ends.append(last)
        if not any(ends) and not any(term.weight for term in configs):
            raise InputError(
                "All weights of the sum are 0, so no force acts on any atom; give a term a weight "
                "that is not 0."
            )
        species = set.intersection(*(set(part.species) for part in parts))
        if not species:
            raise UnknownSpeciesError(
                "No element is known to all terms of the sum; choose terms for the same elements."
            )
        if learned is not None:
            learned = len(parts) - 1 if learned == number else learned
        about = {"species": tuple(sorted(species)), **about}
        whole = cls(SumConfig(terms=tuple(configs), learned=learned, **about))
        for own, part in zip(whole.terms, parts, strict=True):
            own.load_state_dict(part.state_dict())
        if tuple(ends) != whole.weights:
            steps = 0 if ramp_steps is None else whole_number(ramp_steps, "The ramp", 0)
            if not steps:
                raise InputError(
                    "The weight of a term changes, and nothing says over how many steps; give a "
                    "number of ramp_steps from 1 on, or a weight that rests."
                )
            whole.ramps = WeightRamps(tuple(ends), steps)
        return whole.to(parts[0].device)

    @property
    def parts(self) -> tuple[PotentialModule, ...]:
        """The terms, typed."""
        return tuple(term for term in self.terms if isinstance(term, PotentialModule))

    @property
    def weights(self) -> tuple[float, ...]:
        """The weight of each term."""
        return tuple(term.weight for term in self.config.terms)

    @property
    def cutoffs(self) -> tuple[float, ...]:
        """A; each range once, that of the learned term's network first."""
        learned = self.parts[self.config.learned or 0]
        return tuple(dict.fromkeys([*learned.cutoffs, *self._all_cutoffs()]))

    def _all_cutoffs(self) -> list[float]:
        return [cutoff for part in self.parts for cutoff in part.cutoffs]

    def places(self, term: int) -> tuple[int, ...]:
        """Numbers of the lists that a term reads, among `cutoffs`."""
        cutoffs = self.cutoffs
        return tuple(cutoffs.index(cutoff) for cutoff in self.parts[term].cutoffs)

    @property
    def list_roles(self) -> ListRoles:
        """The roles of the learned term, or else of the first: `network` is its list."""
        number = self.config.learned or 0
        places, roles = self.places(number), self.parts[number].list_roles
        return ListRoles(self.cutoffs, {role: places[at] for role, at in roles.places.items()})

    @property
    def uses_charge(self) -> bool:
        """Whether the total charge enters the energy of any term."""
        return any(part.uses_charge for part in self.parts)

    @property
    def uses_positions(self) -> bool:
        """Whether any term reads positions."""
        return any(part.uses_positions for part in self.parts)

    @property
    def keeps_momentum(self) -> bool:
        """Whether all terms do."""
        return all(part.keeps_momentum for part in self.parts)

    @property
    def has_repulsion(self) -> bool:
        """See PotentialModule; of any term."""
        return any(part.has_repulsion for part in self.parts)

    @property
    def stated_dispersion(self) -> str:
        """See PotentialModule; of all terms."""
        own = [super().stated_dispersion, *(part.stated_dispersion for part in self.parts)]
        return ", ".join(dict.fromkeys(filter(None, own)))

    def check_atoms(self, numbers: Sequence[int]) -> None:
        """See PotentialModule; asks every term."""
        for part in self.parts:
            part.check_atoms(numbers)

    @property
    def has_latent(self) -> bool:
        """Whether a term was learned, of which `latent` gives features."""
        return self.config.learned is not None

    def cast_(self, dtype: torch.dtype) -> None:
        """Casts each term as it casts itself, in place."""
        for part in self.parts:
            part.cast_(dtype)

    def with_coulomb_cutoff(self, cutoff: float | None) -> Self:
        """See PotentialModule; the range of every term that has a Coulomb energy."""
        configs = []
        for term, part in zip(self.config.terms, self.parts, strict=True):
            if "coulomb" in part.list_roles.places:
                changed = part.with_coulomb_cutoff(cutoff).config
                configs.append(term.model_copy(update={"potential": changed}))
            else:
                configs.append(term)
        if configs == list(self.config.terms):
            return super().with_coulomb_cutoff(cutoff)
        return self._with(self.config.model_copy(update={"terms": tuple(configs)}))

    def forward(self, atoms: Atoms, pairs: tuple[Pairs, ...]) -> Tensor:
        """See Potential."""
        energies = torch.zeros(len(atoms.numbers), dtype=torch.float64, device=self.device)
        for number, (part, weight) in enumerate(zip(self.parts, self.weights, strict=True)):
            own = tuple(pairs[place] for place in self.places(number))
            energies = energies + weight * part(atoms, own)
        return energies

    def latent(self, atoms: Atoms, pairs: tuple[Pairs, ...]) -> Tensor:
        """See PotentialModule: features of the learned term."""
        number = self.config.learned
        if number is None:
            return super().latent(atoms, pairs)
        return self.parts[number].latent(atoms, tuple(pairs[at] for at in self.places(number)))

    def term_names(self) -> list[str]:
        """A distinct name for each term: that of its configuration, or else its place."""
        names: list[str] = []
        for number, term in enumerate(self.config.terms):
            name = term.potential.name or f"term {number + 1}"
            names.append(name if name not in names else f"{name} {number + 1}")
        return names

    def details(self) -> dict[str, Any]:
        """See PotentialModule."""
        return {
            "parameters": self.parameter_count,
            "cutoff_A": max(self.cutoffs, default=0.0),
            "uses_charge": self.uses_charge,
            "terms": [
                f"{self._weight_text(number)} times {name}: "
                f"{architecture_named(term.potential.architecture).title}, "
                f"{term.potential.level_of_theory or 'level of theory not stated'}, licence "
                f"{term.potential.licence or 'not stated'}"
                + (f", sha256 {term.sha256[:12]}" if term.sha256 else "")
                for number, (name, term) in enumerate(
                    zip(self.term_names(), self.config.terms, strict=True)
                )
            ],
        }

    def _weight_text(self, number: int) -> str:
        start = self.weights[number]
        end = start if self.ramps is None else self.ramps.ends[number]
        return f"{start:g}" if start == end else f"{start:g} to {end:g}"

    @property
    def changing(self) -> list[int]:
        """Places of the terms whose weights change."""
        ends = self.weights if self.ramps is None else self.ramps.ends
        return [number for number, end in enumerate(ends) if end != self.weights[number]]

    def flaw(self) -> str | None:
        """See PotentialModule."""
        return next((flaw for part in self.parts if (flaw := part.flaw()) is not None), None)


def _start_and_end(weight: Weight) -> tuple[float, float]:
    """A weight at the start and at the end of a ramp; raises InputError for no numbers."""
    both = weight if isinstance(weight, tuple | list) else (weight, weight)
    if len(both) != 2:
        raise InputError(
            f"The weight of a term has {len(both)} numbers; give one, or two for a ramp."
        )
    start, end = (real_number(value, "The weight of a term", "1") for value in both)
    return start, end


def _kept(config: SumConfig) -> KeptNumbers:
    """Autograd keeps what each term keeps."""
    kept = [
        architecture_named(term.potential.architecture).kept(term.potential)
        for term in config.terms
    ]
    return KeptNumbers(
        radial=sum(part.radial for part in kept),
        slot=sum(part.slot for part in kept),
        atom=sum(part.atom for part in kept),
    )


register(Architecture(WORD, "Sum", SumConfig, SumPotential, _kept))
