"""Lists of frames padded to the size of a shape, and the numbers of their pairs."""

import math
from typing import Final

import torch
from torch import Tensor

from mdgraph.train.lists import FrameList

_MOST: Final = 1 << 15
"""Slots that an int16 numbers."""


def kind_of_number(slots: int) -> torch.dtype:
    """The smallest type that numbers so many slots."""
    return torch.int16 if slots <= _MOST else torch.int32


def padded_list(
    one: FrameList, atoms: int, slots: int, cutoff: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A list with its cutoff (A) as a frame of N atoms and K slots has it.

    Returns:
        vectors (N, K, 3) float64 A, index (N, K), reverse (N K,) and count (N,) int32, as `Table`
        explains them.
    """
    n, k = one.index.shape
    vectors = torch.zeros(atoms, slots, 3, dtype=torch.float64)
    vectors[..., 0] = 2.0 * cutoff if math.isfinite(cutoff) else 1.0
    index = torch.arange(atoms, dtype=torch.int32)[:, None].repeat(1, slots)
    reverse = torch.arange(atoms * slots, dtype=torch.int32).view(atoms, slots)
    count = torch.zeros(atoms, dtype=torch.int32)
    vectors[:n, :k], index[:n, :k], count[:n] = one.vectors, one.index, one.count
    used = torch.arange(k) < one.count[:, None]
    reverse[:n, :k] = torch.where(used, one.index * slots + one.reverse, reverse[:n, :k])
    return vectors, index, reverse.flatten(), count


def numbered_pairs(reverse: Tensor) -> tuple[Tensor, Tensor]:
    """The pairs of a frame, in the order of their first slots.

    Args:
        reverse: (N K,) int32; an empty slot is its own reverse.

    Returns:
        The first slots (P,) of all pairs, and the pair (N K,) of each slot, 0 for an empty one.
    """
    slot = torch.arange(len(reverse), dtype=torch.int32)
    first = slot[slot < reverse]
    pair, number = torch.arange(len(first), dtype=torch.int32), torch.zeros_like(slot)
    number[first] = number[reverse[first]] = pair
    return first, number
