"""Kernels of what a network sees of its pairs: radial functions, and moments of atoms.

Nothing of a slot is written but its gradient. With TANGENT a kernel writes the derivatives of its
results along a change of the vectors instead.
"""

import triton.language as tl

from mdgraph.models.kernels.components import load, store
from mdgraph.models.kernels.geometry import (
    ROOT2,
    ROOT3,
    SIXTH,
    angular,
    angular_change,
    changed,
    cutoff_window,
    radial_functions,
    unit,
    windowed,
)
from mdgraph.neighbors.compilation import kernel


@kernel
def pairs_kernel(
    vectors,
    change,
    one,
    other,
    valid,
    means,
    betas,
    radial,
    window,
    LOWER: tl.constexpr,
    UPPER: tl.constexpr,
    TANGENT: tl.constexpr,
    K: tl.constexpr,
    BK: tl.constexpr,
):
    """Radial functions and window of a pair.

    Args:
        vectors, change: (N slots, 3) A; the latter where TANGENT.
        one, other, valid: (P,), see `Undirected`.
        means, betas: (K,), of the basis.
        radial, window: (P, K), (P,), written; 0 on padding.
    """
    pair = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BK)
    first = tl.load(one + pair).to(tl.int64)
    d, x, y, z = unit(vectors, first)
    reached = tl.where(tl.load(valid + pair) != 0, d, 2.0 * UPPER)
    value, slope = radial_functions(reached, means, betas, k, K, LOWER, UPPER)
    c, fall = cutoff_window(reached, LOWER, UPPER)
    if TANGENT:
        last = tl.load(other + pair).to(tl.int64)
        e, u, v, w = unit(vectors, last)
        along, _, _, _ = changed(change, first, d, x, y, z)
        back, _, _, _ = changed(change, last, e, u, v, w)
        # The distance is the mean of those of both slots.
        along = 0.5 * (along + back)
        value = slope * along.to(slope.dtype)
        c = fall * along
    tl.store(radial + pair * K + k, value, mask=k < K)
    tl.store(window + pair, c.to(window.dtype.element_ty))


@kernel
def moments_kernel(
    vectors,
    change,
    index,
    count,
    kinds,
    means,
    betas,
    result,
    slots,
    SIGN: tl.constexpr,
    E: tl.constexpr,
    LOWER: tl.constexpr,
    UPPER: tl.constexpr,
    TANGENT: tl.constexpr,
    K: tl.constexpr,
    BK: tl.constexpr,
):
    """M[i, c, s, k] = sum over neighbors of element s of Y_c(r) c(d) [phi_k(d) ; 1].

    A program takes one atom and one element, and its slots one after the other.

    Args:
        vectors, change, means, betas: as above.
        index, count: (N, slots), (N,), of the list.
        kinds: (N,), element of each atom among E.
        result: (N, 9, E, K + 1), written.
    """
    atom = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BK)
    zero = tl.zeros([BK], dtype=result.dtype.element_ty)
    m0, m1, m2, m3, m4, m5, m6, m7, m8 = zero, zero, zero, zero, zero, zero, zero, zero, zero
    for place in range(tl.load(count + atom)):
        slot = atom * slots + place
        if tl.load(kinds + tl.load(index + slot).to(tl.int64)) == tl.program_id(1):
            d, x, y, z = unit(vectors, slot)
            value, slope = windowed(d, means, betas, k, K, LOWER, UPPER)
            xr, yr, zr = x.to(value.dtype), y.to(value.dtype), z.to(value.dtype)
            y1, y2, y3, y4, y5, y6, y7, y8 = angular(xr, yr, zr, SIGN)
            factor = value
            if TANGENT:
                along, a, b, c = changed(change, slot, d, x, y, z)
                factor = slope * along.to(value.dtype)
                ar, br, cr = a.to(value.dtype), b.to(value.dtype), c.to(value.dtype)
                t1, t2, t3, t4, t5, t6, t7, t8 = angular_change(xr, yr, zr, ar, br, cr, SIGN)
                m1 += t1 * value
                m2 += t2 * value
                m3 += t3 * value
                m4 += t4 * value
                m5 += t5 * value
                m6 += t6 * value
                m7 += t7 * value
                m8 += t8 * value
            m0 += ROOT3 * factor
            m1 += y1 * factor
            m2 += y2 * factor
            m3 += y3 * factor
            m4 += y4 * factor
            m5 += y5 * factor
            m6 += y6 * factor
            m7 += y7 * factor
            m8 += y8 * factor
    out = result + (atom * 9 * E + tl.program_id(1)) * (K + 1) + k
    store(out, E * (K + 1), (m0, m1, m2, m3, m4, m5, m6, m7, m8), k <= K)


@kernel
def vectors_adjoint_kernel(
    vectors,
    index,
    count,
    number,
    kinds,
    means,
    betas,
    for_radial,
    for_window,
    for_moments,
    result,
    slots,
    SIGN: tl.constexpr,
    E: tl.constexpr,
    LOWER: tl.constexpr,
    UPPER: tl.constexpr,
    K: tl.constexpr,
    BK: tl.constexpr,
):
    """From the gradients of what the two kernels above write to those of the vectors.

    A program takes one slot.

    Args:
        vectors, index, count, kinds, means, betas: as above.
        number: (N, slots), pair of each slot.
        for_radial, for_window, for_moments: (P, K), (P,), (N, 9, E, K + 1), gradients.
        result: (N slots, 3), written; 0 on empty slots.
    """
    slot = tl.program_id(0).to(tl.int64)
    atom = slot // slots
    k = tl.arange(0, BK)
    used = slot - atom * slots < tl.load(count + atom)
    d, x, y, z = unit(vectors, slot)
    g = tl.load(for_radial + tl.load(number + slot).to(tl.int64) * K + k, mask=k < K, other=0.0)
    _, steep = radial_functions(d, means, betas, k, K, LOWER, UPPER)
    _, fall = cutoff_window(d, LOWER, UPPER)
    along = tl.sum((g * steep).to(d.dtype), 0)
    along += fall * tl.load(for_window + tl.load(number + slot).to(tl.int64))
    value, slope = windowed(d, means, betas, k, K, LOWER, UPPER)
    element = tl.load(kinds + tl.load(index + slot).to(tl.int64)).to(tl.int64)
    row = for_moments + (atom * 9 * E + element) * (K + 1) + k
    g0, g1, g2, g3, g4, g5, g6, g7, g8 = load(row, E * (K + 1), (k <= K) & used)
    y1, y2, y3, y4, y5, y6, y7, y8 = angular(x.to(g.dtype), y.to(g.dtype), z.to(g.dtype), SIGN)
    total = ROOT3 * g0 + y1 * g1 + y2 * g2 + y3 * g3 + y4 * g4
    total += y5 * g5 + y6 * g6 + y7 * g7 + y8 * g8
    # The distance of a pair is the mean of those of both slots.
    along = 0.5 * along + tl.sum((slope * total).to(d.dtype), 0)
    h1 = (SIGN * ROOT2) * tl.sum((value * g1).to(d.dtype), 0)
    h2 = (SIGN * ROOT2) * tl.sum((value * g2).to(d.dtype), 0)
    h3 = (SIGN * ROOT2) * tl.sum((value * g3).to(d.dtype), 0)
    h4 = ROOT2 * tl.sum((value * g4).to(d.dtype), 0)
    h5 = ROOT2 * tl.sum((value * g5).to(d.dtype), 0)
    h6 = (2.0 * SIXTH) * tl.sum((value * g6).to(d.dtype), 0)
    h7 = ROOT2 * tl.sum((value * g7).to(d.dtype), 0)
    h8 = ROOT2 * tl.sum((value * g8).to(d.dtype), 0)
    a = h1 + y * h4 + z * h7 - x * h6 + x * h8
    b = h2 + x * h4 + z * h5 - y * h6 - y * h8
    c = h3 + y * h5 + x * h7 + 2.0 * z * h6
    along -= (a * x + b * y + c * z) / d
    out = result + 3 * slot
    tl.store(out, tl.where(used, along * x + a / d, 0.0))
    tl.store(out + 1, tl.where(used, along * y + b / d, 0.0))
    tl.store(out + 2, tl.where(used, along * z + c / d, 0.0))
