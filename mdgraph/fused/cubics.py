"""Piecewise cubics that follow given functions, with as many intervals as limits ask for."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from mdgraph.errors import MDGraphError

PROBED_FROM: Final = 0.05
"""A; closer pairs are covered by the tables, but not checked."""

MOST_COEFFICIENTS: Final = 4 * 2**20
"""Of one table: 16 MB in float32."""

Sampler = Callable[[Tensor], list[tuple[Tensor, Tensor]]]
"""Distances (n,) to the exact values and derivatives (n, M) of each table."""


class TableError(MDGraphError):
    """A network that no table of acceptable size follows."""


@dataclass(frozen=True)
class Limits:
    """Largest errors of f and f', as fractions of their largest size beyond `near`.

    Attributes:
        near: A.
        value: of f beyond `near`.
        slope: of f' beyond `near`.
        closer: of both below `near`.
    """

    near: float
    value: float
    slope: float
    closer: float

    def at(self, distance: Tensor) -> Tensor:
        """(2, n), of f and f' at distances (n,)."""
        beyond = torch.tensor([[self.value], [self.slope]], dtype=distance.dtype)
        return torch.where(distance < self.near, self.closer, beyond)


@dataclass(frozen=True)
class Fitting:
    """Tables of the same functions on any range of distances.

    Attributes:
        sample: gives the exact functions.
        scales: (tables, 2), sizes of f and f' that errors are compared with.
        limits: errors allowed.
    """

    sample: Sampler
    scales: Tensor
    limits: Limits

    def tables(self, start: float, stop: float, number: int, kind: torch.dtype) -> list[Tensor]:
        """Coefficients (number, 4, M) of each table on equal intervals of [start, stop]."""
        edges = torch.linspace(start, stop, number + 1, dtype=torch.float64)
        return [coefficients(edges, *exact).to(kind) for exact in self.sample(edges)]

    def errors(self, start: float, stop: float, tables: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Distances probed (n,), and errors (tables, 2, n) of f and f' over their scales."""
        number = len(tables[0])
        # Not a multiple of the intervals, so that probes lie everywhere within them.
        count = max(4 * number, 64) + 3
        width = (stop - start) / number
        place = (torch.arange(count, dtype=torch.float64) + 0.5) / count * number
        interval = place.floor()
        probes, offset = start + place * width, (place - interval - 0.5) * width
        checked = probes >= min(PROBED_FROM, 0.5 * stop)
        probes, offset, interval = probes[checked], offset[checked], interval[checked].long()
        errors = [
            torch.stack(
                [(f.double() - g).abs().amax(-1) for f, g in zip(found, exact, strict=True)]
            )
            for found, exact in zip(
                (cubic(table, interval, offset) for table in tables),
                self.sample(probes),
                strict=True,
            )
        ]
        return probes, torch.stack(errors) / self.scales[..., None]

    def density(self, cutoff: float, number: int = 256) -> tuple[Tensor, Tensor]:
        """Distances (n,) below the cutoff, and how many intervals an A the limits need there."""
        probes, errors = self.errors(0.0, cutoff, self.tables(0.0, cutoff, number, torch.float64))
        # The error of the derivative falls with the third power of the width.
        excess = (errors / self.limits.at(probes)).amax((0, 1))
        return probes, number / cutoff * excess ** (1.0 / 3.0)

    def grown(
        self, start: float, stop: float, number: int, kind: torch.dtype
    ) -> tuple[list[Tensor], Tensor]:
        """Tables within the limits.

        Args:
            start: A.
            stop: A.
            number: of intervals to begin with.
            kind: type of the coefficients, in which they are checked too.

        Returns:
            coefficients (intervals, 4, M) of each table, and errors (tables, 2, 2) of f and
            f' beyond `limits.near` and below it.

        Raises:
            TableError: more than `MOST_COEFFICIENTS` are needed.
        """
        while True:
            tables = self.tables(start, stop, number, kind)
            probes, errors = self.errors(start, stop, tables)
            limits = self.limits.at(probes)
            excess = float((errors / limits).max())
            if excess <= 1.0:
                below = probes < self.limits.near
                return tables, torch.stack(
                    [(errors * part).amax(-1) for part in (~below, below)], 2
                )
            number = 1 + int(number * min(1.7, (1.05 * excess) ** (1.0 / 3.0)))
            if number * max(table[0].numel() for table in tables) > MOST_COEFFICIENTS:
                raise _failure(probes, errors, limits)


def coefficients(edges: Tensor, values: Tensor, slopes: Tensor) -> Tensor:
    """(n, 4, M) about the centres, from values and slopes (n + 1, M) at the edges (n + 1,)."""
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


def cubic(coefficients: Tensor, interval: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """Values and derivatives (..., M) of cubics (n, 4, M) at offsets from the centres (...)."""
    c0, c1, c2, c3 = coefficients[interval].unbind(-2)
    u = offset[..., None].to(coefficients.dtype)
    return c0 + u * (c1 + u * (c2 + u * c3)), c1 + u * (2.0 * c2 + 3.0 * u * c3)


def _failure(probes: Tensor, errors: Tensor, limits: Tensor) -> TableError:
    """Says which table is worst, where, and by how much."""
    excess = errors / limits
    table, what, place = np.unravel_index(int(excess.argmax()), excess.shape)
    name = f"layer {table}" if table else "the embedding"
    return TableError(
        f"The table of {name} would be larger than 16 MB: its {('value', 'derivative')[what]} at "
        f"{probes[place]:.2f} A is still off by {errors[table, what, place]:.1e} of the largest, "
        f"where {limits[what, place]:.0e} is allowed; choose precision 'double', "
        "which needs no tables."
    )
