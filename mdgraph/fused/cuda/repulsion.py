"""Launches of the repulsion between nuclei."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from mdgraph.fused.cuda.kernels import repulsion
from mdgraph.fused.network import NetworkResult
from mdgraph.fused.weights import RepulsionWeights
from mdgraph.neighbors import NeighborList
from mdgraph.state import State

WARP = 32
"""Pairs that a program takes at a time."""


@dataclass(frozen=True)
class BoundRepulsion:
    """What belongs to one state and one capacity of the list.

    Attributes:
        weights: of all species.
        constants: (E, E, 4), of the elements at hand.
        slot: (N, K) int32, pairs within reach.
    """

    weights: RepulsionWeights
    constants: Tensor
    slot: Tensor = field(repr=False)

    @classmethod
    def to(cls, weights: RepulsionWeights, rows: Tensor, pairs: NeighborList) -> "BoundRepulsion":
        """Allocates for elements in rows (E,) of the species tables."""
        slot = torch.zeros_like(pairs.index, dtype=torch.int32)
        return cls(weights, weights.of_elements(rows), slot)

    def fits(self, pairs: NeighborList) -> bool:
        """Whether there is room for as many pairs as this list holds."""
        return self.slot.shape[1] == pairs.capacity

    def add(
        self, state: State, pairs: NeighborList, result: NetworkResult, launch: dict[str, bool]
    ) -> None:
        """Adds energies, forces and virials; `launch` holds options of every launch."""
        atoms = len(state.numbers)
        repulsion.repulsion_kernel[(atoms,)](
            state.positions,
            state.cell,
            pairs.wrap,
            state.grouping.index,
            pairs.index,
            pairs.image,
            pairs.count,
            pairs.offsets,
            state.kinds,
            self.constants,
            self.weights.exponentials,
            self.slot,
            result.energies,
            result.forces,
            result.virials,
            pairs.capacity,
            len(state.elements),
            atoms,
            ORDER=self.weights.order,
            WIDTH=WARP,
            num_warps=1,
            **launch,
        )
