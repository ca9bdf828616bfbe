"""Grouping: which atom belongs to which system of a batch, and sums over systems.

Sums run in atom order by gathers alone, so they repeat bit for bit on a GPU, where
`index_add` would not; the sum over a system and the spread to its atoms are each
other's adjoint, so every derivative stays in that pair of operations.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Grouping:
    """Atoms of S systems, concatenated.

    Attributes:
        sizes: number of atoms of each system, on the host.
        counts: (S,) int64, number of atoms of each system.
        index: (N,) int64, system of each atom.
        start: (S,) int64, first atom of each system.
        members: (S, n_max) int64, atoms of each system, padded with its first atom.
        present: (S, n_max) bool, False on padding.
    """

    def __init__(self, sizes: Sequence[int], device: torch.device | str = "cpu") -> None:
        self.sizes = tuple(int(size) for size in sizes)
        counts = torch.tensor(self.sizes)
        starts = torch.cumsum(counts, 0) - counts
        slots = torch.arange(int(counts.max()))
        present = slots < counts[:, None]
        members = torch.where(present, starts[:, None] + slots, starts[:, None])
        index = torch.repeat_interleave(torch.arange(len(self.sizes)), counts)
        self.counts = counts.to(device)
        self.index = index.to(device)
        self.start = starts.to(device)
        self.members = members.to(device)
        self.present = present.to(device)

    @property
    def atoms(self) -> int:
        """Number of atoms of all systems together."""
        return sum(self.sizes)

    @property
    def systems(self) -> int:
        """Number of systems."""
        return len(self.sizes)

    @property
    def largest(self) -> int:
        """Number of atoms of the largest system."""
        return max(self.sizes)

    def sum(self, values: Tensor) -> Tensor:
        """Sums (N, ...) over the atoms of each system to (S, ...); differentiable."""
        result: Tensor = _Sum.apply(values, self)
        return result

    def spread(self, values: Tensor) -> Tensor:
        """Gives every atom its system's row: (S, ...) to (N, ...); differentiable."""
        result: Tensor = _Spread.apply(values, self)
        return result


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, grouping: Grouping) -> Tensor:
        ctx.grouping = grouping
        if grouping.systems == 1:
            return values.sum(0, keepdim=True)
        gathered = values[grouping.members]
        present = grouping.present.reshape(grouping.present.shape + (1,) * (values.dim() - 1))
        return torch.where(present, gathered, 0).sum(1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.grouping.spread(gradients[0]), None


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, grouping: Grouping) -> Tensor:
        ctx.grouping = grouping
        return values.index_select(0, grouping.index)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.grouping.sum(gradients[0]), None
