"""Device functions: layer normalisation of rows, and its adjoint."""

import triton
import triton.language as tl

_EPSILON = tl.constexpr(1e-5)


@triton.jit
def row_sums(x):
    """Sums of the rows of (A, F) as (A, 1)."""
    return tl.sum(x, 1)[:, None]


@triton.jit
def standardized(x, inside, number: tl.constexpr):
    """(x - mean) / deviation of each row (A, F), and 1 / deviation (A, 1).

    Args:
        x: zero outside.
        inside: which of its columns count.
        number: how many do.
    """
    mean = row_sums(x) / number
    centred = tl.where(inside, x - mean, 0.0)
    variance = row_sums(centred * centred) / number
    inverse = 1.0 / tl.sqrt(variance + _EPSILON)
    return centred * inverse, inverse


@triton.jit
def standardized_adjoint(gradient, x, inverse, inside, number: tl.constexpr):
    """From the gradient of the standardized x (zero outside) to that of what it was made of."""
    mean = row_sums(gradient) / number
    along = row_sums(gradient * x) / number
    return tl.where(inside, inverse * (gradient - mean - x * along), 0.0)
