"""Nonlinear functions with first and second derivatives of their own, each one kernel on CUDA.

What torch derives of them is a dozen small kernels for a loss of forces, and it keeps what each of
them made. A third derivative is refused, and on CUDA a second one of a gradient of weights.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from mdgraph.neighbors.dispatch import asked, has_kernels, tracing, wanted


def normalized(features: Tensor) -> Tensor:
    """X / (|X|^2 + 1), channel by channel of (N, 9, F); differentiable twice."""
    if tracing():
        return _normalized(features)
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
        return _normalized(features)

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
            from mdgraph.models.kernels import launches

            return launches.normalized_slope(features, gradient)
        return _slope(features, gradient)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        features, gradient = ctx.saved_tensors
        if has_kernels(features):
            from mdgraph.models.kernels import launches

            return launches.normalized_curvature(features, gradient, gradients[0])
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
        if not (wanted(ctx, 1) or wanted(ctx, 2)):
            return _StandardizedSlope.apply(x, weight, gradient, ctx.epsilon), None, None, None
        refuse_more()
        from mdgraph.models.kernels import launches

        slope, products = launches.standardized_slope(x, weight, gradient, ctx.epsilon, True)
        found = asked(ctx, lambda: slope, lambda: products.sum(0), lambda: gradient.sum(0))
        return *found, None


class _StandardizedSlope(torch.autograd.Function):
    """(h - mean(h) - y mean(h y)) / s, with y the standardized row, s its deviation, h = w g."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, gradient: Tensor, epsilon: float) -> Tensor:
        from mdgraph.models.kernels import launches

        ctx.save_for_backward(x, weight, gradient)
        ctx.epsilon = epsilon
        return launches.standardized_slope(x, weight, gradient, epsilon, False)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from mdgraph.models.kernels import launches

        x, weight, one = ctx.saved_tensors
        every = launches.standardized_curvature(x, weight, one, gradients[0], ctx.epsilon)
        for_x, for_gradient, products = every
        found = asked(ctx, lambda: for_x, lambda: products.sum(0), lambda: for_gradient)
        return *found, None


def refuse_more() -> None:
    """Raises RuntimeError where a gradient of weights is to be differentiated again."""
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
            from mdgraph.models.kernels import launches

            return launches.silu_curvature(x, gradient, gradients[0])
        sigmoid = x.sigmoid()
        curvature = sigmoid * (1.0 - sigmoid) * (2.0 + x * (1.0 - 2.0 * sigmoid))
        slope = torch.ops.aten.silu_backward(gradients[0], x)
        return curvature * gradient * gradients[0], slope


def _normalized(features: Tensor) -> Tensor:
    if has_kernels(features):
        from mdgraph.models.kernels import launches

        return launches.normalized(features)
    return features / (_dot(features, features) + 1.0)


def _slope(features: Tensor, gradient: Tensor) -> Tensor:
    inverse = 1.0 / (_dot(features, features) + 1.0)
    along = -2.0 * inverse.square() * _dot(gradient, features)
    return inverse * gradient + along * features


def _curvature(features: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Derivatives of <other, slope along one> by X and by one."""
    inverse = 1.0 / (_dot(features, features) + 1.0)
    unit = inverse * features
    by_one, by_other = _dot(one, unit), _dot(other, unit)
    along = 8.0 * by_one * by_other - 2.0 * inverse * _dot(one, other)
    across = one * by_other + other * by_one
    return along * unit - 2.0 * inverse * across, _slope(features, other)


def _dot(one: Tensor, other: Tensor) -> Tensor:
    return (one * other).sum(1, keepdim=True)
