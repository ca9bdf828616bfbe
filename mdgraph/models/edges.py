"""The edge network: from radial functions of a distance to the weights of a message."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from mdgraph.models.activations import activation_of
from mdgraph.models.configuration import TensorNetConfig
from mdgraph.models.dense import activated
from mdgraph.models.nonlinear import silu
from mdgraph.neighbors.dispatch import has_kernels


class EdgeNetwork(nn.Module):
    """Weights g_ij of a message: three layers on the radial basis, and the window."""

    def __init__(self, config: TensorNetConfig, inputs: int) -> None:
        super().__init__()
        channels = config.channels
        self.activation = activation_of(config)
        self.linears = nn.ModuleList(
            [
                nn.Linear(inputs, channels),
                nn.Linear(channels, 2 * channels),
                nn.Linear(2 * channels, 3 * channels),
            ]
        )

    def forward(self, inputs: Tensor, window: Tensor | None = None) -> Tensor:
        """(..., inputs) and c (...), or 1 without, to (..., 3, F)."""
        *linears, last = self.linears
        for linear in linears:
            inputs = activated(inputs, linear, self.activation)
        if window is None:
            x = activated(inputs, last, self.activation)
        elif self.activation is silu:
            x = windowed_silu(last(inputs), window)
        else:
            x = self.activation(last(inputs)) * window[..., None]
        return x.unflatten(-1, (3, -1))


def windowed_silu(x: Tensor, window: Tensor) -> Tensor:
    """C silu(x) of x (..., C) and c (...); differentiable twice.

    On CUDA it is one kernel, its gradient another, and the derivatives of that a third.
    """
    if has_kernels(x):
        result: Tensor = _Windowed.apply(x, window)
        return result
    return silu(x) * window[..., None]


class _Windowed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, window: Tensor) -> Tensor:
        from mdgraph.models.kernels import launches

        ctx.save_for_backward(x, window)
        return launches.windowed(x, window)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = _WindowedSlope.apply(*ctx.saved_tensors, gradients[0])
        return result


class _WindowedSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, window: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        from mdgraph.models.kernels import launches

        ctx.save_for_backward(x, window, gradient)
        return launches.windowed_slope(x, window, gradient)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        from mdgraph.models.kernels import launches

        return launches.windowed_curvature(*ctx.saved_tensors, *gradients)
