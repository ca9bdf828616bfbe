"""Activation functions by name."""

import math
from collections.abc import Callable
from functools import partial
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from mdgraph.models.configuration import TensorNetConfig
from mdgraph.models.nonlinear import silu

Activation = Callable[[Tensor], Tensor]


def shifted_softplus(x: Tensor) -> Tensor:
    """ln(1 + e^x) - ln 2, zero at zero (DOI 10.1063/1.5019779)."""
    return functional.softplus(x) - math.log(2.0)


def shifted_softplus_float32(x: Tensor) -> Tensor:
    """The same with ln 2 rounded to float32, as TorchMD-Net subtracts it in float64 too."""
    return functional.softplus(x) - 0.6931471824645996


def soft_exponential(x: Tensor, alpha: float) -> Tensor:
    """(e^(alpha x) - 1) / alpha + alpha; for alpha below zero -ln(1 - alpha (x + alpha)) / alpha.

    DOI 10.48550/arXiv.1602.01321, with MatGL's limits: the identity where alpha is within 1e-6
    of zero, and no logarithm of less than 1e-6.
    """
    if abs(alpha) < _SMALL:
        return x
    if alpha < 0.0:
        return -torch.log((1.0 - alpha * (x + alpha)).clamp_min(_SMALL)) / alpha
    return torch.expm1(alpha * x) / alpha + alpha


_SMALL: Final = 1e-6

ACTIVATIONS: Final[dict[str, Activation]] = {
    "silu": silu,
    "ssp": shifted_softplus,
    "ssp_float32": shifted_softplus_float32,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "mish": functional.mish,
    "softplus": functional.softplus,
}


def activation_of(config: TensorNetConfig) -> Activation:
    """What a configuration names."""
    if config.activation == "softexp":
        return partial(soft_exponential, alpha=config.activation_parameter)
    return ACTIVATIONS[config.activation]
