"""Kernels of an interaction layer that look at one atom and channel at a time.

Y = before(Xn);  M = sum g Y and Pn = P / n with P = product(Y, M) q, in `messages`;
C = after(Pn);  X' = Xn + C + C C q, normalised for the layer that follows. What else is
made of X' takes its invariants alone, channel by channel: the energy t = (|I|^2, |A|^2, |S|^2),
the charges t' = (tr X' / 3, |A|^2, |S|^2).
"""

import triton.language as tl

from mdgraph.models.kernels.components import (
    add,
    add_invariants_adjoint,
    load,
    normalized,
    normalized_adjoint,
    scale,
    store,
    store_invariants,
    widened,
)
from mdgraph.models.kernels.matrices import product, product_adjoint, square, square_adjoint
from mdgraph.neighbors.compilation import kernel
from mdgraph.neighbors.succession import wait_for_previous


@kernel
def update_kernel(
    features,
    change,
    charge,
    result,
    invariants,
    charged,
    atoms,
    NORMALIZED: tl.constexpr,
    INVARIANTS: tl.constexpr,
    CHARGED: tl.constexpr,
    F: tl.constexpr,
    A: tl.constexpr,
    BF: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """X' = Xn + C + C C q: normalised where a layer follows, its invariants where they count.

    Args:
        features, change: Xn, C (N, 9, F).
        charge: q (N,).
        result: X' / n' (N, 9, F), written where NORMALIZED.
        invariants, charged: t and t' (N, 3F), written where INVARIANTS and where CHARGED.
        atoms: N.
    """
    wait_for_previous(EARLY)
    atom = (tl.program_id(0) * A + tl.arange(0, A)).to(tl.int64)[:, None]
    f = (tl.program_id(1) * BF + tl.arange(0, BF))[None, :]
    inside = (atom < atoms) & (f < F)
    place = atom * (9 * F) + f
    q = tl.load(charge + atom, mask=atom < atoms, other=0.0)
    c = load(change + place, F, inside)
    x = add(add(load(features + place, F, inside), c), scale(square(c), q))
    if INVARIANTS:
        store_invariants(invariants + atom * (3 * F) + f, F, x, False, inside)
    if CHARGED:
        store_invariants(charged + atom * (3 * F) + f, F, x, True, inside)
    if NORMALIZED:
        x, _ = normalized(x)
        store(result + place, F, x, inside)


@kernel
def update_adjoint_kernel(
    gradient,
    residual,
    for_invariants,
    for_charged,
    features,
    change,
    charge,
    atoms,
    NORMALIZED: tl.constexpr,
    INVARIANTS: tl.constexpr,
    CHARGED: tl.constexpr,
    F: tl.constexpr,
    A: tl.constexpr,
    BF: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """From the gradient of X' to those of Xn (through the residual, the same) and C.

    Args:
        gradient: (N, 9, F), where NORMALIZED, of X' / n' through the next mixing.
        residual: (N, 9, F), where NORMALIZED, of X' / n' through the next residual; dX' is
            written over it.
        for_invariants, for_charged: dt and dt' (N, 3F), where INVARIANTS and where CHARGED.
        features, change, charge: Xn, C, q; dC is written over C. Xn may lie in `residual`
            where there is nothing to read.
        atoms: N.
    """
    wait_for_previous(EARLY)
    atom = (tl.program_id(0) * A + tl.arange(0, A)).to(tl.int64)[:, None]
    f = (tl.program_id(1) * BF + tl.arange(0, BF))[None, :]
    inside = (atom < atoms) & (f < F)
    place = atom * (9 * F) + f
    q = tl.load(charge + atom, mask=atom < atoms, other=0.0)
    c = load(change + place, F, inside)
    x = add(add(load(features + place, F, inside), c), scale(square(c), q))
    g = scale(x, 0.0)
    if NORMALIZED:
        y, inverse = normalized(x)
        g = add(load(residual + place, F, inside), load(gradient + place, F, inside))
        g = normalized_adjoint(g, y, inverse)
    if INVARIANTS:
        t_at = for_invariants + atom * (3 * F) + f
        g = add_invariants_adjoint(g, t_at, F, x, False, inside)
    if CHARGED:
        t_at = for_charged + atom * (3 * F) + f
        g = add_invariants_adjoint(g, t_at, F, x, True, inside)
    dc = add(g, square_adjoint(scale(g, q), c))
    # All threads of this program must have loaded what is written over now.
    tl.debug_barrier()
    store(residual + place, F, g, inside)
    store(change + place, F, dc, inside)


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
    EARLY: tl.constexpr = False,
):
    """From the gradient of Pn to those of Y (through the product alone) and M.

    Args:
        gradient: dPn (N, 9, F).
        mixed, messages, charge: Y (of this type or a shorter one), M, q.
        for_mixed: dY (N, 9, F), written.
        for_messages: dM (N, 9, F), written; may lie over M.
        atoms: N.
    """
    wait_for_previous(EARLY)
    atom = (tl.program_id(0) * A + tl.arange(0, A)).to(tl.int64)[:, None]
    f = (tl.program_id(1) * BF + tl.arange(0, BF))[None, :]
    inside = (atom < atoms) & (f < F)
    place = atom * (9 * F) + f
    y = widened(load(mixed + place, F, inside), messages.dtype.element_ty)
    m = load(messages + place, F, inside)
    p = product(y, m, SYMMETRIC)
    q = tl.load(charge + atom, mask=atom < atoms, other=0.0)
    if SYMMETRIC:
        p = scale(p, q)
    p, inverse = normalized(p)
    g = normalized_adjoint(load(gradient + place, F, inside), p, inverse)
    if SYMMETRIC:
        g = scale(g, q)
    dy, dm = product_adjoint(g, y, m, SYMMETRIC)
    # All threads of this program must have loaded what is written over now.
    tl.debug_barrier()
    store(for_mixed + place, F, dy, inside)
    store(for_messages + place, F, dm, inside)
