"""The activations of `mdgraph.models.activations` and their slopes."""

import math
from typing import Final

from mdgraph.fused.cpu.compilation import routine
from mdgraph.fused.cpu.lanes import kept_apart

NUMBERS: Final = {
    None: 0,
    "silu": 1,
    "ssp": 2,
    "softplus": 3,
    "tanh": 4,
    "sigmoid": 5,
    "mish": 6,
}
"""How kernels call them; None leaves its input as it is."""


@routine
def sigmoid(x):
    """1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + math.exp(-x))


@routine
def activated(x, number):
    """Value and slope at x, in float64, of the activation of this number."""
    kept_apart()
    if number == 0:
        return x, 1.0
    if number == 4:
        t = math.tanh(x)
        return t, 1.0 - t * t
    s = sigmoid(x)
    if number == 1:
        return x * s, s * (1.0 + x * (1.0 - s))
    if number == 5:
        return s, s * (1.0 - s)
    softplus = max(x, 0.0) + math.log1p(math.exp(-abs(x)))
    if number == 6:
        t = math.tanh(softplus)
        return x * t, t + x * s * (1.0 - t * t)
    return (softplus - math.log(2.0) if number == 2 else softplus), s
