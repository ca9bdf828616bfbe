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

CUTOFF: Final = 5.0
"""A; pairs closer than this are compared."""

_WIDTH: Final = 0.1
_CENTRES: Final = np.arange(0.5, CUTOFF + _WIDTH, _WIDTH)
_TRIAL: Final = 0.01
"""A, root mean square of the trial displacement over the atoms."""

_ROWS: Final = 512


def short_pairs(
    frame: LabelledFrame, cutoff: float
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Atoms and distances (A) of all directed pairs closer than the cutoff."""
    first, second, distance = primitive_neighbor_list(
        "ijd", frame.pbc, _whole(frame), frame.positions, cutoff
    )
    return first, second, distance


def _whole(frame: LabelledFrame) -> NDArray[np.float64]:
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
    bumps = np.exp(-0.5 * ((distance[:, None] - _CENTRES) / _WIDTH) ** 2) * window[:, None]
    result = np.zeros((len(kinds) ** 2, len(_CENTRES)))
    for row in np.unique(kind):
        result[row] = bumps[kind == row].sum(0)
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
) -> Iterator[tuple[int, int, float]]:
    """Pairs of rows whose distance is below `reach`, each once, with it."""
    squares = (descriptions.astype(np.float64) ** 2).sum(1)
    for start in range(0, len(descriptions), _ROWS):
        part = descriptions[start : start + _ROWS].astype(np.float64)
        products = part @ descriptions[start:].T.astype(np.float64)
        gap = squares[start : start + _ROWS, None] + squares[start:] - 2.0 * products
        # Cancellation leaves some 1e-16 of the squares.
        near = np.argwhere(gap <= reach**2 + 1e-14 * squares[start:])
        for row, column in near:
            if column > row:
                distance = np.linalg.norm(part[row] - descriptions[start + column])
                if distance <= reach:
                    yield start + int(row), start + int(column), float(distance)
