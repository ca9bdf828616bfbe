"""Launches of the kernels on torch's tensors; nothing here knows of gradients or syncs."""

import torch
import triton
from torch import Tensor

from mdgraph.models.kernels import activations, interactions, rows
from mdgraph.models.kernels import features as kernels
from mdgraph.models.products import Product
from mdgraph.neighbors.launching import launching_on

_BLOCK = 1024
"""Numbers that a program of an elementwise kernel takes."""


def weighed(features: Tensor, weights: Tensor, factor: float) -> Tensor:
    """(N, 9, F) and (N, 3, F), which may be one for all parts, to (N, 9, F)."""
    features = features.contiguous()
    if weights.stride(2) != 1:
        weights = weights.contiguous()
    result = torch.empty_like(features)
    strides = weights.stride()[:2]
    _launch(kernels.weighed_kernel, features, weights, result, *strides, factor)
    return result


def dots(left: Tensor, right: Tensor, factor: float) -> Tensor:
    """(N, 9, F) twice to (N, 3, F)."""
    left, right = left.contiguous(), right.contiguous()
    result = left.new_empty(len(left), 3, left.shape[2])
    _launch(kernels.dots_kernel, left, right, result, factor)
    return result


def normalized_product(
    left: Tensor, right: Tensor, product: Product, factors: Tensor | None
) -> Tensor:
    """(N, 9, F) twice to (N, 9, F); see `product_kernel`."""
    left, right = left.contiguous(), right.contiguous()
    result = torch.empty_like(left)
    form = _form(left, product, factors)
    _launch(interactions.product_kernel, left, right, form[0], result, *form[1:])
    return result


def product_slope(
    left: Tensor, right: Tensor, gradient: Tensor, product: Product, factors: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(N, 9, F) three times to (N, 9, F) twice."""
    held = [one.contiguous() for one in (left, right, gradient)]
    results = torch.empty_like(held[0]), torch.empty_like(held[0])
    form = _form(left, product, factors)
    _launch(interactions.product_slope_kernel, *held, form[0], *results, *form[1:])
    return results


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
    held = [one.contiguous() for one in (left, right, gradient, along_left, along_right)]
    results = tuple(torch.empty_like(held[0]) for _ in range(3))
    form = _form(left, product, factors)
    _launch(interactions.product_curvature_kernel, *held, form[0], *results, *form[1:])
    return results


def updated(features: Tensor, change: Tensor, factors: Tensor | None) -> Tensor:
    """(N, 9, F) twice to (N, 9, F)."""
    features, change = features.contiguous(), change.contiguous()
    result = torch.empty_like(features)
    scaled = factors is not None
    _launch(
        interactions.update_kernel, features, change, factors if scaled else change, result, scaled
    )
    return result


def update_slope(change: Tensor, gradient: Tensor, factors: Tensor | None) -> Tensor:
    """(N, 9, F) twice to (N, 9, F)."""
    change, gradient = change.contiguous(), gradient.contiguous()
    result = torch.empty_like(change)
    scaled = factors is not None
    kernel = interactions.update_slope_kernel
    _launch(kernel, change, gradient, factors if scaled else change, result, scaled)
    return result


def update_curvature(
    change: Tensor, gradient: Tensor, along: Tensor, factors: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(N, 9, F) three times to (N, 9, F) twice."""
    held = [one.contiguous() for one in (change, gradient, along)]
    results = torch.empty_like(held[0]), torch.empty_like(held[0])
    scaled = factors is not None
    kernel = interactions.update_curvature_kernel
    _launch(kernel, *held, factors if scaled else change, *results, scaled)
    return results


def normalized(features: Tensor) -> Tensor:
    """(N, 9, F) to (N, 9, F)."""
    features = features.contiguous()
    result = torch.empty_like(features)
    _launch(kernels.normalized_kernel, features, result)
    return result


def normalized_slope(features: Tensor, direction: Tensor) -> Tensor:
    """(N, 9, F) twice to (N, 9, F)."""
    features, direction = features.contiguous(), direction.contiguous()
    result = torch.empty_like(features)
    _launch(kernels.normalized_slope_kernel, features, direction, result)
    return result


def normalized_curvature(features: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """(N, 9, F) three times to (N, 9, F) twice."""
    features, one, other = features.contiguous(), one.contiguous(), other.contiguous()
    for_features, for_one = torch.empty_like(features), torch.empty_like(features)
    kernel = kernels.normalized_curvature_kernel
    _launch(kernel, features, one, other, for_features, for_one)
    return for_features, for_one


def silu_curvature(x: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, ...]:
    """Tensors of one shape, three to two."""
    return _launch_elements(activations.silu_curvature_kernel, 2, x, one, other)


def dense_gradient(x: Tensor, gradient: Tensor, more: Tensor) -> Tensor:
    """Tensors of one shape, three to one."""
    return _launch_elements(activations.dense_gradient_kernel, 1, x, gradient, more)[0]


def dense_curvature(x: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, ...]:
    """Tensors of one shape, three to three."""
    return _launch_elements(activations.dense_curvature_kernel, 3, x, one, other)


def windowed(x: Tensor, window: Tensor) -> Tensor:
    """(..., C) and (...) to (..., C)."""
    x, window = x.contiguous(), window.contiguous()
    result = torch.empty_like(x)
    _launch_rows(activations.windowed_kernel, x, window, result)
    return result


def windowed_slope(x: Tensor, window: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """(..., C), (...) and (..., C) to (..., C) and (...)."""
    held = [one.contiguous() for one in (x, window, gradient)]
    results = torch.empty_like(held[0]), torch.empty_like(held[1])
    _launch_rows(activations.windowed_slope_kernel, *held, *results)
    return results


def windowed_curvature(*inputs: Tensor) -> tuple[Tensor, ...]:
    """x, w, g and what g's two gradients are weighed with, to what x, w and g get."""
    held = [one.contiguous() for one in inputs]
    results = tuple(torch.empty_like(one) for one in held[:3])
    _launch_rows(activations.windowed_curvature_kernel, *held, *results)
    return results


def standardized_slope(
    x: Tensor, weight: Tensor, gradient: Tensor, epsilon: float, trained: bool
) -> tuple[Tensor, Tensor]:
    """(N, C), (C,) and (N, C) to (N, C), and to g y (N, C) where trained."""
    held = [one.contiguous() for one in (x, weight, gradient)]
    result = torch.empty_like(held[0])
    products = torch.empty_like(result) if trained else result
    kernel = rows.standardized_slope_kernel
    _launch_rows(kernel, *held, result, products, epsilon, trained)
    return result, products


def standardized_curvature(
    x: Tensor, weight: Tensor, one: Tensor, other: Tensor, epsilon: float
) -> tuple[Tensor, ...]:
    """(N, C), (C,) and (N, C) twice to (N, C) three times."""
    held = [each.contiguous() for each in (x, weight, one, other)]
    results = tuple(torch.empty_like(held[0]) for _ in range(3))
    _launch_rows(rows.standardized_curvature_kernel, *held, *results, epsilon)
    return results


def _form(left: Tensor, product: Product, factors: Tensor | None) -> tuple[object, ...]:
    """Factors, or anything where there are none, and what a product's kernels are made for."""
    scaled = factors is not None
    return factors if scaled else left, product.factor, product.symmetric, scaled


def _launch_elements(kernel: object, number: int, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Makes so many results, of the shape of all inputs."""
    held = [one.contiguous() for one in inputs]
    results = tuple(torch.empty_like(held[0]) for _ in range(number))
    grid = (triton.cdiv(held[0].numel(), _BLOCK),)
    with launching_on(held[0].device):
        kernel[grid](*held, *results, held[0].numel(), _BLOCK)  # type: ignore[index]
    return results


def _launch_rows(kernel: object, x: Tensor, *arguments: object) -> None:
    """One program a row of `x` (..., C)."""
    width = x.shape[-1]
    with launching_on(x.device):
        kernel[(x.numel() // width,)](  # type: ignore[index]
            x, *arguments, F=width, BF=triton.next_power_of_2(width)
        )


def _launch(kernel: object, features: Tensor, *arguments: object) -> None:
    """One program an atom and strip; `features` (N, 9, F) is the kernel's first argument."""
    atoms, _, channels = features.shape
    strip = min(128, triton.next_power_of_2(channels))
    grid = (atoms, triton.cdiv(channels, strip))
    with launching_on(features.device):
        kernel[grid](features, *arguments, F=channels, BF=strip)  # type: ignore[index]
