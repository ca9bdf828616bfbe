"""SIMD lanes for numba, kernels of them, and the threads that run these.

`Lanes` is a numba type that compiles to an LLVM vector, so kernels control what is in a register
and do not depend on automatic vectorisation. Loads and stores take a flat contiguous array and
an index and do not check bounds. Operators act on each lane; a scalar applies to all lanes.
"""

import operator
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any, Final

import numba
import torch
from llvmlite import ir
from numba.core import types
from numba.core.typing.templates import AbstractTemplate, Signature, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model
from numba.np.arrayobj import make_array

from mdgraph.numba_jit import cached, forget_stale

LANES: Final = 8


class Lanes(types.Type):
    """Type of a vector of floating-point numbers, by default LANES of them."""

    def __init__(self, element: types.Float, count: int = LANES) -> None:
        self.element, self.count = element, count
        super().__init__(name=f"Lanes({element}, {count})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Lanes) -> None:
        element = manager.lookup(kind.element).get_value_type()
        super().__init__(manager, kind, ir.VectorType(element, kind.count))


def operation(function: Callable[..., Any]) -> Any:
    """Makes an intrinsic that kernels may call; the function returns its type and its code."""
    return intrinsic(function)


def _spread(builder: Any, number: Any, count: int) -> Any:
    """A vector with the number in all lanes."""
    vector = ir.VectorType(number.type, count)
    single = builder.insert_element(ir.Constant(vector, ir.Undefined), number, _int(0))
    places = ir.Constant(ir.VectorType(ir.IntType(32), count), [0] * count)
    return builder.shuffle_vector(single, ir.Constant(vector, ir.Undefined), places)


def _int(number: int) -> Any:
    return ir.Constant(ir.IntType(32), number)


def _pointer(context: Any, builder: Any, kind: types.Array, array: Any, index: Any) -> Any:
    data = make_array(kind)(context, builder, array).data
    return builder.gep(data, [index])


def _flat(array: Any) -> bool:
    return isinstance(array, types.Array) and array.ndim == 1 and array.layout == "C"


def loading(array: Any, index: Any, count: int) -> Any:
    """Type and code that load `count` numbers."""
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
    """Type and code of a vector of zeros."""

    def generate(context: Any, builder: Any, signature: Signature, arguments: Any) -> Any:
        return context.get_constant_null(kind)

    return kind(array), generate


@operation
def load_one(typing_context: Any, array: Any, index: Any) -> Any:
    """array[index] in all lanes."""
    return spreading(array, LANES)


def spreading(array: Any, count: int) -> Any:
    """Type and code that load a number into `count` lanes."""
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


def _vector(context: Any, builder: Any, value: Any, source: Any, target: Lanes) -> Any:
    if source == target:
        return value
    return _spread(builder, context.cast(builder, value, source, target.element), target.count)


def _define(function: Any, method: str) -> None:
    infer_global(function)(type(f"_{method}", (_Operator,), {}))

    def generate(context: Any, builder: Any, signature: Signature, arguments: Any) -> Any:
        target = signature.return_type
        left, right = (
            _vector(context, builder, value, source, target)
            for value, source in zip(arguments, signature.args, strict=True)
        )
        # "contract" lets a product and a sum round once, and allows no other rearrangement.
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


_OPTIONS: Final[dict[str, Any]] = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"contract"},
}
"""Without the GIL, so threads share the work; without error checks. The compiler may fuse a
product and a sum, and may not change any other arithmetic."""


kernel: Final = cached(**_OPTIONS)
"""A function that Python calls: compiled on the first call with a type, and cached on disk."""


def routine(function: Callable[..., Any]) -> Any:
    """A function that kernels call: compiled into them."""
    unreachable: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return numba.njit(**unreachable, **_OPTIONS)(function)


with suppress(OSError):
    forget_stale(Path(__file__).parent)


def is_kept(compiled: Any, number: str) -> bool:
    """Whether a kernel is already compiled for float32 or float64 arrays.

    Reads a private attribute of numba; False if numba has changed it.
    """
    try:
        signatures = list(compiled.overloads)
        signatures += [key[0] for key in compiled._cache._cache_file._load_index()]
    except AttributeError:
        return False
    # All kernels take some float64 arrays, so only a float32 network has "float32" in a signature.
    return any(("float32" in str(types_)) == (number == "float32") for types_ in signatures)


Work = Callable[[int, int], None]
"""Function that works on blocks [first, last)."""

_SHARES: Final = 4
"""Portions of a phase for each thread, so the others need not wait for a slow one."""


def run(phases: Sequence[Work], blocks: int) -> None:
    """Runs phases one after the other, each on all blocks, by torch's number of threads.

    Results must not depend on how blocks are divided. Threads exist only during this call, so
    nothing is left that a fork could break.
    """
    threads = max(1, min(torch.get_num_threads(), blocks))
    if threads == 1:
        for phase in phases:
            phase(0, blocks)
        return
    step = -(-blocks // (_SHARES * threads))
    portions = [(first, min(first + step, blocks)) for first in range(0, blocks, step)]
    # The GIL protects the iterators, so each portion is taken once.
    queues = [iter(portions) for _ in phases]
    barrier = Barrier(threads)

    def work() -> None:
        # A thread that fails breaks the barrier, at which the others then stop.
        with suppress(BrokenBarrierError), ExitStack() as failure:
            failure.callback(barrier.abort)
            for phase, queue in zip(phases, queues, strict=True):
                for portion in queue:
                    phase(*portion)
                barrier.wait()
            failure.pop_all()

    with ThreadPoolExecutor(threads - 1) as pool:
        others = [pool.submit(work) for _ in range(threads - 1)]
        work()
    for other in others:
        other.result()
