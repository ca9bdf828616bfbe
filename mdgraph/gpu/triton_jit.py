"""Compilation of Triton kernels, and programmatic dependent launch (PDL)."""

import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

logger = logging.getLogger(__name__)

_AHEAD: ContextVar[bool] = ContextVar("compiling_ahead", default=False)


class _Kernel(triton.JITFunction):  # type: ignore[misc]
    def run(self, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        return super().run(*args, grid=grid, warmup=warmup or _AHEAD.get(), **options)


def kernel(function: Callable[..., None]) -> Any:
    """Makes a kernel that `compiling_ahead` knows; in Triton's interpreter an ordinary one."""
    jitted = triton.jit(function)
    return _Kernel(function) if isinstance(jitted, triton.JITFunction) else jitted


@contextmanager
def compiling_ahead() -> Iterator[None]:
    """Launches within it compile their kernels on all cores and run none of them.

    A network is some forty kernels, a list up to seven and a step up to six, of which each
    takes about half a second the first time that a machine meets it. One that does not compile
    says so at its launch: an error on leaving would keep Triton in this mode for good.
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


class _TritonNotice:
    """Says once in a process that kernels are compiled, after the first one has been.

    Triton tells of each kernel whether its cache held it.
    """

    def __init__(self) -> None:
        self.given = False
        self._following = triton.knobs.compilation.listener

    def __call__(self, *, src: Any, cache_hit: bool, **details: Any) -> None:
        module = str(getattr(getattr(src, "fn", None), "__module__", ""))
        if not (self.given or cache_hit) and module.startswith("mdgraph."):
            self.given = True
            logger.info(
                "The first run on a machine compiles kernels, which takes up to half a minute."
            )
        if self._following is not None:
            self._following(src=src, cache_hit=cache_hit, **details)


NOTICE: Final = _TritonNotice()
triton.knobs.compilation.listener = NOTICE


# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators


@triton.jit
def pdl_wait(USE_PDL: tl.constexpr):
    """Waits for the end of the kernel before, where this one was launched ahead of it.

    With programmatic dependent launch the programs of a kernel are set up while the last ones
    of the kernel before still run. To let them start any earlier takes more than it gives:
    they would sit where programs at work could be.
    """
    if USE_PDL:
        gdc_wait()
