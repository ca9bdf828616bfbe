"""CUDA graphs: capture of a function on static buffers, shared memory, and pools by shape."""

import gc
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import torch

from mdgraph.devices import forget_streams, shared_stream

logger = logging.getLogger(__name__)

WARM_UP = 3
"""Eager calls before a capture: cuBLAS handles, kernels and autograd make their own first."""


class GraphMemoryError(torch.OutOfMemoryError):
    """There is memory for the calls of a function, but not for a graph of them."""


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

        Raises:
            torch.OutOfMemoryError: the function alone needs more memory than there is.
            GraphMemoryError: only the graph does; one of fewer calls may fit.
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
            except BaseException as error:
                forget_streams()  # which may still be recording
                short = _memory_short(error)
                if short is not None:
                    raise GraphMemoryError(
                        f"there is memory for the work itself, but not for its graph: {short}"
                    ) from error
                raise
            self.pool = self._graph.pool()

    def replay(self) -> None:
        """Launches the recorded work on the current stream; does not sync."""
        self._graph.replay()


def _memory_short(error: BaseException) -> str | None:
    """What CUDA said of memory where a recording ended for want of it, else None."""
    if not isinstance(error, RuntimeError):
        return None
    # A capture that was broken off cannot be ended either, which hides what broke it off.
    for one in (error, error.__context__):
        if isinstance(one, torch.OutOfMemoryError) or "out of memory" in str(one):
            return str(one).partition("\n")[0]
    return None


def say_eager(reason: object) -> None:
    """Warns that no graph could be captured, and why."""
    logger.warning("No CUDA graph could be captured, so every step runs eagerly: %s", reason)


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
        GraphMemoryError: running eagerly would, and so may a graph of fewer calls.
    """
    try:
        return CapturedGraph(function, device, **options)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        # An interrupt is hidden by the end of the capture that it broke off.
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        say_eager(error)
        return None


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


Entry = TypeVar("Entry")

MOST = 12
"""Shapes kept: each has buffers of its own."""


class GraphPool(Generic[Entry]):
    """Entries with buffers and graphs, one a shape; of too many the least recently used goes.

    Attributes:
        memory: of the graphs of all entries, which these take from here.
        made: entries made so far.
    """

    def __init__(
        self,
        most: int = MOST,
        room: float = math.inf,
        memory: GraphMemory | None = None,
    ) -> None:
        """An empty pool.

        Args:
            most: entries kept.
            room: sum of their sizes at most, unless one alone is larger.
            memory: of their graphs; None for its own.
        """
        self.memory = GraphMemory() if memory is None else memory
        self.made = 0
        self._most = most
        self._room = room
        self._entries: OrderedDict[Hashable, Entry] = OrderedDict()
        self._sizes: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def get(self, key: Hashable, make: Callable[[], Entry], size: int = 0) -> Entry:
        """The entry of a shape, made on first use; the least recently used ones make room.

        They go once it is made, or where it does not fit into memory beside them.

        Args:
            key: of the shape.
            make: makes the entry; an error leaves the others where they are.
            size: of the entry, in what `room` counts.

        Raises:
            torch.OutOfMemoryError: the device cannot hold that one alone.
        """
        if key not in self._entries:
            made = self._made(make)
            while self._entries and not self._fits(size):
                self._drop_oldest()
            self._entries[key] = made
            self._sizes[key] = size
            self.made += 1
        self._entries.move_to_end(key)
        return self._entries[key]

    def _fits(self, size: int) -> bool:
        room = sum(self._sizes.values()) + size <= self._room
        return room and len(self._entries) < self._most

    def _made(self, make: Callable[[], Entry]) -> Entry:
        while self._entries:
            try:
                return make()
            except torch.OutOfMemoryError:
                pass  # what was half made goes with the error
            self._drop_oldest()
            # A state and what evaluators keep for it may point at each other. Only where memory
            # is short is that worth the time, in which many a small entry could be made.
            gc.collect()
        return make()

    def _drop_oldest(self) -> None:
        key, _ = self._entries.popitem(last=False)
        del self._sizes[key]
