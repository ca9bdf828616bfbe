"""CUDA graphs: capture of a function on static buffers, shared memory, and pools by shape."""

import gc
import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, TypeVar

import torch

from mdgraph.devices import forget_streams, shared_stream

logger = logging.getLogger(__name__)

WARM_UP = 3
"""Eager calls before a capture, in which cuBLAS, Triton and autograd set themselves up."""


class GraphMemoryError(torch.OutOfMemoryError):
    """The function runs within the memory of the device, but a graph of it does not fit."""


class _CollectionPause:
    """Keeps Python's garbage collector from running while any thread records a graph.

    It would destroy older graphs that lie in reference cycles, which CUDA forbids meanwhile: the
    recording would end with an error.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recordings = 0
        self._was_enabled = False

    def __enter__(self) -> None:
        with self._lock:
            if self._recordings == 0:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._recordings += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._recordings -= 1
            if self._recordings == 0 and self._was_enabled:
                gc.enable()


_collection_pause: Final = _CollectionPause()


class CapturedGraph:
    """A function recorded once and replayed with one launch.

    The function must work in place on buffers that outlive the graph, with static shapes
    and without host reads. It runs eagerly `WARM_UP` times first, on a side stream, so the
    caller restores its buffers afterwards; recording itself computes nothing.

    Attributes:
        pool: memory for intermediate tensors. Graphs may share it if nobody reads these after
            a replay.
    """

    def __init__(
        self,
        function: Callable[[], None],
        device: torch.device,
        calls: int = 1,
        pool: Any = None,
        warm_up: int = WARM_UP,
    ) -> None:
        """Warms up and records; syncs.

        Args:
            function: see above.
            device: a CUDA device.
            calls: number of calls of the function in one replay, one after the other.
            pool: `pool` of another graph, or None for memory of its own.
            warm_up: eager calls before.

        Raises:
            torch.OutOfMemoryError: the function itself does not fit into memory.
            GraphMemoryError: the graph does not fit; one of fewer calls may.
        """
        # A capture that fails leaves its stream current; the outer context restores ours.
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.current_stream(device)):
            stream = shared_stream(device, "capture")
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(warm_up):
                    function()
            torch.cuda.current_stream().wait_stream(stream)
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            # Not torch's own capture stream, which all threads share and which belongs to the
            # device of the first capture. "thread_local" lets other threads use CUDA meanwhile.
            mode = "thread_local"
            try:
                with (
                    _collection_pause,
                    torch.cuda.graph(self._graph, pool, stream, capture_error_mode=mode),
                ):
                    for _ in range(calls):
                        function()
            except BaseException as error:
                forget_streams()  # they may still be recording
                message = _out_of_memory_message(error)
                if message is not None:
                    raise GraphMemoryError(
                        f"there is memory for the work itself, but not for its graph: {message}"
                    ) from error
                raise
            self.pool = self._graph.pool()

    def replay(self) -> None:
        """Launches the recorded work on the current stream; does not sync."""
        self._graph.replay()

    def reset(self) -> None:
        """Frees the recording, which cannot be replayed any more."""
        self._graph.reset()


def _out_of_memory_message(error: BaseException) -> str | None:
    """CUDA's own message if a capture ran out of memory, else None."""
    if not isinstance(error, RuntimeError):
        return None
    # Ending a capture that failed raises again, which hides the first error in the context.
    for cause in (error, error.__context__):
        if isinstance(cause, torch.OutOfMemoryError) or "out of memory" in str(cause):
            return str(cause).partition("\n")[0]
    return None


def say_eager(reason: object) -> None:
    """Warns that no graph could be captured, and why."""
    logger.warning("No CUDA graph could be captured, so every step runs eagerly: %s", reason)


def captured(
    function: Callable[[], None], device: torch.device, **options: Any
) -> CapturedGraph | None:
    """Captures a function; if that fails, warns in the log and returns None.

    Args:
        function: see `CapturedGraph`.
        device: a CUDA device.
        **options: `calls` and `pool` of `CapturedGraph`.

    Raises:
        torch.OutOfMemoryError: the function does not fit into memory even eagerly.
        GraphMemoryError: the function fits eagerly; a graph of fewer calls may fit too.
    """
    try:
        return CapturedGraph(function, device, **options)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        # An interrupt ends the capture, whose own error then hides it.
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        say_eager(error)
        return None


class GraphMemory:
    """Captures graphs that share one memory pool for their intermediate tensors.

    Results lie in buffers of the callers, so the graphs may be replayed in any order, one at a
    time. This object keeps none of those buffers.

    Attributes:
        captures: number of graphs captured so far.
    """

    def __init__(self, capture: Callable[..., CapturedGraph | None] = captured) -> None:
        """Reserves no memory yet.

        Args:
            capture: function that captures a graph, like `captured`.
        """
        self.captures = 0
        self._make_graph = capture
        # Keeps the pool alive: torch cannot capture into a pool all of whose graphs are gone.
        self._last: CapturedGraph | None = None

    def capture(self, function: Callable[[], None], device: torch.device) -> CapturedGraph | None:
        """Captures into the shared pool; returns and raises what `captured` does."""
        pool = None if self._last is None else self._last.pool
        graph = self._make_graph(function, device, pool=pool)
        if graph is not None:
            self._last = graph
            self.captures += 1
        return graph


Entry = TypeVar("Entry")

MAX_ENTRIES = 12
"""Shapes that a pool keeps; each has its own buffers."""


class GraphPool(Generic[Entry]):
    """Cache of entries with buffers and graphs, one for each shape; drops the least recently used.

    Attributes:
        memory: shared memory, into which entries capture their graphs.
        creations: number of entries created so far.
    """

    def __init__(
        self,
        max_entries: int = MAX_ENTRIES,
        room: float = math.inf,
        memory: GraphMemory | None = None,
    ) -> None:
        """An empty pool.

        Args:
            max_entries: number of entries to keep.
            room: largest sum of their sizes; a single entry may be larger.
            memory: for their graphs; None for a new one.
        """
        self.memory = GraphMemory() if memory is None else memory
        self.creations = 0
        self._max_entries = max_entries
        self._room = room
        self._entries: OrderedDict[Hashable, Entry] = OrderedDict()
        self._sizes: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def get(self, key: Hashable, make: Callable[[], Entry], size: int = 0) -> Entry:
        """The entry of a shape, created on first use.

        Least recently used entries are dropped once the new one exists and there are too many,
        or before if the device has no memory for it.

        Args:
            key: identifies the shape.
            make: creates the entry; if it fails, the others stay.
            size: of the entry, in the units of `room`.

        Raises:
            torch.OutOfMemoryError: the entry does not fit even alone.
        """
        if key not in self._entries:
            entry = self._make_entry(make)
            while self._entries and not self._fits(size):
                self._drop_oldest()
            self._entries[key] = entry
            self._sizes[key] = size
            self.creations += 1
        self._entries.move_to_end(key)
        return self._entries[key]

    def _fits(self, size: int) -> bool:
        has_room = sum(self._sizes.values()) + size <= self._room
        return has_room and len(self._entries) < self._max_entries

    def _make_entry(self, make: Callable[[], Entry]) -> Entry:
        while self._entries:
            try:
                return make()
            except torch.OutOfMemoryError:
                pass  # the error held the unfinished entry, whose memory is free now
            self._drop_oldest()
            # A state and the workspaces of evaluators refer to each other. Collecting cycles takes
            # longer than a small entry, so do it only when memory is short.
            gc.collect()
        return make()

    def _drop_oldest(self) -> None:
        key, _ = self._entries.popitem(last=False)
        del self._sizes[key]
