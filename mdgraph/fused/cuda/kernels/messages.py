"""Kernels that walk the edges of a layer: messages, and the adjoint over the same rows.

The list is symmetric and a weight depends on the distance alone, g_ij = g_ji. So the
adjoint of M_i = sum_j g_ij Y_j is a sum over the same row, and nothing is added atomically.

A program takes a few atoms that follow each other in `order`, which have most neighbors in
common, and a strip of channels narrow enough that the strip of the table and the features
around stay in the cache of a multiprocessor. Strips come in the outer dimension of the
grid, so that at any moment all programs read the same one. Tiles are (atoms, slots, channels).
"""

import triton
import triton.language as tl

from mdgraph.fused.cuda.kernels.components import (
    add,
    load,
    normalized,
    product,
    scale,
    store,
    weigh,
)
from mdgraph.fused.cuda.kernels.succession import wait_for_previous


@triton.jit
def _weights(table, interval, u, f, inside, F: tl.constexpr):
    """Cubics of the three parts, and their slopes, at offsets u from the interval's centre."""
    t = table + interval[:, :, None] * (12 * F) + f
    c0 = tl.load(t, mask=inside, other=0.0)
    c1 = tl.load(t + 3 * F, mask=inside, other=0.0)
    c2 = tl.load(t + 6 * F, mask=inside, other=0.0)
    c3 = tl.load(t + 9 * F, mask=inside, other=0.0)
    scalar = c0 + u * (c1 + u * (c2 + u * c3))
    d0 = tl.load(t + F, mask=inside, other=0.0)
    d1 = tl.load(t + 4 * F, mask=inside, other=0.0)
    d2 = tl.load(t + 7 * F, mask=inside, other=0.0)
    d3 = tl.load(t + 10 * F, mask=inside, other=0.0)
    vector = d0 + u * (d1 + u * (d2 + u * d3))
    e0 = tl.load(t + 2 * F, mask=inside, other=0.0)
    e1 = tl.load(t + 5 * F, mask=inside, other=0.0)
    e2 = tl.load(t + 8 * F, mask=inside, other=0.0)
    e3 = tl.load(t + 11 * F, mask=inside, other=0.0)
    tensor = e0 + u * (e1 + u * (e2 + u * e3))
    scalar_slope = c1 + u * (2.0 * c2 + u * (3.0 * c3))
    vector_slope = d1 + u * (2.0 * d2 + u * (3.0 * d3))
    tensor_slope = e1 + u * (2.0 * e2 + u * (3.0 * e3))
    return scalar, vector, tensor, scalar_slope, vector_slope, tensor_slope


@triton.jit
def _own_weights(own, f, F: tl.constexpr):
    """Weights of the message of an atom to itself, (1, B) each."""
    inside = f < F
    scalar = tl.load(own + f, mask=inside, other=0.0)[None, :]
    vector = tl.load(own + F + f, mask=inside, other=0.0)[None, :]
    tensor = tl.load(own + 2 * F + f, mask=inside, other=0.0)[None, :]
    return scalar, vector, tensor


@triton.jit
def _summed(x):
    """Sums nine tiles over slots."""
    return (
        tl.sum(x[0], 1),
        tl.sum(x[1], 1),
        tl.sum(x[2], 1),
        tl.sum(x[3], 1),
        tl.sum(x[4], 1),
        tl.sum(x[5], 1),
        tl.sum(x[6], 1),
        tl.sum(x[7], 1),
        tl.sum(x[8], 1),
    )


@triton.jit
def message_kernel(
    order,
    edges,
    neighbor,
    interval,
    offset,
    table,
    own,
    features,
    charge,
    result,
    products,
    slots,
    atoms,
    F: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    A: tl.constexpr,
    WIDTH: tl.constexpr,
    BF: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """M_i = sum_j g(d_ij) Y_j + own Y_i, and P / n with P = product(Y_i, M_i) q.

    Args:
        order: (N,) int32, in which atoms are taken.
        edges, neighbor, interval, offset: as `edges_kernel` wrote them.
        table: (intervals, 4, 3, F).
        own: (3, F).
        features: Y (N, 9, F).
        charge: q (N,).
        result: M (N, 9, F), written.
        products: P / n (N, 9, F), written.
        slots: slots a row.
        atoms: N.
    """
    wait_for_previous(EARLY)
    place = tl.program_id(0) * A + tl.arange(0, A)
    present = place < atoms
    atom = tl.load(order + place, mask=present, other=0).to(tl.int64)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    channel = f[None, None, :]
    number = tl.load(edges + atom, mask=present, other=0)
    zero = tl.zeros([A, WIDTH, BF], result.dtype.element_ty)
    acc = (zero, zero, zero, zero, zero, zero, zero, zero, zero)
    for start in range(0, tl.max(number, 0), WIDTH):
        here = (start + tl.arange(0, WIDTH))[None, :]
        valid = here < number[:, None]
        edge = atom[:, None] * slots + here
        other = tl.load(neighbor + edge, mask=valid, other=0).to(tl.int64)
        at = tl.load(interval + edge, mask=valid, other=0)
        u = tl.load(offset + edge, mask=valid, other=0.0)[:, :, None]
        inside = valid[:, :, None] & (channel < F)
        scalar, vector, tensor, _s, _v, _t = _weights(table, at, u, channel, inside, F)
        y = load(features + other[:, :, None] * (9 * F) + channel, F, inside)
        acc = add(acc, weigh(y, scalar, vector, tensor))
    have = present[:, None] & (f < F)[None, :]
    row = atom[:, None] * (9 * F) + f[None, :]
    y = load(features + row, F, have)
    scalar, vector, tensor = _own_weights(own, f, F)
    m = add(_summed(acc), weigh(y, scalar, vector, tensor))
    store(result + row, F, m, have)
    p = product(y, m, SYMMETRIC)
    if SYMMETRIC:
        p = scale(p, tl.load(charge + atom)[:, None])
    p, _ = normalized(p)
    store(products + row, F, p, have)


@triton.jit
def message_adjoint_kernel(
    order,
    edges,
    neighbor,
    interval,
    offset,
    table,
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
    A: tl.constexpr,
    WIDTH: tl.constexpr,
    BF: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """dY_i + sum_j g(d_ij) dM_j + own dM_i, and b_ij = <g'(d_ij), Y_i dM_j> of the strip.

    Args:
        features: Y (N, 9, F).
        for_messages: dM (N, 9, F).
        for_features: dY (N, 9, F), through the product.
        result: complete dY (N, 9, F), written.
        central: b (N, STRIPS, K), written by the first layer to come here, then added to.
        STRIPS: strips of channels.
        FIRST: whether this layer is the first to write b.
        others: as in `message_kernel`.
    """
    wait_for_previous(EARLY)
    place = tl.program_id(0) * A + tl.arange(0, A)
    present = place < atoms
    atom = tl.load(order + place, mask=present, other=0).to(tl.int64)
    strip = tl.program_id(1)
    f = strip * BF + tl.arange(0, BF)
    channel = f[None, None, :]
    number = tl.load(edges + atom, mask=present, other=0)
    have = present[:, None] & (f < F)[None, :]
    row = atom[:, None] * (9 * F) + f[None, :]
    own_y = load(features + row[:, None, :], F, have[:, None, :])
    zero = tl.zeros([A, WIDTH, BF], result.dtype.element_ty)
    acc = (zero, zero, zero, zero, zero, zero, zero, zero, zero)
    for start in range(0, tl.max(number, 0), WIDTH):
        here = (start + tl.arange(0, WIDTH))[None, :]
        valid = here < number[:, None]
        edge = atom[:, None] * slots + here
        other = tl.load(neighbor + edge, mask=valid, other=0).to(tl.int64)
        at = tl.load(interval + edge, mask=valid, other=0)
        u = tl.load(offset + edge, mask=valid, other=0.0)[:, :, None]
        inside = valid[:, :, None] & (channel < F)
        scalar, vector, tensor, ds, dv, dt = _weights(table, at, u, channel, inside, F)
        m = load(for_messages + other[:, :, None] * (9 * F) + channel, F, inside)
        acc = add(acc, weigh(m, scalar, vector, tensor))
        v = own_y[1] * m[1] + own_y[2] * m[2] + own_y[3] * m[3]
        t = own_y[4] * m[4] + own_y[5] * m[5] + own_y[6] * m[6]
        t += own_y[7] * m[7] + own_y[8] * m[8]
        b = tl.sum(ds * (own_y[0] * m[0]) + dv * v + dt * t, 2)
        where = central + (atom[:, None] * STRIPS + strip) * slots + here
        if not FIRST:
            b += tl.load(where, mask=valid, other=0.0)
        tl.store(where, b, mask=valid)
    scalar, vector, tensor = _own_weights(own, f, F)
    itself = weigh(load(for_messages + row, F, have), scalar, vector, tensor)
    itself = add(itself, load(for_features + row, F, have))
    store(result + row, F, add(_summed(acc), itself), have)
