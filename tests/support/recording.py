"""A stand-in for a CUDA graph on the CPU: records the operations of a function and repeats them.

Like a graph it knows nothing of the Python that called them: numbers that Python held are
those of the recording, and tensors are the same memory each time. What a capture forbids,
reading a value or making a tensor from Python numbers, it refuses.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "lift_fresh", "is_nonzero")


class RecordedGraph:
    """Takes the place of CapturedGraph."""

    pool = None

    def __init__(self, function: Callable[[], None], repeats: int = 1) -> None:
        calls: list[tuple[Any, Any, Any, Any]] = []

        class Recorder(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
                name = func.name().removeprefix("aten::").split(".")[0]
                assert name not in FORBIDDEN, f"{name} cannot be captured"
                result = func(*args, **(kwargs or {}))
                calls.append((func, args, kwargs or {}, result))
                return result

        with Recorder():
            for _ in range(repeats):
                function()
        self._calls = calls
        self.repeats = repeats

    def replay(self) -> None:
        with torch.no_grad():
            for func, args, kwargs, result in self._calls:
                again = tree_leaves(func(*args, **kwargs))
                for old, new in zip(tree_leaves(result), again, strict=True):
                    # Views and results in place are in their old place already.
                    if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)
