"""TensorNet2's edge network on CUDA: packed edges, layers, messages, and their adjoints.

M_i = sum over j of g_ij Y_j with g = act(a3) window. The adjoint of M takes g of the reverse
edges, dY_i = sum over j of g_ji dM_j, and leaves the gradient of a3 in its place. Programs take
atoms and strips of channels as in `messages`.

Row i of the list takes the places from first[i] to first[i + 1]: the message of the atom to
itself where there is one, then its edges in their order. What works on edges works on tiles
of such places, whatever rows they belong to, so neither short rows nor the capacity of the
list cost anything. There is room for so many edges; where more are found, the last rows lose
theirs, and `TensorNet2Workspace.most` says so until the buffers grow.

`edge_layers` computes a3, and the gradient by a1 from that by a3.
"""

import triton
import triton.language as tl

from mdgraph.fused.cuda.charges import predict_adjoint
from mdgraph.fused.cuda.device import activation, interval_in, neighbor_in, polynomials, slope
from mdgraph.fused.cuda.edge_layers import apply_layers, apply_layers_adjoint
from mdgraph.fused.cuda.products import dense, dense_adjoint
from mdgraph.fused.cuda.workspace import LaunchPlan
from mdgraph.gpu.triton_jit import kernel, pdl_wait
from mdgraph.models.kernels.algebra import (
    add,
    dots,
    load,
    normalized,
    product,
    scale,
    store,
    summed,
    weigh,
)
from mdgraph.neighbors import NeighborRows


@kernel
def starts_kernel(
    edges,
    first,
    most,
    atoms,
    places,
    OWN: tl.constexpr,
    WIDTH: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """first[i] = sum over k < i of (edges[k] + OWN), as far as there is room, in one program.

    Args:
        edges: (N,) int32.
        first: (N + 1,) int32, written.
        most: (1,) int32, most edges until there was no room, updated.
        atoms: N.
        places: P, for how many edges there is room; rows beyond lose theirs.
        OWN: 1 where an atom sends a message to itself, else 0.
    """
    pdl_wait(USE_PDL)
    before = 0
    for start in range(0, atoms, WIDTH):
        here = start + tl.arange(0, WIDTH)
        valid = here < atoms
        number = tl.load(edges + here, mask=valid, other=-OWN) + OWN
        ahead = before + tl.cumsum(number, 0) - number
        tl.store(first + here, tl.minimum(ahead, places), mask=valid)
        before += tl.sum(number, 0)
    tl.store(first + atoms, tl.minimum(before, places))
    known = tl.load(most)
    # Where steps without room led to says nothing about how much is needed.
    tl.store(most, tl.where(known > places, known, tl.maximum(before, known)))


@kernel
def numbers_kernel(edges, slot, number, slots, WIDTH: tl.constexpr, USE_PDL: tl.constexpr = False):
    """Number of the edge at each slot of the list that holds one.

    Args:
        edges, slot: as `edges_kernel` wrote them.
        number: (N, K) int32, written where a slot holds an edge.
        slots: K.
    """
    pdl_wait(USE_PDL)
    atom = tl.program_id(0).to(tl.int64)
    found = tl.load(edges + atom)
    for start in range(0, found, WIDTH):
        here = start + tl.arange(0, WIDTH)
        valid = here < found
        where = tl.load(slot + atom * slots + here, mask=valid, other=0)
        tl.store(number + atom * slots + where, here, mask=valid)


@kernel
def packing_kernel(
    first,
    pair,
    slot,
    number,
    reverse,
    offset,
    grid,
    table,
    source,
    target,
    back,
    at,
    from_centre,
    window,
    window_slope,
    slots,
    places,
    OWN: tl.constexpr,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """Writes what a network on edges needs to know of each place.

    Args:
        pair, slot, offset: as `edges_kernel` wrote them.
        first, number: as `starts_kernel` and `numbers_kernel` wrote them.
        reverse: of the list.
        grid: float64, as `edges_kernel` reads it.
        table: (intervals, 4, K), of the embedding; its last function is the window.
        source, target: (P,) int32, an edge's atom and its neighbor, written.
        back: (P,) int32, place of the reverse edge, written; an atom's own message is its own.
        at, from_centre: (P,), interval, and distance from its centre, written.
        window, window_slope: (P,), written; 1 and 0 for the message of an atom to itself.
        slots: slots a row.
        places: P.
    """
    pdl_wait(USE_PDL)
    atom = tl.program_id(0).to(tl.int64)
    begin = tl.load(first + atom)
    wanted = tl.load(first + atom + 1) - begin
    origin = tl.load(grid + 3).to(offset.dtype.element_ty)
    for start in range(0, wanted, WIDTH):
        here = start + tl.arange(0, WIDTH)
        valid = here < wanted
        other_atom = valid & (here >= OWN)
        edge = atom * slots + here - OWN
        own = atom * slots + tl.load(slot + edge, mask=other_atom, other=0)
        both = tl.load(pair + edge, mask=other_atom, other=0)
        other = neighbor_in(both)
        there = other * slots + tl.load(reverse + own, mask=other_atom, other=0)
        reversed_edge = tl.load(first + other, mask=other_atom, other=0) + OWN
        reversed_edge += tl.load(number + there, mask=other_atom, other=0)
        reversed_edge = tl.minimum(reversed_edge, places - 1)
        place = interval_in(both)
        u = tl.where(other_atom, tl.load(offset + edge, mask=other_atom, other=0.0), origin)
        value, slope = polynomials(table + place * (4 * K) + K - 1, u, other_atom, K)
        out = begin.to(tl.int64) + here
        tl.store(source + out, atom.to(tl.int32), mask=valid)
        tl.store(target + out, tl.where(other_atom, other, atom).to(tl.int32), mask=valid)
        tl.store(back + out, tl.where(other_atom, reversed_edge, begin), mask=valid)
        tl.store(at + out, place, mask=valid)
        tl.store(from_centre + out, u, mask=valid)
        tl.store(window + out, tl.where(other_atom, value, 1.0), mask=valid)
        tl.store(window_slope + out, slope, mask=valid)


@triton.jit
def rows_of(first, order, atoms, A: tl.constexpr):
    """Some atoms (A,), which of them there are, and their first edge and number of edges."""
    place = tl.program_id(0) * A + tl.arange(0, A)
    present = place < atoms
    atom = tl.load(order + place, mask=present, other=0).to(tl.int64)
    begin = tl.load(first + atom)
    number = tl.where(present, tl.load(first + atom + 1) - begin, 0)
    return atom, present, begin.to(tl.int64), number


@triton.jit
def ends_of(target, window, begin, number, here):
    """Neighbors and windows (A, WIDTH) of the edges `here` of some atoms, and their places."""
    valid = here < number[:, None]
    edge = begin[:, None] + here
    other = tl.load(target + edge, mask=valid, other=0).to(tl.int64)
    return other, tl.load(window + edge, mask=valid, other=0.0), edge


@kernel
def first_layer_adjoint_kernel(
    order,
    first,
    back,
    at,
    from_centre,
    table,
    gradient,
    for_terms,
    central,
    slots,
    atoms,
    OWN: tl.constexpr,
    STRIPS: tl.constexpr,
    F: tl.constexpr,
    A: tl.constexpr,
    WIDTH: tl.constexpr,
    BF: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """du_i = sum over j of da1_ij, dv_i = sum over j of da1_ji, and <da1_ij, T'(d)>.

    Args:
        order: (N,) int32, in which atoms are taken.
        first, back, at, from_centre: of `packing_kernel`.
        table: T (intervals, 4, F).
        gradient: da1 (P, F).
        for_terms: du, dv (N, 2F), written.
        central: (N, STRIPS, K), derivatives by distance, added to.
        slots: K.
        atoms: N.
    """
    pdl_wait(USE_PDL)
    atom, present, begin, number = rows_of(first, order, atoms, A)
    strip = tl.program_id(1)
    f = strip * BF + tl.arange(0, BF)
    channel = f[None, None, :]
    of_own = tl.zeros([A, WIDTH, BF], for_terms.dtype.element_ty)
    of_other = tl.zeros([A, WIDTH, BF], for_terms.dtype.element_ty)
    for start in range(0, tl.max(number, 0), WIDTH):
        here = (start + tl.arange(0, WIDTH))[None, :]
        valid = here < number[:, None]
        edge = begin[:, None] + here
        inside = valid[:, :, None] & (channel < F)
        g = tl.load(gradient + edge[:, :, None] * F + channel, mask=inside, other=0.0)
        of_own += g
        there = tl.load(back + edge, mask=valid, other=0).to(tl.int64)
        of_other += tl.load(gradient + there[:, :, None] * F + channel, mask=inside, other=0.0)
        u = tl.load(from_centre + edge, mask=valid, other=0.0)[:, :, None]
        t = table + tl.load(at + edge, mask=valid, other=0)[:, :, None] * (4 * F) + channel
        _, slope = polynomials(t, u, inside, F)
        b = tl.sum(g * slope, 2)
        where = central + (atom[:, None] * STRIPS + strip) * slots + here - OWN
        kept = valid & (here >= OWN)
        tl.store(where, b + tl.load(where, mask=kept, other=0.0), mask=kept)
    have = present[:, None] & (f < F)[None, :]
    out = for_terms + atom[:, None] * (2 * F) + f[None, :]
    tl.store(out, tl.sum(of_own, 1), mask=have)
    tl.store(out + F, tl.sum(of_other, 1), mask=have)


@triton.jit
def _weighted(x, a3, window, inside, F: tl.constexpr, ACTIVATION: tl.constexpr):
    """X times act(a3) window of each part."""
    scalar = activation(tl.load(a3, mask=inside, other=0.0), ACTIVATION) * window
    vector = activation(tl.load(a3 + F, mask=inside, other=0.0), ACTIVATION) * window
    tensor = activation(tl.load(a3 + 2 * F, mask=inside, other=0.0), ACTIVATION) * window
    return weigh(x, scalar, vector, tensor)


@kernel
def tensornet2_message_kernel(
    order,
    first,
    target,
    window,
    coefficients,
    features,
    charge,
    result,
    products,
    atoms,
    F: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    A: tl.constexpr,
    WIDTH: tl.constexpr,
    BF: tl.constexpr,
    ACTIVATION: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """M_i = sum_j g_ij Y_j, and P / n with P = product(Y_i, M_i) q.

    Args:
        order: (N,) int32, in which atoms are taken.
        first, target, window: of `packing_kernel`.
        coefficients: a3 (P, 3, F).
        features: Y (N, 9, F).
        charge: q (N,), factor of products.
        result: M (N, 9, F), written.
        products: P / n (N, 9, F), written.
        atoms: N.
    """
    pdl_wait(USE_PDL)
    atom, present, begin, number = rows_of(first, order, atoms, A)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    channel = f[None, None, :]
    zero = tl.zeros([A, WIDTH, BF], result.dtype.element_ty)
    acc = (zero, zero, zero, zero, zero, zero, zero, zero, zero)
    here = tl.arange(0, WIDTH)[None, :]
    other, w, edge = ends_of(target, window, begin, number, here)
    for _ in range(0, tl.max(number, 0), WIDTH):
        inside = (here < number[:, None])[:, :, None] & (channel < F)
        y = load(features + other[:, :, None] * (9 * F) + channel, F, inside)
        a3 = coefficients + edge[:, :, None] * (3 * F) + channel
        y = _weighted(y, a3, w[:, :, None], inside, F, ACTIVATION)
        # The next edges are on their way while these are summed.
        here += WIDTH
        other, w, edge = ends_of(target, window, begin, number, here)
        acc = add(acc, y)
    have = present[:, None] & (f < F)[None, :]
    row = atom[:, None] * (9 * F) + f[None, :]
    y = load(features + row, F, have)
    m = summed(acc)
    store(result + row, F, m, have)
    p = product(y, m, SYMMETRIC)
    if SYMMETRIC:
        p = scale(p, tl.load(charge + atom)[:, None])
    p, _ = normalized(p)
    store(products + row, F, p, have)


@kernel
def tensornet2_message_adjoint_kernel(
    order,
    first,
    target,
    back,
    window,
    window_slope,
    coefficients,
    features,
    for_messages,
    for_features,
    result,
    central,
    slots,
    atoms,
    OWN: tl.constexpr,
    STRIPS: tl.constexpr,
    FIRST: tl.constexpr,
    F: tl.constexpr,
    A: tl.constexpr,
    WIDTH: tl.constexpr,
    BF: tl.constexpr,
    ACTIVATION: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """dY_i + sum_j g_ji dM_j, and da3_ji = <Y_i, dM_j> window act'(a3_ji).

    The part of dE/dd that comes by the window of a reverse edge goes to the edge itself, which is
    as long.

    Args:
        back, window_slope: of `packing_kernel`.
        coefficients: a3 (P, 3, F); its gradient is written over it.
        features: Y (N, 9, F).
        for_messages: dM (N, 9, F).
        for_features: dY (N, 9, F), through the product.
        result: complete dY (N, 9, F), written.
        central: (N, STRIPS, K), written by the first layer to come here, then added to.
        slots: K.
        OWN: 1 where an atom sends a message to itself, which has no distance.
        STRIPS: strips of channels.
        FIRST: whether this layer is the first to write `central`.
        others: as in `tensornet2_message_kernel`.
    """
    pdl_wait(USE_PDL)
    atom, present, begin, number = rows_of(first, order, atoms, A)
    strip = tl.program_id(1)
    f = strip * BF + tl.arange(0, BF)
    channel = f[None, None, :]
    have = present[:, None] & (f < F)[None, :]
    row = atom[:, None] * (9 * F) + f[None, :]
    y = load(features + row[:, None, :], F, have[:, None, :])
    zero = tl.zeros([A, WIDTH, BF], result.dtype.element_ty)
    acc = (zero, zero, zero, zero, zero, zero, zero, zero, zero)
    here = tl.arange(0, WIDTH)[None, :]
    # The reverse edge is as long, so it has the same window.
    other, w, edge = ends_of(target, window, begin, number, here)
    there = tl.load(back + edge, mask=here < number[:, None], other=0).to(tl.int64)
    for _ in range(0, tl.max(number, 0), WIDTH):
        valid = here < number[:, None]
        inside = valid[:, :, None] & (channel < F)
        m = load(for_messages + other[:, :, None] * (9 * F) + channel, F, inside)
        a3 = coefficients + there[:, :, None] * (3 * F) + channel
        scalar = tl.load(a3, mask=inside, other=0.0)
        vector = tl.load(a3 + F, mask=inside, other=0.0)
        tensor = tl.load(a3 + 2 * F, mask=inside, other=0.0)
        window_here = w[:, :, None]
        steep = tl.load(window_slope + edge, mask=valid, other=0.0)
        where = central + (atom[:, None] * STRIPS + strip) * slots + here - OWN
        kept = valid & (here >= OWN)
        here += WIDTH
        other, w, edge = ends_of(target, window, begin, number, here)
        there = tl.load(back + edge, mask=here < number[:, None], other=0).to(tl.int64)
        s, v, t = dots(y, m)
        g = activation(scalar, ACTIVATION)
        h = activation(vector, ACTIVATION)
        k = activation(tensor, ACTIVATION)
        b = tl.sum(s * g + v * h + t * k, 2) * steep
        acc = add(acc, weigh(m, g * window_here, h * window_here, k * window_here))
        if not FIRST:
            b += tl.load(where, mask=kept, other=0.0)
        # All threads of this program must have loaded what is written over now.
        tl.debug_barrier()
        tl.store(where, b, mask=kept)
        tl.store(a3, s * window_here * slope(scalar, ACTIVATION), mask=inside)
        tl.store(a3 + F, v * window_here * slope(vector, ACTIVATION), mask=inside)
        tl.store(a3 + 2 * F, t * window_here * slope(tensor, ACTIVATION), mask=inside)
    store(result + row, F, add(summed(acc), load(for_features + row, F, have)), have)


def pack_edges(bound: LaunchPlan, pairs: NeighborRows) -> None:
    """Packs the edges of all rows without gaps."""
    b, c, own = bound.buffers, bound.charged, bound.tensornet2_model.own
    starts_kernel[(1,)](
        b.edges,
        c.first,
        c.most,
        bound.atoms,
        c.places,
        own,
        WIDTH=4096,
        num_warps=8,
        **bound.launch,
    )
    numbers_kernel[(bound.atoms,)](
        b.edges, b.slot, c.number, bound.slots, WIDTH=32, num_warps=1, **bound.launch
    )
    pairs.join()
    packing_kernel[(bound.atoms,)](
        c.first,
        b.pair,
        b.slot,
        c.number,
        pairs.reverse,
        b.offset,
        bound.grid,
        bound.model.embedding_table,
        c.source,
        c.target,
        c.back,
        c.interval,
        c.offset,
        c.window,
        c.window_slope,
        bound.slots,
        c.places,
        own,
        bound.model.functions,
        WIDTH=32,
        num_warps=1,
        **bound.launch,
    )


def weigh_edges(bound: LaunchPlan, number: int) -> None:
    """a3 of every edge, from the charges that a layer reads."""
    network, b = bound.tensornet2_model.networks[number], bound.charged
    dense(bound, bound.shapes.charges, b.charges[number], network.terms, b.terms[number], "none")
    apply_layers(bound, number)


def send(bound: LaunchPlan, pairs: NeighborRows, number: int) -> None:
    """Messages of a layer and their products with Y."""
    b, c, s = bound.buffers, bound.charged, bound.shapes.weighed
    grid = (triton.cdiv(bound.atoms, s.atoms), triton.cdiv(bound.channels, s.strip))
    tensornet2_message_kernel[grid](
        pairs.order,
        c.first,
        c.target,
        c.window,
        c.coefficients[number],
        b.mixed[number],
        bound.charge,
        b.messages[number],
        b.last,
        bound.atoms,
        bound.channels,
        bound.model.symmetric,
        s.atoms,
        s.step,
        s.strip,
        ACTIVATION=bound.model.config.activation,
        num_warps=s.warps,
        maxnreg=s.registers,
        **bound.launch,
    )


def send_adjoint(bound: LaunchPlan, pairs: NeighborRows, number: int) -> None:
    """Gradients by the features Y and by a3 from that by the messages."""
    b, c, s = bound.buffers, bound.charged, bound.shapes.weighed_adjoint
    tensornet2_message_adjoint_kernel[(triton.cdiv(bound.atoms, s.atoms), bound.strips)](
        pairs.order,
        c.first,
        c.target,
        c.back,
        c.window,
        c.window_slope,
        c.coefficients[number],
        b.mixed[number],
        b.messages[number],
        b.changes[number],
        b.last,
        b.central,
        bound.slots,
        bound.atoms,
        bound.tensornet2_model.own,
        bound.strips,
        number == bound.layers - 1,
        bound.channels,
        s.atoms,
        s.step,
        s.strip,
        ACTIVATION=bound.model.config.activation,
        num_warps=s.warps,
        maxnreg=s.registers,
        **bound.launch,
    )


def weigh_edges_adjoint(bound: LaunchPlan, pairs: NeighborRows, number: int) -> None:
    """Gradients by distances and by the terms of charges from that by a3."""
    b, c, s = bound.buffers, bound.charged, bound.shapes.first_adjoint
    apply_layers_adjoint(bound, number)
    first_layer_adjoint_kernel[(triton.cdiv(bound.atoms, s.atoms), bound.strips)](
        pairs.order,
        c.first,
        c.back,
        c.interval,
        c.offset,
        bound.model.layer_tables[number].coefficients,
        c.for_first[number],
        c.for_terms,
        b.central,
        bound.slots,
        bound.atoms,
        bound.tensornet2_model.own,
        bound.strips,
        bound.channels,
        s.atoms,
        s.step,
        s.strip,
        num_warps=s.warps,
        **bound.launch,
    )


def charges_adjoint(bound: LaunchPlan, number: int) -> None:
    """Gradient by the inputs of the charge prediction from that by the terms of charges."""
    network, c = bound.tensornet2_model.networks[number], bound.charged
    dense_adjoint(bound, bound.shapes.charges, c.for_terms, network.terms, c.by_edges, "none")
    predict_adjoint(bound, number, c.by_edges)
