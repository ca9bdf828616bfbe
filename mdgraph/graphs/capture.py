"""Capture of a function on static buffers as one CUDA graph."""

import logging
from collections.abc import Callable
from typing import Any

import torch

from mdgraph.devices import forget_streams, shared_stream

logger = logging.getLogger(__name__)

WARM_UP = 3
"""Eager calls before a capture: cuBLAS handles, kernels and autograd make their own first."""


class CapturedGraph:
    """A function recorded once and replayed with one launch.

    The function must work in place on buffers that outlive the graph, with static shapes
    and without host reads. It runs eagerly `WARM_UP` times first, on a side stream, so the
    caller restores its buffers afterwards; recording itself computes nothing.

    Attributes:
        pool: memory for what the function makes on the way. Graphs may share it where nothing
            that one of them made there is read after its replay.
    """

    def __init__(
        self,
        function: Callable[[], None],
        device: torch.device,
        calls: int = 1,
        pool: Any = None,
    ) -> None:
        """Warms up and records; syncs.

        Args:
            function: see above.
            device: a CUDA device.
            calls: of the function in one replay, one after the other.
            pool: that of another graph, or None for its own.
        """
        # A capture that fails leaves its own stream current; the outer context takes it back.
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.current_stream(device)):
            stream = shared_stream(device, "capture")
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):
                    function()
            torch.cuda.current_stream().wait_stream(stream)
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            # Not torch's own capture stream: it belongs to the device of the first capture, and
            # to all threads.
            # Other threads of the process may go on using CUDA meanwhile.
            mode = "thread_local"
            try:
                with torch.cuda.graph(self._graph, pool, stream, capture_error_mode=mode):
                    for _ in range(calls):
                        function()
            except BaseException:
                forget_streams()  # which may still be recording
                raise
            self.pool = self._graph.pool()

    def replay(self) -> None:
        """Launches the recorded work on the current stream; does not sync."""
        self._graph.replay()


def captured(
    function: Callable[[], None], device: torch.device, **options: Any
) -> CapturedGraph | None:
    """Captures, or says in the log why that failed and returns None.

    Args:
        function: what `CapturedGraph` takes.
        device: a CUDA device.
        **options: `calls` and `pool`, where they are not its defaults.

    Raises:
        torch.OutOfMemoryError: running eagerly would not help.
    """
    try:
        return CapturedGraph(function, device, **options)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        # A capture that was broken off cannot be ended either, which hides what broke it off.
        if isinstance(error.__context__, torch.OutOfMemoryError | KeyboardInterrupt):
            raise error.__context__ from None
        logger.warning("No CUDA graph could be captured, so every step runs eagerly: %s", error)
        return None
