"""HandOver: atoms go from rank to rank between two stretches of steps.

Each rank knows its own atoms, and sends those near another brick to the rank of that brick, with
all that there is by atom. What it gets, and what it has itself near its brick, is its region for
the next stretch. Shapes are static: as many rows go to each other rank at all times, and where more
atoms are near than there are rows `outgrown` says so, as of any overflow.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from mdgraph.decomposition.bricks import BrickGrid, wrapped_in
from mdgraph.decomposition.exchange import ProcessExchange
from mdgraph.decomposition.region import Region
from mdgraph.neighbors.list import with_room
from mdgraph.neighbors.torch_builder import Brick

_MORE: Final = 0.05
"""Part of the rows for the atoms that were near at first; see `with_room`."""

_LEAP: Final = 64
"""Rows beside twice those that there are, by which they grow at most for what a run met."""

_NONE: Final = 2**62
"""Key of a row without an atom."""


class HandOver:
    """Between the regions of all ranks; see the module.

    Attributes:
        sizes: (P, P) on the host, rows that each rank sends to each.
    """

    def __init__(
        self,
        exchange: ProcessExchange,
        grid: BrickGrid,
        planes: Tensor,
        region: Region,
        margin: float,
        reach: float,
    ) -> None:
        """Allocates nothing; `allocate_` does.

        Args:
            exchange: between the ranks.
            grid: of the bricks.
            planes: (P,) between them, a buffer.
            region: of this rank.
            margin: A, see OwnAtoms.
            reach: A, see `DividedSystem.reach`.
        """
        (self._rank,) = exchange.numbers
        self._exchange, self._region, self._reach = exchange, region, reach
        self._bricks = [grid.brick(number, planes, margin) for number in range(len(grid))]
        self.sizes = torch.zeros(len(grid), len(grid), dtype=torch.int64)
        self._room = torch.zeros(len(grid), dtype=torch.int64, device=region.state.device)
        self._most = torch.zeros_like(self._room)

    def allocate_(
        self,
        used: Tensor,
        places: Sequence[Tensor],
        cells: Sequence[Tensor],
        before: "HandOver | None",
    ) -> None:
        """Makes room for own atoms as they are; all ranks call it together. Syncs.

        Args:
            used: (C,) bool, rows of own atoms with an atom.
            places: (C, 3) A each, their positions and others that count for who is near.
            cells: (1, 3, 3) A, theirs.
            before: what has met more.
        """
        wrapped = self._wrapped(places, cells)
        for other, brick in enumerate(self._bricks):
            if other != self._rank:
                count = int((used & self._near(brick, wrapped)).sum())
                if before is not None:
                    # Steps that come after an overflow are repeated, and may have led anywhere.
                    room = 2 * int(before.sizes[self._rank, other]) + _LEAP
                    count = max(count, min(int(before._most[other]), room))
                self.sizes[self._rank, other] = with_room(count, _MORE)
        self._exchange.agree_(self.sizes)
        self._room.copy_(self.sizes[self._rank])

    def outgrown(self) -> Tensor:
        """() bool, whether more atoms were near other bricks than there are rows; no sync."""
        return (self._most > self._room).any()

    def _wrapped(self, places: Sequence[Tensor], cells: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        """Wrapped coordinates and the inverse of the cell for each of the places."""
        pbc, pairs = self._region.state.pbc, zip(places, cells, strict=True)
        return [wrapped_in(place.double(), cell.double(), pbc)[::2] for place, cell in pairs]

    def _near(self, brick: Brick, wrapped: Sequence[Sequence[Tensor]]) -> Tensor:
        pbc = self._region.state.pbc
        near = [brick.is_near(place, inverted, pbc, self._reach) for place, inverted in wrapped]
        return torch.stack(near).any(0)

    def __call__(
        self,
        atoms: Tensor,
        used: Tensor,
        places: Sequence[Tensor],
        cells: Sequence[Tensor],
        table: Tensor,
        earlier: Tensor,
    ) -> Tensor:
        """Sends own atoms to the ranks near them, and takes theirs; does not sync on CUDA.

        All ranks call it together. Numbers of the region are those of its new atoms then.

        Args:
            atoms: (C,) int64, numbers of own atoms in the system.
            used: (C,) bool, rows with an atom.
            places: (C, 3) A each, positions and others that count for who is near.
            cells: (1, 3, 3) A, theirs.
            table: (C, W) float64, what there is of own atoms.
            earlier: (M, W) float64, what the region had before.

        Returns:
            (M, W) float64, of the atoms near the brick in the order of their numbers, then of
            others, as they were.
        """
        numbered = torch.cat([atoms.double()[:, None], table], 1)
        rows, nothing = len(atoms), numbered.new_full((1, numbered.shape[1]), -1.0)
        padded = torch.cat([numbered, nothing])
        sent, found = {}, {}
        wrapped = self._wrapped(places, cells)
        for other, brick in enumerate(self._bricks):
            near = used & self._near(brick, wrapped)
            if other == self._rank:
                here = torch.where(near, atoms, -1)
                continue
            torch.maximum(self._most[other], near.sum(), out=self._most[other])
            if size := int(self.sizes[self._rank, other]):
                place = near.cumsum(0) - 1
                place = torch.where(near & (place < size), place, size)
                chosen = torch.full((size + 1,), rows, device=atoms.device)
                chosen.scatter_(0, place, torch.arange(rows, device=atoms.device))
                sent[other] = padded[chosen[:size]]
            if size := int(self.sizes[other, self._rank]):
                found[other] = padded.new_empty(size, padded.shape[1])
        self._exchange.swap(sent, found)
        numbers = torch.cat([here, *(one[:, 0].to(torch.int64) for one in found.values())])
        near_ones = torch.where(numbers >= 0, numbers, _NONE)
        return self._ordered(
            near_ones, torch.cat([table, *(one[:, 1:] for one in found.values()), earlier])
        )

    def _ordered(self, near: Tensor, table: Tensor) -> Tensor:
        """Rows of the region: near ones by their numbers (K,), then earlier ones that are not."""
        region, size = self._region, len(self._region.atoms)
        ascending = near.sort().values
        place = torch.searchsorted(ascending, region.atoms).clamp(max=len(near) - 1)
        known = ascending[place] == region.atoms
        others = region.total + torch.arange(size, device=near.device)
        keys = torch.cat([near, torch.where(known, _NONE, others)])
        chosen = keys.argsort(stable=True)[:size]
        numbers = torch.cat([torch.where(near < _NONE, near, 0), region.atoms])
        region.take_atoms_(numbers[chosen], (near < _NONE).sum())
        return table[chosen]
