"""Device functions on features: tuples of nine tiles of components (1 + 3 + 5).

Components are those of the orthonormal basis of `mdgraph.models.tensors`.
"""

import triton
import triton.language as tl

_THIRD = tl.constexpr(0.57735026918962576)  # 1 / sqrt 3


@triton.jit
def load(pointer, F: tl.constexpr, mask):
    """The nine tiles whose first lies at `pointer` and the others F further each."""
    return (
        tl.load(pointer, mask=mask, other=0.0),
        tl.load(pointer + F, mask=mask, other=0.0),
        tl.load(pointer + 2 * F, mask=mask, other=0.0),
        tl.load(pointer + 3 * F, mask=mask, other=0.0),
        tl.load(pointer + 4 * F, mask=mask, other=0.0),
        tl.load(pointer + 5 * F, mask=mask, other=0.0),
        tl.load(pointer + 6 * F, mask=mask, other=0.0),
        tl.load(pointer + 7 * F, mask=mask, other=0.0),
        tl.load(pointer + 8 * F, mask=mask, other=0.0),
    )


@triton.jit
def widened(x, KIND: tl.constexpr):
    """X in the type that it is computed with."""
    return (
        x[0].to(KIND),
        x[1].to(KIND),
        x[2].to(KIND),
        x[3].to(KIND),
        x[4].to(KIND),
        x[5].to(KIND),
        x[6].to(KIND),
        x[7].to(KIND),
        x[8].to(KIND),
    )


@triton.jit
def store(pointer, F: tl.constexpr, x, mask):
    """Writes nine tiles where `load` would read them."""
    for c in tl.static_range(9):
        tl.store(pointer + c * F, x[c], mask=mask)


@triton.jit
def add(x, y):
    """X + y."""
    return (
        x[0] + y[0],
        x[1] + y[1],
        x[2] + y[2],
        x[3] + y[3],
        x[4] + y[4],
        x[5] + y[5],
        x[6] + y[6],
        x[7] + y[7],
        x[8] + y[8],
    )


@triton.jit
def scale(x, s):
    """X s, channel by channel."""
    return (
        x[0] * s,
        x[1] * s,
        x[2] * s,
        x[3] * s,
        x[4] * s,
        x[5] * s,
        x[6] * s,
        x[7] * s,
        x[8] * s,
    )


@triton.jit
def weigh(x, scalar, vector, tensor):
    """Each part of x times a weight of its own."""
    return (
        x[0] * scalar,
        x[1] * vector,
        x[2] * vector,
        x[3] * vector,
        x[4] * tensor,
        x[5] * tensor,
        x[6] * tensor,
        x[7] * tensor,
        x[8] * tensor,
    )


@triton.jit
def dots(x, y):
    """<x, y> of each part: scalar, vector, tensor."""
    vector = x[1] * y[1] + x[2] * y[2] + x[3] * y[3]
    tensor = x[4] * y[4] + x[5] * y[5] + x[6] * y[6] + x[7] * y[7] + x[8] * y[8]
    return x[0] * y[0], vector, tensor


@triton.jit
def dot(x, y):
    """<x, y> over all nine components."""
    scalar, vector, tensor = dots(x, y)
    return scalar + vector + tensor


@triton.jit
def summed(x):
    """Sums nine tiles over their second dimension."""
    return (
        tl.sum(x[0], 1),
        tl.sum(x[1], 1),
        tl.sum(x[2], 1),
        tl.sum(x[3], 1),
        tl.sum(x[4], 1),
        tl.sum(x[5], 1),
        tl.sum(x[6], 1),
        tl.sum(x[7], 1),
        tl.sum(x[8], 1),
    )


@triton.jit
def store_invariants(pointer, F: tl.constexpr, x, SIGNED: tl.constexpr, mask):
    """Writes |I|^2, or tr / 3 where SIGNED, |A|^2 and |S|^2 of x, F apart."""
    scalar, vector, tensor = dots(x, x)
    if SIGNED:
        scalar = x[0] * _THIRD
    tl.store(pointer, scalar, mask=mask)
    tl.store(pointer + F, vector, mask=mask)
    tl.store(pointer + 2 * F, tensor, mask=mask)


@triton.jit
def add_invariants_adjoint(gradient, pointer, F: tl.constexpr, x, SIGNED: tl.constexpr, mask):
    """Adds to the gradient of x what comes through its invariants, whose gradient is read."""
    scalar = tl.load(pointer, mask=mask, other=0.0)
    vector = 2.0 * tl.load(pointer + F, mask=mask, other=0.0)
    tensor = 2.0 * tl.load(pointer + 2 * F, mask=mask, other=0.0)
    more = weigh(x, 2.0 * scalar, vector, tensor)
    if SIGNED:
        part = scalar * _THIRD
        more = (part, more[1], more[2], more[3], more[4], more[5], more[6], more[7], more[8])
    return add(gradient, more)


@triton.jit
def normalized(x):
    """Y = x / n with n = |x|^2 + 1, and 1 / n."""
    inverse = 1.0 / (dot(x, x) + 1.0)
    return scale(x, inverse), inverse


@triton.jit
def normalized_adjoint(gradient, y, inverse):
    """From the gradient of y = x / n to that of x: g / n - 2 y <g, y>."""
    return add(scale(gradient, inverse), scale(y, -2.0 * dot(gradient, y)))
