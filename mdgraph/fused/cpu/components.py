"""Features in registers: nine components (1 + 3 + 5) of a channel, and 3x3 matrices.

Both are tuples of nine lanes. The basis of `mdgraph.models.tensors` is orthonormal, so the
adjoint of `matrix` is `components`, and the adjoint of a product is made of products.
"""

import math
from typing import Final

from mdgraph.fused.cpu.compilation import routine
from mdgraph.fused.cpu.lanes import load, load_one, store

_ROOT_HALF: Final = math.sqrt(1.0 / 2.0)
_ROOT_THIRD: Final = math.sqrt(1.0 / 3.0)
_ROOT_SIXTH: Final = math.sqrt(1.0 / 6.0)


@routine
def load_components(array, place, stride):
    """The nine lanes at `place` and `stride` further each."""
    return (
        load(array, place),
        load(array, place + stride),
        load(array, place + 2 * stride),
        load(array, place + 3 * stride),
        load(array, place + 4 * stride),
        load(array, place + 5 * stride),
        load(array, place + 6 * stride),
        load(array, place + 7 * stride),
        load(array, place + 8 * stride),
    )


@routine
def spread_components(array):
    """Nine numbers, each in all lanes."""
    return (
        load_one(array, 0),
        load_one(array, 1),
        load_one(array, 2),
        load_one(array, 3),
        load_one(array, 4),
        load_one(array, 5),
        load_one(array, 6),
        load_one(array, 7),
        load_one(array, 8),
    )


@routine
def store_components(array, place, stride, x):
    """Writes nine lanes where `load_components` reads them."""
    store(array, place, x[0])
    store(array, place + stride, x[1])
    store(array, place + 2 * stride, x[2])
    store(array, place + 3 * stride, x[3])
    store(array, place + 4 * stride, x[4])
    store(array, place + 5 * stride, x[5])
    store(array, place + 6 * stride, x[6])
    store(array, place + 7 * stride, x[7])
    store(array, place + 8 * stride, x[8])


@routine
def add(x, y):
    """The sum."""
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


@routine
def scaled(x, factor):
    """All components times the same lanes."""
    return (
        x[0] * factor,
        x[1] * factor,
        x[2] * factor,
        x[3] * factor,
        x[4] * factor,
        x[5] * factor,
        x[6] * factor,
        x[7] * factor,
        x[8] * factor,
    )


@routine
def scaled_by_part(x, scalar, vector, tensor):
    """Each part times a factor of its own."""
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


@routine
def scaled_by_stored(x, factors, place, stride):
    """Each part times its factor, at `place` and `stride` further each."""
    return scaled_by_part(
        x, load(factors, place), load(factors, place + stride), load(factors, place + 2 * stride)
    )


@routine
def dots(x, y):
    """Scalar products of the three parts."""
    return (
        x[0] * y[0],
        x[1] * y[1] + x[2] * y[2] + x[3] * y[3],
        x[4] * y[4] + x[5] * y[5] + x[6] * y[6] + x[7] * y[7] + x[8] * y[8],
    )


@routine
def dot(x, y):
    """Scalar product."""
    scalar, vector, tensor = dots(x, y)
    return scalar + vector + tensor


@routine
def normalized(x):
    """The feature x / (|x|^2 + 1)."""
    return scaled(x, 1.0 / (dot(x, x) + 1.0))


@routine
def normalized_adjoint(x, g):
    """Gradient by x of <g, normalized(x)>."""
    inverse = 1.0 / (dot(x, x) + 1.0)
    along = -2.0 * inverse * inverse * dot(x, g)
    return add(scaled(g, inverse), scaled(x, along))


@routine
def matrix(x):
    """Components to the matrix, row by row."""
    trace, third, plane = x[0] * _ROOT_THIRD, x[6] * _ROOT_SIXTH, x[8] * _ROOT_HALF
    diagonal = trace - third
    return (
        diagonal + plane,
        (x[4] - x[3]) * _ROOT_HALF,
        (x[7] + x[2]) * _ROOT_HALF,
        (x[4] + x[3]) * _ROOT_HALF,
        diagonal - plane,
        (x[5] - x[1]) * _ROOT_HALF,
        (x[7] - x[2]) * _ROOT_HALF,
        (x[5] + x[1]) * _ROOT_HALF,
        trace + 2.0 * third,
    )


@routine
def components(m):
    """The inverse of `matrix`, which is its adjoint too."""
    sum_of_two = m[0] + m[4]
    return (
        (sum_of_two + m[8]) * _ROOT_THIRD,
        (m[7] - m[5]) * _ROOT_HALF,
        (m[2] - m[6]) * _ROOT_HALF,
        (m[3] - m[1]) * _ROOT_HALF,
        (m[1] + m[3]) * _ROOT_HALF,
        (m[5] + m[7]) * _ROOT_HALF,
        (2.0 * m[8] - sum_of_two) * _ROOT_SIXTH,
        (m[2] + m[6]) * _ROOT_HALF,
        (m[0] - m[4]) * _ROOT_HALF,
    )


@routine
def transposed(m):
    """The transposed matrix."""
    return (m[0], m[3], m[6], m[1], m[4], m[7], m[2], m[5], m[8])


@routine
def product(a, b):
    """Matrix product."""
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


@routine
def combined(y, m, symmetric):
    """The product of a layer: Y M + M Y, or 2 Y M where not symmetric."""
    a, b = matrix(y), matrix(m)
    once = product(a, b)
    return components(add(once, product(b, a) if symmetric else once))


@routine
def combined_adjoint(y, m, g, symmetric):
    """Gradients by Y and by M of <g, combined(Y, M)>."""
    a, b, c = transposed(matrix(y)), transposed(matrix(m)), matrix(g)
    by_y, by_m = product(c, b), product(a, c)
    other_y = product(b, c) if symmetric else by_y
    other_m = product(c, a) if symmetric else by_m
    return components(add(by_y, other_y)), components(add(by_m, other_m))
