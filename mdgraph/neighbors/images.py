"""Numbers for lattice translations."""

import math
from typing import Final

import torch
from torch import Tensor

from mdgraph.errors import InputError

_MOST: Final = 1_000_000
"""Translations: a cell of 1 A has 30,000 within a cutoff of 15 A."""


class ImageTable:
    """Numbers the lattice translations n with |n_a| <= bound_a, lexicographically.

    Raises InputError for more of them than any cell of atoms has.

    Attributes:
        strides: the number of n is the sum of n_a * strides_a, plus `zero`.
        offsets: (images, 3) int64, translation of each number.
        zero: number of no translation.
    """

    def __init__(self, bound: tuple[int, int, int], device: torch.device) -> None:
        count = math.prod(2 * b + 1 for b in bound)
        if count > _MOST:
            raise InputError(
                f"The cell is so thin that {count:.0e} copies of it lie within the range of the "
                "forces; check the unit of its vectors, or give a shorter cutoff or skin."
            )
        self.strides = (
            (2 * bound[1] + 1) * (2 * bound[2] + 1),
            2 * bound[2] + 1,
            1,
        )
        ranges = [torch.arange(-b, b + 1) for b in bound]
        self.offsets = torch.cartesian_prod(*ranges).to(device)
        self._strides = torch.tensor(self.strides, device=device)
        self.zero = sum(b * s for b, s in zip(bound, self.strides, strict=True))

    def __len__(self) -> int:
        return len(self.offsets)

    def rank(self, offsets: Tensor) -> Tensor:
        """Image numbers (...) of integer translations (..., 3)."""
        return (offsets * self._strides).sum(-1) + self.zero
