"""Triton's interpreter, without what it does again in every call of a device function."""

import inspect
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np


def hasten() -> None:
    """Lets device functions use the language where the launch of their kernel has patched it.

    Triton 3.7 patches it once more in each call, and looks at all names of it to do so, which is a
    third of the time of small kernels. The dtypes of NumPy are kept; integers of 32 bits are not
    computed in 64 once more: no system of these tests is large enough for them to overflow.
    """
    try:
        from triton import language
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

    interpreter.InterpretedFunction.__call__ = call
    interpreter._get_np_dtype = numpy_dtype
    options = replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
    interpreter.interpreter_builder.options = options
