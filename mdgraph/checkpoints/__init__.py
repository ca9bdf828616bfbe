"""Reads checkpoints of TorchMD-Net, MatGL and mdgraph; writes files of mdgraph."""

from mdgraph.checkpoints.convert import Layout
from mdgraph.checkpoints.loading import convert, describe, load
from mdgraph.checkpoints.native import load_domain, save, save_domain
from mdgraph.shipped import shipped_potentials

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
