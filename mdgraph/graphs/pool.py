"""GraphPool: graphs for work whose shapes vary."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import torch

from mdgraph.graphs.capture import CapturedGraph, captured

Entry = TypeVar("Entry")

MOST = 12
"""Shapes kept: each has buffers of its own."""


class GraphPool(Generic[Entry]):
    """Entries with buffers and graphs, one a shape; of too many the least recently used goes.

    Graphs captured here share one memory for what they make on the way. They may be replayed
    in any order, one at a time, as what they write for others lies in the entries' buffers.

    Attributes:
        captures: graphs captured so far.
        made: entries made so far.
    """

    def __init__(
        self, most: int = MOST, capture: Callable[..., CapturedGraph | None] = captured
    ) -> None:
        """An empty pool.

        Args:
            most: entries kept.
            capture: makes a graph; see `captured`.
        """
        self.captures = 0
        self.made = 0
        self._most = most
        self._make_graph = capture
        self._memory: Any = None
        self._entries: OrderedDict[Hashable, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def get(self, key: Hashable, make: Callable[[], Entry]) -> Entry:
        """The entry of a shape, made on first use; the least recently used one makes room."""
        if key not in self._entries:
            while len(self._entries) >= self._most:
                self._entries.popitem(last=False)
            self._entries[key] = make()
            self.made += 1
        self._entries.move_to_end(key)
        return self._entries[key]

    def capture(self, function: Callable[[], None], device: torch.device) -> CapturedGraph | None:
        """See `captured`; the graph's memory is that of the others."""
        graph = self._make_graph(function, device, pool=self._memory)
        if graph is not None:
            self._memory = graph.pool
            self.captures += 1
        return graph
