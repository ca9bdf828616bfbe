"""Capture and replay of CUDA graphs."""

from mdgraph.graphs.capture import CapturedGraph, GraphMemoryError, captured, say_eager
from mdgraph.graphs.memory import GraphMemory
from mdgraph.graphs.pool import GraphPool

__all__ = [
    "CapturedGraph",
    "GraphMemory",
    "GraphMemoryError",
    "GraphPool",
    "captured",
    "say_eager",
]
