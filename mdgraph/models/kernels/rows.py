"""Kernels of layer normalisation: its derivative along a direction, and the next one.

A program takes one row.
"""

import triton
import triton.language as tl

from mdgraph.neighbors.compilation import kernel


@triton.jit
def _mean(x, number: tl.constexpr):
    return tl.sum(x, 0) / number


@triton.jit
def _standardized(x, inside, epsilon: tl.constexpr, number: tl.constexpr):
    """(x - mean) / deviation, zero outside, and 1 / deviation."""
    centred = tl.where(inside, x - _mean(x, number), 0.0)
    inverse = 1.0 / tl.sqrt(_mean(centred * centred, number) + epsilon)
    return centred * inverse, inverse


@triton.jit
def _slope(y, inverse, g, inside, number: tl.constexpr):
    """Zero outside where g is."""
    centred = tl.where(inside, g - _mean(g, number), 0.0)
    return inverse * (centred - y * _mean(g * y, number))


@kernel
def standardized_slope_kernel(
    x,
    weight,
    gradient,
    result,
    products,
    EPSILON: tl.constexpr,
    TRAINED: tl.constexpr,
    F: tl.constexpr,
    BF: tl.constexpr,
):
    """(g' - mean(g') - y mean(g' y)) / s of rows (N, F), with y = (x - mean(x)) / s and g' = w g.

    Args:
        x, gradient: x, g (N, F).
        weight: w (F,).
        result: (N, F), written.
        products: g y (N, F), written where TRAINED.
    """
    f = tl.arange(0, BF)
    place = tl.program_id(0).to(tl.int64) * F + f
    y, inverse = _standardized(tl.load(x + place, f < F, other=0.0), f < F, EPSILON, F)
    g = tl.load(gradient + place, f < F, other=0.0)
    if TRAINED:
        tl.store(products + place, g * y, mask=f < F)
    g *= tl.load(weight + f, f < F, other=0.0)
    tl.store(result + place, _slope(y, inverse, g, f < F, F), mask=f < F)


@kernel
def standardized_curvature_kernel(
    x,
    weight,
    one,
    other,
    for_x,
    for_one,
    products,
    EPSILON: tl.constexpr,
    F: tl.constexpr,
    BF: tl.constexpr,
):
    """Derivatives of <h, slope of x along g> by x and by g, and what makes that by w.

    With g', h' less their means and <> the mean of a row's products, of w g as g the first is
    -(y (<g' h'> - 3 <g y> <h y>) + g' <h y> + h' <g y>) / s^2.

    Args:
        x, one, other: x, g, h (N, F).
        weight: w (F,).
        for_x, for_one: (N, F), written.
        products: g times the slope along h (N, F), written; the gradient of w in each row.
    """
    f = tl.arange(0, BF)
    inside = f < F
    place = tl.program_id(0).to(tl.int64) * F + f
    y, inverse = _standardized(tl.load(x + place, inside, other=0.0), inside, EPSILON, F)
    w = tl.load(weight + f, inside, other=0.0)
    g = tl.load(one + place, inside, other=0.0)
    h = tl.load(other + place, inside, other=0.0)
    along = _slope(y, inverse, h, inside, F)
    tl.store(products + place, g * along, mask=inside)
    tl.store(for_one + place, w * along, mask=inside)
    g *= w
    gy = _mean(g * y, F)
    hy = _mean(h * y, F)
    first = tl.where(inside, g - _mean(g, F), 0.0)
    second = tl.where(inside, h - _mean(h, F), 0.0)
    curvature = y * (_mean(first * second, F) - 3.0 * gy * hy) + first * hy + second * gy
    tl.store(for_x + place, -inverse * inverse * curvature, mask=inside)
