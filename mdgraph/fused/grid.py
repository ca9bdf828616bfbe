"""Intervals of the distance, in two zones, that all tables of a potential share."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RadialGrid:
    """`fine` equal intervals of [0, split), then `coarse` equal intervals of [split, cutoff].

    Attributes:
        split: A, between the two zones.
        cutoff: A, end of the grid.
        fine: number of intervals of the first zone.
        coarse: number of intervals of the second zone.
    """

    split: float
    cutoff: float
    fine: int
    coarse: int

    @property
    def intervals(self) -> int:
        """Number of intervals of both zones."""
        return self.fine + self.coarse

    def edges(self) -> Tensor:
        """(intervals + 1,) float64, A."""
        fine = torch.linspace(0.0, self.split, self.fine + 1, dtype=torch.float64)
        coarse = torch.linspace(self.split, self.cutoff, self.coarse + 1, dtype=torch.float64)
        return torch.cat([fine[:-1], coarse])

    def centres(self) -> Tensor:
        """(intervals,) float64, A."""
        edges = self.edges()
        return 0.5 * (edges[1:] + edges[:-1])

    def locate(self, distance: Tensor) -> tuple[Tensor, Tensor]:
        """Finds intervals by a formula, in the type of the distances; does not sync.

        Args:
            distance: (...) A; one outside of the grid belongs to the interval at that end.

        Returns:
            number of the interval (...) int64, and offset from its centre (...) A.
        """
        within = distance < self.split
        # Selected by products: numbers in `torch.where` would be rounded to the default type.
        near, far = within.to(distance.dtype), (~within).to(distance.dtype)
        start = self.split * far
        width = self.split / self.fine * near + (self.cutoff - self.split) / self.coarse * far
        last = (self.fine - 1) * near + (self.coarse - 1) * far
        number = torch.minimum(((distance - start) / width).floor().clamp(min=0.0), last)
        offset = distance - (start + (number + 0.5) * width)
        return (number + self.fine * far).to(torch.int64), offset
