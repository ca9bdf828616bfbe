"""Bins: boxes in fractional coordinates, numbered along a space-filling curve."""

from typing import Final

import torch
from torch import Tensor

MOST_BINS: Final = 128
"""Bins along one direction; a power of two."""


class Bins:
    """Numbers the bins of S systems, one system after the other, each along a Morton curve.

    Bins that are close in number are close in space, so atoms sorted by bin share their
    neighbors' data in a cache.

    Attributes:
        shape: (S, 3) int64, bins along each direction.
        first: (S,) int64, bins of the systems before.
        curve: (bins,) int64, number of the bin at first + (p0 * shape1 + p1) * shape2 + p2.
        places: (bins, 3) int64, place (p0, p1, p2) of each bin within its system.
        system: (bins,) int64, system of each bin.
    """

    def __init__(self, shape: Tensor) -> None:
        device = shape.device
        total = shape.prod(-1)
        self.shape = shape
        self.first = total.cumsum(0) - total
        system = torch.repeat_interleave(torch.arange(len(shape), device=device), total)
        _, width, depth = shape[system].unbind(-1)
        inside = torch.arange(len(system), device=device) - self.first[system]
        places = [inside // (width * depth), inside // depth % width, inside % depth]
        place = torch.stack(places, dim=-1)
        along = (system * MOST_BINS**3 + _morton(place)).argsort()
        self.curve = torch.empty_like(along).scatter_(
            0, along, torch.arange(len(along), device=device)
        )
        self.places = place[along]
        self.system = system[along]

    def __len__(self) -> int:
        return len(self.curve)

    def number(self, place: Tensor, system: Tensor) -> Tensor:
        """Numbers (...) of the bins at places (..., 3) of systems (...)."""
        shape = self.shape[system]
        inside = (place[..., 0] * shape[..., 1] + place[..., 1]) * shape[..., 2] + place[..., 2]
        return self.curve[inside + self.first[system]]


def _morton(place: Tensor) -> Tensor:
    """Interleaved bits of places (..., 3) below MOST_BINS, to (...)."""
    code = torch.zeros_like(place[..., 0])
    for bit in range(MOST_BINS.bit_length() - 1):
        for axis in range(3):
            code |= (place[..., axis] >> bit & 1) << (3 * bit + axis)
    return code
