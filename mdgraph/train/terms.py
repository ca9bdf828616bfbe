"""The terms of the loss, and what can be chosen for each."""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from mdgraph.elements import NUMBERS

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]

TERMS: Final = ("energy", "forces", "stress", "dipole")
"""Of the loss."""

Scheduled = tuple[Annotated[float, Field(ge=0, le=1e9)], Annotated[float, Field(ge=0, le=1e9)]]


class Part(BaseModel):
    """Of a configuration: it cannot change, and knows its keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )


def _pair(value: Any) -> Any:
    """A number twice, or the two of `start:end`."""
    if isinstance(value, str) and ":" in value:
        value = value.split(":")
    if not isinstance(value, list | tuple):
        return value, value
    if len(value) != 2:
        raise ValueError("give a number, or start:end")
    return tuple(value)


class Weighted(Part):
    """What counts in the loss by a weight."""

    weight: Scheduled = (1.0, 1.0)
    """A number, or start:end, which runs linearly over the training."""

    @field_validator("weight", mode="before")
    @classmethod
    def _two(cls, value: Any) -> Any:
        return _pair(value)


class TermConfig(Weighted):
    """One term of the loss; errors are divided by the scale of the forces first."""

    kind: Literal["mse", "mae", "huber", "norm"] = "mse"
    """mse, mae or huber of components; norm takes the length of an atom's force error."""
    delta: Positive = 1.0
    """Of huber: where the square becomes a line."""


class ForcesConfig(TermConfig):
    """The term of the forces, of which squares would follow the few that are large."""

    kind: Literal["mse", "mae", "huber", "norm"] = "norm"


class DisplacedConfig(Weighted):
    """What frames with atoms moved at random lie outside of a corridor; see `train/displaced.py`.

    Frames count whole, and weigh as their energies do: not at all without one.
    """

    weight: Scheduled = (0.0, 0.0)
    """Of an eV a frame, divided by the scale of the forces."""
    largest: Positive = 1.0
    """A, that an atom is moved at most. Pairs that come from beyond the cutoff are left out, so it
    is to be a small part of the cutoff."""
    depth: Positive = 4.0
    """eV, of the Morse curves between which energies are to rise: about what a bond costs."""


class LossConfig(Part):
    """Weights of what is fitted; energies count for one atom, in eV beside eV/A and e A."""

    energy: TermConfig = TermConfig()
    forces: ForcesConfig = ForcesConfig()
    stress: TermConfig = TermConfig(weight=(0.0, 0.0))
    dipole: TermConfig = TermConfig(weight=(0.0, 0.0))
    """Of neutral frames without a cell, by the charges of a TensorNet2."""
    displaced: DisplacedConfig = DisplacedConfig()
    elements: dict[str, NotNegative] = {}
    """Weight of the forces on atoms of an element, where it is not 1."""

    @model_validator(mode="after")
    def _asks_for_something(self) -> Self:
        if not any(any(getattr(self, name).weight) for name in TERMS):
            raise ValueError(
                "all weights of the loss are 0, so that nothing is fitted; give energy, forces or "
                "another term a weight above 0"
            )
        return self

    @field_validator("elements")
    @classmethod
    def _known(cls, value: dict[str, float]) -> dict[str, float]:
        unknown = [name for name in value if name not in NUMBERS]
        if unknown:
            raise ValueError(f"{unknown[0]} is no element")
        return value
