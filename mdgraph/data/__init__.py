"""Labelled structures: one HDF5 format, importers, splits and checks of what was imported."""

from mdgraph.data.dataset import Dataset, open_dataset
from mdgraph.data.frames import LabelledFrame, Provenance
from mdgraph.data.splits import Split, read_split, write_split
from mdgraph.data.writing import write_dataset

__all__ = [
    "Dataset",
    "LabelledFrame",
    "Provenance",
    "Split",
    "open_dataset",
    "read_split",
    "write_dataset",
    "write_split",
]
