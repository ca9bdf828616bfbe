"""Triton's interpreter, without what it does again in every call of a device function."""

import inspect
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np


def hasten() -> None:
    """Lets device functions use the language where the launch of their kernel has patched it.

    Triton 3.7 patches it once more in each call, and looks at all names of it to do so, which is a
    third of the time of small kernels. What it looks up or makes anew for each launch or operation
    is kept: the names to patch, the dtypes of NumPy, types of blocks, the shapes that tensors have
    of them and those they are broadcast to, and a number beside a block as a block. Types of
    operands that are the same are not compared. Integers of 32 bits are not computed in 64 once
    more: no system of these tests is large enough for them to overflow.
    """
    try:
        from triton import language
        from triton.language.semantic import TritonSemantic
        from triton.runtime import interpreter
    except ImportError:
        return

    @cache
    def languages(function: Any) -> list[Any]:
        modules = [value for value in function.__globals__.values() if inspect.ismodule(value)]
        return [one for one in modules if one in (language, language.core)]

    def call(self: Any, *args: Any, **options: Any) -> Any:
        if any(language.core.is_builtin(one.load) for one in languages(self.fn)):
            interpreter._patch_lang(self.fn)
        try:
            return self.rewrite()(*args, **options)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    def patch(package: Any, name: str, member: Any, scope: Any) -> None:
        def builtin(*args: Any, **options: Any) -> Any:
            options["_semantic"] = interpreter.interpreter_semantic
            return member(*args, **options)

        scope.set_attr(package, name, builtin)

    @cache
    def builtins(package: Any) -> list[tuple[str, Any]]:
        members = inspect.getmembers(package)
        return [(name, one) for name, one in members if language.core.is_builtin(one)]

    def patch_all(package: Any, builder: Any, scope: Any) -> None:
        for name, member in builtins(package):
            patch(package, name, member, scope)

    scalar, pointer = cache(interpreter._get_np_dtype), np.dtype(np.uint64)

    def numpy_dtype(dtype: Any) -> Any:
        return pointer if dtype.scalar.is_ptr() else scalar(dtype.scalar)

    tensor, block, semantic = language.core.tensor, language.core.block_type, TritonSemantic
    make, broadcast, describe = tensor.__init__, semantic.broadcast_impl_value, block.__init__
    types: dict[Any, Any] = {}

    def init(self: Any, handle: Any, type: Any) -> None:  # noqa: A002
        kept = type.__dict__.get("kept")
        if kept is None:
            make(self, handle, type)
            type.kept = self.numel, self.shape, self.dtype
        else:
            self.handle, self.type = handle, type
            self.numel, self.shape, self.dtype = kept

    widened: dict[tuple[int, int], tuple[Any, ...]] = {}

    def broadcast_impl_value(self: Any, lhs: Any, rhs: Any) -> Any:
        one, other = lhs.type, rhs.type
        if not (one.is_block() and other.is_block()):
            return broadcast(self, lhs, rhs)
        if one.shape.values == other.shape.values:
            return lhs, rhs
        key = id(one), id(other)
        if key not in widened:
            both = broadcast(self, lhs, rhs)
            widened[key] = tuple(each.type for each in both)
            return both
        return tuple(
            each
            if each.type is wide
            else tensor(self.builder.create_broadcast(each.handle, wide.shape.values), wide)
            for each, wide in zip((lhs, rhs), widened[key], strict=True)
        )

    check, plain = semantic.binary_op_type_checking_impl, language.core.dtype
    filled: dict[tuple[Any, ...], Any] = {}

    def operands(self: Any, lhs: Any, rhs: Any, *allowed: bool) -> Any:
        first, second = type(lhs) is tensor, type(rhs) is tensor
        if first and second:
            ours, theirs = lhs.type.scalar, rhs.type.scalar
            if len(allowed) == 4 or ours.name != theirs.name or ours.is_ptr():
                return check(self, lhs, rhs, *allowed)  # also division, which float16 is not for
            return broadcast_impl_value(self, lhs, rhs)
        one, number = (lhs, rhs) if first else (rhs, lhs)
        kind = one.type if first or second else None
        if type(number) not in (int, float) or not number or kind is None:
            return check(self, lhs, rhs, *allowed)  # also zeros, as no key tells their signs
        if not kind.is_block() and type(kind) is not plain:
            return check(self, lhs, rhs, *allowed)
        key = (number, type(number), id(kind) if kind.is_block() else kind.name, second, allowed)
        if key not in filled:
            both = check(self, lhs, rhs, *allowed)
            if both[second] is not one:
                return both
            filled[key] = both[first]
        return (one, filled[key]) if first else (filled[key], one)

    def new(cls: Any, element: Any, shape: Any) -> Any:
        sizes = [getattr(size, "value", size) for size in shape]
        key = (element.name, getattr(element, "address_space", None), *sizes)
        if key not in types:
            types[key] = object.__new__(cls)
        return types[key]

    def describe_once(self: Any, element: Any, shape: Any) -> None:
        if "name" not in self.__dict__:
            describe(self, element, shape)

    tensor.__init__, block.__new__, block.__init__ = init, new, describe_once
    semantic.broadcast_impl_value = broadcast_impl_value
    semantic.binary_op_type_checking_impl = operands
    interpreter.InterpretedFunction.__call__ = call
    interpreter._get_np_dtype, interpreter._patch_builtin = numpy_dtype, patch_all
    options = replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
    interpreter.interpreter_builder.options = options
