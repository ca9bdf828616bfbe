"""Capture and replay of CUDA graphs."""

from mdgraph.graphs.capture import CapturedGraph, GraphMemoryError, captured, say_eager
from mdgraph.graphs.pool import GraphPool

__all__ = ["CapturedGraph", "GraphMemoryError", "GraphPool", "captured", "say_eager"]
