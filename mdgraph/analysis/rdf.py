"""Radial distribution functions of periodic systems with cells of any shape."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mdgraph.errors import InputError
from mdgraph.system import compact_cell

_BLOCK_PAIRS: Final = 1 << 20
"""Pairs worked on at once."""


@dataclass(frozen=True, eq=False)
class RadialDistribution:
    """g(r), the density of atoms around an atom over their mean density.

    Attributes:
        distance: (bins,) float64, A, middle of each bin.
        value: (bins,) float64, g averaged over each bin.
        frames: number of frames averaged.
    """

    distance: NDArray[np.float64]
    value: NDArray[np.float64]
    frames: int


def smallest_height(cell: NDArray[np.float64]) -> float:
    """Smallest distance between opposite faces of the most compact cell of a lattice, A.

    Args:
        cell: (3, 3) A, any cell of the lattice, of rank 3.
    """
    return _smallest_height(compact_cell(cell))


def _smallest_height(cell: NDArray[np.float64]) -> float:
    return float(1.0 / np.linalg.norm(np.linalg.inv(cell), axis=0).max())


def radial_distribution(
    frames: Iterable[tuple[NDArray[np.float64], NDArray[np.float64]]],
    first: NDArray[np.int64],
    second: NDArray[np.int64],
    *,
    maximum: float | None = None,
    width: float = 0.05,
) -> RadialDistribution:
    """Averages g(r) of `second` atoms around `first` atoms over frames.

    The nearest image of a pair is taken, which is exact up to half the smallest height of
    the most compact cell of the lattice: no component of a shorter vector exceeds half of one of
    its vectors.

    Args:
        frames: positions (N, 3) and cell (3, 3) of each, A, periodic in all directions.
        first: indices of the central atoms.
        second: indices of the atoms around them; both may hold the same atoms.
        maximum: A; None takes half the smallest height of the first frame.
        width: A, of a bin.

    Raises:
        InputError: no frames, no pairs, a cell without volume, or a `maximum` beyond half
            the smallest height.
    """
    same = len(np.intersect1d(first, second))
    pairs = len(first) * len(second) - same
    if pairs == 0:
        raise InputError("A radial distribution needs at least one pair of atoms; choose others.")
    edges: NDArray[np.float64] | None = None
    histogram = np.zeros(0)
    density, count = 0.0, 0
    for positions, cell in frames:
        volume = abs(float(np.linalg.det(cell)))
        if volume == 0.0:
            raise InputError("A cell without volume has no radial distribution; give a cell.")
        compact = compact_cell(cell)
        reach = 0.5 * _smallest_height(compact)
        if edges is None:
            maximum = reach if maximum is None else maximum
            edges = np.arange(0.0, maximum + 1e-9, width)
            histogram = np.zeros(len(edges) - 1)
        if edges[-1] > reach * (1.0 + 1e-6):
            raise InputError(
                f"Distances up to {edges[-1]:.2f} A go beyond half the smallest height of the "
                f"cell, {reach:.2f} A; ask for a shorter range."
            )
        histogram += _histogram(positions, compact, first, second, edges)
        density += pairs / volume
        count += 1
    if edges is None:
        raise InputError("A radial distribution needs at least one frame; the run left none.")
    shells = 4.0 / 3.0 * np.pi * np.diff(edges**3)
    return RadialDistribution(0.5 * (edges[1:] + edges[:-1]), histogram / (density * shells), count)


def most_common_heavy_element(numbers: NDArray[np.int64]) -> int:
    """Atomic number of the element with most atoms, hydrogen only where it is alone."""
    heavy = numbers[numbers > 1]
    counts = Counter((heavy if len(heavy) else numbers).tolist())
    return max(counts, key=lambda number: (counts[number], number))


def _histogram(
    positions: NDArray[np.float64],
    cell: NDArray[np.float64],
    first: NDArray[np.int64],
    second: NDArray[np.int64],
    edges: NDArray[np.float64],
) -> NDArray[np.float64]:
    inverse = np.linalg.inv(cell)
    total = np.zeros(len(edges) - 1)
    rows = max(1, _BLOCK_PAIRS // len(second))
    for start in range(0, len(first), rows):
        block = first[start : start + rows]
        vectors = positions[second] - positions[block][:, None]
        fractions = vectors @ inverse
        vectors = (fractions - np.round(fractions)) @ cell
        others = block[:, None] != second
        distances = np.linalg.norm(vectors[others], axis=-1)
        total += np.histogram(distances, edges)[0]
    return total
