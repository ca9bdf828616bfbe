"""Dense layers with the SiLU; differentiable twice.

On CUDA a layer keeps its inputs and the sums before the activation, and hands those out, with its
weights, to its own gradient. So what a loss of forces says of them comes back to the layer, which
adds it up within its kernels and products, not in kernels between them. A third derivative is
refused, and so is a second one of a gradient of weights. Elsewhere they are the operations they
stand for.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from mdgraph.models.nonlinear import refuse_more, silu
from mdgraph.neighbors.dispatch import asked, has_kernels, wanted


def activated(x: Tensor, linear: nn.Module, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """The activation of W x + b, of rows x (..., C) and a layer with a bias."""
    if activation is not silu or not has_kernels(x):
        result: Tensor = activation(linear(x))
        return result
    weight, bias = linear.get_parameter("weight"), linear.get_parameter("bias")
    result = _Dense.apply(x.reshape(-1, x.shape[-1]), weight, bias)[0]
    return result.view(*x.shape[:-1], -1)


class _Dense(torch.autograd.Function):
    """Also gives z = W x + b and W, to its own gradient alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        sums, same = functional.linear(x, weight, bias), weight.detach()
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, sums, same)
        return functional.silu(sums), sums, same

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        x, sums, weight = ctx.saved_tensors
        gradient, for_sums, for_weight = gradients
        trained = wanted(ctx, 1) or wanted(ctx, 2)
        if for_sums is None and gradient is not None and not trained:
            return _DenseSlope.apply(gradient, sums, weight), None, None
        refuse_more()
        total = _gradient_of_sums(sums, gradient, for_sums)
        return asked(
            ctx,
            lambda: total @ weight,
            # Nobody else holds what is added to.
            lambda: total.T @ x if for_weight is None else for_weight.addmm_(total.T, x),
            lambda: total.sum(0),
        )


class _DenseSlope(torch.autograd.Function):
    """(g silu'(z)) W, of which g and z are kept."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, sums: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(gradient, sums, weight)
        return torch.ops.aten.silu_backward(gradient, sums) @ weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from mdgraph.models.kernels import launches

        gradient, sums, weight = ctx.saved_tensors
        along = gradients[0] @ weight.T
        for_sums, for_gradient, slope = launches.dense_curvature(sums, gradient, along)
        return asked(ctx, lambda: for_gradient, lambda: for_sums, lambda: slope.T @ gradients[0])


def _gradient_of_sums(sums: Tensor, gradient: Tensor | None, more: Tensor | None) -> Tensor:
    if gradient is None:
        assert more is not None
        return more
    if more is None:
        result: Tensor = torch.ops.aten.silu_backward(gradient, sums)
        return result
    from mdgraph.models.kernels import launches

    return launches.dense_gradient(sums, gradient, more)
