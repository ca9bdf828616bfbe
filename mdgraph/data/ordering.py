"""The order in time of the frames of one trajectory that came shuffled.

Neighbors in time are alike, so frames held out at random have near copies among those trained
on. Blocks of the recovered order do not.
"""

import numpy as np
from numpy.typing import NDArray

from mdgraph.data.dataset import Dataset
from mdgraph.errors import InputError

Array = NDArray[np.float64]


def distances(positions: Array, cell: Array | None) -> Array:
    """(M, M) root mean square displacement between frames, A.

    Args:
        positions: (M, N, 3) A, of the same atoms.
        cell: (3, 3) A whose nearest images count, or None.
    """
    inverse = None if cell is None else np.linalg.inv(cell)
    result = np.zeros((len(positions), len(positions)))
    for row, frame in zip(result, positions, strict=True):
        shift = positions - frame
        if inverse is not None:
            shift -= np.round(shift @ inverse) @ cell
        row[:] = np.sqrt((shift**2).sum(-1).mean(-1))
    return result


def time_order(distance: Array) -> NDArray[np.int64]:
    """Order in time of the frames of one diffusing trajectory, up to its direction.

    Along a random walk squared distances grow with time, so the first principal coordinate
    runs along it; turning stretches of that path round while it gets shorter mends the rest.
    """
    count = len(distance)
    centred = np.eye(count) - 1.0 / count
    order = np.argsort(np.linalg.eigh(-0.5 * centred @ distance**2 @ centred)[1][:, -1])
    shorter = True
    while shorter:
        shorter = False
        for start in range(count - 1):
            stops = np.arange(start + 1, count)
            first, lasts = order[start], order[stops]
            change = np.zeros(len(stops))
            if start > 0:
                before = order[start - 1]
                change += distance[before, lasts] - distance[before, first]
            nexts = order[stops[:-1] + 1]
            change[:-1] += distance[first, nexts] - distance[lasts[:-1], nexts]
            best = change.argmin()
            if change[best] < -1e-9:
                stretch = slice(start, stops[best] + 1)
                order[stretch] = order[stretch][::-1].copy()
                shorter = True
    return order


def recovered_order(dataset: Dataset) -> NDArray[np.int64]:
    """Frames of a data set in the order of time.

    Raises:
        InputError: they are not the same atoms in one cell.
    """
    first = dataset.frame(0)
    positions = []
    for index, frame in enumerate(dataset.frames()):
        same = np.array_equal(frame.numbers, first.numbers)
        if not (same and np.allclose(frame.cell, first.cell) and (frame.pbc == first.pbc).all()):
            raise InputError(
                f"Frame {index} of {dataset.path.name} has other atoms or another cell than the "
                "first, so there is no order to recover; split by another method."
            )
        positions.append(frame.positions)
    cell = first.cell if first.pbc.all() else None
    return time_order(distances(np.array(positions), cell))
