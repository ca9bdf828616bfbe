"""Device functions: the activations of `mdgraph.models.activations` and their slopes."""

import triton
import triton.language as tl


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def softplus(x):
    """ln(1 + e^x), without overflow."""
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def tanh(x):
    """Tanh x, by its series near zero, where the exponentials would cancel."""
    y = x * x
    series = x * (1.0 - y * (1 / 3 - y * (2 / 15 - y * (17 / 315 - y * (62 / 2835)))))
    return tl.where(y < 0.09, series, 2.0 * sigmoid(2.0 * x) - 1.0)


@triton.jit
def _tanh_softplus(x):
    """tanh(ln(1 + e^x)); one to the last digit beyond 20."""
    e = tl.exp(tl.minimum(x, 20.0))
    return e * (e + 2.0) / (e * (e + 2.0) + 2.0)


@triton.jit
def activation(x, KIND: tl.constexpr):
    """The activation by name."""
    if KIND == "silu":
        return x * sigmoid(x)
    if KIND == "ssp":
        return softplus(x) - 0.69314718055994531
    if KIND == "ssp_float32":
        return softplus(x) - 0.69314718246459961
    if KIND == "softplus":
        return softplus(x)
    if KIND == "tanh":
        return tanh(x)
    if KIND == "sigmoid":
        return sigmoid(x)
    if KIND == "mish":
        return x * _tanh_softplus(x)
    return x


@triton.jit
def slope(x, KIND: tl.constexpr):
    """The derivative of the activation."""
    s = sigmoid(x)
    if KIND == "silu":
        return s * (1.0 + x * (1.0 - s))
    if KIND == "ssp" or KIND == "ssp_float32" or KIND == "softplus":
        return s
    if KIND == "tanh":
        s = sigmoid(2.0 * x)
        return 4.0 * s * (1.0 - s)
    if KIND == "sigmoid":
        return s * (1.0 - s)
    if KIND == "mish":
        t = _tanh_softplus(x)
        return t + x * (1.0 - t * t) * s
    return s * 0.0 + 1.0
