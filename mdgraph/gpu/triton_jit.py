"""Compilation of Triton kernels, and programmatic dependent launch (PDL)."""

import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

logger = logging.getLogger(__name__)

_AHEAD: ContextVar[bool] = ContextVar("compiling_ahead", default=False)


class _Kernel(triton.JITFunction):  # type: ignore[misc]
    def run(self, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        return super().run(*args, grid=grid, warmup=warmup or _AHEAD.get(), **options)


def kernel(function: Callable[..., None]) -> Any:
    """`triton.jit` for kernels that `compiling_ahead` can compile without running them."""
    jitted = triton.jit(function)
    return _Kernel(function) if isinstance(jitted, triton.JITFunction) else jitted


@contextmanager
def compiling_ahead() -> Iterator[None]:
    """Context in which launches compile kernels in parallel and run none of them.

    A network has some forty kernels, a list up to six and a step up to six, and each takes
    about half a second to compile on a machine that has not cached it. A kernel that does not
    compile raises at its later launch: an error at the end of this context would leave Triton
    in its asynchronous mode.
    """
    token = _AHEAD.set(True)
    try:
        with (
            ThreadPoolExecutor(os.cpu_count()) as pool,
            triton.AsyncCompileMode(pool, ignore_errors=True),
        ):
            yield
    finally:
        _AHEAD.reset(token)


def programs_at_once(device: torch.device, memory: int) -> int:
    """Programs that a GPU runs at once if two or more of `memory` bytes fit a multiprocessor.

    Else 0; on a CPU 4. CUDA keeps 1 KiB of shared memory a program for itself.
    """
    if device.type != "cuda":
        return 4
    about = triton.runtime.driver.active.utils.get_device_properties(device.index or 0)
    fit = (about["max_shared_mem"] + 1024) // (memory + 1024)
    return int(fit * about["multiprocessor_count"]) if fit > 1 else 0


class _TritonNotice:
    """Logs once in a process that kernels are being compiled, after the first compilation.

    Triton calls it for each kernel and says whether it came from the cache.
    """

    def __init__(self) -> None:
        self.has_logged = False
        self._next_listener = triton.knobs.compilation.listener

    def __call__(self, *, src: Any, cache_hit: bool, **details: Any) -> None:
        module = str(getattr(getattr(src, "fn", None), "__module__", ""))
        if not (self.has_logged or cache_hit) and module.startswith("mdgraph."):
            self.has_logged = True
            logger.info(
                "The first run on a machine compiles kernels, which takes up to half a minute."
            )
        if self._next_listener is not None:
            self._next_listener(src=src, cache_hit=cache_hit, **details)


INTERPRETED: tl.constexpr = tl.constexpr(triton.knobs.runtime.interpret)
"""Whether kernels run on the CPU, where no instruction of a GPU can be named."""

NOTICE: Final = _TritonNotice()
triton.knobs.compilation.listener = NOTICE


# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators


@triton.jit
def pdl_wait(USE_PDL: tl.constexpr):
    """Waits for the end of the previous kernel if programmatic dependent launch is on.

    With it, the GPU sets up the programs of a kernel while the last ones of the previous kernel
    still run. An earlier start costs more than it gains: waiting programs would occupy
    multiprocessors that others could use.
    """
    if USE_PDL:
        gdc_wait()
