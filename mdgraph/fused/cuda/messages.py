"""Messages and interaction layers on CUDA, forward and backward.

The list is symmetric and a weight depends on the distance alone, g_ij = g_ji. So the
adjoint of M_i = sum_j g_ij Y_j is a sum over the same row, and nothing is added atomically.

A program takes a few atoms that follow each other in `order`, which have most neighbors in
common, and a strip of channels narrow enough that the strip of the table and the features
around stay in the cache of a multiprocessor. Of many atoms, strips come one after the other,
so that at any moment all programs read the same one; few atoms all run at once, and strips
that alternate leave each multiprocessor with the same few. Tiles are (atoms, slots, channels).

Y = before(Xn);  M = sum g Y and Pn = P / n with P = product(Y, M) q, in `messages`;
C = after(Pn);  X' = Xn + C + C C q, normalised for the layer that follows. What else is
made of X' takes its invariants alone, channel by channel: the energy t = (|I|^2, |A|^2, |S|^2),
the charges t' = (tr X' / 3, |A|^2, |S|^2).
"""

import triton
import triton.language as tl

from mdgraph.fused.cuda.charges import predict
from mdgraph.fused.cuda.device import (
    interval_in,
    neighbor_in,
    packed_polynomials,
    polynomials,
    read,
    read_past,
    step_in,
)
from mdgraph.fused.cuda.edge_network import (
    charges_adjoint,
    send,
    send_adjoint,
    weigh_edges,
    weigh_edges_adjoint,
)
from mdgraph.fused.cuda.norms import add_invariants_adjoint, invariants_of, store_invariants
from mdgraph.fused.cuda.products import mix
from mdgraph.fused.cuda.workspace import Blocks, LaunchPlan, elementwise, sizes
from mdgraph.gpu.triton_jit import kernel, pdl_wait
from mdgraph.models.kernels.algebra import (
    add,
    load,
    normalized,
    normalized_adjoint,
    product,
    product_adjoint,
    scale,
    square,
    square_adjoint,
    store,
    summed,
    weigh,
    widened,
)
from mdgraph.neighbors import NeighborRows


@triton.jit
def _share(order, edges, atoms, A: tl.constexpr, ALTERNATING: tl.constexpr):
    """Atoms (A,) that a program takes, which of them there are, their edges; and its strip."""
    place = tl.program_id(1 if ALTERNATING else 0) * A + tl.arange(0, A)
    present = place < atoms
    atom = tl.load(order + place, mask=present, other=0).to(tl.int64)
    number = tl.load(edges + atom, mask=present, other=0)
    return atom, present, number, tl.program_id(0 if ALTERNATING else 1)


@triton.jit
def _weights(
    table,
    pair,
    u,
    stretch,
    f,
    inside,
    F: tl.constexpr,
    TERMS: tl.constexpr,
    PACKED: tl.constexpr,
    MASKED: tl.constexpr,
    KIND: tl.constexpr,
):
    """Values, then slopes, of the three parts; what is not packed, computed in a type."""
    t = table + interval_in(pair)[:, :, None] * (TERMS * 3 * F) + f
    if PACKED:
        v, step = u[:, :, None], (step_in(pair) * stretch)[:, :, None]
        scalar, scalar_slope = packed_polynomials(t, v, step, inside, 3 * F, MASKED)
        vector, vector_slope = packed_polynomials(t + F, v, step, inside, 3 * F, MASKED)
        tensor, tensor_slope = packed_polynomials(t + 2 * F, v, step, inside, 3 * F, MASKED)
        return scalar, vector, tensor, scalar_slope, vector_slope, tensor_slope
    v = (u * stretch).to(KIND)[:, :, None]
    scalar, scalar_slope = polynomials(t, v, inside, 3 * F, TERMS, MASKED)
    vector, vector_slope = polynomials(t + F, v, inside, 3 * F, TERMS, MASKED)
    tensor, tensor_slope = polynomials(t + 2 * F, v, inside, 3 * F, TERMS, MASKED)
    return scalar, vector, tensor, scalar_slope, vector_slope, tensor_slope


@triton.jit
def _features(pointer, inside, F: tl.constexpr, MASKED: tl.constexpr):
    """Nine tiles."""
    return (
        read(pointer, inside, MASKED),
        read(pointer + F, inside, MASKED),
        read(pointer + 2 * F, inside, MASKED),
        read(pointer + 3 * F, inside, MASKED),
        read(pointer + 4 * F, inside, MASKED),
        read(pointer + 5 * F, inside, MASKED),
        read(pointer + 6 * F, inside, MASKED),
        read(pointer + 7 * F, inside, MASKED),
        read(pointer + 8 * F, inside, MASKED),
    )


@triton.jit
def _edges(pair, offset, atom, number, slots, zeros, here):
    """Neighbors with intervals, and offsets (A, WIDTH) of the edges `here` of some atoms.

    Beyond the last edge stands the atom itself, whose numbers are finite if its message is, in
    the interval where all weights are zero. So nothing that is read for an edge needs a mask.
    """
    valid = here < number[:, None]
    edge = atom[:, None] * slots + here
    nothing = ((atom * 0 + zeros) << 32 | atom)[:, None]  # without a step, see `paired`
    both = tl.load(pair + edge, mask=valid, other=nothing)
    return both, tl.load(offset + edge, mask=valid, other=0.0)


@triton.jit
def _gradients_around(pointer, inside, F: tl.constexpr, MASKED: tl.constexpr, FEW: tl.constexpr):
    """`_features`, past the first cache unless atoms are few.

    Of many, those of a multiprocessor share few neighbors, and tables fill its cache.
    """
    if FEW:
        return _features(pointer, inside, F, MASKED)
    return (
        read_past(pointer, inside, MASKED),
        read_past(pointer + F, inside, MASKED),
        read_past(pointer + 2 * F, inside, MASKED),
        read_past(pointer + 3 * F, inside, MASKED),
        read_past(pointer + 4 * F, inside, MASKED),
        read_past(pointer + 5 * F, inside, MASKED),
        read_past(pointer + 6 * F, inside, MASKED),
        read_past(pointer + 7 * F, inside, MASKED),
        read_past(pointer + 8 * F, inside, MASKED),
    )


@triton.jit
def _own_weights(own, f, F: tl.constexpr):
    """Weights of the message of an atom to itself, (1, B) each."""
    inside = f < F
    scalar = tl.load(own + f, mask=inside, other=0.0)[None, :]
    vector = tl.load(own + F + f, mask=inside, other=0.0)[None, :]
    tensor = tl.load(own + 2 * F + f, mask=inside, other=0.0)[None, :]
    return scalar, vector, tensor


@kernel
def message_kernel(
    order,
    edges,
    pair,
    offset,
    table,
    stretch,
    unit,
    own,
    features,
    charge,
    result,
    products,
    slots,
    zeros,
    atoms,
    F: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    TERMS: tl.constexpr,
    PACKED: tl.constexpr,
    A: tl.constexpr,
    WIDTH: tl.constexpr,
    BF: tl.constexpr,
    MASKED: tl.constexpr,
    ALTERNATING: tl.constexpr,
    HALVES: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """M_i = sum_j g(d_ij) Y_j + own Y_i, and P / n with P = product(Y_i, M_i) q.

    Args:
        order: (N,) int32, in which atoms are taken.
        edges, pair, offset: as `edges_kernel` wrote them.
        table, stretch, unit: a `LayerTable`, (intervals, TERMS, 3, F).
        own: (3, F).
        features: Y (N, 9, F), of this type or a shorter one.
        charge: q (N,).
        result: M (N, 9, F), written.
        products: P / n (N, 9, F), written, in a type that may be shorter.
        slots: slots a row.
        zeros: interval of the table where all weights are zero.
        atoms: N.
        MASKED: whether edges beyond an atom's last are left out; else they weigh nothing.
        ALTERNATING: whether strips are the fast dimension of the grid.
        HALVES: whether products are made in the type of the features, and those of two edges
            added up there; tables are parabolas in this type then.
    """
    pdl_wait(USE_PDL)
    atom, present, number, strip = _share(order, edges, atoms, A, ALTERNATING)
    f = strip * BF + tl.arange(0, BF)
    channel = f[None, None, :]
    kind = offset.dtype.element_ty
    zero = tl.zeros([A, WIDTH, BF], kind)
    acc = (zero, zero, zero, zero, zero, zero, zero, zero, zero)
    here = tl.arange(0, WIDTH)[None, :]
    MASKS: tl.constexpr = MASKED or F % BF != 0
    both, u = _edges(pair, offset, atom, number, slots, zeros, here)
    TURNS: tl.constexpr = 2 if HALVES else 1
    KIND: tl.constexpr = features.dtype.element_ty if HALVES else kind
    for _ in range(0, tl.max(number, 0), TURNS * WIDTH):
        part = acc
        for turn in tl.static_range(TURNS):
            inside = (here < number[:, None])[:, :, None] & (channel < F)
            y_at = features + neighbor_in(both)[:, :, None] * (9 * F) + channel
            y = _features(y_at, inside, F, MASKS)
            scalar, vector, tensor, _s, _v, _t = _weights(
                table, both, u, stretch, channel, inside, F, TERMS, PACKED, MASKS, KIND
            )
            # The next edges are on their way while these are summed.
            here += WIDTH
            both, u = _edges(pair, offset, atom, number, slots, zeros, here)
            weighed = weigh(y, scalar, vector, tensor)
            part = add(part, weighed) if turn > 0 else weighed
        acc = add(acc, widened(part, kind))
    have = present[:, None] & (f < F)[None, :]
    row = atom[:, None] * (9 * F) + f[None, :]
    y = widened(load(features + row, F, have), kind)
    scalar, vector, tensor = _own_weights(own, f, F)
    m = add(scale(summed(acc), unit), weigh(y, scalar, vector, tensor))
    store(result + row, F, m, have)
    p = product(y, m, SYMMETRIC)
    if SYMMETRIC:
        p = scale(p, tl.load(charge + atom)[:, None])
    p, _ = normalized(p)
    store(products + row, F, p, have)


_LIFT: tl.constexpr = tl.constexpr(64.0)
"""Of features in products of float16, so that these lie where it is precise."""


@kernel
def message_adjoint_kernel(
    order,
    edges,
    pair,
    offset,
    table,
    stretch,
    unit,
    own,
    features,
    for_messages,
    for_features,
    result,
    central,
    slots,
    zeros,
    atoms,
    STRIPS: tl.constexpr,
    FIRST: tl.constexpr,
    F: tl.constexpr,
    TERMS: tl.constexpr,
    PACKED: tl.constexpr,
    A: tl.constexpr,
    WIDTH: tl.constexpr,
    BF: tl.constexpr,
    MASKED: tl.constexpr,
    ALTERNATING: tl.constexpr,
    HALVES: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """dY_i + sum_j g(d_ij) dM_j + own dM_i, and b_ij = <g'(d_ij), Y_i dM_j> of the strip.

    Args:
        features: Y (N, 9, F).
        for_messages: dM (N, 9, F), of this type or a shorter one.
        for_features: dY (N, 9, F), through the product.
        result: complete dY (N, 9, F), written, in a type that may be shorter.
        central: b (N, STRIPS, K), written by the first layer to come here, then added to.
        STRIPS: strips of channels.
        FIRST: whether this layer is the first to write b.
        others: as in `message_kernel`.
    """
    pdl_wait(USE_PDL)
    atom, present, number, strip = _share(order, edges, atoms, A, ALTERNATING)
    f = strip * BF + tl.arange(0, BF)
    channel = f[None, None, :]
    have = present[:, None] & (f < F)[None, :]
    row = atom[:, None] * (9 * F) + f[None, :]
    kind = central.dtype.element_ty
    TURNS: tl.constexpr = 2 if HALVES else 1
    KIND: tl.constexpr = features.dtype.element_ty if HALVES else kind
    own_y = widened(load(features + row[:, None, :], F, have[:, None, :]), KIND)
    factor = unit if PACKED else unit * stretch
    if HALVES:
        own_y = scale(own_y, _LIFT)
        factor *= 1.0 / _LIFT
    zero = tl.zeros([A, WIDTH, BF], kind)
    acc = (zero, zero, zero, zero, zero, zero, zero, zero, zero)
    here = tl.arange(0, WIDTH)[None, :]
    MASKS: tl.constexpr = MASKED or F % BF != 0
    both, u = _edges(pair, offset, atom, number, slots, zeros, here)
    for _ in range(0, tl.max(number, 0), TURNS * WIDTH):
        part = acc
        for turn in tl.static_range(TURNS):
            valid = here < number[:, None]
            inside = valid[:, :, None] & (channel < F)
            m_at = for_messages + neighbor_in(both)[:, :, None] * (9 * F) + channel
            m = _gradients_around(m_at, inside, F, MASKS, ALTERNATING)
            scalar, vector, tensor, ds, dv, dt = _weights(
                table, both, u, stretch, channel, inside, F, TERMS, PACKED, MASKS, KIND
            )
            where = central + (atom[:, None] * STRIPS + strip) * slots + here
            here += WIDTH
            both, u = _edges(pair, offset, atom, number, slots, zeros, here)
            weighed = weigh(m, scalar, vector, tensor)
            part = add(part, weighed) if turn > 0 else weighed
            if turn == TURNS - 1:
                part = widened(part, kind)
            if not HALVES:  # After b, `mixed` would take 13 % longer.
                acc = add(acc, part)
            v = own_y[1] * m[1] + own_y[2] * m[2] + own_y[3] * m[3]
            t = own_y[4] * m[4] + own_y[5] * m[5] + own_y[6] * m[6]
            t += own_y[7] * m[7] + own_y[8] * m[8]
            b = tl.sum((ds * (own_y[0] * m[0]) + dv * v + dt * t).to(kind), 2) * factor
            if not FIRST:
                b += tl.load(where, mask=valid, other=0.0)
            tl.store(where, b, mask=valid)
        if HALVES:
            acc = add(acc, part)
    scalar, vector, tensor = _own_weights(own, f, F)
    itself = weigh(widened(load(for_messages + row, F, have), kind), scalar, vector, tensor)
    itself = add(itself, widened(load(for_features + row, F, have), kind))
    store(result + row, F, add(scale(summed(acc), unit), itself), have)


@kernel
def update_kernel(
    features,
    change,
    charge,
    result,
    invariants,
    charged,
    gains,
    shifts,
    charged_gains,
    charged_shifts,
    INVARIANTS: tl.constexpr,
    CHARGED: tl.constexpr,
    atoms,
    NORMALIZED: tl.constexpr,
    F: tl.constexpr,
    A: tl.constexpr,
    BF: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """X' = Xn + C + C C q: normalised where a layer follows, its invariants where they count.

    Args:
        features, change: Xn, C (N, 9, F).
        charge: q (N,).
        result: X' / n' (N, 9, F), written where NORMALIZED.
        invariants, charged: layer norms of t and t' (N, 3F), written where INVARIANTS and where
            CHARGED. Programs take whole rows then.
        gains, shifts, charged_gains, charged_shifts: (3F,), weights of these norms.
        atoms: N.
    """
    pdl_wait(USE_PDL)
    atom = (tl.program_id(0) * A + tl.arange(0, A)).to(tl.int64)[:, None]
    f = (tl.program_id(1) * BF + tl.arange(0, BF))[None, :]
    inside = (atom < atoms) & (f < F)
    place = atom * (9 * F) + f
    q = tl.load(charge + atom, mask=atom < atoms, other=0.0)
    c = widened(load(change + place, F, inside), q.dtype)
    x = widened(load(features + place, F, inside), q.dtype)
    x = add(add(x, c), scale(square(c), q))
    if INVARIANTS:
        store_invariants(invariants, gains, shifts, atom, f, x, inside, False, F)
    if CHARGED:
        store_invariants(charged, charged_gains, charged_shifts, atom, f, x, inside, True, F)
    if NORMALIZED:
        x, _ = normalized(x)
        store(result + place, F, x, inside)


@kernel
def update_adjoint_kernel(
    gradient,
    residual,
    for_invariants,
    for_charged,
    gains,
    shifts,
    charged_gains,
    charged_shifts,
    INVARIANTS: tl.constexpr,
    CHARGED: tl.constexpr,
    features,
    change,
    for_change,
    charge,
    atoms,
    NORMALIZED: tl.constexpr,
    F: tl.constexpr,
    A: tl.constexpr,
    BF: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """From the gradient of X' to those of Xn (through the residual, the same) and C.

    Args:
        gradient: (N, 9, F), where NORMALIZED, of X' / n' through the next mixing.
        residual: (N, 9, F), where NORMALIZED, of X' / n' through the next residual; dX' is
            written over it.
        for_invariants, for_charged: (N, 3F), by the layer norms of t and t', where INVARIANTS
            and where CHARGED.
        gains, shifts, charged_gains, charged_shifts: as in `update_kernel`.
        features, change, charge: Xn, C, q. Xn may lie in `residual` where there is nothing to
            read.
        for_change: dC (N, 9, F), written; may lie over C.
        atoms: N.
    """
    pdl_wait(USE_PDL)
    atom = (tl.program_id(0) * A + tl.arange(0, A)).to(tl.int64)[:, None]
    f = (tl.program_id(1) * BF + tl.arange(0, BF))[None, :]
    inside = (atom < atoms) & (f < F)
    place = atom * (9 * F) + f
    q = tl.load(charge + atom, mask=atom < atoms, other=0.0)
    c = widened(load(change + place, F, inside), q.dtype)
    x = widened(load(features + place, F, inside), q.dtype)
    x = add(add(x, c), scale(square(c), q))
    g = scale(x, 0.0)
    if NORMALIZED:
        y, inverse = normalized(x)
        g = widened(load(gradient + place, F, inside), q.dtype)
        g = add(widened(load(residual + place, F, inside), q.dtype), g)
        g = normalized_adjoint(g, y, inverse)
    if INVARIANTS:
        g = add_invariants_adjoint(g, for_invariants, gains, atom, f, x, inside, False, F)
    if CHARGED:
        g = add_invariants_adjoint(g, for_charged, charged_gains, atom, f, x, inside, True, F)
    dc = add(g, square_adjoint(scale(g, q), c))
    # All threads of this program must have loaded what is written over now.
    tl.debug_barrier()
    store(residual + place, F, g, inside)
    store(for_change + place, F, dc, inside)


@kernel
def product_adjoint_kernel(
    gradient,
    mixed,
    messages,
    charge,
    for_mixed,
    for_messages,
    atoms,
    F: tl.constexpr,
    A: tl.constexpr,
    BF: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """From the gradient of Pn to those of Y (through the product alone) and M.

    Args:
        gradient: dPn (N, 9, F).
        mixed, messages, charge: Y (of this type or a shorter one), M, q.
        for_mixed: dY (N, 9, F), written.
        for_messages: dM (N, 9, F), written; may lie over M.
        atoms: N.
    """
    pdl_wait(USE_PDL)
    atom = (tl.program_id(0) * A + tl.arange(0, A)).to(tl.int64)[:, None]
    f = (tl.program_id(1) * BF + tl.arange(0, BF))[None, :]
    inside = (atom < atoms) & (f < F)
    place = atom * (9 * F) + f
    q = tl.load(charge + atom, mask=atom < atoms, other=0.0)
    y = widened(load(mixed + place, F, inside), q.dtype)
    m = widened(load(messages + place, F, inside), q.dtype)
    p = product(y, m, SYMMETRIC)
    if SYMMETRIC:
        p = scale(p, q)
    p, inverse = normalized(p)
    g = normalized_adjoint(widened(load(gradient + place, F, inside), q.dtype), p, inverse)
    if SYMMETRIC:
        g = scale(g, q)
    dy, dm = product_adjoint(g, y, m, SYMMETRIC)
    # All threads of this program must have loaded what is written over now.
    tl.debug_barrier()
    store(for_mixed + place, F, dy, inside)
    store(for_messages + place, F, dm, inside)


def mix_features(bound: LaunchPlan, number: int) -> None:
    """Y of a layer, which its messages read of all rows."""
    before, _ = bound.model.layers[number]
    b = bound.buffers
    if bound.model.charged is not None:
        with bound.model.branch.fork():  # `interact` joins it
            predict(bound, number)
            weigh_edges(bound, number)
    mix(bound, b.inputs[number], before.weights, b.mixed[number])


def send_interior(bound: LaunchPlan, pairs: NeighborRows, number: int) -> None:
    """Messages of rows that read no features of other domains, which may be on their way."""
    if pairs.interior:
        _send(bound, pairs, number, slice(0, pairs.interior))


def send_interior_adjoint(bound: LaunchPlan, pairs: NeighborRows, number: int) -> None:
    """The same for the gradients by features and distances."""
    if pairs.interior:
        _send_adjoint(bound, pairs, number, slice(0, pairs.interior))


def interact(bound: LaunchPlan, pairs: NeighborRows, number: int) -> None:
    """An interaction layer, from Y on and after `send_interior`."""
    _, after = bound.model.layers[number]
    b, last = bound.buffers, bound.layers - 1
    if bound.model.charged is None:
        _send(bound, pairs, number, slice(pairs.interior, bound.atoms))
    else:
        bound.model.branch.join()
        send(bound, pairs, number)
    mix(bound, b.last, after.weights, b.changes[number])
    update_kernel[elementwise(bound, number + 1)](
        b.inputs[number],
        b.changes[number],
        bound.charge,
        b.inputs[min(number + 1, last)],
        *invariants_of(bound, number + 1),
        bound.atoms,
        number < last,
        **sizes(bound, number + 1),
    )


def turn_back(bound: LaunchPlan, number: int) -> None:
    """From the gradient by the result of a layer to dM, which its adjoint reads of all rows."""
    b, last = bound.buffers, bound.layers - 1
    _, after = bound.model.layers[number]
    update_adjoint_kernel[elementwise(bound, number + 1)](
        b.changes[min(number + 1, last)],
        b.work,
        *invariants_of(bound, number + 1),
        b.inputs[number],
        b.changes[number],
        b.changes[number],
        bound.charge,
        bound.atoms,
        number < last,
        **sizes(bound, number + 1),
    )
    mix(bound, b.changes[number], after.transposed, b.last)
    product_adjoint_kernel[elementwise(bound)](
        b.last,
        b.mixed[number],
        b.messages[number],
        bound.charge,
        b.changes[number],
        b.messages[number],
        bound.atoms,
        **sizes(bound),
        SYMMETRIC=bound.model.symmetric,
    )


def interact_adjoint(bound: LaunchPlan, pairs: NeighborRows, number: int) -> None:
    """Gradient by the input of a layer, from dM on and after `send_interior_adjoint`."""
    b = bound.buffers
    before, _ = bound.model.layers[number]
    if bound.model.charged is None:
        _send_adjoint(bound, pairs, number, slice(pairs.interior, bound.atoms))
        mix(bound, b.last, before.transposed, b.changes[number])
        return
    branch = bound.model.branch
    if number < bound.layers - 1:
        branch.join()
    send_adjoint(bound, pairs, number)
    with branch.fork():
        weigh_edges_adjoint(bound, pairs, number)
    mix(bound, b.last, before.transposed, b.changes[number])
    branch.join()
    if number > 0 and not bound.charged.apart:
        with branch.fork():  # the adjoint of the layer before joins it
            weigh_edges(bound, number - 1)
    charges_adjoint(bound, number)


def _send(bound: LaunchPlan, pairs: NeighborRows, number: int, rows: slice) -> None:
    """Messages with weights from the layer's table, and their products with Y, of some rows."""
    s, b, count = bound.shapes, bound.buffers, rows.stop - rows.start
    if count == 0:
        return
    table = bound.model.layer_tables[number]
    message_kernel[_grid(bound, s.message, count)](
        pairs.order[rows],
        b.edges,
        b.pair,
        b.offset,
        table.coefficients,
        table.stretch,
        table.unit,
        bound.model.own[number],
        b.mixed[number],
        bound.charge,
        b.messages[number],
        b.last,
        bound.slots,
        table.zeros,
        count,
        bound.channels,
        bound.model.symmetric,
        table.terms,
        table.packed,
        s.message.atoms,
        s.message.step,
        s.message.strip,
        s.message.masked,
        s.alternating,
        s.halves,
        num_warps=s.message.warps,
        maxnreg=s.message.registers,
        **bound.launch,
    )


def _send_adjoint(bound: LaunchPlan, pairs: NeighborRows, number: int, rows: slice) -> None:
    """Gradients by features and distances from that by messages."""
    s, b, count = bound.shapes, bound.buffers, rows.stop - rows.start
    if count == 0:
        return
    table = bound.model.layer_tables[number]
    message_adjoint_kernel[_grid(bound, s.adjoint, count)](
        pairs.order[rows],
        b.edges,
        b.pair,
        b.offset,
        table.coefficients,
        table.stretch,
        table.unit,
        bound.model.own[number],
        b.mixed[number],
        b.messages[number],
        b.changes[number],
        b.last,
        b.central,
        bound.slots,
        table.zeros,
        count,
        bound.strips,
        number == bound.layers - 1,
        bound.channels,
        table.terms,
        table.packed,
        s.adjoint.atoms,
        s.adjoint.step,
        s.adjoint.strip,
        s.adjoint.masked,
        s.alternating,
        s.halves,
        num_warps=s.adjoint.warps,
        maxnreg=s.adjoint.registers,
        **bound.launch,
    )


def _grid(bound: LaunchPlan, blocks: Blocks, atoms: int) -> tuple[int, int]:
    groups = triton.cdiv(atoms, blocks.atoms)
    strips = triton.cdiv(bound.channels, blocks.strip)
    return (strips, groups) if bound.shapes.alternating else (groups, strips)
