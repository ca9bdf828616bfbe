"""Kernels that multiply matrices: channels mixed part by part, and moments to features.

A program takes a tile of atoms and a strip of the result's channels.
"""

import triton
import triton.language as tl

from mdgraph.fused.cuda.kernels.tensor_cores import product
from mdgraph.neighbors.compilation import kernel
from mdgraph.neighbors.succession import wait_for_previous


@triton.jit
def part_of(component):
    """Part (0, 1, 2) of a component (0 to 8)."""
    return (component >= 1).to(tl.int32) + (component >= 4).to(tl.int32)


@kernel
def mixing_kernel(
    features,
    weights,
    rest,
    unit,
    result,
    atoms,
    F: tl.constexpr,
    A: tl.constexpr,
    BK: tl.constexpr,
    BF: tl.constexpr,
    PRODUCTS: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """Y[i, c] = X[i, c] W[part(c)], one component a program.

    Args:
        features: X (N, 9, F).
        weights, rest, unit: halves of W (3, F, F), [part, in, out].
        result: Y (N, 9, F), written, in a type that may be shorter.
        atoms: N.
    """
    wait_for_previous(EARLY)
    strips: tl.constexpr = (F + BF - 1) // BF
    atom = (tl.program_id(0) * A + tl.arange(0, A)).to(tl.int64)
    component = tl.program_id(1) // strips
    f = (tl.program_id(1) % strips) * BF + tl.arange(0, BF)
    present = (atom < atoms)[:, None]
    x = features + atom[:, None] * (9 * F) + component * F
    w = part_of(component) * (F * F) + f[None, :]
    acc = tl.zeros([A, BF], features.dtype.element_ty)
    for first in range(0, F, BK):
        k = first + tl.arange(0, BK)
        left = tl.load(x + k[None, :], mask=present & (k < F)[None, :], other=0.0)
        inside = (k < F)[:, None] & (f < F)[None, :]
        at = w + k[:, None] * F
        acc += product(left, weights + at, rest + at, inside, PRODUCTS)
    acc *= unit
    y = result + atom[:, None] * (9 * F) + component * F + f[None, :]
    tl.store(y, acc, mask=present & (f < F)[None, :])


@kernel
def contraction_kernel(
    members,
    elements,
    moments,
    weights,
    rest,
    unit,
    own,
    features,
    Q: tl.constexpr,
    F: tl.constexpr,
    A: tl.constexpr,
    BK: tl.constexpr,
    BF: tl.constexpr,
    PRODUCTS: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """X[i, c, f] = sum_q M[i, c, q] W[e_i, q, part(c), f] + own.

    Args:
        members: (tiles, A) int32, atoms of one element, -1 where a tile is not full.
        elements: (tiles,) int32, that element among those at hand.
        moments: M (N, 9, Q).
        weights, rest, unit: halves of W (E, Q, 3, F).
        own: (E, F), added to the scalar component.
        features: X (N, 9, F), written.
    """
    wait_for_previous(EARLY)
    strips: tl.constexpr = (F + BF - 1) // BF
    tile = tl.program_id(0)
    component = tl.program_id(1) // strips
    f = (tl.program_id(1) % strips) * BF + tl.arange(0, BF)
    member = tl.load(members + tile * A + tl.arange(0, A))
    present = (member >= 0)[:, None]
    atom = tl.maximum(member, 0).to(tl.int64)
    element = tl.load(elements + tile)
    m = moments + atom[:, None] * (9 * Q) + component * Q
    w = (element * Q * 3 + part_of(component)) * F + f[None, :]
    itself = tl.load(own + element * F + f, mask=(f < F) & (component == 0), other=0.0)
    acc = tl.zeros([A, BF], features.dtype.element_ty)
    for first in range(0, Q, BK):
        q = first + tl.arange(0, BK)
        left = tl.load(m + q[None, :], mask=present & (q < Q)[None, :], other=0.0)
        inside = (q < Q)[:, None] & (f < F)[None, :]
        at = w + q[:, None] * (3 * F)
        acc += product(left, weights + at, rest + at, inside, PRODUCTS)
    acc = acc * unit + itself[None, :]
    x = features + atom[:, None] * (9 * F) + component * F + f[None, :]
    tl.store(x, acc, mask=present & (f < F)[None, :])


@kernel
def contraction_adjoint_kernel(
    members,
    elements,
    gradient,
    features,
    for_squares,
    weights,
    rest,
    unit,
    adjoint,
    Q: tl.constexpr,
    F: tl.constexpr,
    A: tl.constexpr,
    BK: tl.constexpr,
    BF: tl.constexpr,
    PRODUCTS: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """D[i, c, q] = sum_f (G + 2 X d|X|^2)[i, c, f] W[e_i, q, part(c), f].

    Args:
        gradient: G (N, 9, F), of X but for its squared norm.
        features: X (N, 9, F).
        for_squares: d|X|^2 (N, F).
        weights, rest, unit: halves of W transposed (E, 3, F, Q).
        adjoint: D (N, 9, Q), written.
        others: as in `contraction_kernel`.
    """
    wait_for_previous(EARLY)
    strips: tl.constexpr = (Q + BF - 1) // BF
    tile = tl.program_id(0)
    component = tl.program_id(1) // strips
    q = (tl.program_id(1) % strips) * BF + tl.arange(0, BF)
    member = tl.load(members + tile * A + tl.arange(0, A))
    present = (member >= 0)[:, None]
    atom = tl.maximum(member, 0).to(tl.int64)
    element = tl.load(elements + tile)
    place = atom[:, None] * (9 * F) + component * F
    w = (element * 3 + part_of(component)) * (F * Q) + q[None, :]
    acc = tl.zeros([A, BF], adjoint.dtype.element_ty)
    for first in range(0, F, BK):
        f = first + tl.arange(0, BK)
        have = present & (f < F)[None, :]
        left = tl.load(gradient + place + f[None, :], mask=have, other=0.0)
        x = tl.load(features + place + f[None, :], mask=have, other=0.0)
        left += 2.0 * x * tl.load(for_squares + atom[:, None] * F + f[None, :], have, other=0.0)
        inside = (f < F)[:, None] & (q < Q)[None, :]
        at = w + f[:, None] * Q
        acc += product(left, weights + at, rest + at, inside, PRODUCTS)
    acc *= unit
    d = adjoint + atom[:, None] * (9 * Q) + component * Q + q[None, :]
    tl.store(d, acc, mask=present & (q < Q)[None, :])
