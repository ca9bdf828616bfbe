"""Device functions on features (nine tiles of components) and on their 3x3 matrices.

A matrix is a tuple of nine tiles, row by row. Because the basis of components is orthonormal,
the adjoint of `matrix` is `components`, and the adjoint of a product is made of products.
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
def invariants(x, SIGNED: tl.constexpr):
    """|I|^2, or tr / 3 where SIGNED, |A|^2 and |S|^2 of x."""
    scalar, vector, tensor = dots(x, x)
    if SIGNED:
        scalar = x[0] * _THIRD
    return scalar, vector, tensor


@triton.jit
def invariants_adjoint(gradient, x, SIGNED: tl.constexpr):
    """From the gradient of `invariants` to that of x."""
    result = weigh(x, 2.0 * gradient[0], 2.0 * gradient[1], 2.0 * gradient[2])
    if SIGNED:
        first = gradient[0] * _THIRD
        result = (
            first, result[1], result[2], result[3], result[4], result[5], result[6], result[7],
            result[8],
        )  # fmt: skip
    return result


@triton.jit
def normalized(x):
    """Y = x / n with n = |x|^2 + 1, and 1 / n."""
    inverse = 1.0 / (dot(x, x) + 1.0)
    return scale(x, inverse), inverse


@triton.jit
def normalized_adjoint(gradient, y, inverse):
    """From the gradient of y = x / n to that of x: g / n - 2 y <g, y>."""
    return add(scale(gradient, inverse), scale(y, -2.0 * dot(gradient, y)))


_HALF = tl.constexpr(0.70710678118654752)  # 1 / sqrt 2
_SIXTH = tl.constexpr(0.40824829046386302)  # 1 / sqrt 6


@triton.jit
def matrix(x):
    """Components to 3x3 matrices."""
    trace = x[0] * _THIRD - x[6] * _SIXTH
    return (
        trace + x[8] * _HALF,
        (x[4] - x[3]) * _HALF,
        (x[7] + x[2]) * _HALF,
        (x[4] + x[3]) * _HALF,
        trace - x[8] * _HALF,
        (x[5] - x[1]) * _HALF,
        (x[7] - x[2]) * _HALF,
        (x[5] + x[1]) * _HALF,
        x[0] * _THIRD + x[6] * _SIXTH * 2.0,
    )


@triton.jit
def components(m):
    """3x3 matrices to components."""
    return (
        (m[0] + m[4] + m[8]) * _THIRD,
        (m[7] - m[5]) * _HALF,
        (m[2] - m[6]) * _HALF,
        (m[3] - m[1]) * _HALF,
        (m[1] + m[3]) * _HALF,
        (m[5] + m[7]) * _HALF,
        (2.0 * m[8] - m[0] - m[4]) * _SIXTH,
        (m[2] + m[6]) * _HALF,
        (m[0] - m[4]) * _HALF,
    )


@triton.jit
def multiply(a, b):
    """Matrix product a b."""
    return (
        a[0] * b[0] + a[1] * b[3] + a[2] * b[6],
        a[0] * b[1] + a[1] * b[4] + a[2] * b[7],
        a[0] * b[2] + a[1] * b[5] + a[2] * b[8],
        a[3] * b[0] + a[4] * b[3] + a[5] * b[6],
        a[3] * b[1] + a[4] * b[4] + a[5] * b[7],
        a[3] * b[2] + a[4] * b[5] + a[5] * b[8],
        a[6] * b[0] + a[7] * b[3] + a[8] * b[6],
        a[6] * b[1] + a[7] * b[4] + a[8] * b[7],
        a[6] * b[2] + a[7] * b[5] + a[8] * b[8],
    )


@triton.jit
def transposed(m):
    """Transposed matrices."""
    return (m[0], m[3], m[6], m[1], m[4], m[7], m[2], m[5], m[8])


@triton.jit
def both(a, b, SYMMETRIC: tl.constexpr):
    """A B, plus B A where symmetric."""
    ab = multiply(a, b)
    if SYMMETRIC:
        ab = add(ab, multiply(b, a))
    return ab


@triton.jit
def left_gradient(g, b, SYMMETRIC: tl.constexpr):
    """From the gradient G of `both` to that of A: G B^T, plus B^T G."""
    return both(g, transposed(b), SYMMETRIC)


@triton.jit
def right_gradient(g, a, SYMMETRIC: tl.constexpr):
    """From the gradient G of `both` to that of B: A^T G, plus G A^T."""
    return both(transposed(a), g, SYMMETRIC)


@triton.jit
def product(y, m, SYMMETRIC: tl.constexpr):
    """Y M + M Y where symmetric, as O(3) asks for, else 2 Y M."""
    ab = both(matrix(y), matrix(m), SYMMETRIC)
    return components(ab if SYMMETRIC else scale(ab, 2.0))


@triton.jit
def product_adjoint(gradient, y, m, SYMMETRIC: tl.constexpr):
    """From the gradient of `product` to those of Y and M."""
    g = matrix(gradient)
    for_y = left_gradient(g, matrix(m), SYMMETRIC)
    for_m = right_gradient(g, matrix(y), SYMMETRIC)
    if not SYMMETRIC:
        for_y, for_m = scale(for_y, 2.0), scale(for_m, 2.0)
    return components(for_y), components(for_m)


@triton.jit
def square(c):
    """C C."""
    m = matrix(c)
    return components(multiply(m, m))


@triton.jit
def square_adjoint(gradient, c):
    """From the gradient of C C to that of C."""
    return components(left_gradient(matrix(gradient), matrix(c), True))
