"""Operations on features of atoms, with derivatives of their own, each one kernel on CUDA.

Contractions are closed under differentiation: each is the derivative of a multilinear form by one
of its arguments, so its own derivatives by the others are contractions again. A loss of forces,
which differentiates twice, therefore runs through the same few operations, which save only their
arguments. The forms, with parts p of components c, atoms i and channels f:

- sum G[i, c, f] w[i, p, f] X[i, c, f]: features times weights, and dot products of features;
- sum G[i, c, f] W[c, f, e] X[i, c, e]: mixing of channels, by cuBLAS, and sums over atoms.

What is pointwise or dense is differentiable twice. For a loss of forces, autograd of torch's
operations would launch a dozen small kernels and store the result of each. Here an operation is one
kernel, its gradient another, and the derivatives of the gradient a third. A third derivative raises
RuntimeError, and so does another derivative of a gradient of weights. A dense layer saves its
inputs and its outputs before the activation for its own gradient, so second derivatives are
accumulated within its kernels and matrix products.

On a CPU torch computes all of them. `torch.jit.trace` records torch's operations instead.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from mdgraph.gpu.launch import has_kernels, needed_gradients, needs_gradient, tracing
from mdgraph.models.tensors import Product
from mdgraph.neighbors.pairs import WIDTHS


def scale_parts(features: Tensor, weights: Tensor) -> Tensor:
    """Multiplies each part of (N, 9, F) by its weight (N, 3, F); derivatives of any order."""
    if tracing():
        return _weigh(features, weights, 1.0)
    result: Tensor = _Weighed.apply(features, weights, 1.0)
    return result


def squared_norms(features: Tensor) -> Tensor:
    """|X|^2 over the components of each part, (N, 9, F) to (N, 3, F); derivatives of any order."""
    if tracing():
        return _dots(features, features, 1.0)
    result: Tensor = _Squares.apply(features)
    return result


def mix_channels(features: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Mixes the channels of each part by a matrix; derivatives of any order.

    Args:
        features: (N, 9, E).
        weights: a matrix (F, E) for each part.

    Returns:
        (N, 9, F).
    """
    if tracing():
        return _mix(features, _repeat(weights), True)
    result: Tensor = _Mixed.apply(features, _Repeated.apply(*weights), True)
    return result


class _Weighed(torch.autograd.Function):
    """factor w X, for each part of X (N, 9, F) with its weight w (N, 3, F)."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, weights: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(features, weights)
        ctx.factor = factor
        return _weigh(features, weights, factor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (features, weights), gradient, factor = ctx.saved_tensors, gradients[0], ctx.factor
        return (
            *needed_gradients(
                ctx,
                lambda: _Weighed.apply(gradient, weights, factor),
                lambda: _Dots.apply(gradient, features, factor),
            ),
            None,
        )


class _Dots(torch.autograd.Function):
    """factor <A, B> over the components of each part, (N, 9, F) twice to (N, 3, F)."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(left, right)
        ctx.factor = factor
        return _dots(left, right, factor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (left, right), gradient, factor = ctx.saved_tensors, gradients[0], ctx.factor
        return (
            *needed_gradients(
                ctx,
                lambda: _Weighed.apply(right, gradient, factor),
                lambda: _Weighed.apply(left, gradient, factor),
            ),
            None,
        )


class _Squares(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor) -> Tensor:
        ctx.save_for_backward(features)
        return _dots(features, features, 1.0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        result: Tensor = _Weighed.apply(*ctx.saved_tensors, gradients[0], 2.0)
        return result


class _Mixed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, weights: Tensor, transposed: bool) -> Tensor:
        ctx.save_for_backward(features, weights)
        ctx.transposed = transposed
        return _mix(features, weights, transposed)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (features, weights), gradient = ctx.saved_tensors, gradients[0]
        both = (gradient, features) if ctx.transposed else (features, gradient)
        return (
            *needed_gradients(
                ctx,
                lambda: _Mixed.apply(gradient, weights, not ctx.transposed),
                lambda: _OverAtoms.apply(*both),
            ),
            None,
        )


class _OverAtoms(torch.autograd.Function):
    """sum_i A[i, c, e] B[i, c, f], to (9, E, F)."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        ctx.save_for_backward(left, right)
        return left.permute(1, 2, 0) @ right.transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (left, right), gradient = ctx.saved_tensors, gradients[0]
        return needed_gradients(
            ctx,
            lambda: _Mixed.apply(right, gradient, True),
            lambda: _Mixed.apply(left, gradient, False),
        )


class _Repeated(torch.autograd.Function):
    """Repeats the matrix of each part for its components, (9, F, E); runs once a step."""

    @staticmethod
    def forward(ctx: Any, *weights: Tensor) -> Tensor:
        return _repeat(weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        result: tuple[Tensor, ...] = _Collected.apply(gradients[0])
        return result


class _Collected(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, repeated: Tensor) -> tuple[Tensor, ...]:
        by_part = _parts(repeated.dtype, repeated.device) @ repeated.flatten(1)
        return by_part.view(len(WIDTHS), *repeated.shape[1:]).unbind()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        result: Tensor = _Repeated.apply(*gradients)
        return result


def _weigh(features: Tensor, weights: Tensor, factor: float) -> Tensor:
    if has_kernels(features):
        from mdgraph.models.kernels import features as kernels

        return kernels.scale_parts(features, weights, factor)
    scaled = weights if factor == 1.0 else factor * weights
    pieces = zip(scaled.split(1, dim=1), WIDTHS, strict=True)
    return features * torch.cat([part.expand(-1, width, -1) for part, width in pieces], dim=1)


def _dots(left: Tensor, right: Tensor, factor: float) -> Tensor:
    if has_kernels(left):
        from mdgraph.models.kernels import features as kernels

        return kernels.dot_products(left, right, factor)
    parts = (left * right).split(WIDTHS, dim=1)
    result = torch.stack([part.sum(1) for part in parts], dim=1)
    return result if factor == 1.0 else result.mul_(factor)


def _repeat(weights: Sequence[Tensor]) -> Tensor:
    pieces = zip(weights, WIDTHS, strict=True)
    return torch.cat([matrix.expand(width, -1, -1) for matrix, width in pieces])


def _mix(features: Tensor, weights: Tensor, transposed: bool) -> Tensor:
    """(N, 9, E) and (9, E, F), or (9, F, E) if transposed, to (N, 9, F)."""
    matrices = weights.transpose(1, 2) if transposed else weights
    by_component = features.transpose(0, 1)
    if tracing():
        return torch.bmm(by_component, matrices).transpose(0, 1)
    result = features.new_empty(*features.shape[:2], matrices.shape[2])
    torch.bmm(by_component, matrices, out=result.transpose(0, 1))
    return result


@cache  # never freed, because CUDA graphs read it
def _parts(dtype: torch.dtype, device: torch.device) -> Tensor:
    """(3, 9), 1 where a component belongs to a part: makes sums over components a product."""
    number = torch.arange(len(WIDTHS)).repeat_interleave(torch.tensor(WIDTHS))
    return (torch.arange(len(WIDTHS))[:, None] == number).to(dtype).to(device)


def normalize(features: Tensor) -> Tensor:
    """X / (|X|^2 + 1), for each channel of (N, 9, F); differentiable twice."""
    if tracing():
        return _normalization(features)
    result: Tensor = _Normalized.apply(features)
    return result


def silu(x: Tensor) -> Tensor:
    """The SiLU x / (1 + e^-x); differentiable twice."""
    if tracing():
        return functional.silu(x)
    result: Tensor = _Silu.apply(x)
    return result


class LayerNorm(nn.LayerNorm):
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
        return _normalization(features)

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
        refuse_third_derivative()
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


def refuse_third_derivative() -> None:
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


def _normalization(features: Tensor) -> Tensor:
    if has_kernels(features):
        from mdgraph.models.kernels import features as kernels

        return kernels.normalize(features)
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


def dense(x: Tensor, linear: nn.Module, activation: Callable[[Tensor], Tensor]) -> Tensor:
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
        refuse_third_derivative()
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
    return normalize(values if factors is None else values * factors)


def update_features(features: Tensor, change: Tensor, factors: Tensor | None) -> Tensor:
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
        return kernels.update_features(features, change, factors)

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
