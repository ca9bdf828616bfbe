"""Kernels that walk the edges of a layer: messages, and the adjoint over the same rows.

The list is symmetric and a weight depends on the distance alone, g_ij = g_ji. So the
adjoint of M_i = sum_j g_ij Y_j is a sum over the same row, and nothing is added atomically.

A program takes a few atoms that follow each other in `order`, which have most neighbors in
common, and a strip of channels narrow enough that the strip of the table and the features
around stay in the cache of a multiprocessor. Of many atoms, strips come one after the other,
so that at any moment all programs read the same one; few atoms all run at once, and strips
that alternate leave each multiprocessor with the same few. Tiles are (atoms, slots, channels).
"""

import triton
import triton.language as tl

from mdgraph.fused.cuda.kernels.cubics import polynomials
from mdgraph.models.kernels.components import (
    add,
    load,
    normalized,
    scale,
    store,
    summed,
    weigh,
    widened,
)
from mdgraph.models.kernels.matrices import product
from mdgraph.neighbors.compilation import kernel
from mdgraph.neighbors.succession import wait_for_previous


@triton.jit
def _share(order, edges, atoms, A: tl.constexpr, ALTERNATING: tl.constexpr):
    """Atoms (A,) that a program takes, which of them there are, their edges; and its strip."""
    place = tl.program_id(1 if ALTERNATING else 0) * A + tl.arange(0, A)
    present = place < atoms
    atom = tl.load(order + place, mask=present, other=0).to(tl.int64)
    number = tl.load(edges + atom, mask=present, other=0)
    return atom, present, number, tl.program_id(0 if ALTERNATING else 1)


@triton.jit
def _weights(table, interval, v, f, inside, F: tl.constexpr, TERMS: tl.constexpr):
    """Values, then slopes, of the three parts."""
    t = table + interval[:, :, None] * (TERMS * 3 * F) + f
    scalar, scalar_slope = polynomials(t, v, inside, 3 * F, TERMS)
    vector, vector_slope = polynomials(t + F, v, inside, 3 * F, TERMS)
    tensor, tensor_slope = polynomials(t + 2 * F, v, inside, 3 * F, TERMS)
    return scalar, vector, tensor, scalar_slope, vector_slope, tensor_slope


@triton.jit
def _edges(neighbor, interval, offset, atom, number, slots, here):
    """Neighbors, intervals and offsets (A, WIDTH) of the edges `here` of some atoms."""
    valid = here < number[:, None]
    edge = atom[:, None] * slots + here
    other = tl.load(neighbor + edge, mask=valid, other=0)
    at = tl.load(interval + edge, mask=valid, other=0)
    return other.to(tl.int64), at, tl.load(offset + edge, mask=valid, other=0.0)


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
    neighbor,
    interval,
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
    atoms,
    F: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    TERMS: tl.constexpr,
    A: tl.constexpr,
    WIDTH: tl.constexpr,
    BF: tl.constexpr,
    ALTERNATING: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """M_i = sum_j g(d_ij) Y_j + own Y_i, and P / n with P = product(Y_i, M_i) q.

    Args:
        order: (N,) int32, in which atoms are taken.
        edges, neighbor, interval, offset: as `edges_kernel` wrote them.
        table, stretch, unit: a `LayerTable`, (intervals, TERMS, 3, F).
        own: (3, F).
        features: Y (N, 9, F), of this type or a shorter one.
        charge: q (N,).
        result: M (N, 9, F), written.
        products: P / n (N, 9, F), written.
        slots: slots a row.
        atoms: N.
        ALTERNATING: whether strips are the fast dimension of the grid.
    """
    wait_for_previous(EARLY)
    atom, present, number, strip = _share(order, edges, atoms, A, ALTERNATING)
    f = strip * BF + tl.arange(0, BF)
    channel = f[None, None, :]
    zero = tl.zeros([A, WIDTH, BF], result.dtype.element_ty)
    acc = (zero, zero, zero, zero, zero, zero, zero, zero, zero)
    here = tl.arange(0, WIDTH)[None, :]
    other, at, u = _edges(neighbor, interval, offset, atom, number, slots, here)
    for _ in range(0, tl.max(number, 0), WIDTH):
        inside = (here < number[:, None])[:, :, None] & (channel < F)
        y = load(features + other[:, :, None] * (9 * F) + channel, F, inside)
        scalar, vector, tensor, _s, _v, _t = _weights(
            table, at, (u * stretch)[:, :, None], channel, inside, F, TERMS
        )
        # The next edges are on their way while these are summed.
        here += WIDTH
        other, at, u = _edges(neighbor, interval, offset, atom, number, slots, here)
        acc = add(acc, weigh(y, scalar, vector, tensor))
    have = present[:, None] & (f < F)[None, :]
    row = atom[:, None] * (9 * F) + f[None, :]
    y = widened(load(features + row, F, have), result.dtype.element_ty)
    scalar, vector, tensor = _own_weights(own, f, F)
    m = add(scale(summed(acc), unit), weigh(y, scalar, vector, tensor))
    store(result + row, F, m, have)
    p = product(y, m, SYMMETRIC)
    if SYMMETRIC:
        p = scale(p, tl.load(charge + atom)[:, None])
    p, _ = normalized(p)
    store(products + row, F, p, have)


@kernel
def message_adjoint_kernel(
    order,
    edges,
    neighbor,
    interval,
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
    atoms,
    STRIPS: tl.constexpr,
    FIRST: tl.constexpr,
    F: tl.constexpr,
    TERMS: tl.constexpr,
    A: tl.constexpr,
    WIDTH: tl.constexpr,
    BF: tl.constexpr,
    ALTERNATING: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """dY_i + sum_j g(d_ij) dM_j + own dM_i, and b_ij = <g'(d_ij), Y_i dM_j> of the strip.

    Args:
        features: Y (N, 9, F).
        for_messages: dM (N, 9, F), of this type or a shorter one.
        for_features: dY (N, 9, F), through the product.
        result: complete dY (N, 9, F), written.
        central: b (N, STRIPS, K), written by the first layer to come here, then added to.
        STRIPS: strips of channels.
        FIRST: whether this layer is the first to write b.
        others: as in `message_kernel`.
    """
    wait_for_previous(EARLY)
    atom, present, number, strip = _share(order, edges, atoms, A, ALTERNATING)
    f = strip * BF + tl.arange(0, BF)
    channel = f[None, None, :]
    have = present[:, None] & (f < F)[None, :]
    row = atom[:, None] * (9 * F) + f[None, :]
    kind = result.dtype.element_ty
    own_y = widened(load(features + row[:, None, :], F, have[:, None, :]), kind)
    zero = tl.zeros([A, WIDTH, BF], kind)
    acc = (zero, zero, zero, zero, zero, zero, zero, zero, zero)
    here = tl.arange(0, WIDTH)[None, :]
    other, at, u = _edges(neighbor, interval, offset, atom, number, slots, here)
    for _ in range(0, tl.max(number, 0), WIDTH):
        valid = here < number[:, None]
        inside = valid[:, :, None] & (channel < F)
        m = load(for_messages + other[:, :, None] * (9 * F) + channel, F, inside)
        scalar, vector, tensor, ds, dv, dt = _weights(
            table, at, (u * stretch)[:, :, None], channel, inside, F, TERMS
        )
        where = central + (atom[:, None] * STRIPS + strip) * slots + here
        here += WIDTH
        other, at, u = _edges(neighbor, interval, offset, atom, number, slots, here)
        acc = add(acc, weigh(m, scalar, vector, tensor))
        v = own_y[1] * m[1] + own_y[2] * m[2] + own_y[3] * m[3]
        t = own_y[4] * m[4] + own_y[5] * m[5] + own_y[6] * m[6]
        t += own_y[7] * m[7] + own_y[8] * m[8]
        b = tl.sum(ds * (own_y[0] * m[0]) + dv * v + dt * t, 2) * (unit * stretch)
        if not FIRST:
            b += tl.load(where, mask=valid, other=0.0)
        tl.store(where, b, mask=valid)
    scalar, vector, tensor = _own_weights(own, f, F)
    itself = weigh(load(for_messages + row, F, have), scalar, vector, tensor)
    itself = add(itself, load(for_features + row, F, have))
    store(result + row, F, add(scale(summed(acc), unit), itself), have)
