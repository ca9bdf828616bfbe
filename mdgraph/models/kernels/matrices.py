"""Device functions: products of features, which are those of their 3x3 matrices.

A matrix is a tuple of nine tiles, row by row. Because the basis of components is orthonormal,
the adjoint of `matrix` is `components`, and the adjoint of a product is made of products.
"""

import triton
import triton.language as tl

from mdgraph.models.kernels.components import add, scale

_HALF = tl.constexpr(0.70710678118654752)  # 1 / sqrt 2
_THIRD = tl.constexpr(0.57735026918962576)  # 1 / sqrt 3
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
