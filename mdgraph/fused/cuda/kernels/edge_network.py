"""Kernels of the first layer of a network on edges that sees the charges of both atoms.

a1 = T(d) + u_i + v_j with T from a table. The other layers are dense; see `products`. Edges
lie as `packing` lines them up.
"""

import triton.language as tl

from mdgraph.fused.cuda.kernels.cubics import polynomials
from mdgraph.fused.cuda.kernels.packing import rows_of
from mdgraph.neighbors.compilation import kernel
from mdgraph.neighbors.succession import wait_for_previous


@kernel
def first_layer_kernel(
    count,
    source,
    target,
    at,
    from_centre,
    table,
    terms,
    result,
    F: tl.constexpr,
    A: tl.constexpr,
    FP: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """a1 of a few edges.

    Args:
        count: (1,) int32, number of edges.
        source, target, at, from_centre: of `packing`.
        table: T (intervals, 4, F).
        terms: u, v (N, 2F).
        result: a1 (P, F), written.
    """
    wait_for_previous(EARLY)
    edge = tl.program_id(0) * A + tl.arange(0, A)
    number = tl.load(count)
    if tl.program_id(0) * A >= number:
        return
    f = tl.arange(0, FP)[None, :]
    valid = edge < number
    inside = valid[:, None] & (f < F)
    own = tl.load(source + edge, mask=valid, other=0).to(tl.int64)[:, None]
    other = tl.load(target + edge, mask=valid, other=0).to(tl.int64)[:, None]
    u = tl.load(from_centre + edge, mask=valid, other=0.0)[:, None]
    t = table + tl.load(at + edge, mask=valid, other=0)[:, None] * (4 * F) + f
    x, _ = polynomials(t, u, inside, F)
    x += tl.load(terms + own * (2 * F) + f, mask=inside, other=0.0)
    x += tl.load(terms + other * (2 * F) + F + f, mask=inside, other=0.0)
    tl.store(result + edge.to(tl.int64)[:, None] * F + f, x, mask=inside)


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
    EARLY: tl.constexpr = False,
):
    """du_i = sum over j of da1_ij, dv_i = sum over j of da1_ji, and <da1_ij, T'(d)>.

    Args:
        order: (N,) int32, in which atoms are taken.
        first, back, at, from_centre: of `packing`.
        table: T (intervals, 4, F).
        gradient: da1 (P, F).
        for_terms: du, dv (N, 2F), written.
        central: (N, STRIPS, K), derivatives by distance, added to.
        slots: K.
        atoms: N.
    """
    wait_for_previous(EARLY)
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
