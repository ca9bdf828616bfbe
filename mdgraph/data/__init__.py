"""Data sets of labelled structures: one HDF5 format, importers, splits and checks."""

from mdgraph.data.dataset import Dataset, LabelledFrame, Provenance, open_dataset, write_dataset
from mdgraph.data.splits import Split, read_split, write_split

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
