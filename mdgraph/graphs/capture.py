"""Capture of a function on static buffers as one CUDA graph."""

from collections.abc import Callable

import torch

WARM_UP = 3
"""Eager calls before a capture: cuBLAS handles, kernels and autograd make their own first."""


class CapturedGraph:
    """A function recorded once and replayed with one launch.

    The function must work in place on buffers that outlive the graph, with static shapes
    and without host reads. It runs eagerly `WARM_UP` times first, on a side stream, so the
    caller restores its buffers afterwards; recording itself computes nothing.

    Attributes:
        memory: bytes of the private pool, as reserved after the capture.
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
            before = torch.cuda.memory_reserved()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                function()
            self.memory = torch.cuda.memory_reserved() - before

    def replay(self) -> None:
        """Launches the recorded work on the current stream; does not sync."""
        self._graph.replay()
