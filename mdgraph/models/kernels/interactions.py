"""Kernels of what an interaction does to one atom and channel, with first and second derivatives.

A program takes one atom and a strip of channels.
"""

import triton
import triton.language as tl

from mdgraph.models.kernels.components import (
    add,
    dot,
    load,
    normalized,
    normalized_adjoint,
    scale,
    store,
)
from mdgraph.models.kernels.matrices import (
    both,
    components,
    left_gradient,
    matrix,
    right_gradient,
    square,
    square_adjoint,
)
from mdgraph.neighbors.compilation import kernel


@triton.jit
def _factor(factors, atom, FACTOR: tl.constexpr, SCALED: tl.constexpr):
    # One statement: of two returns, of two types, Triton would compile both.
    return tl.load(factors + atom) * FACTOR if SCALED else FACTOR


@kernel
def product_kernel(
    left,
    right,
    factors,
    result,
    FACTOR: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    SCALED: tl.constexpr,
    F: tl.constexpr,
    BF: tl.constexpr,
):
    """P / (|P|^2 + 1) of the product P of A and B, see `Product`, times a factor of each atom.

    Args:
        left, right: A, B (N, 9, F).
        factors: (N,), where SCALED.
        result: (N, 9, F), written.
    """
    atom = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    place = atom * (9 * F) + f
    a = matrix(load(left + place, F, f < F))
    b = matrix(load(right + place, F, f < F))
    s = _factor(factors, atom, FACTOR, SCALED)
    y, _ = normalized(scale(components(both(a, b, SYMMETRIC)), s))
    store(result + place, F, y, f < F)


@kernel
def product_slope_kernel(
    left,
    right,
    gradient,
    factors,
    for_left,
    for_right,
    FACTOR: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    SCALED: tl.constexpr,
    F: tl.constexpr,
    BF: tl.constexpr,
):
    """From the gradient of what `product_kernel` writes to those of A and B, all (N, 9, F)."""
    atom = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    inside = f < F
    place = atom * (9 * F) + f
    a = matrix(load(left + place, F, inside))
    b = matrix(load(right + place, F, inside))
    s = _factor(factors, atom, FACTOR, SCALED)
    y, inverse = normalized(scale(components(both(a, b, SYMMETRIC)), s))
    g = scale(normalized_adjoint(load(gradient + place, F, inside), y, inverse), s)
    g = matrix(g)
    store(for_left + place, F, components(left_gradient(g, b, SYMMETRIC)), inside)
    store(for_right + place, F, components(right_gradient(g, a, SYMMETRIC)), inside)


@kernel
def product_curvature_kernel(
    left,
    right,
    gradient,
    along_left,
    along_right,
    factors,
    for_left,
    for_right,
    for_gradient,
    FACTOR: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    SCALED: tl.constexpr,
    F: tl.constexpr,
    BF: tl.constexpr,
):
    """Derivatives of <h, gradient of A> + <k, gradient of B> by A, B and g, all (N, 9, F).

    With D the change of P along (h, k) this is <g', D>, where g' is the gradient of P. With
    s = 1 / (|P|^2 + 1) and y = P s its derivative by P is
    -2 s (y <g, D> + g <D, y> + D <g, y>) + 8 y <g, y> <D, y>.
    """
    atom = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    inside = f < F
    place = atom * (9 * F) + f
    a = matrix(load(left + place, F, inside))
    b = matrix(load(right + place, F, inside))
    h = matrix(load(along_left + place, F, inside))
    k = matrix(load(along_right + place, F, inside))
    s = _factor(factors, atom, FACTOR, SCALED)
    y, inverse = normalized(scale(components(both(a, b, SYMMETRIC)), s))
    g = load(gradient + place, F, inside)
    change = scale(components(add(both(h, b, SYMMETRIC), both(a, k, SYMMETRIC))), s)
    store(for_gradient + place, F, normalized_adjoint(change, y, inverse), inside)
    gy = dot(g, y)
    dy = dot(change, y)
    bent = scale(y, 8.0 * gy * dy - 2.0 * inverse * dot(g, change))
    bent = add(bent, scale(g, -2.0 * inverse * dy))
    bent = matrix(scale(add(bent, scale(change, -2.0 * inverse * gy)), s))
    g = matrix(scale(normalized_adjoint(g, y, inverse), s))
    by_left = add(left_gradient(bent, b, SYMMETRIC), left_gradient(g, k, SYMMETRIC))
    store(for_left + place, F, components(by_left), inside)
    by_right = add(right_gradient(bent, a, SYMMETRIC), right_gradient(g, h, SYMMETRIC))
    store(for_right + place, F, components(by_right), inside)


@kernel
def update_kernel(
    features, change, factors, result, SCALED: tl.constexpr, F: tl.constexpr, BF: tl.constexpr
):
    """X + C + s C C, with s of each atom where SCALED, of (N, 9, F)."""
    atom = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    place = atom * (9 * F) + f
    c = load(change + place, F, f < F)
    more = scale(square(c), _factor(factors, atom, 1.0, SCALED))
    moved = add(load(features + place, F, f < F), c)
    store(result + place, F, add(moved, more), f < F)


@kernel
def update_slope_kernel(
    change, gradient, factors, result, SCALED: tl.constexpr, F: tl.constexpr, BF: tl.constexpr
):
    """From the gradient G of `update_kernel`'s result to that of C: G + s (G C^T + C^T G)."""
    atom = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    place = atom * (9 * F) + f
    c = load(change + place, F, f < F)
    g = load(gradient + place, F, f < F)
    more = scale(square_adjoint(g, c), _factor(factors, atom, 1.0, SCALED))
    store(result + place, F, add(g, more), f < F)


@kernel
def update_curvature_kernel(
    change,
    gradient,
    along,
    factors,
    for_change,
    for_gradient,
    SCALED: tl.constexpr,
    F: tl.constexpr,
    BF: tl.constexpr,
):
    """Derivatives of <H, gradient of C> by C and G: s (H^T G + G H^T), H + s (H C + C H)."""
    atom = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    inside = f < F
    place = atom * (9 * F) + f
    c = matrix(load(change + place, F, inside))
    g = matrix(load(gradient + place, F, inside))
    h = load(along + place, F, inside)
    s = _factor(factors, atom, 1.0, SCALED)
    by_change = scale(components(right_gradient(g, matrix(h), True)), s)
    store(for_change + place, F, by_change, inside)
    by_gradient = add(h, scale(components(both(matrix(h), c, True)), s))
    store(for_gradient + place, F, by_gradient, inside)
