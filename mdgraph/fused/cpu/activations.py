"""The activations of `mdgraph.models.activations` and their slopes, eight numbers at once."""

import math
from typing import Final

from mdgraph.fused.cpu.compilation import routine
from mdgraph.fused.cpu.exponentials import at_most, exponential
from mdgraph.fused.cpu.lanes import kept_apart

NUMBERS: Final = {
    None: 0,
    "silu": 1,
    "ssp": 2,
    "softplus": 3,
    "tanh": 4,
    "sigmoid": 5,
    "mish": 6,
    "ssp_float32": 7,
}
"""How kernels call them; None leaves its input as it is."""

_LOG_2: Final = math.log(2.0)
_LOG_2_FLOAT32: Final = 0.6931471824645996


@routine
def _sigmoid(x):
    """1 / (1 + exp(-x))."""
    return 1.0 / (exponential(0.0 - x) + 1.0)


@routine
def _softplus(x):
    """ln(1 + exp(x)) = max(x, 0) + 2 artanh(s), s = y / (2 + y) <= 1/3 with y = exp(-|x|)."""
    below = at_most(x, 0.0)
    y = exponential(2.0 * below - x)
    s = y / (y + 2.0)
    square = s * s
    series = square * (1.0 / 33.0) + 1.0 / 31.0
    for power in range(29, 0, -2):
        series = series * square + 1.0 / power
    return (x - below) + 2.0 * s * series


@routine
def _seldom(x, number):
    """Values and slopes of all but silu."""
    kept_apart()
    if number == 0:
        return x, x * 0.0 + 1.0
    if number == 4:
        t = 2.0 * _sigmoid(x + x) - 1.0
        return t, 1.0 - t * t
    s = _sigmoid(x)
    if number == 5:
        return s, s * (1.0 - s)
    if number == 6:
        # tanh(ln(1 + e)) = (e^2 + 2 e) / (e^2 + 2 e + 2) with e = exp(x), and 1 beyond.
        e = exponential(at_most(x, 20.0))
        e = e * (e + 2.0)
        t = e / (e + 2.0)
        return x * t, t + x * s * (1.0 - t * t)
    shift = _LOG_2 if number == 2 else _LOG_2_FLOAT32 if number == 7 else 0.0
    return _softplus(x) - shift, s


@routine
def activated(x, number):
    """Values and slopes at lanes x of the activation of this number."""
    if number == 1:  # Small enough to be inlined where it counts.
        s = _sigmoid(x)
        return x * s, s * (x * (1.0 - s) + 1.0)
    return _seldom(x, number)


@routine
def sigmoid(x):
    """1 / (1 + exp(-x)) of a single number."""
    return 1.0 / (1.0 + math.exp(-x))
