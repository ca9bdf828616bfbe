"""Turns that drivers take, in whatever threads and processes they are called."""

import os
import threading
from types import TracebackType
from typing import Final

from mdgraph.devices import check_fork


class Turns:
    """A lock that a thread may take again while it has it.

    torch's float32 flags and the capture of a CUDA graph belong to the process, and one
    evaluator may serve several drivers, so one evaluation runs at a time.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def renew(self) -> None:
        """Forgets who has it: in a forked process the threads of its parent are not there."""
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Raises InputError for what CUDA says in a process that was forked too late."""
        self._lock.release()
        if isinstance(error, RuntimeError):
            check_fork(error)


EVALUATION_LOCK: Final = Turns()
if hasattr(os, "register_at_fork"):  # where processes fork at all
    os.register_at_fork(after_in_child=EVALUATION_LOCK.renew)
