"""How kernels are compiled and kept."""

import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numba
from numba.core import event

logger = logging.getLogger(__name__)

_OPTIONS: Final[dict[str, Any]] = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"contract"},
}
"""Free of Python's lock, so that threads can share the work; nothing is checked, and of all
that could change a sum, only a product and a sum may be rounded as one."""


def kernel(function: Callable[..., Any]) -> Any:
    """What Python calls: compiled on the first call with a type, and kept on disk."""
    try:
        return numba.njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # Neither this folder nor the user's own can be written.
        return numba.njit(**_OPTIONS)(function)


def routine(function: Callable[..., Any]) -> Any:
    """What kernels call: compiled into them."""
    unreachable: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return numba.njit(**unreachable, **_OPTIONS)(function)


def forget_stale(folder: Path) -> None:
    """Removes kernels compiled before the last change of any source in the folder.

    Numba looks at the file of a kernel alone, not at those of the routines it calls.
    """
    changed = max(path.stat().st_mtime for path in folder.glob("*.py"))
    for index in (folder / "__pycache__").glob("*.nbi"):
        if index.stat().st_mtime < changed:
            index.unlink(missing_ok=True)


with suppress(OSError):
    forget_stale(Path(__file__).parent)


def is_kept(compiled: Any, number: str) -> bool:
    """Whether a kernel need not be compiled for arrays of float32 or float64 numbers.

    Numba has no public way to ask. Where its private one has changed, the answer is no.
    """
    try:
        signatures = list(compiled.overloads)
        signatures += [key[0] for key in compiled._cache._cache_file._load_index()]
    except AttributeError:
        return False
    # All kernels take arrays of float64, so those of float64 networks know no others.
    return any(("float32" in str(one)) == (number == "float32") for one in signatures)


class _CompilationNotice(event.Listener):
    """Says once in a process that kernels are compiled, when the first one is.

    Numba starts this event for what its cache does not hold, and for nothing else.
    """

    def __init__(self) -> None:
        self.given = False

    def on_start(self, started: event.Event) -> None:
        module = started.data["dispatcher"].py_func.__module__
        if not self.given and module.startswith("mdgraph."):
            self.given = True
            logger.info(
                "The first run on a machine compiles kernels, which takes up to half a minute."
            )

    def on_end(self, ended: event.Event) -> None:
        """Says nothing."""


NOTICE: Final = _CompilationNotice()
event.register("numba:compile", NOTICE)
