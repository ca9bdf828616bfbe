"""Fixed-capacity neighbor lists: allocated on the host, updated in place on the device."""

from mdgraph.neighbors.list import NeighborList
from mdgraph.neighbors.pairs import PairBlock, Pairs
from mdgraph.neighbors.status import ListStatus

__all__ = ["ListStatus", "NeighborList", "PairBlock", "Pairs"]
