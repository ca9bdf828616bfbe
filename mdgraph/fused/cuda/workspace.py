"""LaunchPlan: block sizes and buffers for one state and one capacity of its list."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from weakref import ReferenceType, ref

import torch
import triton
from torch import Tensor

from mdgraph.fused.cuda.repulsion import BoundRepulsion
from mdgraph.fused.cuda.weights import NetworkWeights, SplitFP16, TensorNet2Model
from mdgraph.gpu.launch import launching_ahead
from mdgraph.neighbors import NeighborRows
from mdgraph.state import State

TILE = 16
"""Atoms of a program in kernels on atoms: the smallest tile of tensor cores."""


@dataclass(frozen=True)
class Tiles:
    """Atoms in tiles of one element each, for kernels whose weights depend on the element.

    Attributes:
        members: (tiles, atoms of a tile) int32, indices of atoms, -1 for empty places.
        elements: (tiles,) int32, index of the element among those present.
    """

    members: Tensor
    elements: Tensor


def tiles_of(kinds: Tensor, elements: int, size: int) -> Tiles:
    """Sorts atoms into tiles of `size` atoms of one element each, on the device; does not sync.

    The number of tiles depends on the numbers of atoms and elements alone; the last may be empty.
    """
    count, device = len(kinds), kinds.device
    atoms = kinds.argsort(stable=True)
    own = kinds[atoms].to(torch.int64)
    number = (own[:, None] == torch.arange(elements, device=device)).sum(0)
    ends = ((number + size - 1) // size).cumsum(0)
    firsts = torch.cat([ends.new_zeros(1), ends[:-1]])
    within = torch.arange(count, device=device) - (number.cumsum(0) - number)[own]
    members = torch.full((count // size + elements, size), -1, dtype=torch.int32, device=device)
    members.view(-1)[firsts[own] * size + within] = atoms.to(torch.int32)
    tiles = torch.arange(len(members), device=device)
    owners = torch.searchsorted(ends, tiles, right=True).to(torch.int32)
    return Tiles(members, torch.where(tiles < ends[-1], owners, 0))


class Workspace:
    """Intermediate buffers of a network, allocated once.

    A state has R rows. The first N are evaluated: all of them, or a domain's own atoms, and the
    others then hold features and edges alone, with no derivatives in their edges.

    Buffers are reused, which halves the memory: a gradient overwrites the quantity it belongs to,
    and `last` and `work` serve several purposes, in this order.

    `last`: the normalised product of each layer; buffers of the readout; temporary buffers of the
    adjoints. `work`: the normalised input features of the last layer; the gradient of the
    features of each layer.

    Stage 0 comes after the embedding, stage l after layer l. Where features are rounded, those but
    `embedded`, `inputs` and `work` are in float16, as are their gradients.

    Attributes:
        edges: (R,) int32, edges of each row.
        groups: (R, E + 1) int32, first edge to neighbors of each element, and their number.
        pair: (R, K) int64, neighbor and interval of each edge; see `paired`.
        slot: (R, K) int32, of each edge.
        offset: (R, K), distance from the centre of its interval, A.
        unit: (R, K, 4), unit vector and 1/d.
        central: (N, strips, K), derivatives of the energy by distance.
        gradient: (R, K, 3), derivatives by pair vector, in slots of the list; in the last `mixed`
            where it has room and all rows are evaluated.
        moments: (N, 9, Q), at the end their gradient.
        embedded, ungated: (N, 9, F), the embedding before its mixing, and before its gate.
        squares: (N, F), of `embedded`.
        gate1, gate2: (N, 2F), (N, 3F), z1 and z2 of the gate.
        inputs: (N, 9, F) for each layer, normalised features; that of the last layer is `work`.
        mixed, messages, changes: (R, 9, F), (R, 9, F) and (N, 9, F) for each layer; Y, M and C, the
            last two later their gradients.
        last, work: (N, 9, F), see above.
        invariants: (N, 3F), layer norm of t of the last stage, then its gradient; in `last`.
        linear: (N, F), z0 of the readout; in `last`.
        for_norm: (N, F), gradient of the normalised squares; in `work`.
        hidden: (N, W) for each hidden layer of the readout.
    """

    def __init__(
        self,
        state: State,
        pairs: NeighborRows,
        atoms: int,
        dtype: torch.dtype,
        rounded: bool,
        channels: int,
        layers: int,
        functions: int,
        strips: int,
        hidden: list[int],
    ) -> None:
        rows, slots = pairs.index.shape
        device = state.device

        def empty(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        def integers(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        def whole() -> Tensor:
            return empty(atoms, 9, channels)

        def features(count: int = atoms) -> Tensor:
            return empty(count, 9, channels, dtype=torch.float16 if rounded else dtype)

        def numbers_in(place: Tensor) -> Tensor:
            count = place.nbytes // dtype.itemsize
            return place.flatten().view(torch.uint8)[: count * dtype.itemsize].view(dtype)

        self.edges = integers(rows)
        self.groups = integers(rows, len(state.elements) + 1)
        self.pair = torch.zeros(rows, slots, dtype=torch.int64, device=device)
        self.slot = integers(rows, slots)
        self.offset = empty(rows, slots)
        self.unit = empty(rows, slots, 4)
        self.central = empty(atoms, strips, slots)
        self.embedded, self.ungated = whole(), features()
        self.squares = empty(atoms, channels)
        self.gate1, self.gate2 = empty(atoms, 2 * channels), empty(atoms, 3 * channels)
        self.work, last = whole(), whole().flatten()
        self.last = last.view(self.ungated.dtype)[: last.numel()].view(self.ungated.shape)
        self.inputs = [*(whole() for _ in range(layers - 1)), self.work]
        self.mixed = [features(rows) for _ in range(layers)]
        self.messages = [features(rows) for _ in range(layers)]
        self.changes = [features() for _ in range(layers)]
        # Gradients of pairs come when Y is read no more; those of rows of others stay zero.
        place = numbers_in(self.mixed[-1]) if layers > 0 else empty(0)
        if rows > atoms or len(place) < rows * slots * 3:
            place = torch.zeros(rows * slots * 3, dtype=dtype, device=device)
        self.gradient = place[: rows * slots * 3].view(rows, slots, 3)
        # Moments are used before and after the layers, so they share the first messages' memory.
        place = numbers_in(self.messages[0]) if layers > 0 else empty(0)
        if len(place) < atoms * 9 * functions:
            place = empty(atoms * 9 * functions)
        self.moments = place[: atoms * 9 * functions].view(atoms, 9, functions)
        self.for_norm = self.work.flatten()[: atoms * channels].view(atoms, channels)
        own, linear, rest = last.split([atoms * channels * part for part in (3, 1, 5)])
        self.invariants = own.view(atoms, 3 * channels)
        self.linear = linear.view(atoms, channels)
        rest = rest if atoms * sum(hidden) <= len(rest) else empty(atoms * sum(hidden))
        pieces = rest[: atoms * sum(hidden)].split([atoms * width for width in hidden])
        self.hidden = [
            piece.view(atoms, width) for piece, width in zip(pieces, hidden, strict=True)
        ]
        self._layers = layers

    def counts(self, stage: int) -> bool:
        """Whether the readout takes the invariants of a stage: only those of the last one."""
        return stage == self._layers


def far_slots(far: NeighborRows | None) -> int:
    """Capacity of the Coulomb list; 0 without that list."""
    return 0 if far is None else far.capacity


def _halves_in(place: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Two matrices of float16 in a buffer of float32, or twice a part of one of float64.

    Args:
        place: (P, W).
        width: columns of the matrices.
    """
    rows = len(place)
    if place.dtype == torch.float64:
        whole = place.flatten()[: rows * width].view(rows, width)
        return whole, whole
    numbers = place.flatten().view(torch.float16)[: 2 * rows * width].view(2, rows, width)
    return numbers[0], numbers[1]


_ALWAYS: Final = 4096
"""Edges for which there is room in any case, 10 MB at 128 channels: all pairs of few atoms."""

TURNS_FROM: Final = 8192
"""From this many atoms on the edge networks of TensorNet2's layers share their buffers."""

_EDGE_MARGIN: Final = 1.1
"""Room for edges over those that there are: their sum varies less than the longest row."""


def _edge_room(pairs: NeighborRows, own: int, wanted: int) -> int:
    """P, for how many edges there is to be room; syncs.

    Args:
        pairs: the list, built.
        own: 1 if an atom sends a message to itself, else 0.
        wanted: most edges that were met; 0 if not known.
    """
    atoms, slots = pairs.index.shape
    found = max(wanted, int(pairs.count.sum()) + own * atoms)
    return min(atoms * (slots + own), max(_ALWAYS, math.ceil(_EDGE_MARGIN * found)))


_PART: Final = 4096
"""Numbers that a program which sums charges over a part of a system takes."""


def atoms_of_a_part(state: State, channels: int) -> int:
    """Atoms of which a program sums the charges: a power of two, all of a small system."""
    largest = triton.next_power_of_2(state.grouping.largest)
    return int(min(max(1, _PART // triton.next_power_of_2(channels)), largest))


def charge_parts(state: State, channels: int) -> int:
    """Parts of the largest system, over each of which a program sums charges."""
    return int(triton.cdiv(state.grouping.largest, atoms_of_a_part(state, channels)))


class TensorNet2Workspace:
    """Intermediate buffers of TensorNet2's charges and edge networks, allocated once.

    There is room for P edges, each of 28 bytes and 5F numbers: 2.5 KB at 128 channels. Layers
    take turns from 8,192 atoms on, so the adjoint of all but the last computes them again; of
    fewer atoms each layer has buffers of its own. P is a tenth more than
    there are pairs in the list at first, and no more than slots; where edges outgrow it, `most`
    is larger than P, the evaluation is to be repeated, and `wanted` says for how many.

    Attributes:
        number: (N, K) int32, number of the edge at each slot, within its row.
        first: (N + 1,) int32, first edge of each row; the last entry is the number of edges.
        count: (1,) int32, the number of edges, or P if there are more.
        places: P.
        most: (1,) int32, most edges until they outgrew P.
        wanted: for how many edges there must be room; 0 if P is enough.
        source, target, back, interval: (P,) int32, see `packing_kernel`.
        offset, window, window_slope: (P,).
        apart: whether layers have buffers of their own; else those of the next five are the same.
        terms: (N, 2F) for each layer, terms of charges in its edge network.
        coefficients: (P, 3F) for each layer, a3, then its gradient.
        middle: (P, 2F) for each layer, a2, then its gradient.
        activated: halves of act(a1) (P, F) for each layer, in `coefficients`; twice the same in
            float64.
        for_first: (P, F) for each layer, da1, in `coefficients`.
        for_terms: (N, 2F), gradient of a layer's `terms`.
        invariants: (N, 3F), layer norm of t' of a stage, from which it predicts charges, later its
            gradient.
        hidden: (N, F), (N, F), (N, 2C) for each stage, outputs of the layers of its prediction,
            then their gradients.
        factors: (S, 2, C) float64 for each stage, see `equilibration_kernel`.
        sums: (S, parts, 2, C) float64, sums of charges over parts of systems.
        charges: (stages, N, C).
        by_coulomb: (stages, N, C), gradient of the Coulomb energy by the charges.
        by_edges: (N, C), gradient by a stage's charges through the edge network.
        far_slot, far_neighbor, far_value, far_product: (N, K') for pairs of the Coulomb list
            within its cutoff; K' is the capacity of that list. See `coulomb`.
        far_found: (N,) int32, number of these pairs.
    """

    def __init__(
        self,
        model: TensorNet2Model,
        state: State,
        pairs: NeighborRows,
        far: NeighborRows | None,
        dtype: torch.dtype,
        channels: int,
        wanted: int,
    ) -> None:
        atoms, slots = pairs.index.shape
        device = pairs.index.device
        places = self.places = _edge_room(pairs, model.own, wanted)
        self.wanted = 0
        stages = range(len(model.predictions))
        charges = model.channels

        def empty(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        def integers(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        self.number = integers(atoms, slots)
        self.first = integers(atoms + 1)
        self.count = self.first[atoms:]
        self.most = integers(1)
        self.source, self.target = integers(places), integers(places)
        self.back, self.interval = integers(places), integers(places)
        self.offset, self.window = empty(places), empty(places)
        self.window_slope = empty(places)
        layers = len(model.networks)
        self.apart = atoms < TURNS_FROM

        def layerwise(*shape: int) -> list[Tensor]:
            buffers = [empty(*shape) for _ in range(layers if self.apart else min(1, layers))]
            return buffers if self.apart else buffers * layers

        self.for_terms = empty(atoms, 2 * channels)
        self.terms = layerwise(atoms, 2 * channels)
        self.coefficients = layerwise(places, 3 * channels)
        self.middle = layerwise(places, 2 * channels)
        self.activated = [_halves_in(place, channels) for place in self.coefficients]
        self.for_first = [
            place.flatten()[: places * channels].view(places, channels)
            for place in self.coefficients
        ]
        self.invariants = empty(atoms, 3 * channels)
        widths = (channels, channels, 2 * charges)
        self.hidden = [tuple(empty(atoms, width) for width in widths) for _ in stages]
        systems = state.grouping.systems
        self.factors = [empty(systems, 2, charges, dtype=torch.float64) for _ in stages]
        parts = charge_parts(state, charges)
        self.sums = empty(systems, parts, 2, charges, dtype=torch.float64)
        self.charges = empty(len(stages), atoms, charges)
        self.by_coulomb = empty(len(stages), atoms, charges)
        self.by_edges = empty(atoms, charges)
        others = far_slots(far)
        self.far_slot, self.far_neighbor = integers(atoms, others), integers(atoms, others)
        self.far_value, self.far_product = empty(atoms, others), empty(atoms, others)
        self.far_found = integers(atoms)


@dataclass(frozen=True)
class Blocks:
    """Block sizes of a kernel.

    Attributes:
        atoms: atoms of a program; below a tile of tensor cores, where there is a choice, products
            are made by multiply-adds, see `few`.
        step: channels of the input, or slots, that a program loads at a time.
        strip: channels of the result of a program.
        warps: warps of a program.
        registers: limit for a thread; None lets the compiler choose.
        stages: of the pipeline that loads the operands of a matrix product.
        masked: whether slots beyond an atom's last edge are left out by masks, which costs
            instructions, or read for nothing; of mixing, whether masks stay where none is needed,
            as the compiler takes fewer registers for one strip with them, for two without.
        paired: whether a program takes two strips, which share what it reads of the rows.
    """

    atoms: int
    step: int
    strip: int
    warps: int
    registers: int | None = None
    stages: int = 1
    masked: bool = True
    paired: bool = False


@dataclass(frozen=True)
class Shapes:
    """Block sizes of all kernels, chosen once for a network and a number of atoms.

    Attributes:
        padded: number of channels, rounded up to a power of two.
        mixing: mixing of channels.
        resident: the same by few programs that keep matrices, where their shared memory allows two
            on a multiprocessor; None for few atoms.
        contraction: contraction of moments.
        gate: first layer of the embedding's gate.
        dense: dense layers on atoms.
        charges: dense layers on atoms that predict charges, in float32's own products.
        edges, edges_adjoint, edges_middle: middle and last layer on edges, and the adjoints of the
            last and the middle one.
        head: last hidden layer of the readout with energies and the way back, of few atoms.
        layerless: all between moments and their gradient in a network without layers; `step` in
            functions.
        readout: dense layers of the readout. Tensor cores truncate sums instead of rounding
            them, so these products take few channels at a time.
        moments, gradients: sums over edges in the embedding, and their adjoint.
        both_ends: forces of a network without layers.
        message, adjoint: messages with weights from a table, and their adjoint.
        weighed, weighed_adjoint: messages with weights of edges, and their adjoint.
        first_adjoint: sums of the adjoint of the first layer on edges, in the same strips.
        alternating: whether successive programs of messages take different strips.
        halves: whether messages multiply in float16, two edges at a time.
        gate_first: whether the first layer of the embedding's gate, and the first on the way back,
            run before mixing instead of beside it.
        rows, across, warps: atoms, channels and warps of a program of elementwise kernels.
    """

    padded: int
    mixing: Blocks
    resident: Blocks | None
    contraction: Blocks
    gate: Blocks
    dense: Blocks
    charges: Blocks
    edges: Blocks
    edges_adjoint: Blocks
    edges_middle: Blocks
    readout: Blocks
    head: Blocks
    layerless: Blocks
    moments: Blocks
    gradients: Blocks
    both_ends: Blocks
    message: Blocks
    adjoint: Blocks
    weighed: Blocks
    weighed_adjoint: Blocks
    first_adjoint: Blocks
    alternating: bool
    halves: bool
    gate_first: bool
    rows: int
    across: int
    warps: int


def padded(width: int) -> int:
    """The width rounded up to a power of two, at least a tile of tensor cores."""
    return max(TILE, triton.next_power_of_2(width))


def shapes(channels: int, atoms: int, rounded: bool, double: bool) -> Shapes:
    """Block sizes that were fastest on an H200; few atoms need many small programs.

    Args:
        channels: F.
        atoms: N.
        rounded: whether messages read float16, so twice as many channels fit into the same bytes.
        double: whether numbers are float64, of which half as many fit into shared memory.
    """
    whole = padded(channels)
    strip = min(32, whole)
    fewer = None if double else 80
    resident = None
    if atoms < 256:
        product = mixing = Blocks(TILE, strip, strip, 2, stages=3)
        dense = Blocks(TILE, min(128, whole), strip, 4, stages=3)
        readout = Blocks(TILE, TILE, strip, 2, stages=4)
        edges = Blocks(32, strip, min(64, whole), 4, stages=3)
        message, adjoint = Blocks(1, 8, strip, 1), Blocks(1, 8, min(16, whole), 1, masked=False)
    elif atoms < 2048:
        product = mixing = Blocks(64, strip, min(64, whole), 4, stages=3)
        if atoms >= 512 and not double:
            mixing = replace(product, strip=min(128, whole))
        dense = Blocks(TILE, min(64, whole), min(128, whole), 4, stages=3)
        readout = Blocks(TILE, TILE, strip, 1, stages=4)
        edges = Blocks(64, strip, min(64, whole), 4, stages=3)
        message, adjoint = Blocks(4, 2, strip, 4, 96), Blocks(1, 2, strip, 1, fewer, masked=False)
    else:
        product = mixing = edges = Blocks(64, strip, min(64 if double else 128, whole), 4, stages=3)
        if whole >= 128 and not (double or rounded):
            mixing = Blocks(64, strip, 64, 4, 128, stages=2, masked=False, paired=True)
            if atoms >= 8192 and channels == 128:
                resident = Blocks(64, strip, 64, 4, stages=3)
        dense = Blocks(64, strip, min(64, whole), 4, stages=3)
        readout = Blocks(TILE, TILE, min(64, whole), 2, stages=4)
        if atoms >= 8192:
            dense = Blocks(64, strip, min(64 if double else 128, whole), 4, stages=3)
            readout = replace(dense, step=TILE, stages=4)
        message = Blocks(8, 1, strip, 8, registers=64)
        if not double:
            message = Blocks(4, 1, strip, 4, registers=64, masked=False)
            if atoms >= 8192:
                message = Blocks(1, 2, strip, 1, masked=False)
        adjoint = Blocks(1, 2, strip, 1, fewer, masked=False)
        if rounded:
            wide = min(64, whole)
            message = adjoint = Blocks(1, 2, wide, 1, 128, masked=False)
    weighed, weighed_adjoint = message, replace(adjoint, registers=None)
    first_adjoint = replace(weighed_adjoint, step=max(4, weighed_adjoint.step))
    charges = replace(dense, step=TILE, strip=min(64, dense.strip))
    last, middle = edges, edges
    if atoms >= 2048:
        wide = min(64, whole)
        weighed, weighed_adjoint = Blocks(1, 2, strip, 1), Blocks(1, 1, wide, 1)
        first_adjoint = Blocks(1, 4, wide, 2)
        middle = replace(edges, strip=wide)
        if not double:
            # With 170 registers two programs fit a multiprocessor, with 168 three.
            middle, last = replace(middle, registers=128), replace(edges, registers=168)
            weighed_adjoint = replace(weighed_adjoint, registers=96)
        if atoms < 8192:
            charges = Blocks(2 * TILE, TILE, strip, 4, stages=4)
    few = atoms < 2048
    gate = Blocks(TILE, whole, min(64, 2 * whole), 8)
    if not few and whole <= (64 if double else 128):
        gate = Blocks(32, whole, 2 * whole, 8)
    head = Blocks(TILE, TILE, whole, 4)
    if atoms < 256 and whole <= 128 and not double:
        head = Blocks(1, whole, whole, 4)
        if atoms < 64:
            dense = readout = Blocks(1, whole, strip, 4)
    return Shapes(
        padded=whole,
        mixing=mixing,
        resident=resident,
        contraction=product,
        gate=gate,
        dense=dense,
        charges=charges,
        edges=edges,
        edges_adjoint=last,
        edges_middle=middle,
        readout=readout,
        head=head,
        layerless=Blocks(1, 32, whole, 1),
        moments=Blocks(1, 8 if 256 <= atoms < 2048 else 16, whole, 1),
        gradients=Blocks(1, 32, whole, 4) if few else Blocks(1, 4, whole, 1),
        both_ends=Blocks(1, 8 if few else 4, whole, 1),
        message=message,
        adjoint=adjoint,
        weighed=weighed,
        weighed_adjoint=weighed_adjoint,
        first_adjoint=first_adjoint,
        alternating=few,
        halves=rounded and not few,
        gate_first=not few,
        rows=1,
        across=min(128, whole),
        warps=4 if few else 2,
    )


@dataclass(frozen=True)
class LaunchPlan:
    """Everything that launches need for one state and one capacity of its list.

    Attributes:
        model: weights of the network.
        owner: weak reference to the state, which owns this plan.
        atoms: N, the first rows of the state, which are evaluated: all, or a domain's own.
        slots: capacity of the list.
        shapes: block sizes.
        strips: number of strips of channels over which the messages' adjoint sums.
        tiles: atoms by element.
        contraction, contraction_transposed: (E, Q, 3, F) and (E, 3, F, Q).
        own: (E, F), self interaction of the embedding.
        charge: (R,), factor of products; written with the edges if it is not 1.
        grid: intervals of the tables, as `edges_kernel` reads them.
        launch: options of every launch.
        buffers: intermediate buffers.
        charges: intermediate buffers of TensorNet2, else None.
        repulsions: repulsions with their buffers.
    """

    model: NetworkWeights
    owner: ReferenceType[State]
    atoms: int
    slots: int
    shapes: Shapes
    strips: int
    tiles: Tiles
    contraction: SplitFP16
    contraction_transposed: SplitFP16
    own: Tensor
    charge: Tensor
    grid: Tensor
    launch: dict[str, bool]
    buffers: Workspace = field(repr=False)
    charges: TensorNet2Workspace | None = field(repr=False)
    repulsions: tuple[BoundRepulsion, ...]

    @property
    def edges_wanted(self) -> int:
        """For how many edges the next plan needs room at least; 0 without charges."""
        return 0 if self.charges is None else max(self.charges.wanted, int(self.charges.most))

    def fits(
        self,
        atoms: int,
        pairs: NeighborRows,
        far: NeighborRows | None,
        close: Sequence[NeighborRows],
    ) -> bool:
        """Whether the buffers have room for so many atoms and the capacities of these lists."""
        others = 0 if self.charges is None else self.charges.far_slot.shape[1]
        if (self.atoms, self.slots, others) != (atoms, pairs.capacity, far_slots(far)):
            return False
        if self.charges is not None and self.charges.wanted > self.charges.places:
            return False
        return all(
            repulsion.fits(neighbors)
            for repulsion, neighbors in zip(self.repulsions, close, strict=True)
        )

    @property
    def state(self) -> State:
        """The state to evaluate."""
        state = self.owner()
        assert state is not None
        return state

    @property
    def rows(self) -> int:
        """R, number of rows."""
        return len(self.state.numbers)

    @property
    def channels(self) -> int:
        """F, number of channels."""
        return self.model.config.channels

    @property
    def layers(self) -> int:
        """L, number of layers."""
        return self.model.config.layers

    @property
    def elements(self) -> int:
        """E, number of elements present."""
        return len(self.state.elements)

    @property
    def tensornet2_model(self) -> TensorNet2Model:
        """Weights for charges; only for TensorNet2."""
        assert self.model.charged is not None
        return self.model.charged

    @property
    def charged(self) -> TensorNet2Workspace:
        """Buffers for charges; only for TensorNet2."""
        assert self.charges is not None
        return self.charges

    def predicts(self, stage: int) -> bool:
        """Whether charges are predicted after the embedding (stage 0) or layer `stage`."""
        charged = self.model.charged
        return charged is not None and stage < len(charged.predictions)

    @property
    def charged_invariants(self) -> Tensor:
        """What charges are predicted from, later its gradient; a placeholder without them."""
        return self.buffers.last if self.charges is None else self.charges.invariants


def bound_to(
    model: NetworkWeights,
    rows: Tensor,
    state: State,
    atoms: int,
    pairs: NeighborRows,
    far: NeighborRows | None,
    close: Sequence[NeighborRows],
    edges: int = 0,
) -> LaunchPlan:
    """Allocates for a state and its lists; syncs.

    Args:
        model: weights of the network.
        rows: (119,) int64, row of each atomic number in the species tables.
        state: the state to evaluate.
        atoms: number of rows that are evaluated.
        pairs: neighbor list of the network.
        far: neighbor list of the Coulomb energy; None without that energy.
        close: neighbor list of each repulsion.
        edges: for how many edges TensorNet2 needs room at least.
    """
    config, device, grid = model.config, state.device, model.grid
    own_rows = rows.index_select(0, state.elements)
    sizes = shapes(config.channels, atoms, model.rounded, model.dtype == torch.float64)
    tile = (sizes.layerless if model.layerless else sizes.contraction).atoms
    tiles = tiles_of(state.kinds[:atoms], len(state.elements), tile)
    contraction = model.contraction(own_rows)
    adjoint = sizes.adjoint if model.charged is None else sizes.weighed_adjoint
    strips = triton.cdiv(config.channels, adjoint.strip)
    places = [grid.start, grid.cutoff, grid.zone_width, grid.origin]
    zones = zip(grid.first().tolist(), grid.counts, model.steps, strict=True)
    for first, count, step in zones:
        places += [first, count, grid.zone_width / count, step]
    return LaunchPlan(
        model=model,
        owner=ref(state),
        atoms=atoms,
        slots=pairs.capacity,
        shapes=sizes,
        strips=strips,
        tiles=tiles,
        contraction=SplitFP16.of(contraction),
        contraction_transposed=SplitFP16.of(contraction.permute(0, 2, 3, 1)),
        own=model.embedding.self_term(own_rows).contiguous(),
        charge=torch.ones(len(state.numbers), dtype=model.dtype, device=device),
        grid=torch.tensor(places, dtype=torch.float64, device=device),
        launch=launching_ahead(device, atoms),
        buffers=Workspace(
            state,
            pairs,
            atoms,
            model.dtype,
            rounded=model.rounded,
            channels=config.channels,
            layers=config.layers,
            functions=len(own_rows) * model.functions,
            strips=strips,
            hidden=[len(layer.bias) for layer in model.head.hidden],
        ),
        charges=(
            TensorNet2Workspace(
                model.charged, state, pairs, far, model.dtype, config.channels, edges
            )
            if model.charged is not None
            else None
        ),
        repulsions=tuple(
            BoundRepulsion.to(repulsion, own_rows, neighbors)
            for repulsion, neighbors in zip(model.repulsions, close, strict=True)
        ),
    )


def _across(bound: LaunchPlan, stage: int | None) -> int:
    """Channels of a program: all where a layer norm follows."""
    s = bound.shapes
    normed = stage is not None and (bound.buffers.counts(stage) or bound.predicts(stage))
    return s.padded if normed else s.across


def elementwise(bound: LaunchPlan, stage: int | None = None) -> tuple[int, int]:
    """Grid of an elementwise kernel, over atoms and channels.

    Args:
        bound: plan of the launches.
        stage: whose invariants the kernel takes, if any.
    """
    across = _across(bound, stage)
    return triton.cdiv(bound.atoms, bound.shapes.rows), triton.cdiv(bound.channels, across)


def sizes(bound: LaunchPlan, stage: int | None = None) -> dict[str, Any]:
    """Arguments of every elementwise launch; see `elementwise`."""
    s, across = bound.shapes, _across(bound, stage)
    return {
        "F": bound.channels,
        "A": s.rows,
        "BF": across,
        "num_warps": min(4, s.warps * across // s.across),
        **bound.launch,
    }
