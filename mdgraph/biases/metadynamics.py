"""Metadynamics on a grid in device memory: hills, their interpolation and their record."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from mdgraph.arguments import real_array, real_number, shown, whole_number
from mdgraph.biases.bias import Array, Bias, BiasedVariables, BoundBias
from mdgraph.errors import InputError, printable
from mdgraph.units import BOLTZMANN

MOST_VARIABLES: Final = 3
"""Of a grid."""

MOST_POINTS: Final = 20_000_000
"""Of a grid; its values and derivatives take 8 to 64 bytes each."""

RECORDED: Final = 512
"""Steps whose hills the device keeps at least, for the host to read.

Where the host does several steps as one, all hills from one to the next that ends with a hill are
kept, however far apart these are."""

_PER_SIGMA: Final = 5.0
"""Points of a grid for each width of a hill, unless their number is given."""


@dataclass(frozen=True, eq=False)
class BiasGrid:
    """A regular grid of 1 to 3 variables.

    Attributes:
        minimum: (n,) first point, in the unit of each variable.
        spacing: (n,) between points.
        points: of each variable; along a periodic one they fill the period.
        period: (n,); 0 of variables that are not periodic.
    """

    minimum: Array
    spacing: Array
    points: tuple[int, ...]
    period: Array

    def axis(self, number: int) -> NDArray[np.float64]:
        """Values of a variable at the points."""
        places: NDArray[np.float64] = np.arange(self.points[number], dtype=np.float64)
        return self.minimum[number] + self.spacing[number] * places


class BoundMetadynamics(BoundBias):
    """A sum of Gaussians on grids of the device; G grids, for each system one or one for all.

    Each point holds the value and the mixed derivatives of the sum, in units of the spacing: 2^n
    numbers. Between points the energy is their cubic (bicubic, tricubic) Hermite interpolation,
    and slopes are its exact derivatives.

    Attributes:
        grid: its places.
        values: (G, p_1 ... p_n, 2 ... 2) float64, eV, the derivatives last.
        records: (R, W, n + 1) float64, centres and height (eV) of the last hills; those of step m
            are row (m / every) % R. Walkers W are all systems, those of other ranks included.
        shared: whether all systems add to one grid.
        apart: whether walkers of other ranks add to it too. Steps then add no hills, but
            `add_hills_` between them.
        every: steps from one hill to the next.
        sigma: (n,) widths.
        factor: by which heights are multiplied in HILLS, gamma / (gamma - 1).
        bias_factor: gamma, or None.
    """

    def __init__(self, about: BiasedVariables, definition: "Metadynamics", grid: BiasGrid) -> None:
        super().__init__(about)
        device, systems = about.state.device, about.state.grouping.systems
        count, walkers = len(grid.points), definition.walkers or systems
        self.apart = definition.walkers is not None
        self.grid, self.shared, self.every = grid, definition.shared, definition.every
        self.sigma = definition.numbers(definition.sigma, "sigma")
        self.bias_factor = definition.bias_factor
        gamma = definition.bias_factor
        self.factor = 1.0 if gamma is None else gamma / (gamma - 1.0)
        self.height = definition.height
        self.per_energy = torch.zeros(walkers, dtype=torch.float64, device=device)
        if gamma is not None:
            kelvins = definition.kelvins(systems)
            if self.apart:  # all at one temperature
                kelvins = kelvins[:1] * walkers
            kelvin = torch.tensor(kelvins, dtype=torch.float64)
            self.per_energy.copy_(1.0 / (BOLTZMANN * kelvin * (gamma - 1.0)))
        grids = 1 if self.shared else systems
        shape = (grids, *grid.points, *(2,) * count)
        self.values = torch.zeros(shape, dtype=torch.float64, device=device)
        rows = max(
            -(-RECORDED // self.every), about.together // math.gcd(self.every, about.together)
        )
        self.records = self.values.new_zeros(rows, walkers, count + 1)
        self.outside = torch.zeros((), dtype=torch.bool, device=device)
        self._which = torch.arange(systems, device=device) * (not self.shared)
        # From here on per variable: constants of the device, so that steps copy nothing to it.
        self._minimum, self._spacing = (
            torch.tensor(one, device=device) for one in (grid.minimum, grid.spacing)
        )
        self._points = torch.tensor(grid.points, device=device)
        self._wraps = self.period > 0.0
        last = (self._points - 2).double()
        self._last = torch.where(self._wraps, math.inf, last)
        self._axes = [torch.tensor(grid.axis(number), device=device) for number in range(count)]
        self._maximum = self._minimum + self._spacing * (self._points - 1)
        corners = torch.cartesian_prod(*[torch.arange(2)] * count).reshape(-1, count)
        self._corners = corners.to(device)
        strides = [math.prod(grid.points[number + 1 :]) for number in range(count)]
        self._strides = torch.tensor(strides, device=device)

    def inside(self, values: Tensor) -> Tensor:
        """Whether values (S, n) are on the grid, (S, n) bool."""
        return self._wraps | ((values >= self._minimum) & (values <= self._maximum))

    def evaluate(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """See BoundBias; beyond the grid the energy is that of its edge."""
        count = len(self.grid.points)
        place = (values - self._minimum) / self._spacing
        low = torch.where(self._wraps, place.floor(), place.floor().clamp(min=0.0))
        low = torch.minimum(low, self._last)
        t = torch.where(self._wraps, place - low, (place - low).clamp(0.0, 1.0))
        index = (low.to(torch.int64)[:, None] + self._corners) % self._points
        flat = (index * self._strides).sum(-1)
        nodes = self.values.flatten(1, count)[self._which[:, None], flat]
        # (S, corners, derivatives), each a product of one factor a variable.
        basis, slopes = _hermite(t, self._spacing)
        nodes = nodes.unflatten(1, (2,) * count)
        derivatives = [
            _contract(nodes, [slopes if one == other else basis for other in range(count)])
            for one in range(count)
        ]
        return _contract(nodes, [basis] * count), torch.stack(derivatives, -1)

    def notice_(self, values: Tensor) -> None:
        """Remembers whether its values, of all (V, S), are outside of the grid; does not sync."""
        assert self.outside is not None
        self.outside |= ~self.inside(self.own(values)).all()

    def end_step_(self, values: Tensor, step: int | None) -> None:
        """See BoundBias: adds the hills of a step that is a multiple of `every`."""
        self.notice_(values)
        if not self.apart and (step is None or step % self.every == 0):
            self.add_hills_(self.own(values), self.energy)

    def add_hills_(self, values: Tensor, energies: Tensor) -> None:
        """Adds a hill for each walker if the step is a multiple of `every`; does not sync.

        Args:
            values: (W, n) of its variables.
            energies: (W,) eV, of the bias there, before any of these hills.
        """
        due = self.state.step % self.every == 0
        heights = self.height * torch.exp(-energies * self.per_energy)
        factors = [
            self._along(number, values[:, number], sigma)
            for number, sigma in enumerate(self.sigma.tolist())
        ]
        factors[0] = factors[0] * torch.where(due, heights, 0.0)[:, None, None]
        letters, channels = "abc", "xyz"
        terms = [f"s{letters[place]}{channels[place]}" for place in range(len(factors))]
        result = letters[: len(factors)] + channels[: len(factors)]
        hills = torch.einsum(f"{','.join(terms)}->{'' if self.shared else 's'}{result}", factors)
        self.values += hills
        row = (self.state.step // self.every % len(self.records))[None]
        hill = torch.cat([values, heights[:, None]], 1)[None]
        kept = self.records.index_select(0, row)
        self.records.index_copy_(0, row, torch.where(due, hill, kept))

    def _along(self, number: int, centres: Tensor, sigma: float) -> Tensor:
        """Gaussians (S, p, 2) about centres (S,): values and derivatives by the place of a point.

        Of a periodic variable they are about the nearest image.
        """
        apart = self._axes[number] - centres[:, None]
        if self.grid.period[number]:
            period = float(self.grid.period[number])
            apart = apart - period * torch.round(apart / period)
        hill = torch.exp(-0.5 * (apart / sigma) ** 2)
        slope = -float(self.grid.spacing[number]) / sigma**2 * apart * hill
        return torch.stack([hill, slope], -1)

    def tensors(self) -> dict[str, Tensor]:
        """See BoundBias."""
        assert self.outside is not None
        own = {"grid": self.values, "records": self.records, "outside": self.outside}
        return super().tensors() | own

    def potential(self) -> Array:
        """The sum of hills (G, p_1 ... p_n) at the points, eV, on the host; syncs."""
        values = self.values
        for _ in self.grid.points:
            values = values[..., 0]
        result: Array = values.cpu().numpy()
        return result


def _hermite(t: Tensor, spacing: Tensor) -> tuple[Tensor, Tensor]:
    """Cubic Hermite polynomials (S, n, 2 points, 2) of t (S, n), of value and slope of each point.

    Returns:
        The polynomials, and their derivatives by the variable.
    """
    u = 1.0 - t
    values = [u * u * (1.0 + 2.0 * t), u * u * t, t * t * (1.0 + 2.0 * u), -t * t * u]
    bend = 6.0 * t * u
    slopes = [-bend, u * (u - 2.0 * t), bend, t * (t - 2.0 * u)]
    shape = (*t.shape, 2, 2)
    return (
        torch.stack(values, -1).view(shape),
        torch.stack(slopes, -1).view(shape) / spacing[:, None, None],
    )


def _contract(nodes: Tensor, factors: Sequence[Tensor]) -> Tensor:
    """Sums (S,) of nodes (S, 2 ..., 2 ...) times a factor (S, n, 2, 2) for each variable."""
    for number in range(len(factors) - 1, -1, -1):
        # The last point of the corners is dimension `number` + 1, its derivative the last one.
        factor = factors[number][:, number]
        shape = (len(nodes), *(1,) * number, 2, *(1,) * number, 2)
        nodes = (nodes * factor.view(shape)).sum((number + 1, -1))
    return nodes


@dataclass(frozen=True, eq=False)
class Metadynamics(Bias):
    """Gaussian hills that are added where the variables are, well-tempered if gamma is given.

    V(s)  <- V(s) + h exp(-sum (s - s_m)^2 / 2 sigma^2)   at steps m that are multiples of `every`
    h     =  height exp(-V(s_m) / (kT (gamma - 1)))

    and in the end F(s) = -gamma / (gamma - 1) V(s), or -V(s) of ordinary metadynamics, where h is
    the height. DOI 10.1103/PhysRevLett.100.020603. V lives on a grid; see `BoundMetadynamics`.

    Attributes:
        sigma: widths, in the unit of each variable, one number or one for each.
        height: eV, of the first hills.
        every: steps from one hill to the next.
        minimum: ends of the grid, one number or one for each variable; periodic variables need
            none.
        maximum: likewise.
        points: of the grid along each variable; default: five for each sigma.
        bias_factor: gamma, above 1; None for ordinary metadynamics.
        temperature: K, of kT, one number or one for each system; default: that of the bath.
        shared: whether all systems of a batch are walkers on one grid.
        walkers: on that grid, where some are on other ranks; see `of_systems`. `SharedHills` adds
            their hills.
    """

    kind: ClassVar[str] = "metadynamics"

    sigma: ArrayLike = 0.1
    height: float = 0.01
    every: int = 500
    minimum: ArrayLike | None = None
    maximum: ArrayLike | None = None
    points: Sequence[int] | int | None = None
    bias_factor: float | None = None
    temperature: float | Sequence[float] | None = None
    shared: bool = False
    walkers: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """See Bias."""
        super().__post_init__()
        if len(self.names) > MOST_VARIABLES:
            raise InputError(
                f"The {self.title} is of {len(self.names)} variables, and a grid has at most "
                f"{MOST_VARIABLES}; take fewer."
            )
        if (self.numbers(self.sigma, "sigma") <= 0.0).any():
            raise InputError(
                f"The sigma of the {self.title} is {_first(self.sigma):g}; give widths above zero."
            )
        real_number(self.height, f"The height of the {self.title}", "eV", above=0.0)
        whole_number(self.every, f"The interval of hills of the {self.title}", 1)
        if self.bias_factor is not None:
            real_number(self.bias_factor, f"The bias factor of the {self.title}", "1", above=1.0)
        for what in ("minimum", "maximum"):
            if getattr(self, what) is not None:
                self.numbers(getattr(self, what), what)
        if self.points is not None and (self._points() < 4).any():
            raise InputError(
                f"The {self.title} has a grid of {self.points} points; give four at least."
            )
        if self.temperature is not None:
            kelvin = real_array(self.temperature)
            known = kelvin is not None and kelvin.ndim < 2 and bool(np.isfinite(kelvin).all())
            if kelvin is None or not known or (kelvin <= 0.0).any():
                raise InputError(
                    f"The temperature of the {self.title} is {shown(self.temperature)}; give K "
                    "above zero, one number or one for each system."
                )
            self._check_walkers(np.atleast_1d(kelvin).tolist())

    def _points(self) -> Array:
        points = self.numbers(self.points, "points")
        if (points % 1).any():
            raise InputError(f"The points of the {self.title} are not whole numbers.")
        return points

    def of_systems(self, share: range, count: int) -> Self:
        """See Bias; walkers on one grid know how many there are in all."""
        own = self.temperature
        kelvin = real_array(own) if own is not None else None
        if kelvin is not None and kelvin.shape == (count,):
            own = kelvin[share.start : share.stop].tolist()
        part = replace(self, temperature=own)
        if self.shared and len(share) < count:
            object.__setattr__(part, "walkers", count)
        return part

    def in_bath(self, kelvins: Sequence[float]) -> Self:
        """See Bias; a temperature that is given stays.

        Raises:
            InputError: walkers on one grid at several temperatures.
        """
        self._check_walkers(kelvins)
        if self.temperature is not None or self.bias_factor is None or not all(kelvins):
            return self
        return replace(self, temperature=[float(kelvin) for kelvin in kelvins])

    def _check_walkers(self, kelvins: Sequence[float]) -> None:
        if self.shared and len(set(kelvins)) > 1:
            raise InputError(
                f"The walkers of the {self.title} share a grid, and are at temperatures from "
                f"{min(kelvins):g} to {max(kelvins):g} K, where free energies differ; give all the "
                "same, or leave shared out."
            )

    def kelvins(self, systems: int) -> list[float]:
        """Temperature of each system, K; raises InputError without one."""
        kelvin = np.asarray([] if self.temperature is None else self.temperature, dtype=float)
        if self.temperature is None:
            raise InputError(
                f"Hills of the {self.title} shrink by kT, and nothing says T: the dynamics have no "
                "bath above 0 K; give the bias a temperature (temperature_K in YAML), or no bias "
                "factor."
            )
        if kelvin.shape not in ((), (1,), (systems,)):
            raise InputError(
                f"The {self.title} has {kelvin.size} temperatures for {systems} systems; give one, "
                "or one for each."
            )
        return [float(one) for one in np.broadcast_to(kelvin, systems)]

    def grid_of(self, about: BiasedVariables) -> BiasGrid:
        """The grid; raises InputError for ends that are missing or in the wrong order."""
        sigma, ends = self.numbers(self.sigma, "sigma"), []
        given = [
            None if value is None else self.numbers(value, what)
            for what, value in (("minimum", self.minimum), ("maximum", self.maximum))
        ]
        for number, (name, period) in enumerate(zip(self.names, about.periods, strict=True)):
            low, high = (None if one is None else float(one[number]) for one in given)
            title = printable(name, 100)
            if period and float(sigma[number]) > 0.5 * period:
                raise InputError(
                    f"The sigma of the {self.title} is {float(sigma[number]):g} rad along {title}, "
                    "more than half a turn; angles are in rad, or written as 15deg."
                )
            if period:
                low = -0.5 * period if low is None else low
                high = low + period if high is None else high
                if not math.isclose(high - low, period, rel_tol=1e-6):
                    raise InputError(
                        f"The grid of the {self.title} covers {high - low:g} of {title}, whose "
                        f"period is {period:.6g}; leave minimum and maximum out for the whole."
                    )
            elif low is None or high is None or not low < high:
                raise InputError(
                    f"The grid of the {self.title} needs a minimum below a maximum for {title}; "
                    "give both."
                )
            ends.append((low, high))
        widths = np.array([high - low for low, high in ends])
        periodic = np.array([period > 0.0 for period in about.periods])
        if self.points is None:
            points = np.maximum(np.ceil(_PER_SIGMA * widths / sigma) + ~periodic, 4)
        else:
            points = self._points()
        spacing = widths / np.where(periodic, points, points - 1)
        if points.prod() > MOST_POINTS:
            raise InputError(
                f"The grid of the {self.title} has {points.prod():.3g} points; give fewer points, "
                f"at most {MOST_POINTS:,}, a smaller range or a larger sigma."
            )
        if (spacing > 0.5 * sigma * (1.0 + 1e-9)).any():
            raise InputError(
                f"The points of the grid of the {self.title} are further apart than half a sigma; "
                "give more points, or leave them out for five a sigma."
            )
        minimum = np.array([low for low, _ in ends])
        return BiasGrid(
            minimum, spacing, tuple(points.astype(int).tolist()), np.array(about.periods)
        )

    def bound(self, about: BiasedVariables) -> BoundBias:
        """See Bias."""
        if self.walkers is not None and self.every % about.together:
            raise InputError(
                f"The {self.title} adds hills every {self.every} steps, and walkers of several "
                f"ranks meet between steps that are taken {about.together} at a time; give a "
                "multiple."
            )
        return BoundMetadynamics(about, self, self.grid_of(about))

    def settings(self) -> dict[str, Any]:
        """See Bias."""

        def plain(value: Any) -> Any:
            return None if value is None else np.asarray(value).tolist()

        return super().settings() | {
            "sigma": plain(self.sigma),
            "height_eV": self.height,
            "every": self.every,
            "minimum": plain(self.minimum),
            "maximum": plain(self.maximum),
            "points": plain(self.points),
            "bias_factor": self.bias_factor,
            "temperature_K": None if self.temperature is None else _each(self.temperature),
            "shared": self.shared,
            **({} if self.walkers is None else {"walkers": self.walkers}),
        }


def _each(values: ArrayLike) -> list[float]:
    """Numbers of all systems, or one where they are all equal."""
    numbers = np.atleast_1d(np.asarray(values, dtype=float))
    return [float(number) for number in (numbers[:1] if np.ptp(numbers) == 0.0 else numbers)]


def _first(value: ArrayLike) -> float:
    return float(np.asarray(value, dtype=float).min())
