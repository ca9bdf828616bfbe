"""Launches of the kernels on torch's tensors; nothing here knows of gradients or syncs."""

from typing import Any

import torch
import triton
from torch import Tensor

from mdgraph.gpu.launch import launching_on
from mdgraph.models.kernels import pointwise
from mdgraph.models.tensors import Product

_BLOCK = 1024
"""Numbers that a program of an elementwise kernel takes."""


def weighed(features: Tensor, weights: Tensor, factor: float) -> Tensor:
    """(N, 9, F) and (N, 3, F) to (N, 9, F); the weights may be expanded over atoms or parts."""
    features = features.contiguous()
    if weights.stride(2) != 1:
        weights = weights.contiguous()
    result = torch.empty_like(features)
    strides = weights.stride()[:2]
    _launch(pointwise.weighed_kernel, features, weights, result, *strides, FACTOR=factor)
    return result


def dots(left: Tensor, right: Tensor, factor: float) -> Tensor:
    """(N, 9, F) twice to (N, 3, F)."""
    left, right = left.contiguous(), right.contiguous()
    result = left.new_empty(len(left), 3, left.shape[2])
    _launch(pointwise.dots_kernel, left, right, result, FACTOR=factor)
    return result


def normalized_product(
    left: Tensor, right: Tensor, product: Product, factors: Tensor | None
) -> Tensor:
    """(N, 9, F) twice to (N, 9, F); see `product_kernel`."""
    kernel = pointwise.product_kernel
    return _launch_scaled(kernel, 1, factors, left, right, **_form(product))[0]


def product_slope(
    left: Tensor, right: Tensor, gradient: Tensor, product: Product, factors: Tensor | None
) -> tuple[Tensor, ...]:
    """(N, 9, F) three times to (N, 9, F) twice."""
    kernel = pointwise.product_slope_kernel
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
    kernel = pointwise.product_curvature_kernel
    return _launch_scaled(kernel, 3, factors, *inputs, **_form(product))


def updated(features: Tensor, change: Tensor, factors: Tensor | None) -> Tensor:
    """(N, 9, F) twice to (N, 9, F)."""
    return _launch_scaled(pointwise.update_kernel, 1, factors, features, change)[0]


def update_slope(change: Tensor, gradient: Tensor, factors: Tensor | None) -> Tensor:
    """(N, 9, F) twice to (N, 9, F)."""
    return _launch_scaled(pointwise.update_slope_kernel, 1, factors, change, gradient)[0]


def update_curvature(
    change: Tensor, gradient: Tensor, along: Tensor, factors: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(N, 9, F) three times to (N, 9, F) twice."""
    kernel = pointwise.update_curvature_kernel
    for_change, for_gradient = _launch_scaled(kernel, 2, factors, change, gradient, along)
    return for_change, for_gradient


def normalized(features: Tensor) -> Tensor:
    """(N, 9, F) to (N, 9, F)."""
    return _launch_features(pointwise.normalized_kernel, 1, features)[0]


def normalized_slope(features: Tensor, direction: Tensor) -> Tensor:
    """(N, 9, F) twice to (N, 9, F)."""
    return _launch_features(pointwise.normalized_slope_kernel, 1, features, direction)[0]


def normalized_curvature(features: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """(N, 9, F) three times to (N, 9, F) twice."""
    kernel = pointwise.normalized_curvature_kernel
    for_features, for_first = _launch_features(kernel, 2, features, first, second)
    return for_features, for_first


def silu_curvature(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
    """Tensors of one shape, three to two."""
    return _launch_elements(pointwise.silu_curvature_kernel, 2, x, first, second)


def dense_gradient(x: Tensor, gradient: Tensor, more: Tensor) -> Tensor:
    """Tensors of one shape, three to one."""
    return _launch_elements(pointwise.dense_gradient_kernel, 1, x, gradient, more)[0]


def dense_curvature(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
    """Tensors of one shape, three to three."""
    return _launch_elements(pointwise.dense_curvature_kernel, 3, x, first, second)


def windowed(x: Tensor, window: Tensor) -> Tensor:
    """(..., C) and (...) to (..., C)."""
    x, window = x.contiguous(), window.contiguous()
    result = torch.empty_like(x)
    _launch_rows(pointwise.windowed_kernel, x, window, result)
    return result


def windowed_slope(x: Tensor, window: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """(..., C), (...) and (..., C) to (..., C) and (...)."""
    tensors = [tensor.contiguous() for tensor in (x, window, gradient)]
    results = torch.empty_like(tensors[0]), torch.empty_like(tensors[1])
    _launch_rows(pointwise.windowed_slope_kernel, *tensors, *results)
    return results


def windowed_curvature(*inputs: Tensor) -> tuple[Tensor, ...]:
    """Gradients by x, w and g, from these and the gradients by both results of the slope."""
    tensors = [tensor.contiguous() for tensor in inputs]
    results = tuple(torch.empty_like(tensor) for tensor in tensors[:3])
    _launch_rows(pointwise.windowed_curvature_kernel, *tensors, *results)
    return results


def standardized_slope(
    x: Tensor, weight: Tensor, gradient: Tensor, epsilon: float, trained: bool
) -> tuple[Tensor, Tensor]:
    """(N, C), (C,) and (N, C) to (N, C), and to g y (N, C) where trained."""
    tensors = [tensor.contiguous() for tensor in (x, weight, gradient)]
    result = torch.empty_like(tensors[0])
    products = torch.empty_like(result) if trained else result
    kernel = pointwise.standardized_slope_kernel
    _launch_rows(kernel, *tensors, result, products, epsilon, trained)
    return result, products


def standardized_curvature(
    x: Tensor, weight: Tensor, first: Tensor, second: Tensor, epsilon: float
) -> tuple[Tensor, ...]:
    """(N, C), (C,) and (N, C) twice to (N, C) three times."""
    tensors = [tensor.contiguous() for tensor in (x, weight, first, second)]
    results = tuple(torch.empty_like(tensors[0]) for _ in range(3))
    _launch_rows(pointwise.standardized_curvature_kernel, *tensors, *results, epsilon)
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
