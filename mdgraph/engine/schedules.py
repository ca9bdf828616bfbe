"""Parameters that may change while a simulation runs: numbers and ramps, one for each system."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Final

import torch
from torch import Tensor

from mdgraph.arguments import check_fields, real_array, shown
from mdgraph.errors import InputError


@dataclass(frozen=True)
class Ramp:
    """A value that changes linearly from one number to another.

    Attributes:
        start, end: in the parameter's unit, a number or one for each system.
        steps: length of the ramp in steps; before it the value is `start`, after it `end`.
        first: step of the trajectory at which the ramp begins.
    """

    start: float | Sequence[float]
    end: float | Sequence[float]
    steps: int
    first: int = 0

    def __post_init__(self) -> None:
        """Raises InputError unless `steps` and `first` are whole numbers."""
        check_fields(self)


Value = float | Sequence[float] | Ramp
"""A number for all systems, one number for each, or a ramp."""


@dataclass(frozen=True)
class Quantity:
    """Name, unit and range of a parameter.

    Attributes:
        words: name in an error.
        key: name in run.json.
        unit: of the numbers.
        least: lower bound.
        most: upper bound.
        reached: whether `least` itself is allowed.
        shared: whether all systems have the same number, without a ramp.
    """

    words: str
    key: str
    unit: str
    least: float = 0.0
    most: float = math.inf
    reached: bool = False
    shared: bool = False

    def checked(self, value: float) -> float:
        """The number as float; raises InputError for one outside of the range."""
        number = value if isinstance(value, Real) else math.nan
        inside = number >= self.least if self.reached else number > self.least
        if number > self.most and math.isfinite(number):
            raise InputError(
                f"The {self.words} is {value} {self.unit}; it must be {self.most:g} at most."
            )
        if not (math.isfinite(number) and inside):
            bound = "not below zero" if self.reached else "above zero"
            rule = "it must be finite" if self.least else f"it must be a number {bound}"
            raise InputError(f"The {self.words} is {value} {self.unit}; {rule}.")
        return float(number)


QUANTITIES: Final = {
    "timestep": Quantity("time step", "timestep_fs", "fs", most=1e4, shared=True),
    "temperature": Quantity("temperature", "temperature_K", "K", reached=True),
    "friction": Quantity("friction", "friction_per_ps", "1/ps"),
    "tau": Quantity("relaxation time", "tau_fs", "fs"),
    "pressure": Quantity("pressure", "pressure_eV_per_A3", "eV/A^3", least=-math.inf),
    "tau_p": Quantity("relaxation time of the cell", "tau_p_fs", "fs"),
    "compressibility": Quantity("compressibility", "compressibility_A3_per_eV", "A^3/eV"),
    "force_tolerance": Quantity("tolerance of forces", "", "eV/A"),
    "stress_tolerance": Quantity("tolerance of stresses", "", "eV/A^3"),
    "largest_step": Quantity("largest step", "", "A"),
}
"""Parameters of the integrators here, by name; others bring their own, see Integrator."""


RENAMED: Final = {"relaxation": "tau", "cell_relaxation": "tau_p"}
"""Parameters of 0.1.0; they go with 0.3.0."""


class Schedule:
    """A checked value of one parameter: a constant or a ramp, for each system."""

    def __init__(
        self, name: str, value: Value, quantities: Mapping[str, Quantity] | None = None
    ) -> None:
        """Checks a value.

        Args:
            name: of the parameter.
            value: of it.
            quantities: where the parameter is described, before `QUANTITIES`.

        Raises:
            InputError: a number outside of the range, or a ramp over no steps.
        """
        quantity = (quantities or {}).get(name) or QUANTITIES[name]
        self.quantity = quantity
        ramp = value if isinstance(value, Ramp) else Ramp(value, value, 0)
        for word, steps, least in (("over", ramp.steps, 1), ("from step", ramp.first, 0)):
            if isinstance(value, Ramp) and steps < least:
                raise InputError(
                    f"The ramp of the {quantity.words} goes {word} {steps} steps; it must be a "
                    f"whole number from {least} on."
                )
        self.start, self.end = (self._numbers(end) for end in (ramp.start, ramp.end))
        self.steps, self.first = int(ramp.steps), int(ramp.first)
        if quantity.shared and (self.steps or len(self.start) > 1):
            raise InputError(f"The {quantity.words} is one number for all steps and systems.")

    def _numbers(self, value: float | Sequence[float]) -> tuple[float, ...]:
        numbers = real_array(value)
        if numbers is None or numbers.ndim > 1 or not numbers.size:
            raise InputError(
                f"The {self.quantity.words} is {shown(value)}; give a number of "
                f"{self.quantity.unit}, or one for each system."
            )
        return tuple(self.quantity.checked(number) for number in numbers.reshape(-1).tolist())

    @property
    def largest(self) -> float:
        """Largest number of the schedule, over all systems and steps."""
        return max(self.start + self.end)

    def tensor(self, systems: int) -> Tensor:
        """(4, S) float64 on the host: start, end, first step and number of steps.

        Raises:
            InputError: neither one number nor one for each system.
        """
        rows = torch.zeros(4, systems, dtype=torch.float64)
        for row, numbers in zip(rows, (self.start, self.end), strict=False):
            if len(numbers) not in (1, systems):
                raise InputError(
                    f"The {self.quantity.words} has {len(numbers)} values for {systems} systems; "
                    "give one, or one for each."
                )
            row.copy_(torch.tensor(numbers, dtype=torch.float64))
        rows[2], rows[3] = self.first, self.steps
        return rows

    def setting(self) -> float | str | list[float]:
        """The value for run.json: a number, a list, or a ramp in words."""

        def plain(numbers: tuple[float, ...]) -> float | list[float]:
            return numbers[0] if len(numbers) == 1 else list(numbers)

        if self.steps == 0:
            return plain(self.start)
        return f"{plain(self.start)} to {plain(self.end)} in {self.steps} from step {self.first}"


def checked_steps(number: float, least: int, name: str) -> int:
    """A number of steps; raises InputError for one that is not whole or below the least."""
    if not isinstance(number, Real) or not least <= number < 2**63 or number % 1:
        raise InputError(f"{name} is {number} steps; it must be a whole number from {least} on.")
    return int(number)


def values_at(schedule: Tensor, steps: Tensor) -> Tensor:
    """Values (B, S) float64 of a schedule (4, S) at steps (B, 1) int64; does not sync."""
    start, end, first, length = schedule
    progress = ((steps - first) / length.clamp(min=1.0)).clamp(0.0, 1.0)
    return start + (end - start) * progress
