"""Kernels of the embedding on edges: species-resolved moments, and gradients from their adjoint.

M[i, c, s, k] = sum over neighbors j of species s of B_k(d) Y_c(r), with B_k(d) from a table
and Y the components of 1 + [r]x + (r r^T - 1/3) of the unit vector r.
"""

import triton
import triton.language as tl

from mdgraph.fused.cuda.kernels.succession import wait_for_previous

_ROOT2 = tl.constexpr(1.4142135623730951)
_ROOT3 = tl.constexpr(1.7320508075688772)
_HALF = tl.constexpr(0.70710678118654752)
_SIXTH = tl.constexpr(0.40824829046386302)


@triton.jit
def _cubics(table, place, u, k, inside, K: tl.constexpr):
    """Values and slopes (W, KP) of K functions at offsets u (W, 1)."""
    t = table + place[:, None] * (4 * K) + k[None, :]
    c0 = tl.load(t, mask=inside, other=0.0)
    c1 = tl.load(t + K, mask=inside, other=0.0)
    c2 = tl.load(t + 2 * K, mask=inside, other=0.0)
    c3 = tl.load(t + 3 * K, mask=inside, other=0.0)
    return c0 + u * (c1 + u * (c2 + u * c3)), c1 + u * (2.0 * c2 + u * (3.0 * c3))


@triton.jit
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
    number = tl.load(edges + atom)
    for start in range(0, number, WIDTH):
        here = start + tl.arange(0, WIDTH)
        edge = atom * slots + here
        valid = here < number
        mine = tl.load(species + edge, mask=valid, other=-1) == wanted
        u = tl.load(offset + edge, mask=valid, other=0.0)[:, None]
        place = tl.load(interval + edge, mask=valid, other=0)
        x = tl.load(unit + edge * 4, mask=valid, other=0.0)[:, None]
        y = tl.load(unit + edge * 4 + 1, mask=valid, other=0.0)[:, None]
        z = tl.load(unit + edge * 4 + 2, mask=valid, other=0.0)[:, None]
        inside = mine[:, None] & (k < K)[None, :]
        value, _ = _cubics(table, place, u, k, inside, K)
        m0 += tl.sum(value, 0)
        m1 += tl.sum(value * x, 0)
        m2 += tl.sum(value * y, 0)
        m3 += tl.sum(value * z, 0)
        m4 += tl.sum(value * (x * y), 0)
        m5 += tl.sum(value * (y * z), 0)
        m6 += tl.sum(value * (2.0 * z * z - x * x - y * y), 0)
        m7 += tl.sum(value * (x * z), 0)
        m8 += tl.sum(value * (x * x - y * y), 0)
    out = moments + atom * (9 * E * K) + wanted * K + k
    have = k < K
    tl.store(out, m0 * _ROOT3, mask=have)
    tl.store(out + E * K, m1 * _ROOT2, mask=have)
    tl.store(out + 2 * E * K, m2 * _ROOT2, mask=have)
    tl.store(out + 3 * E * K, m3 * _ROOT2, mask=have)
    tl.store(out + 4 * E * K, m4 * _ROOT2, mask=have)
    tl.store(out + 5 * E * K, m5 * _ROOT2, mask=have)
    tl.store(out + 6 * E * K, m6 * _SIXTH, mask=have)
    tl.store(out + 7 * E * K, m7 * _ROOT2, mask=have)
    tl.store(out + 8 * E * K, m8 * _HALF, mask=have)


@triton.jit
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
        offset_of = tl.load(offset + edge, mask=valid, other=0.0)[:, None]
        place = tl.load(interval + edge, mask=valid, other=0)
        ux = tl.load(unit + edge * 4, mask=valid, other=0.0)
        uy = tl.load(unit + edge * 4 + 1, mask=valid, other=0.0)
        uz = tl.load(unit + edge * 4 + 2, mask=valid, other=0.0)
        inverse = tl.load(unit + edge * 4 + 3, mask=valid, other=0.0)
        inside = valid[:, None] & (k < K)[None, :]
        value, slope = _cubics(table, place, offset_of, k, inside, K)
        x = ux[:, None]
        y = uy[:, None]
        z = uz[:, None]
        d = adjoint + atom * (9 * E * K) + kind[:, None] * K + k[None, :]
        d4 = tl.load(d + 4 * E * K, mask=inside, other=0.0) * _ROOT2
        d5 = tl.load(d + 5 * E * K, mask=inside, other=0.0) * _ROOT2
        d6 = tl.load(d + 6 * E * K, mask=inside, other=0.0) * _SIXTH
        d7 = tl.load(d + 7 * E * K, mask=inside, other=0.0) * _ROOT2
        d8 = tl.load(d + 8 * E * K, mask=inside, other=0.0) * _ROOT2
        gx = y * d4 + z * d7 + x * d8 - 2.0 * x * d6
        gy = x * d4 + z * d5 - y * d8 - 2.0 * y * d6
        gz = y * d5 + x * d7 + 4.0 * z * d6
        # Y is of degree 2 in u here, of degree 1 and 0 below.
        h = 0.5 * (x * gx + y * gy + z * gz)
        d1 = tl.load(d + E * K, mask=inside, other=0.0) * _ROOT2
        d2 = tl.load(d + 2 * E * K, mask=inside, other=0.0) * _ROOT2
        d3 = tl.load(d + 3 * E * K, mask=inside, other=0.0) * _ROOT2
        h += x * d1 + y * d2 + z * d3 + tl.load(d, mask=inside, other=0.0) * _ROOT3
        gx = tl.sum(value * (gx + d1), 1)
        gy = tl.sum(value * (gy + d2), 1)
        gz = tl.sum(value * (gz + d3), 1)
        along = tl.sum(slope * h, 1) - (ux * gx + uy * gy + uz * gz) * inverse
        for strip in tl.static_range(STRIPS):
            place_of = central + (atom * STRIPS + strip) * slots + here
            along += tl.load(place_of, mask=valid, other=0.0)
        own = gradient + (atom * slots + tl.load(slot + edge, mask=valid, other=0)) * 3
        tl.store(own, gx * inverse + along * ux, mask=valid)
        tl.store(own + 1, gy * inverse + along * uy, mask=valid)
        tl.store(own + 2, gz * inverse + along * uz, mask=valid)
