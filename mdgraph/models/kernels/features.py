"""Triton kernels of one atom and channel: interactions, layer normalisation, activations.

Each is a form that is linear in all but one of its arguments, so the derivatives of any of them
are among them. A program takes one atom and a strip of channels; of layer normalisation, one row.
Below the kernels are their launches on torch's tensors, which know of no gradients and never sync.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mdgraph.gpu.launch import launching_on
from mdgraph.gpu.triton_jit import kernel
from mdgraph.models.kernels.algebra import (
    add,
    both,
    components,
    dot,
    dots,
    left_gradient,
    load,
    matrix,
    normalized,
    normalized_adjoint,
    right_gradient,
    scale,
    square,
    square_adjoint,
    store,
    weigh,
)
from mdgraph.models.tensors import Product

_BLOCK = 1024
"""Numbers that a program of an elementwise kernel takes."""


@kernel
def scale_parts_kernel(
    features,
    weights,
    result,
    row,
    part,
    FACTOR: tl.constexpr,
    F: tl.constexpr,
    BF: tl.constexpr,
):
    """Y[i, c] = factor X[i, c] w[i, part(c)] from X (N, 9, F) and w (N, 3, F) of any strides."""
    atom = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    inside = f < F
    place = atom * (9 * F) + f
    w = weights + atom * row + f
    scalar = FACTOR * tl.load(w, mask=inside, other=0.0)
    vector = FACTOR * tl.load(w + part, mask=inside, other=0.0)
    tensor = FACTOR * tl.load(w + 2 * part, mask=inside, other=0.0)
    x = load(features + place, F, inside)
    store(result + place, F, weigh(x, scalar, vector, tensor), inside)


@kernel
def dots_kernel(left, right, result, FACTOR: tl.constexpr, F: tl.constexpr, BF: tl.constexpr):
    """Factor <A, B> of each part (N, 3, F) from A and B (N, 9, F)."""
    atom = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    inside = f < F
    place = atom * (9 * F) + f
    parts = dots(load(left + place, F, inside), load(right + place, F, inside))
    for part in tl.static_range(3):
        tl.store(result + atom * (3 * F) + part * F + f, FACTOR * parts[part], mask=inside)


@kernel
def normalize_kernel(features, result, F: tl.constexpr, BF: tl.constexpr):
    """X / (|X|^2 + 1) of X (N, 9, F)."""
    atom = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    place = atom * (9 * F) + f
    y, _ = normalized(load(features + place, F, f < F))
    store(result + place, F, y, f < F)


@kernel
def normalized_slope_kernel(features, direction, result, F: tl.constexpr, BF: tl.constexpr):
    """The derivative of `normalize_kernel` along a direction, which is its own adjoint."""
    atom = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    inside = f < F
    place = atom * (9 * F) + f
    y, inverse = normalized(load(features + place, F, inside))
    slope = normalized_adjoint(load(direction + place, F, inside), y, inverse)
    store(result + place, F, slope, inside)


@kernel
def normalized_curvature_kernel(
    features, one, other, for_features, for_one, F: tl.constexpr, BF: tl.constexpr
):
    """Derivatives of <h, slope of X along g> by X and by g.

    With s = 1 / (|X|^2 + 1) and y = X s, the first is
    -2 s (y <g, h> + g <h, y> + h <g, y>) + 8 y <g, y> <h, y>.

    Args:
        features, one, other: X, g, h (N, 9, F).
        for_features, for_one: (N, 9, F), written.
    """
    atom = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    inside = f < F
    place = atom * (9 * F) + f
    y, inverse = normalized(load(features + place, F, inside))
    g = load(one + place, F, inside)
    h = load(other + place, F, inside)
    gy = dot(g, y)
    hy = dot(h, y)
    along = scale(y, 8.0 * gy * hy - 2.0 * inverse * dot(g, h))
    across = add(scale(g, -2.0 * inverse * hy), scale(h, -2.0 * inverse * gy))
    store(for_features + place, F, add(along, across), inside)
    store(for_one + place, F, normalized_adjoint(h, y, inverse), inside)


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
def windowed_silu_kernel(x, window, result, F: tl.constexpr, BF: tl.constexpr):
    """W silu(x) of rows x (N, F) and w (N,)."""
    row = tl.program_id(0).to(tl.int64)
    f = tl.arange(0, BF)
    value, _slope, _curvature = _silu(tl.load(x + row * F + f, mask=f < F, other=0.0))
    tl.store(result + row * F + f, value * tl.load(window + row), mask=f < F)


@kernel
def windowed_slope_kernel(
    x, window, gradient, for_x, for_window, F: tl.constexpr, BF: tl.constexpr
):
    """From the gradient (N, F) of `windowed_silu_kernel`'s result to those of x and w."""
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


def scale_parts(features: Tensor, weights: Tensor, factor: float) -> Tensor:
    """(N, 9, F) and (N, 3, F) to (N, 9, F); the weights may be expanded over atoms or parts."""
    features = features.contiguous()
    if weights.stride(2) != 1:
        weights = weights.contiguous()
    result = torch.empty_like(features)
    strides = weights.stride()[:2]
    _launch(scale_parts_kernel, features, weights, result, *strides, FACTOR=factor)
    return result


def dot_products(left: Tensor, right: Tensor, factor: float) -> Tensor:
    """(N, 9, F) twice to (N, 3, F)."""
    left, right = left.contiguous(), right.contiguous()
    result = left.new_empty(len(left), 3, left.shape[2])
    _launch(dots_kernel, left, right, result, FACTOR=factor)
    return result


def normalized_product(
    left: Tensor, right: Tensor, product: Product, factors: Tensor | None
) -> Tensor:
    """(N, 9, F) twice to (N, 9, F); see `product_kernel`."""
    kernel = product_kernel
    return _launch_scaled(kernel, 1, factors, left, right, **_form(product))[0]


def product_slope(
    left: Tensor, right: Tensor, gradient: Tensor, product: Product, factors: Tensor | None
) -> tuple[Tensor, ...]:
    """(N, 9, F) three times to (N, 9, F) twice."""
    kernel = product_slope_kernel
    return _launch_scaled(kernel, 2, factors, left, right, gradient, **_form(product))


def product_curvature(
    left: Tensor,
    right: Tensor,
    gradient: Tensor,
    along_left: Tensor,
    along_right: Tensor,
    product: Product,
    factors: Tensor | None,
) -> tuple[Tensor, ...]:
    """(N, 9, F) five times to (N, 9, F) three times."""
    inputs = (left, right, gradient, along_left, along_right)
    kernel = product_curvature_kernel
    return _launch_scaled(kernel, 3, factors, *inputs, **_form(product))


def update_features(features: Tensor, change: Tensor, factors: Tensor | None) -> Tensor:
    """(N, 9, F) twice to (N, 9, F)."""
    return _launch_scaled(update_kernel, 1, factors, features, change)[0]


def update_slope(change: Tensor, gradient: Tensor, factors: Tensor | None) -> Tensor:
    """(N, 9, F) twice to (N, 9, F)."""
    return _launch_scaled(update_slope_kernel, 1, factors, change, gradient)[0]


def update_curvature(
    change: Tensor, gradient: Tensor, along: Tensor, factors: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(N, 9, F) three times to (N, 9, F) twice."""
    kernel = update_curvature_kernel
    for_change, for_gradient = _launch_scaled(kernel, 2, factors, change, gradient, along)
    return for_change, for_gradient


def normalize(features: Tensor) -> Tensor:
    """(N, 9, F) to (N, 9, F)."""
    return _launch_features(normalize_kernel, 1, features)[0]


def normalized_slope(features: Tensor, direction: Tensor) -> Tensor:
    """(N, 9, F) twice to (N, 9, F)."""
    return _launch_features(normalized_slope_kernel, 1, features, direction)[0]


def normalized_curvature(features: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """(N, 9, F) three times to (N, 9, F) twice."""
    kernel = normalized_curvature_kernel
    for_features, for_first = _launch_features(kernel, 2, features, first, second)
    return for_features, for_first


def silu_curvature(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
    """Tensors of one shape, three to two."""
    return _launch_elements(silu_curvature_kernel, 2, x, first, second)


def dense_gradient(x: Tensor, gradient: Tensor, more: Tensor) -> Tensor:
    """Tensors of one shape, three to one."""
    return _launch_elements(dense_gradient_kernel, 1, x, gradient, more)[0]


def dense_curvature(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
    """Tensors of one shape, three to three."""
    return _launch_elements(dense_curvature_kernel, 3, x, first, second)


def windowed_silu(x: Tensor, window: Tensor) -> Tensor:
    """(..., C) and (...) to (..., C)."""
    x, window = x.contiguous(), window.contiguous()
    result = torch.empty_like(x)
    _launch_rows(windowed_silu_kernel, x, window, result)
    return result


def windowed_slope(x: Tensor, window: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """(..., C), (...) and (..., C) to (..., C) and (...)."""
    tensors = [tensor.contiguous() for tensor in (x, window, gradient)]
    results = torch.empty_like(tensors[0]), torch.empty_like(tensors[1])
    _launch_rows(windowed_slope_kernel, *tensors, *results)
    return results


def windowed_curvature(*inputs: Tensor) -> tuple[Tensor, ...]:
    """Gradients by x, w and g, from these and the gradients by both results of the slope."""
    tensors = [tensor.contiguous() for tensor in inputs]
    results = tuple(torch.empty_like(tensor) for tensor in tensors[:3])
    _launch_rows(windowed_curvature_kernel, *tensors, *results)
    return results


def standardized_slope(
    x: Tensor, weight: Tensor, gradient: Tensor, epsilon: float, trained: bool
) -> tuple[Tensor, Tensor]:
    """(N, C), (C,) and (N, C) to (N, C), and to g y (N, C) where trained."""
    tensors = [tensor.contiguous() for tensor in (x, weight, gradient)]
    result = torch.empty_like(tensors[0])
    products = torch.empty_like(result) if trained else result
    kernel = standardized_slope_kernel
    _launch_rows(kernel, *tensors, result, products, epsilon, trained)
    return result, products


def standardized_curvature(
    x: Tensor, weight: Tensor, first: Tensor, second: Tensor, epsilon: float
) -> tuple[Tensor, ...]:
    """(N, C), (C,) and (N, C) twice to (N, C) three times."""
    tensors = [tensor.contiguous() for tensor in (x, weight, first, second)]
    results = tuple(torch.empty_like(tensors[0]) for _ in range(3))
    _launch_rows(standardized_curvature_kernel, *tensors, *results, epsilon)
    return results


def _form(product: Product) -> dict[str, Any]:
    """Compile-time constants of the kernels of a product."""
    return {"FACTOR": product.factor, "SYMMETRIC": product.symmetric}


def _launch_elements(kernel: object, number: int, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Launches an elementwise kernel that writes `number` results."""
    tensors = [tensor.contiguous() for tensor in inputs]
    results = tuple(torch.empty_like(tensors[0]) for _ in range(number))
    grid = (triton.cdiv(tensors[0].numel(), _BLOCK),)
    with launching_on(tensors[0].device):
        kernel[grid](*tensors, *results, tensors[0].numel(), _BLOCK)  # type: ignore[index]
    return results


def _launch_rows(kernel: object, x: Tensor, *arguments: object) -> None:
    """Launches one program for each row of `x` (..., C)."""
    width = x.shape[-1]
    with launching_on(x.device):
        kernel[(x.numel() // width,)](  # type: ignore[index]
            x, *arguments, F=width, BF=triton.next_power_of_2(width)
        )


def _launch_scaled(
    kernel: object, number: int, factors: Tensor | None, *inputs: Tensor, **form: Any
) -> tuple[Tensor, ...]:
    """As `_launch_features`, with factors (N,), or a placeholder if SCALED is false."""
    scale = inputs[0] if factors is None else factors
    return _launch_features(kernel, number, *inputs, scale, SCALED=factors is not None, **form)


def _launch_features(
    kernel: object, number: int, *inputs: Tensor, **form: Any
) -> tuple[Tensor, ...]:
    """Launches a kernel that writes `number` results of the shape (N, 9, F) of the first input."""
    tensors = [tensor.contiguous() for tensor in inputs]
    results = tuple(torch.empty_like(tensors[0]) for _ in range(number))
    _launch(kernel, *tensors, *results, **form)
    return results


def _launch(kernel: object, features: Tensor, *arguments: object, **form: Any) -> None:
    """Launches one program for each atom and strip of channels of `features` (N, 9, F)."""
    atoms, _, channels = features.shape
    strip = min(128, triton.next_power_of_2(channels))
    grid = (atoms, triton.cdiv(channels, strip))
    with launching_on(features.device):
        kernel[grid](  # type: ignore[index]
            features, *arguments, **form, F=channels, BF=strip
        )
