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
        largest: n_max, atoms that a system has at most.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        device: torch.device | str = "cpu",
        largest: int | None = None,
    ) -> None:
        self.sizes = tuple(int(size) for size in sizes)
        self.largest = max(self.sizes) if largest is None else largest
        self.counts, self.index, self.start, self.members, self.present = (
            one.to(device) for one in self._layout()
        )

    def assign_(self, sizes: Sequence[int]) -> None:
        """Shares the same atoms out to as many systems of other sizes, in the same buffers."""
        self.sizes = tuple(int(size) for size in sizes)
        buffers = (self.counts, self.index, self.start, self.members, self.present)
        for buffer, value in zip(buffers, self._layout(), strict=True):
            buffer.copy_(value)

    def _layout(self) -> tuple[Tensor, ...]:
        counts = torch.tensor(self.sizes)
        starts = torch.cumsum(counts, 0) - counts
        slots = torch.arange(self.largest)
        present = slots < counts[:, None]
        members = torch.where(present, starts[:, None] + slots, starts[:, None])
        index = torch.repeat_interleave(torch.arange(len(self.sizes)), counts)
        return counts, index, starts, members, present

    @property
    def atoms(self) -> int:
        """Number of atoms of all systems together."""
        return sum(self.sizes)

    @property
    def systems(self) -> int:
        """Number of systems."""
        return len(self.sizes)

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
