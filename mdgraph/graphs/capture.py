"""Capture of a function on static buffers as one CUDA graph."""

import logging
from collections.abc import Callable

import torch

logger = logging.getLogger(__name__)

WARM_UP = 3
"""Eager calls before a capture: cuBLAS handles, kernels and autograd make their own first."""


class CapturedGraph:
    """A function recorded once and replayed with one launch.

    The function must work in place on buffers that outlive the graph, with static shapes
    and without host reads. It runs eagerly `WARM_UP` times first, on a side stream, so the
    caller restores its buffers afterwards; recording itself computes nothing.
    """

    def __init__(self, function: Callable[[], None], device: torch.device) -> None:
        # A capture that fails leaves its own stream current; the outer context takes it back.
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.current_stream(device)):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):
                    function()
            torch.cuda.current_stream().wait_stream(stream)
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            # Not torch's own capture stream: it belongs to the device of the first capture.
            with torch.cuda.graph(self._graph, stream=stream):
                function()

    def replay(self) -> None:
        """Launches the recorded work on the current stream; does not sync."""
        self._graph.replay()


def captured(function: Callable[[], None], device: torch.device) -> CapturedGraph | None:
    """Captures, or says in the log why that failed and returns None.

    Raises:
        torch.OutOfMemoryError: running eagerly would not help.
    """
    try:
        return CapturedGraph(function, device)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        logger.warning("No CUDA graph could be captured, so every step runs eagerly: %s", error)
        return None
