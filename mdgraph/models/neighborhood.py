"""What surrounds the atoms: functions of distances and directions that all layers share."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mdgraph.neighbors.pairs import Pairs


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
        distances: of the slots of each block; of every pair once where those are known.
        moments: (N, 9, E, K + 1), sums over the neighbors of each element, see `Embedding`.
        pairs: the list they came from.
        kinds: (N,) int64, number of each atom's element among those at hand.
        self_radial: (K,), phi_k(0) of the self interaction, or None without one.
        charge_factor: (N, 1, 1), 1 + q/10, or None where the charge does not scale products.
    """

    distances: tuple[Distances, ...]
    moments: Tensor
    pairs: Pairs
    kinds: Tensor
    self_radial: Tensor | None
    charge_factor: Tensor | None
