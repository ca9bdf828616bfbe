"""Buffers of a network with charges, beside those of its `Workspace`."""

import torch
from torch import Tensor

from mdgraph.fused.cuda.charged_model import ChargedModel
from mdgraph.neighbors import NeighborList


def far_slots(far: NeighborList | None) -> int:
    """Slots of the Coulomb list; 0 without one."""
    return 0 if far is None else far.capacity


class ChargedWorkspace:
    """What charges and networks on edges write; allocated once.

    There are P = N (K + 1) places for edges (N K where an atom sends no message to itself),
    each of 28 bytes and, for each layer, 6F numbers: 3 KB at 128 channels. Of a row's places
    no more than it has edges are touched.

    Attributes:
        number: (N, K) int32, number of the edge at each slot.
        first: (N + 1,) int32, where each row begins; the last is the number of edges.
        count: (1,) int32, that number.
        source, target, back, interval: (P,) int32, see `packing`.
        offset, window, window_slope: (P,).
        terms: (N, 2F), what charges add in a layer's edge network; then their gradient.
        networks: (P, F), (P, 2F), (P, 3F) for each layer: a1, a2 and a3, then their gradients.
        invariants: (N, 3F) for each stage: what its charges are predicted from.
        for_invariants: (N, 3F), those of a stage normalised, and later their gradient.
        hidden: (N, F), (N, F), (N, 2C) for each stage, of its prediction; then their gradients.
        factors: (S, 2, C) float64 for each stage, see `equilibration_kernel`.
        charges: (stages, N, C).
        by_coulomb: (stages, N, C), gradient of the charges.
        by_edges: (N, C), gradient of a stage's charges through the edge network.
        far_slot, far_neighbor, far_value, far_product, far_found: (N, K') of each pair of the
            Coulomb list within its cutoff, and (N,); see `coulomb`; K' is its capacity.
    """

    def __init__(
        self,
        model: ChargedModel,
        pairs: NeighborList,
        far: NeighborList | None,
        kind: torch.dtype,
        channels: int,
    ) -> None:
        atoms, slots = pairs.index.shape
        device = pairs.index.device
        places = atoms * (slots + model.own)
        stages = range(len(model.predictions))
        charges = model.channels

        def empty(*shape: int, dtype: torch.dtype = kind) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        def integers(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        self.number = integers(atoms, slots)
        self.first = integers(atoms + 1)
        self.count = self.first[atoms:]
        self.source, self.target = integers(places), integers(places)
        self.back, self.interval = integers(places), integers(places)
        self.offset, self.window = empty(places), empty(places)
        self.window_slope = empty(places)
        self.terms = empty(atoms, 2 * channels)
        self.networks = [
            tuple(empty(places, width * channels) for width in (1, 2, 3)) for _ in model.networks
        ]
        self.invariants = [empty(atoms, 3 * channels) for _ in stages]
        self.for_invariants = empty(atoms, 3 * channels)
        widths = (channels, channels, 2 * charges)
        self.hidden = [tuple(empty(atoms, width) for width in widths) for _ in stages]
        systems = pairs.grouping.systems
        self.factors = [empty(systems, 2, charges, dtype=torch.float64) for _ in stages]
        self.charges = empty(len(stages), atoms, charges)
        self.by_coulomb = empty(len(stages), atoms, charges)
        self.by_edges = empty(atoms, charges)
        others = far_slots(far)
        self.far_slot, self.far_neighbor = integers(atoms, others), integers(atoms, others)
        self.far_value, self.far_product = empty(atoms, others), empty(atoms, others)
        self.far_found = integers(atoms)
