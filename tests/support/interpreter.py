"""Triton's interpreter, without what it does again in every call of a device function."""

import inspect
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np


def hasten() -> None:
    """Lets device functions use the language where the launch of their kernel has patched it.

    Triton 3.7 patches it once more in each call, and looks at all names of it to do so, which is a
    third of the time of small kernels. The dtypes of NumPy are kept, and so are types of blocks and
    the shapes that tensors have of them, which it makes anew for each operation, and broadcasts to
    where a block is already. Integers of 32 bits are not computed in 64 once more: no system of
    these tests is large enough for them to overflow.
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

    def broadcast_impl_value(self: Any, lhs: Any, rhs: Any) -> Any:
        one, other = lhs.type, rhs.type
        same = one.is_block() and other.is_block() and one.shape.values == other.shape.values
        return (lhs, rhs) if same else broadcast(self, lhs, rhs)

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
    interpreter.InterpretedFunction.__call__ = call
    interpreter._get_np_dtype = numpy_dtype
    options = replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
    interpreter.interpreter_builder.options = options
