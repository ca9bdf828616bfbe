"""Launches of the kernels on torch's tensors; nothing here knows of gradients or syncs."""

import torch
import triton
from torch import Tensor

from mdgraph.models.kernels import features as kernels
from mdgraph.models.kernels import rows
from mdgraph.models.kernels.activations import silu_curvature_kernel
from mdgraph.neighbors.launching import launching_on

_BLOCK = 1024
"""Numbers that a program of an elementwise kernel takes."""


def weighed(features: Tensor, weights: Tensor) -> Tensor:
    """(N, 9, F) and (N, 3, F) to (N, 9, F)."""
    features, weights = features.contiguous(), weights.contiguous()
    result = torch.empty_like(features)
    _launch(kernels.weighed_kernel, features, weights, result)
    return result


def dots(left: Tensor, right: Tensor) -> Tensor:
    """(N, 9, F) twice to (N, 3, F)."""
    left, right = left.contiguous(), right.contiguous()
    result = left.new_empty(len(left), 3, left.shape[2])
    _launch(kernels.dots_kernel, left, right, result)
    return result


def product(
    left: Tensor,
    right: Tensor,
    factor: float,
    symmetric: bool,
    left_transposed: bool,
    right_transposed: bool,
) -> Tensor:
    """(N, 9, F) twice to (N, 9, F); see `product_kernel`."""
    left, right = left.contiguous(), right.contiguous()
    result = torch.empty_like(left)
    form = (factor, symmetric, left_transposed, right_transposed)
    _launch(kernels.product_kernel, left, right, result, *form)
    return result


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


def silu_curvature(x: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Tensors of one shape, three to two."""
    x, one, other = x.contiguous(), one.contiguous(), other.contiguous()
    for_x, for_one = torch.empty_like(x), torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), _BLOCK),)
    with launching_on(x.device):
        silu_curvature_kernel[grid](x, one, other, for_x, for_one, x.numel(), _BLOCK)
    return for_x, for_one


def standardized_slope(x: Tensor, gradient: Tensor, epsilon: float) -> Tensor:
    """(N, C) twice to (N, C)."""
    x, gradient = x.contiguous(), gradient.contiguous()
    result = torch.empty_like(x)
    _launch_rows(rows.standardized_slope_kernel, x, gradient, result, epsilon)
    return result


def standardized_curvature(
    x: Tensor, one: Tensor, other: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """(N, C) three times to (N, C) twice."""
    x, one, other = x.contiguous(), one.contiguous(), other.contiguous()
    for_x, for_one = torch.empty_like(x), torch.empty_like(x)
    kernel = rows.standardized_curvature_kernel
    _launch_rows(kernel, x, one, other, for_x, for_one, epsilon)
    return for_x, for_one


def _launch_rows(kernel: object, x: Tensor, *arguments: object) -> None:
    """One program a row of `x` (N, C)."""
    number, width = x.shape
    with launching_on(x.device):
        kernel[(number,)](  # type: ignore[index]
            x, *arguments, F=width, BF=triton.next_power_of_2(width)
        )


def _launch(kernel: object, features: Tensor, *arguments: object) -> None:
    """One program an atom and strip; `features` (N, 9, F) is the kernel's first argument."""
    atoms, _, channels = features.shape
    strip = min(128, triton.next_power_of_2(channels))
    grid = (atoms, triton.cdiv(channels, strip))
    with launching_on(features.device):
        kernel[grid](features, *arguments, F=channels, BF=strip)  # type: ignore[index]
