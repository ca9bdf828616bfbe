"""Checkpoints: read from TorchMD-Net, MatGL and mdgraph, written as mdgraph's own file."""

from mdgraph.checkpoints.description import describe
from mdgraph.checkpoints.domain import load_domain, save_domain
from mdgraph.checkpoints.layout import Layout
from mdgraph.checkpoints.loading import convert, load
from mdgraph.checkpoints.native import save
from mdgraph.checkpoints.registry import shipped_potentials

__all__ = [
    "Layout",
    "convert",
    "describe",
    "load",
    "load_domain",
    "save",
    "save_domain",
    "shipped_potentials",
]
