"""Activation functions by name."""

import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from mdgraph.models.nonlinear import silu

Activation = Callable[[Tensor], Tensor]


def shifted_softplus(x: Tensor) -> Tensor:
    """ln(1 + e^x) - ln 2, zero at zero (DOI 10.1063/1.5019779)."""
    return functional.softplus(x) - math.log(2.0)


def shifted_softplus_float32(x: Tensor) -> Tensor:
    """The same with ln 2 rounded to float32, as TorchMD-Net subtracts it in float64 too."""
    return functional.softplus(x) - 0.6931471824645996


ACTIVATIONS: Final[dict[str, Activation]] = {
    "silu": silu,
    "ssp": shifted_softplus,
    "ssp_float32": shifted_softplus_float32,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "mish": functional.mish,
    "softplus": functional.softplus,
}
