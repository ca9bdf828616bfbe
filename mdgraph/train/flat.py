"""Many tensors as one: they lie one after the other in a buffer, and are views of it."""

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

_ALIGNED: Final = 64
"""Elements that a tensor of many begins at a multiple of, so that its rows are read as words."""


def flattened(tensors: Mapping[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Moves parameters into one buffer.

    Args:
        tensors: of one type; each becomes a view in place.

    Returns:
        the buffer (W,), and the parameters in their order there: each begins at a multiple of
        the power of two in its size, as those with the largest come first.
    """
    order = sorted(tensors.values(), key=lambda one: -min(_ALIGNED, one.numel() & -one.numel()))
    buffer = torch.cat([one.detach().flatten() for one in order])
    pieces = buffer.split([one.numel() for one in order])
    for one, piece in zip(order, pieces, strict=True):
        one.data = piece.view_as(one)
    return buffer, order


def joined(order: Sequence[Tensor], values: Sequence[Tensor | None], out: Tensor) -> None:
    """Writes values shaped as the parameters into a buffer (W,), 0 for None; does not sync."""
    pairs = zip(order, values, strict=True)
    parts = [torch.zeros_like(held) if value is None else value for held, value in pairs]
    torch.cat([part.flatten() for part in parts], out=out)
