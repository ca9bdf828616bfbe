"""What surrounds the atoms: functions of distances and directions that all layers share."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mdgraph.neighbors.pairs import Pairs


@dataclass(frozen=True)
class Edges:
    """Geometry of one block of B slots, in the network's type.

    Attributes:
        index: (N, B) int32, neighbor of each slot.
        radial: (N, B, K + 1), c [phi_k ; 1]; exactly 0 on empty slots and beyond the cutoff.
        angular: (N, B, 9), components of 1 + [r]x + (r r^T - 1/3) for the unit vector r.
    """

    index: Tensor
    radial: Tensor
    angular: Tensor


@dataclass(frozen=True)
class Distances:
    """Functions of some distances, in the network's type.

    Attributes:
        radial: (..., K), phi_k(d).
        window: (...), cutoff function c(d); exactly 0 from the cutoff on.
    """

    radial: Tensor
    window: Tensor

    def windowed(self) -> Tensor:
        """(..., K + 1), c [phi ; 1]."""
        one = torch.ones_like(self.window)[..., None]
        return torch.cat([self.radial, one], dim=-1) * self.window[..., None]


@dataclass(frozen=True)
class Neighborhood:
    """Everything about an atom's surroundings that all layers share.

    Attributes:
        edges: the slots, in blocks.
        distances: of the slots of each block; of every pair once where those are known.
        pairs: the list they came from.
        kinds: (N,) int64, number of each atom's element among those at hand.
        self_radial: (K,), phi_k(0) of the self interaction, or None without one.
        charge_factor: (N, 1, 1), 1 + q/10, or None where the charge does not scale products.
    """

    edges: tuple[Edges, ...]
    distances: tuple[Distances, ...]
    pairs: Pairs
    kinds: Tensor
    self_radial: Tensor | None
    charge_factor: Tensor | None
