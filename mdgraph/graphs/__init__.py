"""Capture and replay of CUDA graphs."""

from mdgraph.graphs.capture import CapturedGraph, captured
from mdgraph.graphs.pool import GraphPool

__all__ = ["CapturedGraph", "GraphPool", "captured"]
