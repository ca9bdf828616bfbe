"""Search: what a plan of a search offers, and what both of them need.

A key is `neighbor * images + image`, where `image` numbers the lattice translations that
a plan allows; sorted keys order a row by atom, then by image. Two ways give the same rows:
every pair of a system (`EveryPair`), and a cell list of linear cost (`CellList`).
A plan holds what stays the same from build to build. `find` takes wrapped positions, has
static shapes and no host read, and works in chunks of rows, so that memory stays bounded;
the kernels of `row_kernels` and `cell_list_kernels` find the same rows from the same plan.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mdgraph.neighbors.images import ImageTable

CANDIDATES = {"cpu": 2**19, "cuda": 2**23}
"""Candidate pairs looked at in one chunk: a cache's worth, or enough to fill a GPU."""


@dataclass(frozen=True)
class Frame:
    """Wrapped coordinates of one moment.

    Attributes:
        positions: (N, 3) A, wrapped along periodic directions.
        fractional: (N, 3) coordinates in the completed cell, in [0, 1) where periodic.
        reach: (S, 3) cutoff over the distance between opposite faces; 0 where not periodic.
        translations: (S, images, 3) A, the lattice vector of each image number.
    """

    positions: Tensor
    fractional: Tensor
    reach: Tensor
    translations: Tensor


@dataclass(frozen=True)
class Found:
    """Result of a search.

    Attributes:
        keys: (N, capacity) int64 ascending; rows are padded with `padding`.
        count: (N,) int64, true number of neighbors, also beyond the capacity.
        occupancy: () int64, most atoms found in one bin of the cell list, or 0.
        order: (N,) int64, atoms along the curve through the bins, or as they are.
    """

    keys: Tensor
    count: Tensor
    occupancy: Tensor
    order: Tensor


class Search(Protocol):
    """What both searches offer.

    Attributes:
        images: numbers of the lattice translations.
        allowed: (S, 3) reach up to which no pair lies beyond the plan.
    """

    images: ImageTable
    allowed: Tensor

    @property
    def candidates(self) -> int:
        """Candidate pairs an atom, by which searches are compared."""
        ...

    def find(self, frame: Frame, cutoff: float, capacity: int) -> Found:
        """Finds every directed pair closer than the cutoff."""
        ...


PADDING = torch.iinfo(torch.int64).max
"""Key of an empty slot; larger than any pair's."""


def chunk_rows(candidates: int, device: torch.device) -> int:
    """Rows of so many candidates that make one chunk."""
    return max(1, CANDIDATES[device.type] // candidates)


def compacted(candidate: Tensor, within: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
    """Moves the wanted keys of each row to its front; what exceeds the capacity is dropped."""
    slot = within.cumsum(1)
    count = slot[:, -1]
    slot = torch.where(within & (slot <= capacity), slot - 1, capacity)
    rows = torch.full((len(candidate), capacity + 1), PADDING, device=candidate.device)
    return rows.scatter_(1, slot, candidate)[:, :capacity], count
