"""Kernels of activations: what torch has none of."""

import triton
import triton.language as tl

from mdgraph.neighbors.compilation import kernel


@triton.jit
def _silu(v):
    """silu(v) and its first and second derivative."""
    sigmoid = 1.0 / (1.0 + tl.exp(-v))
    rest = 1.0 - sigmoid
    slope = sigmoid * (1.0 + v * rest)
    return v * sigmoid, slope, sigmoid * rest * (2.0 + v * (rest - sigmoid))


@kernel
def silu_curvature_kernel(x, one, other, for_x, for_one, numbers, BLOCK: tl.constexpr):
    """Derivatives of h g silu'(x) by x and by g.

    Args:
        x, one, other: x, g, h (numbers,).
        for_x, for_one: (numbers,), written.
        numbers: how many there are.
    """
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < numbers
    v = tl.load(x + place, mask=inside, other=0.0)
    g = tl.load(one + place, mask=inside, other=0.0)
    h = tl.load(other + place, mask=inside, other=0.0)
    _value, slope, curvature = _silu(v)
    tl.store(for_x + place, g * h * curvature, mask=inside)
    tl.store(for_one + place, h * slope, mask=inside)


@kernel
def dense_gradient_kernel(x, gradient, more, result, numbers, BLOCK: tl.constexpr):
    """G silu'(x) + m; all (numbers,)."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < numbers
    _value, slope, _curvature = _silu(tl.load(x + place, mask=inside, other=0.0))
    g = tl.load(gradient + place, mask=inside, other=0.0)
    m = tl.load(more + place, mask=inside, other=0.0)
    tl.store(result + place, g * slope + m, mask=inside)


@kernel
def dense_curvature_kernel(x, one, other, for_x, for_one, result, numbers, BLOCK: tl.constexpr):
    """What `silu_curvature_kernel` writes, and g silu'(x)."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < numbers
    _value, slope, curvature = _silu(tl.load(x + place, mask=inside, other=0.0))
    g = tl.load(one + place, mask=inside, other=0.0)
    h = tl.load(other + place, mask=inside, other=0.0)
    tl.store(for_x + place, g * h * curvature, mask=inside)
    tl.store(for_one + place, h * slope, mask=inside)
    tl.store(result + place, g * slope, mask=inside)


@kernel
def windowed_kernel(x, window, result, F: tl.constexpr, BF: tl.constexpr):
    """W silu(x) of rows x (N, F) and w (N,)."""
    row = tl.program_id(0).to(tl.int64)
    f = tl.arange(0, BF)
    value, _slope, _curvature = _silu(tl.load(x + row * F + f, mask=f < F, other=0.0))
    tl.store(result + row * F + f, value * tl.load(window + row), mask=f < F)


@kernel
def windowed_slope_kernel(
    x, window, gradient, for_x, for_window, F: tl.constexpr, BF: tl.constexpr
):
    """From the gradient (N, F) of `windowed_kernel`'s result to those of x and w."""
    row = tl.program_id(0).to(tl.int64)
    f = tl.arange(0, BF)
    value, slope, _curvature = _silu(tl.load(x + row * F + f, mask=f < F, other=0.0))
    g = tl.load(gradient + row * F + f, mask=f < F, other=0.0)
    tl.store(for_x + row * F + f, g * slope * tl.load(window + row), mask=f < F)
    tl.store(for_window + row, tl.sum(g * value, 0))


@kernel
def windowed_curvature_kernel(
    x,
    window,
    gradient,
    along,
    along_window,
    for_x,
    for_window,
    for_gradient,
    F: tl.constexpr,
    BF: tl.constexpr,
):
    """Derivatives of <h, gradient of x> + <k, gradient of w> by x, w and g; h (N, F), k (N,)."""
    row = tl.program_id(0).to(tl.int64)
    f = tl.arange(0, BF)
    value, slope, curvature = _silu(tl.load(x + row * F + f, mask=f < F, other=0.0))
    g = tl.load(gradient + row * F + f, mask=f < F, other=0.0)
    h = tl.load(along + row * F + f, mask=f < F, other=0.0)
    w = tl.load(window + row)
    k = tl.load(along_window + row)
    tl.store(for_x + row * F + f, g * (h * w * curvature + k * slope), mask=f < F)
    tl.store(for_gradient + row * F + f, h * w * slope + k * value, mask=f < F)
    tl.store(for_window + row, tl.sum(h * g * slope, 0))
