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
    x, gradient, result, EPSILON: tl.constexpr, F: tl.constexpr, BF: tl.constexpr
):
    """(g - mean(g) - y mean(g y)) / s of rows (N, F), with y = (x - mean(x)) / s."""
    place = tl.program_id(0).to(tl.int64) * F + tl.arange(0, BF)
    inside = tl.arange(0, BF) < F
    y, inverse = _standardized(tl.load(x + place, inside, other=0.0), inside, EPSILON, F)
    g = tl.load(gradient + place, inside, other=0.0)
    tl.store(result + place, _slope(y, inverse, g, inside, F), mask=inside)


@kernel
def standardized_curvature_kernel(
    x, one, other, for_x, for_one, EPSILON: tl.constexpr, F: tl.constexpr, BF: tl.constexpr
):
    """Derivatives of <h, slope of x along g> by x and by g.

    With g', h' less their means and <> the mean of a row's products, the first is
    -(y (<g' h'> - 3 <g y> <h y>) + g' <h y> + h' <g y>) / s^2.

    Args:
        x, one, other: x, g, h (N, F).
        for_x, for_one: (N, F), written.
    """
    place = tl.program_id(0).to(tl.int64) * F + tl.arange(0, BF)
    inside = tl.arange(0, BF) < F
    y, inverse = _standardized(tl.load(x + place, inside, other=0.0), inside, EPSILON, F)
    g = tl.load(one + place, inside, other=0.0)
    h = tl.load(other + place, inside, other=0.0)
    gy = _mean(g * y, F)
    hy = _mean(h * y, F)
    first = tl.where(inside, g - _mean(g, F), 0.0)
    second = tl.where(inside, h - _mean(h, F), 0.0)
    curvature = y * (_mean(first * second, F) - 3.0 * gy * hy) + first * hy + second * gy
    tl.store(for_x + place, -inverse * inverse * curvature, mask=inside)
    tl.store(for_one + place, _slope(y, inverse, h, inside, F), mask=inside)
