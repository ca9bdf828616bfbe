"""Contractions of features, closed under differentiation.

Each is the derivative of a form that is linear in all of its arguments, by one of them; the
derivatives by the others are contractions of the same kind. So a loss of forces, which
differentiates twice, runs through the same few operations, which keep their arguments and nothing
else. Forms, with parts p of components c, atoms i and channels f:

- sum G[i, c, f] w[i, p, f] X[i, c, f]: features by weights, and dots of features;
- sum G[i, c, f] W[p, f, e] X[i, c, e]: channels mixed, and products over atoms.

On CUDA each but the mixing, which cuBLAS does, is one Triton kernel; elsewhere they run in torch.
A model that is traced for other programs records torch's operations instead.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from mdgraph.neighbors.dispatch import has_kernels, tracing
from mdgraph.neighbors.pairs import WIDTHS


def weighed(features: Tensor, weights: Tensor) -> Tensor:
    """Each part of (N, 9, F) times its weight (N, 3, F); any derivative."""
    if tracing():
        return _weighed(features, weights)
    result: Tensor = _Weighed.apply(features, weights)
    return result


def dots(left: Tensor, right: Tensor) -> Tensor:
    """<A, B> over the components of each part, (N, 9, F) twice to (N, 3, F); any derivative."""
    if tracing():
        return _dots(left, right)
    result: Tensor = _Dots.apply(left, right)
    return result


def mixed(features: Tensor, weights: Tensor) -> Tensor:
    """Channels of each part mixed by a matrix; any derivative.

    Args:
        features: (N, 9, E).
        weights: (3, F, E), a matrix for each part.

    Returns:
        (N, 9, F).
    """
    turned = weights.transpose(1, 2)
    if tracing():
        return _mixed(features, turned)
    result: Tensor = _Mixed.apply(features, turned)
    return result


class _Weighed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(features, weights)
        return _weighed(features, weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        features, weights = ctx.saved_tensors
        return (
            weighed(gradients[0], weights) if ctx.needs_input_grad[0] else None,
            dots(gradients[0], features) if ctx.needs_input_grad[1] else None,
        )


class _Dots(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        ctx.save_for_backward(left, right)
        return _dots(left, right)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        left, right = ctx.saved_tensors
        return (
            weighed(right, gradients[0]) if ctx.needs_input_grad[0] else None,
            weighed(left, gradients[0]) if ctx.needs_input_grad[1] else None,
        )


class _Mixed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(features, weights)
        return _mixed(features, weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        features, weights = ctx.saved_tensors
        gradient, for_features, for_weights = gradients[0], None, None
        if ctx.needs_input_grad[0]:
            for_features = _Mixed.apply(gradient, weights.transpose(1, 2))
        if ctx.needs_input_grad[1]:
            for_weights = _OverAtoms.apply(features, gradient)
        return for_features, for_weights


class _OverAtoms(torch.autograd.Function):
    """sum_i A[i, c, e] B[i, c, f] over the components c of each part, to (3, E, F)."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        ctx.save_for_backward(left, right)
        products = left.permute(1, 2, 0) @ right.transpose(0, 1)
        by_part = _parts(products.dtype, products.device) @ products.flatten(1)
        return by_part.view(len(WIDTHS), *products.shape[1:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        left, right = ctx.saved_tensors
        gradient, for_left, for_right = gradients[0], None, None
        if ctx.needs_input_grad[0]:
            for_left = _Mixed.apply(right, gradient.transpose(1, 2))
        if ctx.needs_input_grad[1]:
            for_right = _Mixed.apply(left, gradient)
        return for_left, for_right


def _weighed(features: Tensor, weights: Tensor) -> Tensor:
    if has_kernels(features):
        from mdgraph.models.kernels import launches

        return launches.weighed(features, weights)
    pieces = zip(weights.split(1, dim=1), WIDTHS, strict=True)
    return features * torch.cat([part.expand(-1, width, -1) for part, width in pieces], dim=1)


def _dots(left: Tensor, right: Tensor) -> Tensor:
    if has_kernels(left):
        from mdgraph.models.kernels import launches

        return launches.dots(left, right)
    parts = (left * right).split(WIDTHS, dim=1)
    return torch.stack([part.sum(1) for part in parts], dim=1)


def _mixed(features: Tensor, weights: Tensor) -> Tensor:
    """(N, 9, E) and (3, E, F) to (N, 9, F)."""
    pieces = zip(weights.split(1), WIDTHS, strict=True)
    repeated = torch.cat([part.expand(width, -1, -1) for part, width in pieces])
    by_component = features.transpose(0, 1)
    if tracing():
        return torch.bmm(by_component, repeated).transpose(0, 1)
    result = features.new_empty(*features.shape[:2], weights.shape[2])
    torch.bmm(by_component, repeated, out=result.transpose(0, 1))
    return result


@cache  # never let go of: a graph reads it where it lies
def _parts(kind: torch.dtype, device: torch.device) -> Tensor:
    """(3, 9), 1 where a component belongs to a part: sums over components as one product."""
    number = torch.arange(len(WIDTHS)).repeat_interleave(torch.tensor(WIDTHS))
    return (torch.arange(len(WIDTHS))[:, None] == number).to(kind).to(device)
