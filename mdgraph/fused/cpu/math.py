"""SIMD arithmetic of the CPU kernels: components, 3x3 matrices, exp, cubics, activations.

Both are tuples of nine lanes. The basis of `mdgraph.models.tensors` is orthonormal, so the
adjoint of `matrix` is `components`, and the adjoint of a product is made of products.

exp(x) = 2^n exp(r) with n the whole number next to x / ln 2, so that |r| <= ln(2) / 2, where
a Taylor polynomial reaches the rounding of its type. What is no number stays none.
"""

import math
from typing import Any, Final, NamedTuple

from llvmlite import ir
from numba.core.typing.templates import Signature

from mdgraph.fused.cpu.simd import (
    LANES,
    Lanes,
    kept_apart,
    load,
    load_one,
    operation,
    routine,
    store,
)

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


class _Format(NamedTuple):
    """Constants of a floating-point type for the exponential.

    Attributes:
        bits: size of a number.
        mantissa: bits of the mantissa.
        bias: of the exponent.
        lowest, highest: arguments are clamped to this range, in which no result is subnormal.
        high, low: ln 2 in two parts, the first short enough for n times it to be exact.
        degree: of the polynomial.
    """

    bits: int
    mantissa: int
    bias: int
    lowest: float
    highest: float
    high: float
    low: float
    degree: int


_FORMATS: Final = {
    32: _Format(32, 23, 127, -87.0, 88.0, 0.693359375, -2.12194440054690583e-4, 7),
    64: _Format(
        64, 52, 1023, -708.0, 709.0, 6.93147180369123816490e-1, 1.90821492927058770002e-10, 13
    ),
}


def _constant(kind: Any, number: float) -> Any:
    return ir.Constant(kind, [number] * LANES)


def _at_most(builder: Any, value: Any, limit: Any) -> Any:
    """The smaller of both; NaN stays NaN."""
    return builder.select(builder.fcmp_ordered(">", value, limit), limit, value)


@operation
def at_most(typing_context: Any, lanes: Any, limit: Any) -> Any:
    """The smaller of a lane and a number; what is no number stays none."""
    if not isinstance(lanes, Lanes):
        return None

    def generate(context: Any, builder: Any, signature: Signature, arguments: Any) -> Any:
        value, number = arguments
        number = context.cast(builder, number, limit, lanes.element)
        spread = ir.Constant(value.type, ir.Undefined)
        for lane in range(LANES):
            spread = builder.insert_element(spread, number, ir.Constant(ir.IntType(32), lane))
        return _at_most(builder, value, spread)

    return lanes(lanes, limit), generate


@operation
def exponential(typing_context: Any, lanes: Any) -> Any:
    """exp(x), within two units in the last place; beyond the type's range as at its ends."""
    if not isinstance(lanes, Lanes):
        return None
    form = _FORMATS[lanes.element.bitwidth]

    def generate(context: Any, builder: Any, signature: Signature, arguments: Any) -> Any:
        (x,) = arguments
        kind, flags = x.type, ("contract",)

        def product_and_sum(a: Any, b: Any, c: Any) -> Any:
            return builder.fadd(builder.fmul(a, b, flags=flags), c, flags=flags)

        x = _at_most(builder, x, _constant(kind, form.highest))
        lowest = _constant(kind, form.lowest)
        x = builder.select(builder.fcmp_ordered("<", x, lowest), lowest, x)
        # Numbers next to this one are whole, and count on in their last bits.
        whole = 1.5 * 2.0**form.mantissa
        shifted = product_and_sum(x, _constant(kind, 1.0 / math.log(2.0)), _constant(kind, whole))
        n = builder.fsub(shifted, _constant(kind, whole))
        r = product_and_sum(n, _constant(kind, -form.high), x)
        r = product_and_sum(n, _constant(kind, -form.low), r)
        result = _constant(kind, 1.0 / math.factorial(form.degree))
        for power in reversed(range(form.degree)):
            result = product_and_sum(result, r, _constant(kind, 1.0 / math.factorial(power)))
        integers = ir.VectorType(ir.IntType(form.bits), LANES)
        # The bits of `whole` that the shift leaves over are zero.
        exponent = builder.add(builder.bitcast(shifted, integers), _constant(integers, form.bias))
        scale = builder.shl(exponent, _constant(integers, form.mantissa))
        return builder.fmul(result, builder.bitcast(scale, kind))

    return lanes(lanes), generate


@routine
def cubic(table, place, stride, u):
    """Values at an offset u of cubics whose coefficients lie `stride` apart."""
    return load(table, place) + u * (
        load(table, place + stride)
        + u * (load(table, place + 2 * stride) + u * load(table, place + 3 * stride))
    )


@routine
def cubic_and_slope(table, place, stride, u):
    """Values and derivatives."""
    c1, c2 = load(table, place + stride), load(table, place + 2 * stride)
    c3 = load(table, place + 3 * stride)
    value = load(table, place) + u * (c1 + u * (c2 + u * c3))
    return value, c1 + u * (2.0 * c2 + 3.0 * u * c3)


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
