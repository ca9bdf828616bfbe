"""Kernels of the embedding on edges: species-resolved moments, and gradients from their adjoint.

M[i, c, s, k] = sum over neighbors j of species s of B_k(d) Y_c(r), with B_k(d) from a table
and Y the components of 1 + [r]x + (r r^T - 1/3) of the unit vector r.

The last function, the window itself, is kept apart from the others: these are often as many
as a power of two, and tiles are as wide as one.
"""

import triton
import triton.language as tl

from mdgraph.fused.cuda.kernels.cubics import polynomials
from mdgraph.neighbors.compilation import kernel
from mdgraph.neighbors.succession import wait_for_previous

_ROOT2 = tl.constexpr(1.4142135623730951)
_ROOT3 = tl.constexpr(1.7320508075688772)
_HALF = tl.constexpr(0.70710678118654752)
_SIXTH = tl.constexpr(0.40824829046386302)


@triton.jit
def _store_moments(out, m0, m1, m2, m3, m4, m5, m6, m7, m8, have, STRIDE: tl.constexpr):
    """Writes the sums of values times polynomials with the constants of the basis."""
    tl.store(out, m0 * _ROOT3, mask=have)
    tl.store(out + STRIDE, m1 * _ROOT2, mask=have)
    tl.store(out + 2 * STRIDE, m2 * _ROOT2, mask=have)
    tl.store(out + 3 * STRIDE, m3 * _ROOT2, mask=have)
    tl.store(out + 4 * STRIDE, m4 * _ROOT2, mask=have)
    tl.store(out + 5 * STRIDE, m5 * _ROOT2, mask=have)
    tl.store(out + 6 * STRIDE, m6 * _SIXTH, mask=have)
    tl.store(out + 7 * STRIDE, m7 * _ROOT2, mask=have)
    tl.store(out + 8 * STRIDE, m8 * _HALF, mask=have)


@kernel
def moments_kernel(
    order,
    edges,
    species,
    interval,
    offset,
    unit,
    table,
    moments,
    slots,
    E: tl.constexpr,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    KP: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """Sums the moments of one atom and one species of neighbors.

    Args:
        order: (N,) int32, which atom a program takes.
        edges, species, interval, offset, unit: as `edges_kernel` wrote them.
        table: (intervals, 4, K).
        moments: (N, 9, E K), written.
        slots: slots a row.
        E, K: elements at hand, functions.
    """
    wait_for_previous(EARLY)
    atom = tl.load(order + tl.program_id(0)).to(tl.int64)
    wanted = tl.program_id(1)
    k = tl.arange(0, KP)
    zero = tl.zeros([KP], moments.dtype.element_ty)
    m0, m1, m2, m3, m4, m5, m6, m7, m8 = zero, zero, zero, zero, zero, zero, zero, zero, zero
    one = tl.zeros([WIDTH], moments.dtype.element_ty)
    w0, w1, w2, w3, w4, w5, w6, w7, w8 = one, one, one, one, one, one, one, one, one
    number = tl.load(edges + atom)
    for start in range(0, number, WIDTH):
        here = start + tl.arange(0, WIDTH)
        edge = atom * slots + here
        valid = here < number
        mine = tl.load(species + edge, mask=valid, other=-1) == wanted
        u = tl.load(offset + edge, mask=valid, other=0.0)
        place = tl.load(interval + edge, mask=valid, other=0)
        x = tl.load(unit + edge * 4, mask=valid, other=0.0)
        y = tl.load(unit + edge * 4 + 1, mask=valid, other=0.0)
        z = tl.load(unit + edge * 4 + 2, mask=valid, other=0.0)
        xy, yz, xz = x * y, y * z, x * z
        axial, planar = 2.0 * z * z - x * x - y * y, x * x - y * y
        window, _ = polynomials(table + place * (4 * K) + K - 1, u, mine, K)
        w0 += window
        w1 += window * x
        w2 += window * y
        w3 += window * z
        w4 += window * xy
        w5 += window * yz
        w6 += window * axial
        w7 += window * xz
        w8 += window * planar
        inside = mine[:, None] & (k < K - 1)[None, :]
        value, _ = polynomials(table + place[:, None] * (4 * K) + k[None, :], u[:, None], inside, K)
        m0 += tl.sum(value, 0)
        m1 += tl.sum(value * x[:, None], 0)
        m2 += tl.sum(value * y[:, None], 0)
        m3 += tl.sum(value * z[:, None], 0)
        m4 += tl.sum(value * xy[:, None], 0)
        m5 += tl.sum(value * yz[:, None], 0)
        m6 += tl.sum(value * axial[:, None], 0)
        m7 += tl.sum(value * xz[:, None], 0)
        m8 += tl.sum(value * planar[:, None], 0)
    out = moments + atom * (9 * E * K) + wanted * K
    _store_moments(out + k, m0, m1, m2, m3, m4, m5, m6, m7, m8, k < K - 1, E * K)
    _store_moments(
        out + K - 1,
        tl.sum(w0, 0),
        tl.sum(w1, 0),
        tl.sum(w2, 0),
        tl.sum(w3, 0),
        tl.sum(w4, 0),
        tl.sum(w5, 0),
        tl.sum(w6, 0),
        tl.sum(w7, 0),
        tl.sum(w8, 0),
        True,
        E * K,
    )


@triton.jit
def _polynomials_adjoint(d, x, y, z, inside, STRIDE: tl.constexpr):
    """H = sum_c D_c Y_c, and sum_c D_c dY_c/du, for the adjoint moments at `d`."""
    d4 = tl.load(d + 4 * STRIDE, mask=inside, other=0.0) * _ROOT2
    d5 = tl.load(d + 5 * STRIDE, mask=inside, other=0.0) * _ROOT2
    d6 = tl.load(d + 6 * STRIDE, mask=inside, other=0.0) * _SIXTH
    d7 = tl.load(d + 7 * STRIDE, mask=inside, other=0.0) * _ROOT2
    d8 = tl.load(d + 8 * STRIDE, mask=inside, other=0.0) * _ROOT2
    gx = y * d4 + z * d7 + x * d8 - 2.0 * x * d6
    gy = x * d4 + z * d5 - y * d8 - 2.0 * y * d6
    gz = y * d5 + x * d7 + 4.0 * z * d6
    # Y is of degree 2 in u here, of degree 1 and 0 below.
    h = 0.5 * (x * gx + y * gy + z * gz)
    d1 = tl.load(d + STRIDE, mask=inside, other=0.0) * _ROOT2
    d2 = tl.load(d + 2 * STRIDE, mask=inside, other=0.0) * _ROOT2
    d3 = tl.load(d + 3 * STRIDE, mask=inside, other=0.0) * _ROOT2
    h += x * d1 + y * d2 + z * d3 + tl.load(d, mask=inside, other=0.0) * _ROOT3
    return h, gx + d1, gy + d2, gz + d3


@kernel
def edge_gradients_kernel(
    order,
    edges,
    species,
    slot,
    interval,
    offset,
    unit,
    table,
    adjoint,
    central,
    gradient,
    slots,
    E: tl.constexpr,
    K: tl.constexpr,
    STRIPS: tl.constexpr,
    WIDTH: tl.constexpr,
    KP: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """w_ik: derivative of the energy by r_ik through the moments of i, and the central forces.

    With h_k = sum_c D_ck Y_c and G = sum_k B_k sum_c D_ck dY_c/du for the adjoint moments D
    of the neighbor's species, w = u sum_k B'_k h_k + (G - u (u.G)) / d + b u.

    Args:
        adjoint: D (N, 9, E K).
        central: b (N, STRIPS, K'), from the layers' messages; not read where STRIPS is 0.
        gradient: w (N, K', 3), written at the slots of the list.
        others: as in `moments_kernel` and `edges_kernel`.
    """
    wait_for_previous(EARLY)
    atom = tl.load(order + tl.program_id(0)).to(tl.int64)
    k = tl.arange(0, KP)
    number = tl.load(edges + atom)
    for start in range(0, number, WIDTH):
        here = start + tl.arange(0, WIDTH)
        edge = atom * slots + here
        valid = here < number
        kind = tl.load(species + edge, mask=valid, other=0)
        offset_of = tl.load(offset + edge, mask=valid, other=0.0)
        place = tl.load(interval + edge, mask=valid, other=0)
        ux = tl.load(unit + edge * 4, mask=valid, other=0.0)
        uy = tl.load(unit + edge * 4 + 1, mask=valid, other=0.0)
        uz = tl.load(unit + edge * 4 + 2, mask=valid, other=0.0)
        inverse = tl.load(unit + edge * 4 + 3, mask=valid, other=0.0)
        d = adjoint + atom * (9 * E * K) + kind * K
        # The window, then all other functions.
        value, slope = polynomials(table + place * (4 * K) + K - 1, offset_of, valid, K)
        h, gx, gy, gz = _polynomials_adjoint(d + K - 1, ux, uy, uz, valid, E * K)
        along = slope * h
        gx *= value
        gy *= value
        gz *= value
        inside = valid[:, None] & (k < K - 1)[None, :]
        values, slopes = polynomials(
            table + place[:, None] * (4 * K) + k[None, :], offset_of[:, None], inside, K
        )
        h, px, py, pz = _polynomials_adjoint(
            d[:, None] + k[None, :], ux[:, None], uy[:, None], uz[:, None], inside, E * K
        )
        along += tl.sum(slopes * h, 1)
        gx += tl.sum(values * px, 1)
        gy += tl.sum(values * py, 1)
        gz += tl.sum(values * pz, 1)
        along -= (ux * gx + uy * gy + uz * gz) * inverse
        for strip in tl.static_range(STRIPS):
            place_of = central + (atom * STRIPS + strip) * slots + here
            along += tl.load(place_of, mask=valid, other=0.0)
        own = gradient + (atom * slots + tl.load(slot + edge, mask=valid, other=0)) * 3
        tl.store(own, gx * inverse + along * ux, mask=valid)
        tl.store(own + 1, gy * inverse + along * uy, mask=valid)
        tl.store(own + 2, gz * inverse + along * uz, mask=valid)
