"""Device functions of distances and directions, with their derivatives.

Distances and directions are taken in the type of the vectors, functions of them in the network's
own. Directions are counted with SIGN.
"""

import triton
import triton.language as tl

_PI = tl.constexpr(3.141592653589793)
ROOT2 = tl.constexpr(1.4142135623730951)
ROOT3 = tl.constexpr(1.7320508075688772)
SIXTH = tl.constexpr(0.40824829046386302)  # 1 / sqrt 6
_HALF = tl.constexpr(0.70710678118654752)  # 1 / sqrt 2


@triton.jit
def cutoff_window(d, LOWER: tl.constexpr, UPPER: tl.constexpr):
    """c(d) and c'(d) of `cosine_cutoff`."""
    if LOWER > 0.0:
        phase = (2.0 * _PI) * ((d - LOWER) / (UPPER - LOWER) + 0.5)
        slope = tl.sin(phase) * (-_PI / (UPPER - LOWER))
        inside = (d > LOWER) & (d < UPPER)
    else:
        phase = _PI * (d / UPPER)
        slope = tl.sin(phase) * (-0.5 * _PI / UPPER)
        inside = d < UPPER
    value = 0.5 * (tl.cos(phase) + 1.0)
    return tl.where(inside, value, 0.0), tl.where(inside, slope, 0.0)


@triton.jit
def unit(vectors, slot):
    """Distance and unit vector of a slot."""
    x = tl.load(vectors + 3 * slot)
    y = tl.load(vectors + 3 * slot + 1)
    z = tl.load(vectors + 3 * slot + 2)
    d = tl.sqrt(x * x + y * y + z * z)
    return d, x / d, y / d, z / d


@triton.jit
def changed(change, slot, d, x, y, z):
    """How both change along a change of the vector."""
    a = tl.load(change + 3 * slot)
    b = tl.load(change + 3 * slot + 1)
    c = tl.load(change + 3 * slot + 2)
    along = a * x + b * y + c * z
    return along, (a - along * x) / d, (b - along * y) / d, (c - along * z) / d


@triton.jit
def radial_functions(d, means, betas, k, K: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr):
    """phi_k(d) and phi_k'(d) of `ExponentialNormal`; 0 beyond the last."""
    inside = k < K
    mean = tl.load(means + k, mask=inside, other=0.0)
    beta = tl.load(betas + k, mask=inside, other=0.0)
    window, fall = cutoff_window(d, 0.0, UPPER)
    decay = tl.exp((LOWER - d) * (5.0 / (UPPER - LOWER)))
    # The difference is taken before the cast: it is small where the function is steep.
    offset = (decay - mean.to(decay.dtype)).to(mean.dtype)
    steep = (decay * (10.0 / (UPPER - LOWER))).to(mean.dtype) * beta * offset
    bell = tl.where(inside, tl.exp(-beta * (offset * offset)), 0.0)
    value = bell * window.to(mean.dtype)
    return value, bell * fall.to(mean.dtype) + value * steep


@triton.jit
def windowed(d, means, betas, k, K: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr):
    """C [phi ; 1] and its derivative by the distance."""
    phi, change = radial_functions(d, means, betas, k, K, LOWER, UPPER)
    phi = tl.where(k == K, 1.0, phi)
    window, fall = cutoff_window(d, LOWER, UPPER)
    return window.to(phi.dtype) * phi, fall.to(phi.dtype) * phi + window.to(phi.dtype) * change


@triton.jit
def angular(x, y, z, SIGN: tl.constexpr):
    """Components of 1 + [r]x + (r r^T - 1/3) of a unit vector, but for the first, sqrt 3."""
    # A name would hold it in float32.
    VECTOR: tl.constexpr = ROOT2 * SIGN
    last = SIXTH * (2.0 * z * z - x * x - y * y)
    square = _HALF * (x * x - y * y)
    return (
        VECTOR * x,
        VECTOR * y,
        VECTOR * z,
        ROOT2 * x * y,
        ROOT2 * y * z,
        last,
        ROOT2 * x * z,
        square,
    )


@triton.jit
def angular_change(x, y, z, a, b, c, SIGN: tl.constexpr):
    """How they change along a change (a, b, c) of the unit vector."""
    VECTOR: tl.constexpr = ROOT2 * SIGN
    last = (2.0 * SIXTH) * (2.0 * z * c - x * a - y * b)
    square = ROOT2 * (x * a - y * b)
    xy = ROOT2 * (x * b + y * a)
    yz = ROOT2 * (y * c + z * b)
    return VECTOR * a, VECTOR * b, VECTOR * c, xy, yz, last, ROOT2 * (x * c + z * a), square
