"""Kernels of numba that several processes of the tests need are compiled by one of them."""

import fcntl
import os
import tempfile
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from numba.core.dispatcher import Dispatcher


def _compiled_once(plain: Callable[..., Any]) -> Callable[..., Any]:
    reentrant, depth = threading.RLock(), 0

    @wraps(plain)
    def locked(self: Dispatcher, signature: Any) -> Any:
        nonlocal depth
        function = self.py_func
        name = f"mdgraph-{os.getuid()}-{function.__module__}.{function.__name__}.numba"
        with reentrant:
            if depth:  # a routine that the kernel calls
                return plain(self, signature)
            with (Path(tempfile.gettempdir()) / name).open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                depth += 1
                try:
                    return plain(self, signature)
                finally:
                    depth -= 1
                    fcntl.flock(lock, fcntl.LOCK_UN)  # a fork may have the file open, too

    return locked


def compile_once() -> None:
    """Lets others wait for whoever compiles a kernel: they then take it from numba's cache.

    A kernel each, so that two processes may compile two kernels at a time.
    """
    if not hasattr(Dispatcher.compile, "__wrapped__"):
        Dispatcher.compile = _compiled_once(Dispatcher.compile)
