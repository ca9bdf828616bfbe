"""How alike two frames are, whatever the order, place and orientation of their atoms.

A frame is described by smooth histograms of its pair distances, one for each pair of
elements. A small random displacement of every atom moves such a description by an amount that
a trial displacement measures, so differences are told in A.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from ase.neighborlist import primitive_neighbor_list
from numpy.typing import NDArray

from mdgraph.data.frames import LabelledFrame
from mdgraph.system import System

CUTOFF: Final = 5.0
"""A; pairs closer than this are compared."""

_WIDTH: Final = 0.1
_CENTRES: Final = np.arange(0.5, CUTOFF + _WIDTH, _WIDTH)
_TRIAL: Final = 0.01
"""A, root mean square of the trial displacement over the atoms."""

_FINE: Final = 0.005
"""A; distances are counted at points so far apart, shared out between the nearest two."""

_POINTS: Final = np.arange(0.0, CUTOFF + 2.0 * _FINE, _FINE)
_BUMPS: Final = np.exp(-0.5 * ((_POINTS[:, None] - _CENTRES) / _WIDTH) ** 2)

_ROWS: Final = 512

_DENSE: Final = 1000
"""Atoms up to which all pairs are looked at where no pair has several images."""


def short_pairs(
    frame: LabelledFrame | System, cutoff: float
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Atoms and distances (A) of all directed pairs closer than the cutoff."""
    cell = _whole(frame)
    inverse = np.linalg.inv(cell)
    heights = 1.0 / np.linalg.norm(inverse, axis=0)
    if len(frame) > _DENSE or (heights[frame.pbc] < 2.0 * cutoff).any():
        first, second, distance = primitive_neighbor_list(
            "ijd", frame.pbc, cell, frame.positions, cutoff
        )
        return first, second, distance
    # Within half of every height the nearest image is the one that rounding finds.
    first, second = np.triu_indices(len(frame), 1)
    shift = frame.positions[second] - frame.positions[first]
    if frame.pbc.any():
        shift -= (np.round(shift @ inverse) * frame.pbc) @ cell
    distance = np.sqrt(np.einsum("ij,ij->i", shift, shift))
    near = distance < cutoff
    first, second, distance = first[near], second[near], distance[near]
    return np.append(first, second), np.append(second, first), np.append(distance, distance)


def _whole(frame: LabelledFrame | System) -> NDArray[np.float64]:
    """The cell with unit vectors along directions that are not periodic.

    The search divides space by the cell: one that means nothing would only cost time.
    """
    if frame.pbc.all():
        return frame.cell
    cell = np.where(frame.pbc[:, None], frame.cell, 0.0)
    _, _, normals = np.linalg.svd(cell[frame.pbc].reshape(-1, 3))
    rest = iter(normals[int(frame.pbc.sum()) :])
    return np.array([row if own else next(rest) for row, own in zip(cell, frame.pbc, strict=True)])


def describe_frame(frame: LabelledFrame, kinds: Sequence[int]) -> NDArray[np.float32]:
    """Histograms of pair distances, normalised by the atoms; `kinds` are all elements."""
    first, second, distance = short_pairs(frame, CUTOFF)
    place = {number: row for row, number in enumerate(kinds)}
    rows = np.array([place[int(number)] for number in frame.numbers])
    lower, higher = np.sort([rows[first], rows[second]], axis=0)
    kind = lower * len(kinds) + higher
    window = 0.5 * (1.0 + np.cos(np.pi * distance / CUTOFF))
    whole = np.floor(distance / _FINE).astype(np.int64)
    beyond = distance / _FINE - whole
    size = len(kinds) ** 2 * len(_POINTS)
    counted = np.zeros(size)
    for step, share in ((0, 1.0 - beyond), (1, beyond)):
        counted += np.bincount(kind * len(_POINTS) + whole + step, window * share, size)
    result = counted.reshape(-1, len(_POINTS)) @ _BUMPS
    return (result.ravel() / len(frame)).astype(np.float32)


def response(frame: LabelledFrame, kinds: Sequence[int], seed: int = 0) -> float:
    """How far a description moves for each A of random displacement of every atom."""
    shift = np.random.default_rng(seed).normal(size=(len(frame), 3))
    shift *= _TRIAL / np.sqrt((shift**2).sum(1).mean())
    moved = LabelledFrame(frame.numbers, frame.positions + shift, frame.cell, frame.pbc)
    change = describe_frame(moved, kinds) - describe_frame(frame, kinds)
    return float(np.linalg.norm(change)) / _TRIAL


def close_pairs(
    descriptions: NDArray[np.float32], reach: float
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Pairs of rows whose distance is below `reach`, the lower first, each once; by stretches."""
    squares = (descriptions.astype(np.float64) ** 2).sum(1)
    for start in range(0, len(descriptions), _ROWS):
        part = descriptions[start : start + _ROWS].astype(np.float64)
        products = part @ descriptions[start:].T.astype(np.float64)
        gap = squares[start : start + _ROWS, None] + squares[start:] - 2.0 * products
        # Cancellation leaves some 1e-16 of the squares.
        rows, columns = np.nonzero(np.triu(gap <= reach**2 + 1e-14 * squares[start:], 1))
        yield start + rows, start + columns


def gaps(descriptions: NDArray[np.float32], row: int) -> NDArray[np.float64]:
    """Distances (K,) of all rows to one of them."""
    difference = descriptions - descriptions[row]
    return np.sqrt(np.einsum("ij,ij->i", difference, difference)).astype(np.float64)
