"""Tables of message weights as kernels read them: whole, or short and in half precision."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mdgraph.fused.tables import RadialTable

_LARGEST = 2.0**12
"""What the values of a rounded table reach: far from where half precision ends at both sides."""


@dataclass(frozen=True)
class LayerTable:
    """f = unit (c0 + v (c1 + v (c2 + v c3))) with v = stretch u.

    Attributes:
        coefficients: (intervals, terms, M); three or four terms.
        stretch: 1/A.
        unit: of the values.
    """

    coefficients: Tensor
    stretch: float = 1.0
    unit: float = 1.0

    @property
    def terms(self) -> int:
        """Numbers an interval and function."""
        return int(self.coefficients.shape[1])


def whole(table: RadialTable, device: torch.device) -> LayerTable:
    """The table as it is."""
    return LayerTable(table.coefficients.to(device))


def rounded(table: RadialTable, device: torch.device) -> LayerTable:
    """A table of parabolas in float16, less than half as many bytes an edge.

    On an interval |v| <= a the cubic term c3 v^3 is within a^3 |c3| / 4 of 3/4 a^2 c3 v, which is
    what remains of it. Measured on random networks, values err by up to 5e-4 of the largest and
    slopes by 3e-3, where a coarse grid is enough for the cubics. Values and offsets are stretched
    so that no coefficient gets lost at the end of the range of float16.
    """
    grid = table.grid
    edges = grid.edges()
    half = 0.5 * (edges[1:] - edges[:-1])
    longest = half.max()
    c0, c1, c2, c3 = table.coefficients.double().cpu().unbind(1)
    powers = [c0, c1 * longest, c2 * longest**2, c3 * longest**3]
    within = (half / longest).square()[:, None]
    powers[1] = powers[1] + 0.75 * within * powers[3]
    unit = float(2.0 ** torch.ceil(torch.log2(c0.abs().max().clamp(min=1e-30))) / _LARGEST)
    terms = torch.stack(powers[:3], 1) / unit
    return LayerTable(terms.to(device, torch.float16), float(1.0 / longest), unit)
