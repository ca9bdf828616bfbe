"""What an interaction does to each atom and channel; differentiable twice.

On CUDA each is one kernel, its gradient another, and the derivatives of that a third; a third
derivative is refused. Elsewhere they are made of the operations they stand for.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mdgraph.models.nonlinear import normalized
from mdgraph.models.products import Product
from mdgraph.neighbors.dispatch import asked, has_kernels

_SQUARE = Product(1.0, False)


def normalized_product(
    left: Tensor, right: Tensor, product: Product, factors: Tensor | None
) -> Tensor:
    """P / (|P|^2 + 1) of a product P of (N, 9, F), times factors (N, 1, 1) where there are some."""
    if has_kernels(left):
        result: Tensor = _NormalizedProduct.apply(left, right, product, factors)
        return result
    values = product(left, right)
    return normalized(values if factors is None else values * factors)


def updated(features: Tensor, change: Tensor, factors: Tensor | None) -> Tensor:
    """X + C + C^2 of (N, 9, F), the square times factors (N, 1, 1) where there are some."""
    if has_kernels(features):
        result: Tensor = _Updated.apply(features, change, factors)
        return result
    square = _SQUARE(change, change)
    return features + change + (square if factors is None else square * factors)


class _NormalizedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, *form: Any) -> Tensor:
        from mdgraph.models.kernels import launches

        ctx.save_for_backward(left, right)
        ctx.form = form
        return launches.normalized_product(left, right, *form)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return *_ProductSlope.apply(*ctx.saved_tensors, gradients[0], *ctx.form), None, None


class _ProductSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, gradient: Tensor, *form: Any) -> Any:
        from mdgraph.models.kernels import launches

        ctx.save_for_backward(left, right, gradient)
        ctx.form = form
        return launches.product_slope(left, right, gradient, *form)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from mdgraph.models.kernels import launches

        held = ctx.saved_tensors
        return *launches.product_curvature(*held, *gradients, *ctx.form), None, None


class _Updated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, change: Tensor, factors: Tensor | None) -> Tensor:
        from mdgraph.models.kernels import launches

        ctx.save_for_backward(change)
        ctx.factors = factors
        return launches.updated(features, change, factors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (change,), gradient, factors = ctx.saved_tensors, gradients[0], ctx.factors
        found = asked(ctx, lambda: gradient, lambda: _UpdateSlope.apply(change, gradient, factors))
        return *found, None


class _UpdateSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, change: Tensor, gradient: Tensor, factors: Tensor | None) -> Tensor:
        from mdgraph.models.kernels import launches

        ctx.save_for_backward(change, gradient)
        ctx.factors = factors
        return launches.update_slope(change, gradient, factors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        from mdgraph.models.kernels import launches

        change, gradient = ctx.saved_tensors
        return *launches.update_curvature(change, gradient, gradients[0], ctx.factors), None
