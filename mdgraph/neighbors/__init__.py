"""Fixed-capacity neighbor lists: allocated on the host, updated in place on the device."""

from mdgraph.neighbors.list import ListStatus, NeighborList, NeighborRows, StoredRows
from mdgraph.neighbors.pairs import PairBlock, Pairs

__all__ = ["ListStatus", "NeighborList", "NeighborRows", "PairBlock", "Pairs", "StoredRows"]
