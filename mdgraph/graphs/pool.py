"""GraphPool: graphs for work whose shapes vary."""

import gc
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import torch

from mdgraph.graphs.memory import GraphMemory

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
