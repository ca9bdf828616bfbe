"""Radial functions of a network as tables: piecewise cubics of the distance.

Everything that a network makes of a distance alone is tabulated: window(d) phi_k(d) and the
window itself for the embedding, window(d) g(phi(d)) for each interaction layer, or the term
that is linear in phi(d) where TensorNet2's charges enter beside it. On each interval a cubic
takes the exact values and derivatives of the network at both ends, so the table has a
continuous derivative and a force from it conserves the tabulated energy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from mdgraph.fused.cubics import Fitting, Limits, Sampler, TableError, cubic
from mdgraph.fused.grid import RadialGrid
from mdgraph.models import TensorNetPotential
from mdgraph.models.radial import cosine_cutoff
from mdgraph.models.tensornet import Interaction
from mdgraph.models.tensornet2 import ChargedInteraction

__all__ = [
    "PotentialTables",
    "RadialGrid",
    "RadialTable",
    "TableError",
    "TableErrors",
    "tabulated",
]

NEAR: Final = 0.8
"""A; atoms hardly come closer, and released networks are steep there."""


_BEFORE_NETWORK: Final = 0.5
"""Share of the errors allowed to tables whose values an edge network still amplifies."""


@dataclass(frozen=True)
class TableErrors:
    """Largest errors found, as fractions of the largest |f| and |f'| beyond 0.8 A.

    Attributes:
        value: of f beyond 0.8 A.
        slope: of f' beyond 0.8 A.
        near_value: of f from 0.05 to 0.8 A.
        near_slope: of f' from 0.05 to 0.8 A.
    """

    value: float
    slope: float
    near_value: float
    near_slope: float


@dataclass(frozen=True)
class RadialTable:
    """M functions of the distance, f = c0 + u (c1 + u (c2 + u c3)) on each interval.

    Attributes:
        grid: the intervals; u is the distance from the centre of one, A.
        coefficients: (intervals, 4, M), c0 to c3, in the network's type.
        errors: what was measured when the table was made.
    """

    grid: RadialGrid
    coefficients: Tensor
    errors: TableErrors

    def evaluate(self, distance: Tensor) -> tuple[Tensor, Tensor]:
        """Values and derivatives (..., M) at distances (...), A, in the table's own type."""
        return cubic(self.coefficients, *self.grid.locate(distance))


@dataclass(frozen=True)
class PotentialTables:
    """All tables of a potential.

    Attributes:
        grid: the intervals of every table.
        embedding: M = K + 1 functions: window phi_k, then the window itself.
        layers: M = 3F functions each, in order (3, F): window times the edge network. For
            TensorNet2, whose edge networks see charges too, M = F: the term of the radial
            basis in the first layer, without window and before the activation.
    """

    grid: RadialGrid
    embedding: RadialTable
    layers: tuple[RadialTable, ...]


@torch.inference_mode(False)
def tabulated(potential: TensorNetPotential, kind: torch.dtype) -> PotentialTables:
    """Tabulates a potential with about as few intervals as the limits allow.

    The tables are checked from 0.05 A to the cutoff against the network in float64: errors of
    at most 1e-6 of the largest |f| and 2e-6 of the largest |f'| of each table beyond 0.8 A,
    and 1e-4 of them below; half of that for TensorNet2's layers. Closer pairs than 0.05 A are
    covered, but not checked.

    Args:
        potential: on any device, of any type; a float64 copy on the CPU is evaluated.
        kind: type of the stored tables.

    Raises:
        TableError: a table would have to be larger than 16 MB.
    """
    lower, cutoff = potential.config.cutoff_lower, potential.config.cutoff
    near = min(NEAR, 0.5 * cutoff)
    sample = _sampler(potential.at_precision(torch.float64).cpu())
    beyond = torch.linspace(max(lower, near), cutoff, 1000, dtype=torch.float64)
    scales = torch.stack([torch.stack([f.abs().max(), g.abs().max()]) for f, g in sample(beyond)])
    shares = torch.ones_like(scales)
    if potential.config.architecture == "tensornet2":
        shares[1:] = _BEFORE_NETWORK
    fitting = Fitting(sample, shares * scales, Limits(near, value=1e-6, slope=2e-6, closer=1e-4))
    split, numbers = _plan(fitting, lower, cutoff)
    (fine, error), (coarse, other) = (
        fitting.grown(start, stop, number, kind)
        for start, stop, number in zip((0.0, split), (split, cutoff), numbers, strict=True)
    )
    grid = RadialGrid(split, cutoff, len(fine[0]), len(coarse[0]))
    largest = shares[..., None] * torch.maximum(error, other)
    embedding, *layers = (
        RadialTable(grid, torch.cat([one, two]), TableErrors(*errors))
        for one, two, errors in zip(
            fine, coarse, largest.transpose(1, 2).flatten(1).tolist(), strict=True
        )
    )
    return PotentialTables(grid, embedding, tuple(layers))


def _sampler(potential: TensorNetPotential) -> Sampler:
    config, network = potential.config, potential.network
    charged = [layer for layer in network.layers if isinstance(layer, ChargedInteraction)]
    firsts = [layer.edge_network.linears[0].get_parameter("weight") for layer in charged]

    def terms(distance: Tensor) -> tuple[Tensor, ...]:
        radial = network.basis(distance)
        return tuple(radial @ weight[:, : config.radial_basis.number].T for weight in firsts)

    # Nothing is asked below a lower cutoff, so that a tangent, a single cubic, will do there.
    lower = torch.tensor([config.cutoff_lower], dtype=torch.float64)
    tangents = [slope for _, slope in _with_slopes(terms, lower)] if charged and lower else []

    def functions(distance: Tensor) -> tuple[Tensor, ...]:
        window = cosine_cutoff(distance, config.cutoff_lower, config.cutoff)[:, None]
        radial = network.basis(distance)
        tables = [torch.cat([radial * window, window], dim=-1)]
        inside = distance.clamp(min=config.cutoff_lower) if tangents else distance
        tables.extend(terms(inside))
        for number, tangent in enumerate(tangents, start=1):
            tables[number] = tables[number] + (distance - inside)[:, None] * tangent
        for layer in () if charged else network.layers:
            assert isinstance(layer, Interaction)
            tables.append(layer.edge_network(radial).flatten(-2) * window)
        return tuple(tables)

    def sample(distance: Tensor) -> list[tuple[Tensor, Tensor]]:
        # At zero itself autograd finds no slope of sin(x) / x.
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

    J 1 is the derivative of J^T v along v: forward mode from reverse mode alone, because the
    forward mode of torch imports its compiler, which takes seconds.
    """
    with torch.enable_grad():
        distance = distance.clone().requires_grad_()
        values = functions(distance)
        weights = [torch.zeros_like(value, requires_grad=True) for value in values]
        (pulled,) = torch.autograd.grad(values, distance, weights, create_graph=True)
        slopes = torch.autograd.grad(pulled.sum(), weights)
    return [(value.detach(), slope) for value, slope in zip(values, slopes, strict=True)]


def _plan(fitting: Fitting, lower: float, cutoff: float) -> tuple[float, tuple[int, int]]:
    """Where to split, and numbers of intervals to begin with in both zones.

    A window with a lower end is zero below it and has a kink there. Otherwise the split is
    where the two zones need the fewest intervals together.
    """
    distance, density = fitting.density(cutoff)
    if lower:
        inside = float(density[distance > lower].median())
        return lower, (1, 1 + int(0.5 * (cutoff - lower) * inside))
    fine = distance * density.cummax(0).values
    coarse = (cutoff - distance) * density.flip(0).cummax(0).values.flip(0)
    best = int((fine[:-1] + coarse[1:]).argmin())
    numbers = (1 + int(0.5 * float(fine[best])), 1 + int(0.5 * float(coarse[best + 1])))
    return float(distance[best]), numbers
