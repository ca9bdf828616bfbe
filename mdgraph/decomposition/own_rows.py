"""Rows of a rank's own atoms: the margin that they need in a stretch, and sums over them."""

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from mdgraph.neighbors.geometry import complete_cell, heights, inverse
from mdgraph.state import State

BLOCK: Final = 64
"""Rows that a sum takes together; the number of rows is a multiple of it."""


class MarginStart:
    """Where own atoms, C rows, were at the start of a stretch, and the margin they need since.

    With s coordinates in cells, d the distance of opposite faces, d0 that at the start, and R
    the range of the lists, it is along each direction that is cut: 2 |s - s0| d0 + R d0 / d - R.
    Where the cell varies also what atoms far away, whose positions are not brought up to date,
    seem to move in it: s0 (h0 / h - 1) d0, with the cells h and h0, of the farthest.

    Attributes:
        reach: R, A.
        cut: whether bricks lie along each cell vector.
        cell_varies: whether the cell does.
        pbc: (3,) bool.
        values: (16,) float64: the complete cell at the start, distances of its faces, the farthest
            coordinates, and R.
        places: (C, 3) float64, coordinates in cells at the start.
        needed: (programs,) float64, A, margins needed, of which the largest counts.
    """

    def __init__(
        self,
        state: State,
        rows: int,
        reach: float,
        cut: Sequence[bool],
        *,
        cell_varies: bool,
        programs: int,
    ) -> None:
        """Allocates; see the attributes."""
        self.reach, self.cut, self.cell_varies = reach, tuple(cut), cell_varies
        self.pbc = state.pbc[0].contiguous()
        float64: dict[str, Any] = {"dtype": torch.float64, "device": state.device}
        self.values = torch.full((16,), reach, **float64)
        self.places = torch.zeros(rows, 3, **float64)
        self.needed = torch.zeros(programs, **float64)

    def begin_(self, atoms: Tensor, places: Tensor, cell: Tensor, inverse_cell: Tensor) -> None:
        """Takes note of where atoms lie; does not sync.

        Args:
            atoms: (C,) int64, own ones.
            places: (N, 3) float64, coordinates of all in cells, unwrapped.
            cell: (1, 3, 3) float64, A, the complete cell.
            inverse_cell: its inverse.
        """
        self.needed.zero_()
        torch.index_select(places, 0, atoms, out=self.places)
        first, begun_heights, farthest, _ = self.values.split([9, 3, 3, 1])
        first.copy_(cell.flatten())
        begun_heights.copy_(heights(inverse_cell)[0])
        if self.cell_varies:
            farthest.copy_(places.abs().amax(0))

    def measure_(self, own: Tensor, used: Tensor, cell: Tensor) -> None:
        """Raises the margin to what own atoms (C, 3), those in use, need; does not sync."""
        inverted = inverse(complete_cell(cell.double(), self.pbc[None]))
        first, begun_heights, farthest, _ = self.values.split([9, 3, 3, 1])
        moved = (own.double() @ inverted[0] - self.places).abs()
        needed = 2.0 * torch.where(used[:, None], moved, 0.0).amax(0) * begun_heights
        if self.cell_varies:
            needed += self.reach * (begun_heights / heights(inverted)[0] - 1.0)
            identity = torch.eye(3, dtype=torch.float64, device=cell.device)
            change = (first.view(3, 3) @ inverted[0] - identity).abs()
            needed += (farthest @ change) * begun_heights
        cut = torch.tensor(self.cut, device=cell.device)
        found = torch.where(cut, needed, 0.0).nan_to_num(nan=0.0).amax()
        torch.maximum(self.needed, found, out=self.needed)


def sum_of_rows(values: Tensor) -> Tensor:
    """(1, ...) sum over rows (C, ...), of which those without an atom are zero; does not sync.

    Blocks of rows are added one after the other, so that room moves no bit.
    """
    return values.reshape(-1, BLOCK, *values.shape[1:]).sum(1).cumsum(0)[-1:]
