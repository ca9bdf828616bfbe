"""Kernels of messages whose weights differ by direction: those of a network on edges.

M_i = sum over j of g_ij Y_j with g = act(a3) window. The adjoint of M takes g of the reverse
edges, dY_i = sum over j of g_ji dM_j, and leaves the gradient of a3 in its place. Edges lie
as `packing` lines them up; programs take atoms and strips of channels as in `messages`.
"""

import triton
import triton.language as tl

from mdgraph.fused.cuda.kernels.activations import activation, slope
from mdgraph.fused.cuda.kernels.packing import ends_of, rows_of
from mdgraph.models.kernels.components import (
    add,
    dots,
    load,
    normalized,
    scale,
    store,
    summed,
    weigh,
)
from mdgraph.models.kernels.matrices import product
from mdgraph.neighbors.compilation import kernel
from mdgraph.neighbors.succession import wait_for_previous


@triton.jit
def _weighted(x, a3, window, inside, F: tl.constexpr, ACTIVATION: tl.constexpr):
    """X times act(a3) window of each part."""
    scalar = activation(tl.load(a3, mask=inside, other=0.0), ACTIVATION) * window
    vector = activation(tl.load(a3 + F, mask=inside, other=0.0), ACTIVATION) * window
    tensor = activation(tl.load(a3 + 2 * F, mask=inside, other=0.0), ACTIVATION) * window
    return weigh(x, scalar, vector, tensor)


@kernel
def charged_message_kernel(
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
    EARLY: tl.constexpr = False,
):
    """M_i = sum_j g_ij Y_j, and P / n with P = product(Y_i, M_i) q.

    Args:
        order: (N,) int32, in which atoms are taken.
        first, target, window: of `packing`.
        coefficients: a3 (P, 3, F).
        features: Y (N, 9, F).
        charge: q (N,), factor of products.
        result: M (N, 9, F), written.
        products: P / n (N, 9, F), written.
        atoms: N.
    """
    wait_for_previous(EARLY)
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
def charged_message_adjoint_kernel(
    order,
    first,
    target,
    back,
    window,
    coefficients,
    for_messages,
    for_features,
    result,
    atoms,
    F: tl.constexpr,
    A: tl.constexpr,
    WIDTH: tl.constexpr,
    BF: tl.constexpr,
    ACTIVATION: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """dY_i + sum_j g_ji dM_j.

    Args:
        back: of `packing`.
        for_messages: dM (N, 9, F).
        for_features: dY (N, 9, F), through the product.
        result: complete dY (N, 9, F), written.
        others: as in `charged_message_kernel`.
    """
    wait_for_previous(EARLY)
    atom, present, begin, number = rows_of(first, order, atoms, A)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    channel = f[None, None, :]
    zero = tl.zeros([A, WIDTH, BF], result.dtype.element_ty)
    acc = (zero, zero, zero, zero, zero, zero, zero, zero, zero)
    here = tl.arange(0, WIDTH)[None, :]
    # The reverse edge is as long, so it has the same window.
    other, w, edge = ends_of(target, window, begin, number, here)
    there = tl.load(back + edge, mask=here < number[:, None], other=0).to(tl.int64)
    for _ in range(0, tl.max(number, 0), WIDTH):
        inside = (here < number[:, None])[:, :, None] & (channel < F)
        m = load(for_messages + other[:, :, None] * (9 * F) + channel, F, inside)
        a3 = coefficients + there[:, :, None] * (3 * F) + channel
        m = _weighted(m, a3, w[:, :, None], inside, F, ACTIVATION)
        here += WIDTH
        other, w, edge = ends_of(target, window, begin, number, here)
        there = tl.load(back + edge, mask=here < number[:, None], other=0).to(tl.int64)
        acc = add(acc, m)
    have = present[:, None] & (f < F)[None, :]
    row = atom[:, None] * (9 * F) + f[None, :]
    store(result + row, F, add(summed(acc), load(for_features + row, F, have)), have)


@kernel
def weights_adjoint_kernel(
    order,
    first,
    target,
    window,
    window_slope,
    coefficients,
    features,
    for_messages,
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
    EARLY: tl.constexpr = False,
):
    """da3_ij = <dM_i, Y_j> window act'(a3), and the part of dE/dd that comes by the window.

    Args:
        window_slope: of `packing`.
        coefficients: a3 (P, 3, F); its gradient is written over it.
        features: Y (N, 9, F).
        for_messages: dM (N, 9, F).
        central: (N, STRIPS, K), written by the first layer to come here, then added to.
        slots: K.
        OWN: 1 where an atom sends a message to itself, which has no distance.
        STRIPS: strips of channels.
        FIRST: whether this layer is the first to write `central`.
        others: as in `charged_message_kernel`.
    """
    wait_for_previous(EARLY)
    atom, present, begin, number = rows_of(first, order, atoms, A)
    strip = tl.program_id(1)
    channel = (strip * BF + tl.arange(0, BF))[None, None, :]
    have = present[:, None, None] & (channel < F)
    m = load(for_messages + atom[:, None, None] * (9 * F) + channel, F, have)
    here = tl.arange(0, WIDTH)[None, :]
    other, w, edge = ends_of(target, window, begin, number, here)
    for _ in range(0, tl.max(number, 0), WIDTH):
        valid = here < number[:, None]
        inside = valid[:, :, None] & (channel < F)
        y = load(features + other[:, :, None] * (9 * F) + channel, F, inside)
        a3 = coefficients + edge[:, :, None] * (3 * F) + channel
        scalar = tl.load(a3, mask=inside, other=0.0)
        vector = tl.load(a3 + F, mask=inside, other=0.0)
        tensor = tl.load(a3 + 2 * F, mask=inside, other=0.0)
        s, v, t = dots(m, y)
        b = s * activation(scalar, ACTIVATION) + v * activation(vector, ACTIVATION)
        b = tl.sum(b + t * activation(tensor, ACTIVATION), 2)
        b *= tl.load(window_slope + edge, mask=valid, other=0.0)
        s *= w[:, :, None] * slope(scalar, ACTIVATION)
        v *= w[:, :, None] * slope(vector, ACTIVATION)
        t *= w[:, :, None] * slope(tensor, ACTIVATION)
        where = central + (atom[:, None] * STRIPS + strip) * slots + here - OWN
        kept = valid & (here >= OWN)
        here += WIDTH
        other, w, edge = ends_of(target, window, begin, number, here)
        if not FIRST:
            b += tl.load(where, mask=kept, other=0.0)
        # All threads of this program must have loaded what is written over now.
        tl.debug_barrier()
        tl.store(where, b, mask=kept)
        tl.store(a3, s, mask=inside)
        tl.store(a3 + F, v, mask=inside)
        tl.store(a3 + 2 * F, t, mask=inside)
