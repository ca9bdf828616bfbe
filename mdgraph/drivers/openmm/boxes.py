"""Boxes in OpenMM's reduced form, and molecules whole across their faces."""

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdgraph.arguments import real_array
from mdgraph.errors import InputError

Array = NDArray[np.float64]


def reduced(cell: Any) -> tuple[Array, Array]:
    """The box by which OpenMM knows a lattice, and how to turn what lies in it.

    OpenMM wants a along x, b in the xy plane, and vectors no more than half of an earlier
    one to a side. Every lattice has such vectors once it is turned. A box that has the form
    comes back as it is, with no rotation.

    Args:
        cell: (3, 3), one vector a row, in any unit; three that span a volume.

    Returns:
        The box (3, 3), and a rotation (3, 3): positions, velocities and forces r become
        `r @ rotation`, and come back by its transpose.

    Raises:
        InputError: no such vectors.
    """
    box = real_array(cell)
    if box is None or box.shape != (3, 3) or not np.isfinite(box).all() or not np.linalg.det(box):
        raise InputError("The box is no three vectors that span a volume; give (3, 3) numbers.")
    rotation = np.eye(3)
    if np.linalg.det(box) < 0.0:
        box[2] *= -1.0  # the same lattice, right-handed
    if np.triu(box, 1).any() or (box.diagonal() < 0.0).any():
        rotation, upper = np.linalg.qr(box.T)
        signs = np.sign(upper.diagonal())
        rotation, box = rotation * signs, np.tril((upper * signs[:, None]).T)
    a, b, c = box
    c -= b * np.round(c[1] / b[1])
    c -= a * np.round(c[0] / a[0])
    b -= a * np.round(b[0] / a[0])
    # The last digit may lie beyond the half that OpenMM allows.
    for vector, before, axis in ((b, a, 0), (c, a, 0), (c, b, 1)):
        vector[axis] = np.clip(vector[axis], -0.5 * before[axis], 0.5 * before[axis])
    return box, rotation


def whole(positions: Array, cell: Array, bonds: NDArray[np.int64]) -> Array:
    """Positions with each molecule in one piece, by lattice vectors.

    Args:
        positions: (N, 3), anywhere; they come back unchanged where no bond is torn.
        cell: (3, 3).
        bonds: (B, 2) atoms.
    """
    first, second = bonds.T
    shifts = np.round((positions[second] - positions[first]) @ np.linalg.inv(cell))
    if not shifts.any():
        return positions
    neighbors: dict[int, list[tuple[int, Array]]] = {}
    for (one, other), shift in zip(bonds.tolist(), shifts, strict=True):
        neighbors.setdefault(one, []).append((other, -shift))
        neighbors.setdefault(other, []).append((one, shift))
    offsets: dict[int, Array] = {}
    for root in neighbors:
        if root in offsets:
            continue
        offsets[root] = np.zeros(3)
        queue = deque([root])
        while queue:
            atom = queue.popleft()
            for other, shift in neighbors[atom]:
                if other not in offsets:
                    offsets[other] = offsets[atom] + shift
                    queue.append(other)
    moved = positions.copy()
    moved[list(offsets)] += np.array(list(offsets.values())) @ cell
    return moved
