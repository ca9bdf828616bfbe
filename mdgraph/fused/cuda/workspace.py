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
    """Sorts atoms into tiles of a size; reads the device."""
    members, owners = [], []
    kinds = kinds.cpu()
    for element in range(elements):
        atoms = (kinds == element).nonzero().flatten().to(torch.int32)
        count = -(-len(atoms) // size)
        padded = torch.full((count * size,), -1, dtype=torch.int32)
        padded[: len(atoms)] = atoms
        members.append(padded.view(count, size))
        owners.append(torch.full((count,), element, dtype=torch.int32))
    return Tiles(torch.cat(members), torch.cat(owners))


class Workspace:
    """Everything a network writes between its input and its result; allocated once.

    What is dead by then is written over, which halves the memory: a gradient takes the place
    of what it belongs to, and `last` and `work` serve several stages, in this order.

    `last`: the normalised product of each layer; the features that the readout takes; their
    gradient, and then that of the features of each layer. `work`: the normalised features
    that the last layer takes; what the readout needs; what an adjoint needs for a moment.

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
        mixed, messages, changes: (N, 9, F) for each layer; Y, M and C.
        last, work: (N, 9, F), see above.
        linear, invariants: (N, F), (N, 3F), z0 of the readout, and the gradient of what it
            is made of; in `work`.
        for_norm: (N, F), gradient of the normalised squares; in `last`.
        hidden: (N, W) for each hidden layer of the readout.
    """

    def __init__(
        self,
        state: State,
        pairs: NeighborList,
        kind: torch.dtype,
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
        self.changes = [features() for _ in range(layers)]
        # Used before the first layer and after it: its messages' place will do, if it is enough.
        fits = layers > 0 and functions <= channels
        place = self.messages[0].flatten() if fits else empty(atoms * 9 * functions)
        self.moments = place[: atoms * 9 * functions].view(atoms, 9, functions)
        self.for_norm = self.last.flatten()[: atoms * channels].view(atoms, channels)
        flat = self.work.flatten()
        self.linear = flat[: atoms * channels].view(atoms, channels)
        flat = flat[atoms * channels :]
        self.invariants = flat[: 3 * atoms * channels].view(atoms, 3 * channels)
        flat = flat[3 * atoms * channels :]
        flat = flat if atoms * sum(hidden) <= len(flat) else empty(atoms * sum(hidden))
        pieces = flat[: atoms * sum(hidden)].split([atoms * width for width in hidden])
        self.hidden = [
            piece.view(atoms, width) for piece, width in zip(pieces, hidden, strict=True)
        ]
