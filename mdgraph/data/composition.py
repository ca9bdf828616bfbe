"""Compositions of frames, and reference energies by least squares."""

import numpy as np
from numpy.typing import NDArray

from mdgraph.data.dataset import Dataset


def compositions(dataset: Dataset) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Elements (E,), ascending, and how many atoms of each a frame has, (M, E)."""
    elements, kinds = np.unique(dataset.numbers(), return_inverse=True)
    counts = np.zeros((len(dataset), len(elements)), dtype=np.int64)
    frames = np.repeat(np.arange(len(dataset)), dataset.atoms)
    np.add.at(counts, (frames, kinds), 1)
    return elements, counts


def fit_references(
    counts: NDArray[np.int64], energies: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Energies (E,) of the elements that fit best, and what they give for the frames (M,).

    Where compositions do not determine them, the solution of least norm is taken: with one
    composition alone it shares one number out over the elements. Every frame counts by its
    energy an atom.
    """
    atoms = counts.sum(1, keepdims=True)
    references: NDArray[np.float64] = np.linalg.lstsq(counts / atoms, energies / atoms[:, 0])[0]
    return references, counts @ references


def rank(counts: NDArray[np.int64]) -> int:
    """How many independent reference energies the compositions determine."""
    return int(np.linalg.matrix_rank(np.unique(counts, axis=0)))
