"""Lanes: eight numbers that a kernel computes with at once.

A type of numba that becomes a vector of LLVM, so that kernels say what is in a register
instead of hoping for the vectoriser. Loads and stores take a flat contiguous array and an
index, and check no bounds. Operators act lane by lane; a plain number counts for all lanes.
"""

import operator
from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir
from numba.core import types
from numba.core.typing.templates import AbstractTemplate, Signature, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model
from numba.np.arrayobj import make_array

LANES: Final = 8


class Lanes(types.Type):
    """Type of some numbers, LANES unless said, of one floating type."""

    def __init__(self, element: types.Float, count: int = LANES) -> None:
        self.element, self.count = element, count
        super().__init__(name=f"Lanes({element}, {count})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Lanes) -> None:
        element = manager.lookup(kind.element).get_value_type()
        super().__init__(manager, kind, ir.VectorType(element, kind.count))


def operation(function: Callable[..., Any]) -> Any:
    """What kernels may call: the function gives its type and writes its code."""
    return intrinsic(function)


def _spread(builder: Any, number: Any, count: int) -> Any:
    """A vector of equal numbers."""
    vector = ir.VectorType(number.type, count)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), number, _int(0))
    places = ir.Constant(ir.VectorType(ir.IntType(32), count), [0] * count)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), places)


def _int(number: int) -> Any:
    return ir.Constant(ir.IntType(32), number)


def _pointer(context: Any, builder: Any, kind: types.Array, array: Any, index: Any) -> Any:
    data = make_array(kind)(context, builder, array).data
    return builder.gep(data, [index])


def _flat(array: Any) -> bool:
    return isinstance(array, types.Array) and array.ndim == 1 and array.layout == "C"


def loading(array: Any, index: Any, count: int) -> Any:
    """Type and code of loading so many numbers."""
    if not _flat(array):
        return None
    kind = Lanes(array.dtype, count)

    def generate(context: Any, builder: Any, signature: Signature, arguments: Any) -> Any:
        pointer = _pointer(context, builder, array, *arguments)
        pointer = builder.bitcast(pointer, context.get_value_type(kind).as_pointer())
        return builder.load(pointer, align=array.dtype.bitwidth // 8)

    return kind(array, types.intp), generate


@operation
def load(typing_context: Any, array: Any, index: Any) -> Any:
    """array[index : index + LANES]."""
    return loading(array, index, LANES)


@operation
def store(typing_context: Any, array: Any, index: Any, lanes: Any) -> Any:
    """array[index : index + LANES] = lanes."""
    if not (_flat(array) and lanes == Lanes(array.dtype)):
        return None

    def generate(context: Any, builder: Any, signature: Signature, arguments: Any) -> Any:
        place, index, value = arguments
        pointer = _pointer(context, builder, array, place, index)
        pointer = builder.bitcast(pointer, value.type.as_pointer())
        builder.store(value, pointer, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.none(array, types.intp, lanes), generate


@operation
def zero(typing_context: Any, array: Any) -> Any:
    """Lanes of zeros, of the type of an array."""
    return zeros(Lanes(array.dtype), array)


def zeros(kind: Lanes, array: Any) -> Any:
    """Type and code of zeros."""

    def generate(context: Any, builder: Any, signature: Signature, arguments: Any) -> Any:
        return context.get_constant_null(kind)

    return kind(array), generate


@operation
def load_one(typing_context: Any, array: Any, index: Any) -> Any:
    """array[index] in all lanes."""
    return spreading(array, LANES)


def spreading(array: Any, count: int) -> Any:
    """Type and code of loading one number so many times."""
    if not _flat(array):
        return None

    def generate(context: Any, builder: Any, signature: Signature, arguments: Any) -> Any:
        number = builder.load(_pointer(context, builder, array, *arguments))
        return _spread(builder, number, count)

    return Lanes(array.dtype, count)(array, types.intp), generate


@operation
def total(typing_context: Any, lanes: Any) -> Any:
    """Sum of all lanes, halves added to halves."""

    def generate(context: Any, builder: Any, signature: Signature, arguments: Any) -> Any:
        (vector,) = arguments
        parts = [builder.extract_element(vector, _int(lane)) for lane in range(LANES)]
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [
                builder.fadd(one, other)
                for one, other in zip(parts[:half], parts[half:], strict=True)
            ]
        return parts[0]

    return lanes.element(lanes), generate


@operation
def kept_apart(typing_context: Any) -> Any:
    """Keeps the function that calls this from being inlined: less to compile."""

    def generate(context: Any, builder: Any, signature: Signature, arguments: Any) -> Any:
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.none(), generate


class _Operator(AbstractTemplate):
    def generic(self, arguments: Any, keywords: Any) -> Signature | None:
        left, right = arguments
        for lanes, other in ((left, right), (right, left)):
            if isinstance(lanes, Lanes) and (other == lanes or isinstance(other, types.Number)):
                return signature(lanes, left, right)
        return None


def _vector(context: Any, builder: Any, value: Any, kind: Any, wanted: Lanes) -> Any:
    if kind == wanted:
        return value
    return _spread(builder, context.cast(builder, value, kind, wanted.element), wanted.count)


def _define(function: Any, method: str) -> None:
    infer_global(function)(type(f"_{method}", (_Operator,), {}))

    def generate(context: Any, builder: Any, signature: Signature, arguments: Any) -> Any:
        wanted = signature.return_type
        left, right = (
            _vector(context, builder, value, kind, wanted)
            for value, kind in zip(arguments, signature.args, strict=True)
        )
        # Contracted: a product and a sum may round once. Nothing else may be rearranged.
        return getattr(builder, method)(left, right, flags=("contract",))

    for kinds in ((Lanes, Lanes), (Lanes, types.Number), (types.Number, Lanes)):
        lower_builtin(function, *kinds)(generate)


for _symbol, _method in (
    (operator.add, "fadd"),
    (operator.iadd, "fadd"),
    (operator.sub, "fsub"),
    (operator.isub, "fsub"),
    (operator.mul, "fmul"),
    (operator.imul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _define(_symbol, _method)
