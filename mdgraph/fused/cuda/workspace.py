"""Buffers of a fused network for one state and one capacity of its list."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mdgraph.neighbors import NeighborList
from mdgraph.state import State

TILE = 16
"""Atoms a program of a kernel on atoms takes: the least that tensor cores do."""


@dataclass(frozen=True)
class Tiles:
    """Atoms in tiles of one element each, for kernels whose weights depend on the element.

    Attributes:
        members: (tiles, atoms a tile) int32, -1 where a tile is not full.
        elements: (tiles,) int32, place among the elements at hand.
    """

    members: Tensor
    elements: Tensor


def tiles_of(kinds: Tensor, elements: int, size: int) -> Tiles:
    """Sorts atoms into tiles of a size; reads the device.

    Their number depends on that of atoms and elements alone: tiles at the end may be empty.
    """
    kinds = kinds.cpu()
    members = torch.full((len(kinds) // size + elements, size), -1, dtype=torch.int32)
    owners = torch.zeros(len(members), dtype=torch.int32)
    first = 0
    for element in range(elements):
        atoms = (kinds == element).nonzero().flatten().to(torch.int32)
        members[first:].view(-1)[: len(atoms)] = atoms
        last = first - (-len(atoms) // size)
        owners[first:last] = element
        first = last
    return Tiles(members, owners)


class Workspace:
    """Everything a network writes between its input and its result; allocated once.

    What is dead by then is written over, which halves the memory: a gradient takes the place
    of what it belongs to, and `last` and `work` serve several stages, in this order.

    `last`: the normalised product of each layer; what the readout needs; what an adjoint needs
    for a moment. `work`: the normalised features that the last layer takes; the gradient of
    the features of each layer.

    Stage 0 comes after the embedding, stage l after layer l.

    Attributes:
        edges: (N,) int32, edges of each row.
        neighbor, species, slot, interval: (N, K) int32, of each edge.
        offset: (N, K), distance from the centre of its interval, A.
        unit: (N, K, 4), unit vector and 1/d.
        central: (N, strips, K), derivatives of the energy by distance.
        gradient: (N, K, 3), derivatives by pair vector, at the slots of the list.
        moments: (N, 9, Q), and at the end their adjoint.
        embedded, ungated: (N, 9, F), the embedding before its mixing, and before its gate.
        squares: (N, F), of `embedded`.
        gate1, gate2: (N, 2F), (N, 3F), z1 and z2 of the gate.
        inputs: (N, 9, F) for each layer, normalised features; the last one is `work`.
        mixed, messages, changes: (N, 9, F) for each layer; Y, M and C. Y is in float16 where
            features are rounded.
        for_messages: (N, 9, F) for each layer, dM, over M; where features are rounded, one in
            bfloat16 for all.
        last, work: (N, 9, F), see above.
        invariants: (N, 3F), t of each stage that `counts`; of the last one in `last`.
        for_invariants: (N, 3F), what the readout makes of them, then their gradient; in `last`.
        linear: (N, F), z0 of the readout; in `last`.
        for_norm: (N, F), gradient of the normalised squares; in `work`.
        hidden: (N, W) for each hidden layer of the readout.
    """

    def __init__(
        self,
        state: State,
        pairs: NeighborList,
        kind: torch.dtype,
        rounded: bool,
        channels: int,
        layers: int,
        functions: int,
        strips: int,
        hidden: list[int],
    ) -> None:
        atoms, slots = pairs.index.shape
        device = state.device

        def empty(*shape: int, dtype: torch.dtype = kind) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        def integers(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        def features() -> Tensor:
            return empty(atoms, 9, channels)

        self.edges = integers(atoms)
        self.neighbor = integers(atoms, slots)
        self.species = integers(atoms, slots)
        self.slot = integers(atoms, slots)
        self.interval = integers(atoms, slots)
        self.offset = empty(atoms, slots)
        self.unit = empty(atoms, slots, 4)
        self.central = empty(atoms, strips, slots)
        self.gradient = empty(atoms, slots, 3)
        self.embedded, self.ungated = features(), features()
        self.squares = empty(atoms, channels)
        self.gate1, self.gate2 = empty(atoms, 2 * channels), empty(atoms, 3 * channels)
        self.last, self.work = features(), features()
        self.inputs = [*(features() for _ in range(layers - 1)), self.work]
        self.mixed = [features() for _ in range(layers)]
        self.messages = [features() for _ in range(layers)]
        self.for_messages = self.messages
        if rounded:
            self.mixed = [one.to(torch.float16) for one in self.mixed]
            self.for_messages = [empty(atoms, 9, channels, dtype=torch.bfloat16)] * layers
        self.changes = [features() for _ in range(layers)]
        # Used before the first layer and after it: its messages' place will do, if it is enough.
        fits = layers > 0 and functions <= channels
        place = self.messages[0].flatten() if fits else empty(atoms * 9 * functions)
        self.moments = place[: atoms * 9 * functions].view(atoms, 9, functions)
        self.for_norm = self.work.flatten()[: atoms * channels].view(atoms, channels)
        own, gradient, linear, rest = self.last.flatten().split(
            [atoms * channels * part for part in (3, 3, 1, 2)]
        )
        self.invariants = [own.view(atoms, 3 * channels)] * (layers + 1)
        self.for_invariants = [gradient.view(atoms, 3 * channels)] * (layers + 1)
        self.linear = linear.view(atoms, channels)
        rest = rest if atoms * sum(hidden) <= len(rest) else empty(atoms * sum(hidden))
        pieces = rest[: atoms * sum(hidden)].split([atoms * width for width in hidden])
        self.hidden = [
            piece.view(atoms, width) for piece, width in zip(pieces, hidden, strict=True)
        ]
        self._layers = layers

    def counts(self, stage: int) -> bool:
        """Whether the invariants of a stage enter the energy by themselves."""
        return stage == self._layers
