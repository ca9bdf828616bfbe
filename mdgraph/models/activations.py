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


ACTIVATIONS: Final[dict[str, Activation]] = {
    "silu": silu,
    "ssp": shifted_softplus,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "mish": functional.mish,
    "softplus": functional.softplus,
}
