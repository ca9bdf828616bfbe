"""Device functions on vectors: tuples of three tiles; a lane is an atom, a pair or a system."""

import triton
import triton.language as tl

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators


@triton.jit
def load_vector(pointer, mask):
    """The three numbers that begin at `pointer`; zero where masked."""
    return (
        tl.load(pointer, mask=mask, other=0.0),
        tl.load(pointer + 1, mask=mask, other=0.0),
        tl.load(pointer + 2, mask=mask, other=0.0),
    )


@triton.jit
def store_vector(pointer, a, mask):
    """Writes three numbers where `load_vector` would read them."""
    tl.store(pointer, a[0], mask=mask)
    tl.store(pointer + 1, a[1], mask=mask)
    tl.store(pointer + 2, a[2], mask=mask)


@triton.jit
def added(a, b):
    """A + b."""
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


@triton.jit
def difference(a, b):
    """A - b."""
    return a[0] - b[0], a[1] - b[1], a[2] - b[2]


@triton.jit
def scaled(a, factor):
    """Vector times scalar."""
    return a[0] * factor, a[1] * factor, a[2] * factor


@triton.jit
def dot(a, b):
    """Scalar product."""
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


@triton.jit
def norm(a):
    """Length of a vector."""
    return tl.sqrt(dot(a, a))


@triton.jit
def chosen(condition, a, b):
    """Vector a where the condition holds, else b."""
    return (
        tl.where(condition, a[0], b[0]),
        tl.where(condition, a[1], b[1]),
        tl.where(condition, a[2], b[2]),
    )


@triton.jit
def cross(a, b):
    """Vector product."""
    return (a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])


@triton.jit
def combined(weights, a, b, c):
    """Weighted sum of three vectors: the row vector `weights` times the matrix of rows a, b, c."""
    return (
        weights[0] * a[0] + weights[1] * b[0] + weights[2] * c[0],
        weights[0] * a[1] + weights[1] * b[1] + weights[2] * c[1],
        weights[0] * a[2] + weights[1] * b[2] + weights[2] * c[2],
    )


@triton.jit
def less_outer(matrix, a, b):
    """M - a (x) b; M is nine tiles, row by row."""
    return (
        matrix[0] - a[0] * b[0],
        matrix[1] - a[0] * b[1],
        matrix[2] - a[0] * b[2],
        matrix[3] - a[1] * b[0],
        matrix[4] - a[1] * b[1],
        matrix[5] - a[1] * b[2],
        matrix[6] - a[2] * b[0],
        matrix[7] - a[2] * b[1],
        matrix[8] - a[2] * b[2],
    )
