"""Capture and replay of CUDA graphs."""

from mdgraph.graphs.capture import CapturedGraph, captured

__all__ = ["CapturedGraph", "captured"]
