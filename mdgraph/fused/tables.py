"""Radial functions of a network as tables: piecewise cubics of the distance.

All functions of a network that depend on a distance alone are tabulated: window(d) phi_k(d) and
the window itself for the embedding, and window(d) g(phi(d)) for each interaction layer. In
TensorNet2, where charges enter g too, it is the term that is linear in phi(d). On each interval a
cubic takes the exact values and derivatives of the network at both ends, so the table has a
continuous derivative, and forces from it conserve the tabulated energy.

A force is a sum of f'(d) over neighbors, and the nearest neighbors dominate it. The tolerance at a
distance is therefore relative to the largest value from there outwards, and each zone of distances
gets as many intervals as the tolerance requires.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from mdgraph.errors import MDGraphError
from mdgraph.models import TensorNetConfig, TensorNetPotential
from mdgraph.models.radial import cosine_cutoff
from mdgraph.models.tensornet import Interaction
from mdgraph.models.tensornet2 import ChargedInteraction

VALUE_TOLERANCE: Final = 1e-6
"""Largest error of f at a distance, over the largest |f| from there outwards."""

SLOPE_TOLERANCE: Final = 2e-6
"""Largest error of f' at a distance, over the largest |f'| from there outwards."""

_NEAR: Final = 0.8
"""A; bonds are hardly shorter, and released networks are steep there."""

_NEAR_FACTOR: Final = 10.0
"""Factor of the tolerances below `_NEAR`, where forces are tens of eV/A."""

_FAR: Final = 0.8
"""Share of the cutoff from which on tolerances no longer shrink with the functions."""

_SMALLEST_SCALE: Final = 1e-4
"""Lower bound of the scale of errors, relative to the largest scale beyond `_NEAR`."""

_BEFORE_NETWORK: Final = 0.5
"""Factor of the tolerances for tables whose errors an edge network amplifies."""

_PROBED_FROM: Final = 0.01
"""Share of the cutoff; tables cover closer pairs, but are not checked there."""

_PLACE: Final = 0.29
"""Share of an interval's width, either side of the centre, where a cubic errs most."""

_ZONES: Final = 32
"""Zones of a grid."""

_TRIAL: Final = 8
"""Intervals of each zone in the first trial."""

_LARGEST_TABLE: Final = 4 * 2**20
"""Largest number of coefficients of a table: 16 MB in float32."""

Sampler = Callable[[Tensor], list[tuple[Tensor, Tensor]]]
"""Distances (n,) to the exact values and derivatives (n, M) of each table."""


class TableError(MDGraphError):
    """No table of acceptable size represents the network."""


@dataclass(frozen=True)
class RadialGrid:
    """Intervals of the distance that all tables of a potential share.

    [start, cutoff) is divided into zones of equal width, and each zone into its own number of
    equal intervals. If the start is not zero, one more interval covers [0, start).

    Attributes:
        start: A, where the zones begin.
        cutoff: A, where they end.
        counts: number of intervals in each zone.
    """

    start: float
    cutoff: float
    counts: tuple[int, ...]

    @property
    def zones(self) -> int:
        """Number of zones."""
        return len(self.counts)

    @property
    def zone_width(self) -> float:
        """A, width of a zone."""
        return (self.cutoff - self.start) / self.zones

    @property
    def intervals(self) -> int:
        """Number of all intervals."""
        return sum(self.counts) + (self.start > 0.0)

    @property
    def origin(self) -> float:
        """A, offset of distance 0 from the centre of its interval."""
        return -0.5 * (self.start or self.zone_width / self.counts[0])

    def first(self) -> Tensor:
        """(zones,) int64, number of the first interval of each zone."""
        counts = torch.tensor(self.counts)
        return counts.cumsum(0) - counts + (self.start > 0.0)

    def edges(self) -> Tensor:
        """Edges of the intervals, (intervals + 1,) float64, A."""
        borders = self.start + self.zone_width * torch.arange(self.zones, dtype=torch.float64)
        parts = [
            border + self.zone_width / count * torch.arange(count, dtype=torch.float64)
            for border, count in zip(borders, self.counts, strict=True)
        ]
        below = torch.zeros(int(self.start > 0.0), dtype=torch.float64)
        end = torch.tensor([self.cutoff], dtype=torch.float64)
        return torch.cat([below, *parts, end])

    def centres(self) -> Tensor:
        """Centres of the intervals, (intervals,) float64, A."""
        edges = self.edges()
        return 0.5 * (edges[1:] + edges[:-1])

    def half_widths(self) -> Tensor:
        """From the centres of the intervals to their edges, (intervals,) float64, A."""
        edges = self.edges()
        return 0.5 * (edges[1:] - edges[:-1])

    def zone(self, distance: Tensor) -> Tensor:
        """Zone of distances (...) A, int64; outside of the grid, the nearest zone."""
        number = ((distance - self.start) / self.zone_width).floor()
        return number.clamp(0.0, self.zones - 1.0).to(torch.int64)

    def locate(self, distance: Tensor) -> tuple[Tensor, Tensor]:
        """Interval of each distance, computed in their dtype; does not sync.

        Args:
            distance: (...) A; outside of the grid, the nearest interval counts.

        Returns:
            Number of the interval (...) int64, and offset from its centre (...) A.
        """
        zone, dtype = self.zone(distance), distance.dtype
        count = torch.tensor(self.counts, device=distance.device)[zone]
        width = (self.zone_width / count.double()).to(dtype)
        within = distance - (self.start + self.zone_width * zone.to(dtype))
        number = torch.minimum((within / width).floor().clamp(min=0.0), (count - 1).to(dtype))
        offset = within - (number + 0.5) * width
        interval = self.first().to(distance.device)[zone] + number.to(torch.int64)
        below = distance < self.start
        return (
            torch.where(below, torch.zeros_like(interval), interval),
            torch.where(below, distance - 0.5 * self.start, offset),
        )


def cubic(coefficients: Tensor, interval: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """Values and derivatives (..., M) of cubics (n, 4, M) at offsets (...) from the centres."""
    c0, c1, c2, c3 = coefficients[interval].unbind(-2)
    u = offset[..., None].to(coefficients.dtype)
    return c0 + u * (c1 + u * (c2 + u * c3)), c1 + u * (2.0 * c2 + 3.0 * u * c3)


@dataclass(frozen=True)
class RadialTable:
    """M functions of the distance, f = c0 + u (c1 + u (c2 + u c3)) on each interval.

    Attributes:
        grid: the intervals; u is the offset from the centre of an interval, A.
        coefficients: (intervals, 4, M), c0 to c3, in the dtype of the network.
    """

    grid: RadialGrid
    coefficients: Tensor

    def evaluate(self, distance: Tensor) -> tuple[Tensor, Tensor]:
        """Values and derivatives (..., M) at distances (...), A, in the dtype of the table."""
        return cubic(self.coefficients, *self.grid.locate(distance))


@dataclass(frozen=True)
class PotentialTables:
    """All tables of a potential.

    Attributes:
        grid: the intervals of every table.
        embedding: M = K + 1 functions: window phi_k, then the window itself.
        layers: M = 3F functions each, in order (3, F): window times the edge network. For
            TensorNet2, whose edge networks read charges too, M = F: the term of the radial
            basis in the first linear layer, without window.
    """

    grid: RadialGrid
    embedding: RadialTable
    layers: tuple[RadialTable, ...]


@torch.inference_mode(False)
def tabulated(potential: TensorNetPotential, dtype: torch.dtype) -> PotentialTables:
    """Tabulates a potential with about as few intervals as the tolerances allow.

    The tables are compared with the network in float64, from 0.01 of the cutoff outwards; closer
    pairs are covered, but not checked. The error of f at a distance may be `VALUE_TOLERANCE` of
    the largest |f| from there outwards, that of f' `SLOPE_TOLERANCE` of the largest |f'|. Both
    are halved for TensorNet2's layers and ten times as large below 0.8 A. Beyond 0.8 of the
    cutoff, where all functions vanish, the scale at 0.8 counts.

    Args:
        potential: on any device, of any dtype; a float64 copy is evaluated on the CPU.
        dtype: of the stored tables, in which they are checked too.

    Raises:
        TableError: a table would be larger than 16 MB.
    """
    config = potential.config
    sample = _sampler(potential.at_precision(torch.float64).cpu())
    first = max(config.cutoff_lower, _PROBED_FROM * config.cutoff)
    distance = torch.linspace(first, config.cutoff, 1500, dtype=torch.float64)
    tolerances = _Tolerances.of(config, distance, sample(distance))
    grid = RadialGrid(config.cutoff_lower, config.cutoff, (_TRIAL,) * _ZONES)
    errors = tolerances.errors(grid, sample, _fitted(grid, sample, torch.float64))
    # The error of a derivative falls with the third power of the width.
    counts = (_TRIAL * errors.by_zone(grid) ** (1.0 / 3.0)).ceil().clamp(min=1.0)
    while 4 * tolerances.functions * float(counts.sum()) <= _LARGEST_TABLE:
        grid = RadialGrid(grid.start, grid.cutoff, tuple(int(count) for count in counts))
        tables = [table.to(dtype) for table in _fitted(grid, sample, torch.float64)]
        errors = tolerances.errors(grid, sample, tables)
        excess = errors.by_zone(grid)
        if float(excess.max()) <= 1.0:
            embedding, *layers = (RadialTable(grid, table) for table in tables)
            return PotentialTables(grid, embedding, tuple(layers))
        factor = (1.05 * excess).clamp(max=5.0) ** (1.0 / 3.0)
        counts = torch.where(excess > 1.0, (counts * factor).floor() + 1.0, counts)
    raise errors.failure()


@torch.inference_mode(False)
def excess_of_tables(potential: TensorNetPotential, tables: PotentialTables) -> float:
    """Largest error of tables, relative to the tolerances: about 1 for those of `tabulated`.

    Compares each interval with the network in float64 at one distance. Syncs.
    """
    config, grid = potential.config, tables.grid
    sample = _sampler(potential.at_precision(torch.float64).cpu())
    offset = _PLACE * grid.edges().diff()
    distance = grid.centres() + offset
    checked = distance >= max(config.cutoff_lower, _PROBED_FROM * config.cutoff)
    exact = sample(distance[checked])
    interval = torch.arange(grid.intervals)
    approximate = [
        cubic(table.coefficients.cpu(), interval, offset)
        for table in (tables.embedding, *tables.layers)
    ]
    differences = _largest(
        [
            (f[checked] - g, s[checked] - t)
            for (f, s), (g, t) in zip(approximate, exact, strict=True)
        ]
    )
    allowed = _Tolerances.of(config, distance[checked], exact).allowed
    return float((differences / allowed).max())


def _largest(functions: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Largest |value| and |slope| of each table, (tables, 2, n) from (n, M)."""
    return torch.stack(
        [torch.stack([part.double().abs().amax(1) for part in table]) for table in functions]
    )


def _fitted(grid: RadialGrid, sample: Sampler, dtype: torch.dtype) -> list[Tensor]:
    """Coefficients (intervals, 4, M) of each table."""
    edges = grid.edges()
    return [coefficients(edges, *exact).to(dtype) for exact in sample(edges)]


def coefficients(edges: Tensor, values: Tensor, slopes: Tensor) -> Tensor:
    """Cubics (n, 4, M) about the centres, from values and slopes (n + 1, M) at edges (n + 1,)."""
    width = edges.diff()[:, None]
    rise, mean = values.diff(dim=0) / width, 0.5 * (values[1:] + values[:-1])
    bend, slope = slopes.diff(dim=0) / width, 0.5 * (slopes[1:] + slopes[:-1])
    terms = [
        mean - width.square() * bend / 8.0,
        1.5 * rise - 0.5 * slope,
        0.5 * bend,
        2.0 * (slope - rise) / width.square(),
    ]
    return torch.stack(terms, dim=1)


@dataclass(frozen=True)
class _Errors:
    """Errors of tables at probed distances.

    Attributes:
        distance: (n,) A.
        over: (tables, 2, n), errors of f and f', relative to the tolerances.
    """

    distance: Tensor
    over: Tensor

    def by_zone(self, grid: RadialGrid) -> Tensor:
        """Largest relative error in each zone, (zones,)."""
        largest = torch.zeros(grid.zones, dtype=torch.float64)
        return largest.scatter_reduce(0, grid.zone(self.distance), self.over.amax((0, 1)), "amax")

    def failure(self) -> TableError:
        """The error to raise: names the worst table, the distance and the excess."""
        place = int(self.over.amax((0, 1)).argmax())
        table, what = divmod(int(self.over[:, :, place].argmax()), 2)
        name = f"layer {table}" if table else "the embedding"
        return TableError(
            f"The table of {name} would be larger than 16 MB: its {('value', 'derivative')[what]} "
            f"at {self.distance[place]:.2f} A is still off by {self.over[table, what, place]:.0f} "
            "times what is allowed; choose precision 'double', which needs no tables."
        )


@dataclass(frozen=True)
class _Tolerances:
    """Tolerances of tables at a distance.

    Attributes:
        distance: (n,) A, ascending.
        allowed: (tables, 2, n), errors of f and f' between one distance and the next.
        functions: the largest number M of functions of a table.
    """

    distance: Tensor
    allowed: Tensor
    functions: int

    @classmethod
    def of(
        cls, config: TensorNetConfig, distance: Tensor, exact: Sequence[tuple[Tensor, Tensor]]
    ) -> "_Tolerances":
        """Measures the functions.

        Args:
            config: of the network.
            distance: (n,) A, ascending.
            exact: values and derivatives (n, M) of each table there.
        """
        cutoff = config.cutoff
        near = min(_NEAR, 0.5 * cutoff)
        outwards = _largest(exact).flip(-1).cummax(-1).values.flip(-1)
        smallest = _SMALLEST_SCALE * outwards[..., distance >= near].amax(-1, keepdim=True)
        far = outwards[..., distance >= _FAR * cutoff].amax(-1, keepdim=True)
        # For a table of zeros, whose error is 0: avoids 0 / 0.
        scales = torch.maximum(outwards, torch.maximum(far, smallest)).clamp(min=1e-300)
        tolerance = torch.tensor([VALUE_TOLERANCE, SLOPE_TOLERANCE], dtype=torch.float64)
        allowed = tolerance[:, None] * torch.where(distance < near, _NEAR_FACTOR, 1.0) * scales
        if config.predicts_charges:
            allowed[1:] *= _BEFORE_NETWORK
        return cls(distance, allowed, max(table[0].shape[1] for table in exact))

    def errors(self, grid: RadialGrid, sample: Sampler, tables: list[Tensor]) -> _Errors:
        """Compares tables with the functions at three places of each interval."""
        edges = grid.edges()
        places = torch.tensor([-_PLACE, 0.0, _PLACE], dtype=torch.float64)
        offset = places * edges.diff()[:, None]
        interval = torch.arange(grid.intervals)[:, None].expand_as(offset)
        distance = grid.centres()[:, None] + offset
        checked = distance >= max(float(self.distance[0]), grid.start)
        distance, interval, offset = distance[checked], interval[checked], offset[checked]
        approximate = (cubic(table, interval, offset) for table in tables)
        differences = _largest(
            [(f - g, s - t) for (f, s), (g, t) in zip(approximate, sample(distance), strict=True)]
        )
        place = torch.searchsorted(self.distance, distance, right=True) - 1
        return _Errors(distance, differences / self.allowed[..., place])


def _sampler(potential: TensorNetPotential) -> Sampler:
    config, network = potential.config, potential.network
    charge_layers = [layer for layer in network.layers if isinstance(layer, ChargedInteraction)]
    firsts = [layer.edge_network.linears[0].get_parameter("weight") for layer in charge_layers]

    def terms(distance: Tensor) -> tuple[Tensor, ...]:
        radial = network.basis(distance)
        return tuple(radial @ weight[:, : config.radial_basis.number].T for weight in firsts)

    # No pair lies below a lower cutoff; a tangent, which a single cubic holds, continues there.
    lower = torch.tensor([config.cutoff_lower], dtype=torch.float64)
    tangents = [slope for _, slope in _with_slopes(terms, lower)] if charge_layers and lower else []

    def functions(distance: Tensor) -> tuple[Tensor, ...]:
        window = cosine_cutoff(distance, config.cutoff_lower, config.cutoff)[:, None]
        radial = network.basis(distance)
        tables = [torch.cat([radial * window, window], dim=-1)]
        inside = distance.clamp(min=config.cutoff_lower) if tangents else distance
        tables.extend(terms(inside))
        for number, tangent in enumerate(tangents, start=1):
            tables[number] = tables[number] + (distance - inside)[:, None] * tangent
        for layer in () if charge_layers else network.layers:
            assert isinstance(layer, Interaction)
            tables.append(layer.edge_network(radial).flatten(-2) * window)
        return tuple(tables)

    def sample(distance: Tensor) -> list[tuple[Tensor, Tensor]]:
        # At 0 itself, autograd's derivative of sin(x) / x is NaN.
        distance = distance.clamp(min=1e-9)
        parts = [_with_slopes(functions, part) for part in distance.split(512)]
        return [
            (torch.cat([value for value, _ in pieces]), torch.cat([slope for _, slope in pieces]))
            for pieces in zip(*parts, strict=True)
        ]

    return sample


def _with_slopes(
    functions: Callable[[Tensor], tuple[Tensor, ...]], distance: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """Values (n, M) of each table and their derivatives along the distance (n,).

    J 1 is the derivative of J^T v with respect to v, so reverse mode is enough. The forward mode
    of torch, and its reverse mode where v is given to it, import a compiler or SymPy, which takes
    seconds; so v is multiplied.
    """
    with torch.enable_grad():
        distance = distance.clone().requires_grad_()
        values = functions(distance)
        weights = [torch.zeros_like(value, requires_grad=True) for value in values]
        products = [(value * weight).sum() for value, weight in zip(values, weights, strict=True)]
        (pullback,) = torch.autograd.grad(products, distance, create_graph=True)
        slopes = torch.autograd.grad(pullback.sum(), weights)
    return [(value.detach(), slope) for value, slope in zip(values, slopes, strict=True)]
