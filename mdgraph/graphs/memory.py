"""GraphMemory: what many graphs make on the way, in one place."""

from collections.abc import Callable

import torch

from mdgraph.graphs.capture import CapturedGraph, captured


class GraphMemory:
    """Captures graphs that share one memory for what they make on the way.

    They may be replayed in any order, one at a time, as what they write for others lies in
    buffers of those who had them captured. Holds none of these buffers.

    Attributes:
        captures: graphs captured so far.
    """

    def __init__(self, capture: Callable[..., CapturedGraph | None] = captured) -> None:
        """Reserves nothing yet.

        Args:
            capture: makes a graph; see `captured`.
        """
        self.captures = 0
        self._make_graph = capture
        # Kept for its memory: that of graphs that are all gone cannot be captured into again.
        self._last: CapturedGraph | None = None

    def capture(self, function: Callable[[], None], device: torch.device) -> CapturedGraph | None:
        """See `captured`, errors included; the graph's memory is that of the others."""
        pool = None if self._last is None else self._last.pool
        graph = self._make_graph(function, device, pool=pool)
        if graph is not None:
            self._last = graph
            self.captures += 1
        return graph
