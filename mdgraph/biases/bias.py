"""Biases that are functions of variables and of the step alone: springs, walls, slopes.

A definition, such as `HarmonicBias`, names variables and holds numbers; `bound` puts it on the
device for the systems of a state.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from mdgraph.arguments import check_fields, real_array, shown, whole_numbers
from mdgraph.errors import InputError, name_some, printable
from mdgraph.state import State

Array = NDArray[np.float64]


@dataclass(frozen=True)
class BiasedVariables:
    """What a bias needs to know of its variables and systems.

    Attributes:
        state: of the systems.
        columns: of its variables among all.
        units: of their values.
        periods: of their values; 0 of those that are not periodic.
        together: steps that the host does as one.
    """

    state: State
    columns: tuple[int, ...]
    units: tuple[str, ...]
    periods: tuple[float, ...]
    together: int = 1


class BoundBias:
    """A bias on the device; n variables of S systems.

    Attributes:
        columns: (n,) int64, its variables among all.
        period: (n,) float64; 0 of variables that are not periodic.
        energy: (S,) float64, eV, as last evaluated.
        work: (S,) float64, eV, done on the systems by moving it; None if it does not move.
        outside: () bool, whether a variable left its range since the start; None without a range.
    """

    work: Tensor | None = None
    outside: Tensor | None = None

    def __init__(self, about: BiasedVariables) -> None:
        device = about.state.device
        self.state = about.state
        self.columns = torch.tensor(about.columns, device=device)
        self.period = torch.tensor(about.periods, dtype=torch.float64, device=device)
        self._per_period = torch.where(self.period > 0.0, 1.0 / self.period, 0.0)
        self.energy = torch.zeros_like(about.state.energy)

    def nearest(self, differences: Tensor) -> Tensor:
        """Differences (..., n) of values to the nearest period."""
        return differences - self.period * torch.round(differences * self._per_period)

    def evaluate(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Energies (S,) eV and derivatives (S, n) by values (S, n); does not sync."""
        raise NotImplementedError

    def own(self, values: Tensor) -> Tensor:
        """Values (S, n) of its variables among those of all (V, S); does not sync."""
        return values.index_select(0, self.columns).T

    def begin_step_(self, values: Tensor) -> None:
        """Called before each step with all values (V, S) at its start; does not sync."""

    def end_step_(self, values: Tensor, step: int | None) -> None:
        """Called after each step; static shapes, does not sync.

        Args:
            values: (V, S) of all variables, as last evaluated.
            step: number of steps done; None within a captured step.
        """

    def tensors(self) -> dict[str, Tensor]:
        """What a step changes, by name; the buffers themselves."""
        return {"energy": self.energy}


@dataclass(frozen=True, eq=False)
class Bias:
    """Base of biases.

    Attributes:
        kind: its word in configurations.
        variables: names of the variables that it acts on, one or several.
        name: of its columns in COLVAR; default: its kind.
    """

    kind: ClassVar[str]

    variables: str | Sequence[str]
    name: str | None = None

    def __post_init__(self) -> None:
        """Raises InputError for fields of the wrong kind."""
        check_fields(self)
        names = self.names
        if not names or not all(isinstance(name, str) and name for name in names):
            raise InputError(
                f"The variables of a bias are {shown(self.variables)}; give names of variables."
            )
        if len(set(names)) < len(names):
            raise InputError(
                f"The {self.title} names {name_some(sorted(names))}; name each variable once."
            )
        if self.name is not None and self.name.split() != [self.name]:
            raise InputError(
                f"The name of a bias is {shown(self.name)}; give a word, as it names columns."
            )

    @property
    def names(self) -> list[str]:
        """Names of its variables."""
        one = isinstance(self.variables, str)
        return [str(self.variables)] if one else list(self.variables)

    @property
    def title(self) -> str:
        """What sentences call it."""
        return f"bias {printable(self.name or self.kind, 100)}"

    def of_systems(self, share: range, count: int) -> Self:
        """The bias for a range of systems out of `count`."""
        return self

    def in_bath(self, kelvins: Sequence[float]) -> Self:
        """The bias at the temperature of a bath, K, one number or one for each system."""
        return self

    def bound(self, about: BiasedVariables) -> BoundBias:
        """The bias on the device; raises InputError for numbers that do not fit."""
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """What must be the same when a run is resumed."""
        return {"kind": self.kind, "name": self.name, "variables": self.names}

    def numbers(self, value: Any, what: str, systems: int = 1) -> Array:
        """Numbers of a field: (n,) from one for all variables, or one for each.

        Args:
            value: as given.
            what: the name of the field in sentences.
            systems: S; also rows (S, n), or (S,) for a single variable, where these are no (n,).

        Raises:
            InputError: other numbers; the sentence says how many.
        """
        count = len(self.names)
        array = real_array(value)
        if array is not None and np.isfinite(array).all():
            if array.shape in ((), (1,), (count,)):
                return np.broadcast_to(array, count).astype(np.float64)
            if count == 1 and array.shape == (systems,):
                return array[:, None]
            if array.shape == (systems, count):
                return array if systems > 1 else array[0].astype(np.float64)
        several = f", or a list of {count} for each of the {systems} systems" if systems > 1 else ""
        raise InputError(
            f"The {what} of the {self.title} is {_text(value)}; give {count} finite "
            f"number{'s' * (count != 1)}{several}."
        )


def _text(value: Any) -> str:
    array = real_array(value)
    return shown(value) if array is None or not array.ndim else f"of shape {array.shape}"


def _positive(array: Array, what: str, bias: Bias, *, zero: bool = False) -> Array:
    if (array < 0.0).any() or (not zero and (array == 0.0).any()):
        raise InputError(
            f"The {what} of the {bias.title} is {array.min():g}; give numbers above zero."
        )
    return array


def spring_energies(apart: Tensor, stiffness: Tensor, period: Tensor) -> Tensor:
    """Energies (...,) eV of springs that are apart (..., n) from their centres."""
    per_period = torch.where(period > 0.0, 1.0 / period, 0.0)
    apart = apart - period * torch.round(apart * per_period)
    return 0.5 * (stiffness * apart * apart).sum(-1)


class BoundSpring(BoundBias):
    """U = sum k/2 d^2 with d = s - s0 to the nearest period, on the device.

    Attributes:
        centre: (S, n) s0.
        stiffness: (S, n) k, eV over the square of the unit.
        given: (2 n, S) float64 on the host, both as they were given; exchanges of replicas change
            what a system has.
    """

    def __init__(self, about: BiasedVariables, centre: Array, stiffness: Array) -> None:
        super().__init__(about)
        shape = len(self.energy), len(about.columns)
        device = about.state.device
        self.centre = torch.tensor(np.broadcast_to(centre, shape).copy(), device=device)
        self.stiffness = torch.tensor(np.broadcast_to(stiffness, shape).copy(), device=device)
        self.given = self.numbers().cpu()

    def numbers(self) -> Tensor:
        """Centres and stiffnesses of the systems, (2 n, S); does not sync."""
        return torch.cat([self.centre, self.stiffness], 1).T

    def set_numbers_(self, numbers: Tensor) -> None:
        """Sets what `numbers` gives, from the host; forces are those of before until evaluated."""
        for target, rows in zip((self.centre, self.stiffness), numbers.T.chunk(2, 1), strict=True):
            target.copy_(rows)

    def tensors(self) -> dict[str, Tensor]:
        """See BoundBias."""
        return super().tensors() | {"centre": self.centre, "stiffness": self.stiffness}

    def evaluate(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """See BoundBias."""
        apart = self.nearest(values - self.centre)
        pull = self.stiffness * apart
        return 0.5 * (pull * apart).sum(-1), pull


@dataclass(frozen=True, eq=False)
class HarmonicBias(Bias):
    """An umbrella, U = sum k/2 (s - s0)^2 over its variables, to the nearest period.

    Attributes:
        centre: s0, in the unit of each variable: one number, one for each, or a row of such for
            each system, so that the systems of a batch are the windows of umbrella sampling.
        stiffness: k, eV over the square of that unit, likewise.
    """

    kind: ClassVar[str] = "harmonic"

    centre: ArrayLike = 0.0
    stiffness: ArrayLike = 1.0

    def __post_init__(self) -> None:
        """See Bias."""
        super().__post_init__()
        for what in ("centre", "stiffness"):
            if real_array(getattr(self, what)) is None:
                raise InputError(
                    f"The {what} of the {self.title} is {shown(getattr(self, what))}; give numbers."
                )

    def of_systems(self, share: range, count: int) -> Self:
        """See Bias; raises InputError for numbers that do not fit."""
        centre, stiffness = (
            numbers[share.start : share.stop] if numbers.ndim > 1 else numbers
            for numbers in (
                self.numbers(self.centre, "centre", count),
                self.numbers(self.stiffness, "stiffness", count),
            )
        )
        return replace(self, centre=centre, stiffness=stiffness)

    def windows(self, systems: int) -> Array:
        """Centres and stiffnesses of each system, (S, 2 n); raises InputError."""
        shape = systems, len(self.names)
        centre, stiffness = (
            np.broadcast_to(self.numbers(value, what, systems), shape)
            for value, what in ((self.centre, "centre"), (self.stiffness, "stiffness"))
        )
        return np.concatenate([centre, _positive(stiffness, "stiffness", self)], 1)

    def bound(self, about: BiasedVariables) -> BoundBias:
        """See Bias."""
        centre, stiffness = np.split(self.windows(about.state.grouping.systems), 2, 1)
        return BoundSpring(about, centre, stiffness)

    def settings(self) -> dict[str, Any]:
        """See Bias."""
        own = {"centre": self.centre, "stiffness_eV": self.stiffness}
        return super().settings() | {name: _plain(value) for name, value in own.items()}


def _plain(value: Any) -> Any:
    return None if value is None else np.asarray(value, dtype=float).tolist()


class BoundMovingSpring(BoundSpring):
    """A spring whose centre and stiffness follow waypoints over the steps.

    Before step m + 1 the spring takes its place l of that step, which does the work
    U(s_m, l_m+1) - U(s_m, l_m) on the system.
    """

    def __init__(
        self, about: BiasedVariables, steps: Sequence[int], centres: Array, stiffness: Array
    ) -> None:
        super().__init__(about, centres[0], stiffness[0])
        device = about.state.device
        self.work = torch.zeros_like(self.energy)
        rows = torch.tensor(np.stack([centres, stiffness], 1), device=device)
        self._start, self._changes = rows[0], rows.diff(dim=0)
        begins = torch.tensor(steps, dtype=torch.float64, device=device)
        self._begins, self._lengths = begins[:-1], begins.diff()
        self._place_(0)

    def _place_(self, ahead: int) -> None:
        """Moves the spring to its place some steps ahead of the state."""
        passed = (self.state.step.double() + ahead - self._begins) / self._lengths
        centre, stiffness = (
            self._start + (passed.clamp(0.0, 1.0)[:, None, None] * self._changes).sum(0)
        ).unbind(0)
        self.centre.copy_(centre.expand_as(self.centre))
        self.stiffness.copy_(stiffness.expand_as(self.stiffness))

    def begin_step_(self, values: Tensor) -> None:
        """See BoundBias."""
        assert self.work is not None
        own = self.own(values)
        before = self.evaluate(own)[0]
        self._place_(1)
        self.work += self.evaluate(own)[0] - before

    def tensors(self) -> dict[str, Tensor]:
        """See BoundBias."""
        assert self.work is not None
        return super().tensors() | {"work": self.work}


@dataclass(frozen=True, eq=False)
class MovingBias(Bias):
    """A harmonic bias that moves with the steps (steered dynamics), and the work that it does.

    Between two waypoints centre and stiffness are linear in the step; before the first and after
    the last they rest.

    Attributes:
        steps: of the waypoints, ascending.
        centres: one row of centres for each waypoint, or one number for a single variable.
        stiffness: eV over the square of the unit: one number, or one or a row for each waypoint.
    """

    kind: ClassVar[str] = "moving"

    steps: Sequence[int] = (0, 1)
    centres: ArrayLike = (0.0, 0.0)
    stiffness: ArrayLike = 1.0

    def __post_init__(self) -> None:
        """See Bias."""
        super().__post_init__()
        steps = whole_numbers(self.steps, "The steps of waypoints")
        if len(steps) < 2 or steps[0] < 0 or any(np.diff(steps) <= 0):
            raise InputError(
                f"The waypoints of the {self.title} have the steps {name_some(steps)}; give two at "
                "least, from 0 on and ascending."
            )
        object.__setattr__(self, "steps", tuple(steps))
        self._rows(self.centres, "centres")
        _positive(self._rows(self.stiffness, "stiffness"), "stiffness", self, zero=True)

    def _rows(self, value: Any, what: str) -> Array:
        """Numbers (W, n) of the waypoints."""
        count, waypoints = len(self.names), len(self.steps)
        array = real_array(value)
        if array is not None and np.isfinite(array).all():
            if array.shape == (waypoints,) and (count == 1 or what == "stiffness"):
                array = array[:, None]
            if array.shape in ((), (waypoints, 1), (waypoints, count)):
                return np.broadcast_to(array, (waypoints, count)).astype(np.float64)
        raise InputError(
            f"The {what} of the {self.title} are {_text(value)}; give {count} finite "
            f"number{'s' * (count != 1)} for each of the {waypoints} waypoints."
        )

    def bound(self, about: BiasedVariables) -> BoundBias:
        """See Bias."""
        centres = self._rows(self.centres, "centres")
        stiffness = self._rows(self.stiffness, "stiffness")
        return BoundMovingSpring(about, self.steps, centres, stiffness)

    def settings(self) -> dict[str, Any]:
        """See Bias."""
        return super().settings() | {
            "steps": list(self.steps),
            "centres": _plain(self.centres),
            "stiffness_eV": _plain(self.stiffness),
        }


class BoundWalls(BoundBias):
    """U = sum k/2 (s - wall)^2 beyond walls, on the device."""

    def __init__(
        self, about: BiasedVariables, lower: Array, upper: Array, stiffness: Array
    ) -> None:
        super().__init__(about)
        device = about.state.device
        self._lower, self._upper, self._stiffness = (
            torch.tensor(one, device=device) for one in (lower, upper, stiffness)
        )

    def evaluate(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """See BoundBias."""
        beyond = values - torch.clamp(values, self._lower, self._upper)
        pull = self._stiffness * beyond
        return 0.5 * (pull * beyond).sum(-1), pull


@dataclass(frozen=True, eq=False)
class WallBias(Bias):
    """Walls: U = k/2 (s - wall)^2 below a lower and above an upper one, 0 between them.

    Attributes:
        lower: in the unit of each variable, one number or one for each; None for no wall.
        upper: likewise.
        stiffness: k, eV over the square of that unit.
    """

    kind: ClassVar[str] = "walls"

    lower: ArrayLike | None = None
    upper: ArrayLike | None = None
    stiffness: ArrayLike = 1.0

    def __post_init__(self) -> None:
        """See Bias."""
        super().__post_init__()
        self._walls()
        _positive(self.numbers(self.stiffness, "stiffness"), "stiffness", self)

    def _walls(self) -> tuple[Array, Array]:
        if self.lower is None and self.upper is None:
            raise InputError(f"The {self.title} has no wall; give lower or upper.")
        far = np.full(len(self.names), math.inf)
        lower = -far if self.lower is None else self.numbers(self.lower, "lower")
        upper = far if self.upper is None else self.numbers(self.upper, "upper")
        if (lower >= upper).any():
            raise InputError(f"The {self.title} has lower walls above upper ones; swap them.")
        return lower, upper

    def bound(self, about: BiasedVariables) -> BoundBias:
        """See Bias."""
        for name, period in zip(self.names, about.periods, strict=True):
            if period:
                raise InputError(
                    f"The {self.title} acts on {printable(name, 100)}, which is periodic, so that "
                    "nothing is beyond a wall; take a harmonic bias, or one variable of two."
                )
        lower, upper = self._walls()
        return BoundWalls(about, lower, upper, self.numbers(self.stiffness, "stiffness"))

    def settings(self) -> dict[str, Any]:
        """See Bias."""
        own = {"lower": self.lower, "upper": self.upper, "stiffness_eV": self.stiffness}
        return super().settings() | {name: _plain(value) for name, value in own.items()}


class BoundSlope(BoundBias):
    """U = sum a (s - s0), on the device."""

    def __init__(self, about: BiasedVariables, slope: Array, centre: Array) -> None:
        super().__init__(about)
        device = about.state.device
        self._slope, self._centre = (torch.tensor(one, device=device) for one in (slope, centre))

    def evaluate(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """See BoundBias."""
        energies = (self._slope * (values - self._centre)).sum(-1)
        return energies, self._slope.expand_as(values)


@dataclass(frozen=True, eq=False)
class LinearBias(Bias):
    """A constant force on variables, U = sum a (s - s0).

    Attributes:
        slope: a, eV over the unit of each variable, one number or one for each.
        centre: s0, where the energy is 0.
    """

    kind: ClassVar[str] = "linear"

    slope: ArrayLike = 0.0
    centre: ArrayLike = 0.0

    def __post_init__(self) -> None:
        """See Bias."""
        super().__post_init__()
        self.numbers(self.slope, "slope")
        self.numbers(self.centre, "centre")

    def bound(self, about: BiasedVariables) -> BoundBias:
        """See Bias."""
        for name, period in zip(self.names, about.periods, strict=True):
            if period:
                raise InputError(
                    f"The {self.title} acts on {printable(name, 100)}, which is periodic, where a "
                    "slope has a jump; take a harmonic bias."
                )
        slope, centre = self.numbers(self.slope, "slope"), self.numbers(self.centre, "centre")
        return BoundSlope(about, slope, centre)

    def settings(self) -> dict[str, Any]:
        """See Bias."""
        own = {"slope_eV": self.slope, "centre": self.centre}
        return super().settings() | {name: _plain(value) for name, value in own.items()}


def check_names(biases: Sequence[Any], variables: Mapping[str, Any]) -> list[str]:
    """The names of biases, each once; raises InputError for unknown variables."""
    for bias in biases:
        if not isinstance(bias, Bias):
            raise InputError(
                f"biases takes a list of such as HarmonicBias, and no {type(bias).__name__}."
            )
        unknown = [name for name in bias.names if name not in variables]
        if unknown:
            known = f"choose among {name_some([*variables])}" if variables else "give variables"
            raise InputError(
                f"The {bias.title} acts on {printable(unknown[0], 100)}, which is not a variable; "
                f"{known}."
            )
    names = [bias.name or bias.kind for bias in biases]
    for name in names:
        if names.count(name) > 1:
            raise InputError(
                f"Two biases have the name {printable(name, 100)}; give each a name of its own."
            )
    return names
