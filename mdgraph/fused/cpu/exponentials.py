"""The exponential of eight numbers at once.

exp(x) = 2^n exp(r) with n the whole number next to x / ln 2, so that |r| <= ln(2) / 2, where
a Taylor polynomial reaches the rounding of its type. What is no number stays none.
"""

import math
from typing import Any, Final, NamedTuple

from llvmlite import ir
from numba.core.typing.templates import Signature

from mdgraph.fused.cpu.lanes import LANES, Lanes, operation


class _Format(NamedTuple):
    """What the exponential needs to know of a floating type.

    Attributes:
        bits: of a number.
        mantissa: bits of its mantissa.
        bias: of its exponent.
        lowest, highest: arguments are kept between these, where no result is subnormal.
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
    """The smaller of both, or the value where that is no number."""
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
