"""Minima of one structure."""

from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator

from mdgraph.runs.configuration.base import DEFAULT_STEPS, RunConfig
from mdgraph.runs.fields import AtomicStep, Couple, Limit, NumberOfSteps, Pressure


class Descent(BaseModel):
    """What a minimum is, and the way there."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    couple: Couple | None = None
    """Vary the cell too: isotropic, axes, full, or some of x,y,z, its three vectors."""
    pressure_bar: Pressure | None = None
    """On a cell that varies (default 0)."""
    force_tolerance_eV_per_A: Limit = 0.05
    """Largest force on an atom of a minimum."""
    stress_tolerance_bar: Limit = 100.0
    """Largest difference from the pressure at a minimum of the cell."""
    largest_step_A: AtomicStep = 0.2
    """Of an atom."""

    @model_validator(mode="after")
    def _pressure_moves_a_cell(self) -> Self:
        if self.pressure_bar is not None and self.couple is None:
            raise ValueError("pressure_bar needs a cell that varies; say how with couple")
        return self


class MinimizeConfig(RunConfig, Descent):
    """A minimum of the energy, or of the enthalpy with the cell, by FIRE."""

    steps: NumberOfSteps | None = None
    """Most steps taken (default 500)."""

    @model_validator(mode="after")
    def _one_structure(self) -> Self:
        if self.structure is not None and len(self.structure) > 1:
            raise ValueError("minimise moves one structure; mdgraph relax moves many")
        return self

    @property
    def _reported_steps(self) -> int:
        # Most steps say little of how many there will be.
        return DEFAULT_STEPS
