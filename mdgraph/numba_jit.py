"""How numba compiles loops for CPUs, where it keeps them, and what it says of the time it takes."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numba
from numba.core import event

logger = logging.getLogger(__name__)


def cached(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: compiled on the first call with a type, and cached where a folder is writable.

    Args:
        options: of `numba.njit`.
    """

    def compiled(function: Callable[..., Any]) -> Any:
        try:
            return numba.njit(cache=True, **options)(function)
        except RuntimeError:  # Neither its folder nor the user's cache folder is writable.
            return numba.njit(**options)(function)

    return compiled


def forget_stale(folder: Path) -> None:
    """Removes cached kernels that are older than the last change of a source in the folder.

    Numba itself checks only the file of a kernel, not the files of the routines it calls.
    """
    changed = max(path.stat().st_mtime for path in folder.glob("*.py"))
    for index in (folder / "__pycache__").glob("*.nbi"):
        if index.stat().st_mtime < changed:
            index.unlink(missing_ok=True)


class _NumbaNotice(event.Listener):
    """Logs once in a process that kernels are being compiled.

    Numba starts this event only for functions that its cache does not contain.
    """

    def __init__(self) -> None:
        self.has_logged = False

    def on_start(self, event: event.Event) -> None:
        module = event.data["dispatcher"].py_func.__module__
        if not self.has_logged and module.startswith("mdgraph."):
            self.has_logged = True
            logger.info(
                "The first run on a machine compiles kernels, which takes up to half a minute."
            )

    def on_end(self, event: event.Event) -> None:
        """Logs nothing."""


NOTICE: Final = _NumbaNotice()
event.register("numba:compile", NOTICE)
