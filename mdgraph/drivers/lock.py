"""The lock that lets one driver evaluate at a time, in any thread and after a fork."""

import os
import threading
from types import TracebackType
from typing import Final

from mdgraph.devices import check_fork


class EvaluationLock:
    """A lock that its thread may take again while it holds it.

    One evaluation runs at a time, because torch's float32 flags and the capture of a CUDA
    graph belong to the process, and because drivers may share one evaluator.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def renew(self) -> None:
        """Frees the lock in a forked process, which has none of its parent's threads."""
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Frees the lock; raises InputError where CUDA failed because of a late fork."""
        self._lock.release()
        if isinstance(error, RuntimeError):
            check_fork(error)


EVALUATION_LOCK: Final = EvaluationLock()
if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=EVALUATION_LOCK.renew)
