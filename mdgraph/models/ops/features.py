"""Contractions of features, closed under differentiation.

Each contraction is the derivative of a multilinear form by one of its arguments, so its own
derivatives by the others are contractions again. A loss of forces, which differentiates twice,
therefore runs through the same few operations, which save only their arguments. The forms, with
parts p of components c, atoms i and channels f:

- sum G[i, c, f] w[i, p, f] X[i, c, f]: features times weights, and dot products of features;
- sum G[i, c, f] W[c, f, e] X[i, c, e]: mixing of channels, and sums over atoms.

On CUDA each is one Triton kernel, except the mixing, which cuBLAS does; on a CPU torch computes
them. `torch.jit.trace` records torch's operations instead.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mdgraph.gpu.launch import has_kernels, needed_gradients, tracing
from mdgraph.neighbors.pairs import WIDTHS


def weighed(features: Tensor, weights: Tensor) -> Tensor:
    """Multiplies each part of (N, 9, F) by its weight (N, 3, F); derivatives of any order."""
    if tracing():
        return _weigh(features, weights, 1.0)
    result: Tensor = _Weighed.apply(features, weights, 1.0)
    return result


def squares(features: Tensor) -> Tensor:
    """|X|^2 over the components of each part, (N, 9, F) to (N, 3, F); derivatives of any order."""
    if tracing():
        return _dots(features, features, 1.0)
    result: Tensor = _Squares.apply(features)
    return result


def mixed(features: Tensor, weights: Sequence[Tensor]) -> Tensor:
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

        return kernels.weighed(features, weights, factor)
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
