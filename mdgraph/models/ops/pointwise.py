"""Pointwise and dense operations of a layer, differentiable twice, each one kernel on CUDA.

For a loss of forces, autograd of torch's operations would launch a dozen small kernels and store
the result of each. Here an operation is one kernel, its gradient another, and the derivatives of
the gradient a third. A third derivative raises RuntimeError, and so does another derivative of a
gradient of weights. On a CPU the same functions run as torch operations.

A dense layer saves its inputs and its outputs before the activation for its own gradient, so
second derivatives are accumulated within its kernels and matrix products.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from mdgraph.gpu.launch import has_kernels, needed_gradients, needs_gradient, tracing
from mdgraph.models.tensors import Product


def normalized(features: Tensor) -> Tensor:
    """X / (|X|^2 + 1), for each channel of (N, 9, F); differentiable twice."""
    if tracing():
        return _normalize(features)
    result: Tensor = _Normalized.apply(features)
    return result


def silu(x: Tensor) -> Tensor:
    """The SiLU x / (1 + e^-x); differentiable twice."""
    if tracing():
        return functional.silu(x)
    result: Tensor = _Silu.apply(x)
    return result


class StandardizedRows(nn.LayerNorm):
    """Layer normalisation of rows (N, C); differentiable twice."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, C) to (N, C)."""
        if not has_kernels(x):
            return super().forward(x)
        result: Tensor = _Standardized.apply(x, self.weight, self.bias, self.eps)
        return result


class _Normalized(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor) -> Tensor:
        ctx.save_for_backward(features)
        return _normalize(features)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        result: Tensor = _NormalizedSlope.apply(*ctx.saved_tensors, gradients[0])
        return result


class _NormalizedSlope(torch.autograd.Function):
    """s g - 2 s^2 X <g, X> with s = 1 / (|X|^2 + 1)."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(features, gradient)
        if has_kernels(features):
            from mdgraph.models.kernels import features as kernels

            return kernels.normalized_slope(features, gradient)
        return _slope(features, gradient)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        features, gradient = ctx.saved_tensors
        if has_kernels(features):
            from mdgraph.models.kernels import features as kernels

            return kernels.normalized_curvature(features, gradient, gradients[0])
        return _curvature(features, gradient, gradients[0])


class _Standardized(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.epsilon = epsilon
        return functional.layer_norm(x, x.shape[-1:], weight, bias, epsilon)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        gradient = gradients[0]
        if not (needs_gradient(ctx, 1) or needs_gradient(ctx, 2)):
            return _StandardizedSlope.apply(x, weight, gradient, ctx.epsilon), None, None, None
        refuse_more()
        from mdgraph.models.kernels import features as kernels

        slope, products = kernels.standardized_slope(x, weight, gradient, ctx.epsilon, True)
        by_input = needed_gradients(
            ctx, lambda: slope, lambda: products.sum(0), lambda: gradient.sum(0)
        )
        return *by_input, None


class _StandardizedSlope(torch.autograd.Function):
    """(h - mean(h) - y mean(h y)) / s, with y the standardized row, s the deviation, h = w g."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, gradient: Tensor, epsilon: float) -> Tensor:
        from mdgraph.models.kernels import features as kernels

        ctx.save_for_backward(x, weight, gradient)
        ctx.epsilon = epsilon
        return kernels.standardized_slope(x, weight, gradient, epsilon, False)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from mdgraph.models.kernels import features as kernels

        x, weight, first = ctx.saved_tensors
        curvature = kernels.standardized_curvature(x, weight, first, gradients[0], ctx.epsilon)
        for_x, for_gradient, products = curvature
        by_input = needed_gradients(
            ctx, lambda: for_x, lambda: products.sum(0), lambda: for_gradient
        )
        return *by_input, None


def refuse_more() -> None:
    """Raises RuntimeError if the gradient of weights would be differentiated again."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "Gradients of weights are not differentiated again on CUDA; take them on a CPU."
        )


class _Silu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return functional.silu(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        result: Tensor = _SiluSlope.apply(*ctx.saved_tensors, gradients[0])
        return result


class _SiluSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(x, gradient)
        return torch.ops.aten.silu_backward(gradient, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        x, gradient = ctx.saved_tensors
        if has_kernels(x):
            from mdgraph.models.kernels import features as kernels

            return kernels.silu_curvature(x, gradient, gradients[0])
        sigmoid = x.sigmoid()
        curvature = sigmoid * (1.0 - sigmoid) * (2.0 + x * (1.0 - 2.0 * sigmoid))
        slope = torch.ops.aten.silu_backward(gradients[0], x)
        return curvature * gradient * gradients[0], slope


def _normalize(features: Tensor) -> Tensor:
    if has_kernels(features):
        from mdgraph.models.kernels import features as kernels

        return kernels.normalization(features)
    return features / (_dot(features, features) + 1.0)


def _slope(features: Tensor, gradient: Tensor) -> Tensor:
    inverse = 1.0 / (_dot(features, features) + 1.0)
    along = -2.0 * inverse.square() * _dot(gradient, features)
    return inverse * gradient + along * features


def _curvature(features: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Derivatives of <second, slope along first> by X and by `first`."""
    inverse = 1.0 / (_dot(features, features) + 1.0)
    unit = inverse * features
    by_first, by_second = _dot(first, unit), _dot(second, unit)
    along = 8.0 * by_first * by_second - 2.0 * inverse * _dot(first, second)
    across = first * by_second + second * by_first
    return along * unit - 2.0 * inverse * across, _slope(features, second)


def _dot(left: Tensor, right: Tensor) -> Tensor:
    return (left * right).sum(1, keepdim=True)


def activated(x: Tensor, linear: nn.Module, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """activation(W x + b) of rows x (..., C); `linear` is a layer with a bias."""
    if activation is not silu or not has_kernels(x):
        result: Tensor = activation(linear(x))
        return result
    weight, bias = linear.get_parameter("weight"), linear.get_parameter("bias")
    result = _Dense.apply(x.reshape(-1, x.shape[-1]), weight, bias)[0]
    return result.view(*x.shape[:-1], -1)


class _Dense(torch.autograd.Function):
    """silu(W x + b); its outputs z = W x + b and W serve its own gradient only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        sums, weight_alias = functional.linear(x, weight, bias), weight.detach()
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, sums, weight_alias)
        return functional.silu(sums), sums, weight_alias

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        x, sums, weight = ctx.saved_tensors
        gradient, for_sums, for_weight = gradients
        needs_weights = needs_gradient(ctx, 1) or needs_gradient(ctx, 2)
        if for_sums is None and gradient is not None and not needs_weights:
            return _DenseSlope.apply(gradient, sums, weight), None, None
        refuse_more()
        total = _gradient_of_sums(sums, gradient, for_sums)
        return needed_gradients(
            ctx,
            lambda: total @ weight,
            # In place: `for_weight` is referenced nowhere else.
            lambda: total.T @ x if for_weight is None else for_weight.addmm_(total.T, x),
            lambda: total.sum(0),
        )


class _DenseSlope(torch.autograd.Function):
    """(g silu'(z)) W; saves g, z and W."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, sums: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(gradient, sums, weight)
        return torch.ops.aten.silu_backward(gradient, sums) @ weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from mdgraph.models.kernels import features as kernels

        gradient, sums, weight = ctx.saved_tensors
        along = gradients[0] @ weight.T
        for_sums, for_gradient, slope = kernels.dense_curvature(sums, gradient, along)
        return needed_gradients(
            ctx, lambda: for_gradient, lambda: for_sums, lambda: slope.T @ gradients[0]
        )


def _gradient_of_sums(sums: Tensor, gradient: Tensor | None, more: Tensor | None) -> Tensor:
    if gradient is None:
        assert more is not None
        return more
    if more is None:
        result: Tensor = torch.ops.aten.silu_backward(gradient, sums)
        return result
    from mdgraph.models.kernels import features as kernels

    return kernels.dense_gradient(sums, gradient, more)


_SQUARE = Product(1.0, False)


def normalized_product(
    left: Tensor, right: Tensor, product: Product, factors: Tensor | None
) -> Tensor:
    """P / (|P|^2 + 1) with P (N, 9, F) the product times factors (N, 1, 1), if given."""
    if has_kernels(left):
        result: Tensor = _NormalizedProduct.apply(left, right, product, factors)
        return result
    values = product(left, right)
    return normalized(values if factors is None else values * factors)


def updated(features: Tensor, change: Tensor, factors: Tensor | None) -> Tensor:
    """X + C + C^2 of (N, 9, F); the square is multiplied by factors (N, 1, 1), if given."""
    if has_kernels(features):
        result: Tensor = _Updated.apply(features, change, factors)
        return result
    square = _SQUARE(change, change)
    return features + change + (square if factors is None else square * factors)


class _NormalizedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, *form: Any) -> Tensor:
        from mdgraph.models.kernels import features as kernels

        ctx.save_for_backward(left, right)
        ctx.form = form
        return kernels.normalized_product(left, right, *form)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return *_ProductSlope.apply(*ctx.saved_tensors, gradients[0], *ctx.form), None, None


class _ProductSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, gradient: Tensor, *form: Any) -> Any:
        from mdgraph.models.kernels import features as kernels

        ctx.save_for_backward(left, right, gradient)
        ctx.form = form
        return kernels.product_slope(left, right, gradient, *form)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from mdgraph.models.kernels import features as kernels

        saved = ctx.saved_tensors
        return *kernels.product_curvature(*saved, *gradients, *ctx.form), None, None


class _Updated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, change: Tensor, factors: Tensor | None) -> Tensor:
        from mdgraph.models.kernels import features as kernels

        ctx.save_for_backward(change)
        ctx.factors = factors
        return kernels.updated(features, change, factors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (change,), gradient, factors = ctx.saved_tensors, gradients[0], ctx.factors
        by_input = needed_gradients(
            ctx, lambda: gradient, lambda: _UpdateSlope.apply(change, gradient, factors)
        )
        return *by_input, None


class _UpdateSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, change: Tensor, gradient: Tensor, factors: Tensor | None) -> Tensor:
        from mdgraph.models.kernels import features as kernels

        ctx.save_for_backward(change, gradient)
        ctx.factors = factors
        return kernels.update_slope(change, gradient, factors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        from mdgraph.models.kernels import features as kernels

        change, gradient = ctx.saved_tensors
        return *kernels.update_curvature(change, gradient, gradients[0], ctx.factors), None
