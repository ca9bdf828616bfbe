"""Capture and replay of CUDA graphs."""

from mdgraph.graphs.capture import CapturedGraph

__all__ = ["CapturedGraph"]
