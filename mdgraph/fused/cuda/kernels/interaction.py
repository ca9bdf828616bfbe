"""Kernels of an interaction layer that look at one atom and channel at a time.

Y = before(Xn);  M = sum g Y and Pn = P / n with P = product(Y, M) q, in `messages`;
C = after(Pn);  X' = Xn + C + C C q, normalised for the layer that follows.
"""

import triton
import triton.language as tl

from mdgraph.fused.cuda.kernels.components import (
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
)
from mdgraph.fused.cuda.kernels.succession import wait_for_previous


@triton.jit
def update_kernel(
    features,
    change,
    charge,
    result,
    atoms,
    NORMALIZED: tl.constexpr,
    F: tl.constexpr,
    A: tl.constexpr,
    BF: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """X' = Xn + C + C C q, normalised unless this is the last layer.

    Args:
        features, change: Xn, C (N, 9, F).
        charge: q (N,).
        result: X' / n', or X', (N, 9, F), written.
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
    if NORMALIZED:
        x, _ = normalized(x)
    store(result + place, F, x, inside)


@triton.jit
def update_adjoint_kernel(
    gradient,
    residual,
    features,
    change,
    charge,
    atoms,
    NORMALIZED: tl.constexpr,
    F: tl.constexpr,
    A: tl.constexpr,
    BF: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """From the gradient of X' to those of Xn (through the residual, the same) and C.

    Args:
        gradient: (N, 9, F), where normalised, of X' / n' through the next mixing.
        residual: (N, 9, F), of X'; where normalised, of X' / n' through the next residual,
            and dX' is written over it.
        features, change, charge: Xn, C, q; dC is written over C.
        atoms: N.
    """
    wait_for_previous(EARLY)
    atom = (tl.program_id(0) * A + tl.arange(0, A)).to(tl.int64)[:, None]
    f = (tl.program_id(1) * BF + tl.arange(0, BF))[None, :]
    inside = (atom < atoms) & (f < F)
    place = atom * (9 * F) + f
    q = tl.load(charge + atom, mask=atom < atoms, other=0.0)
    g = load(residual + place, F, inside)
    c = load(change + place, F, inside)
    if NORMALIZED:
        x = add(add(load(features + place, F, inside), c), scale(square(c), q))
        y, inverse = normalized(x)
        g = normalized_adjoint(add(g, load(gradient + place, F, inside)), y, inverse)
    dc = add(g, square_adjoint(scale(g, q), c))
    # All threads of this program must have loaded what is written over now.
    tl.debug_barrier()
    if NORMALIZED:
        store(residual + place, F, g, inside)
    store(change + place, F, dc, inside)


@triton.jit
def product_adjoint_kernel(
    gradient,
    mixed,
    messages,
    charge,
    for_mixed,
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
        mixed, messages, charge: Y, M, q; dM is written over M.
        for_mixed: dY (N, 9, F), written.
        atoms: N.
    """
    wait_for_previous(EARLY)
    atom = (tl.program_id(0) * A + tl.arange(0, A)).to(tl.int64)[:, None]
    f = (tl.program_id(1) * BF + tl.arange(0, BF))[None, :]
    inside = (atom < atoms) & (f < F)
    place = atom * (9 * F) + f
    y = load(mixed + place, F, inside)
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
    store(messages + place, F, dm, inside)
