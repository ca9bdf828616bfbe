"""Shapes: the few sizes that frames are padded to, so that steps repeat them.

A frame of n atoms with at most k neighbors becomes N atoms of K slots. Frames of one shape are
batched together.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

_WASTE: Final = 1.15
"""Atoms or slots that a shape may have over those of its smallest frame, before merging."""

_SLOTS: Final = 8
"""Slots come in multiples of this."""

_LAUNCHES: Final = 8192
"""Atoms and slots of a step whose arithmetic takes as long as its launches: a smaller one gains
nothing, as on an H200, where 860 kernels take 2.9 ms up to there."""

_MEMORY: Final = 0.05
"""Weight of atoms and slots where their arithmetic costs nothing."""


@dataclass(frozen=True, eq=False)
class Shape:
    """Frames padded alike.

    Attributes:
        atoms: N.
        slots: K of each list.
        frames: their numbers in the data set, ascending.
    """

    atoms: int
    slots: tuple[int, ...]
    frames: NDArray[np.int64]


@dataclass
class _Draft:
    """A shape that may still be merged.

    Attributes:
        atoms, slots: of the shape.
        parts: rows of its frames.
        frames, trained: how many there are, and how many of them are trained on.
    """

    atoms: int
    slots: tuple[int, ...]
    parts: list[NDArray[np.int64]]
    frames: int
    trained: int

    def cost(self, frames_a_step: Callable[[int, int], int]) -> float:
        """Atoms and slots of all steps that take the frames once, and a little for their memory."""
        size = min(self.frames, frames_a_step(self.atoms, self.slots[0]))
        padded = size * self.atoms * (1 + self.slots[0])
        return self.frames / size * (max(_LAUNCHES, padded) + _MEMORY * padded)

    def joined(self, other: "_Draft") -> "_Draft":
        """Both in one."""
        return _Draft(
            max(self.atoms, other.atoms),
            tuple(max(pair) for pair in zip(self.slots, other.slots, strict=True)),
            self.parts + other.parts,
            self.frames + other.frames,
            self.trained + other.trained,
        )


def plan_shapes(
    frames: NDArray[np.int64],
    atoms: NDArray[np.int64],
    slots: NDArray[np.int64],
    most: int,
    *,
    exact: bool,
    counted: NDArray[np.int64],
    frames_a_step: Callable[[int, int], int],
    least: int = 1,
) -> list[Shape]:
    """Groups frames by size.

    Groups that do not fill a step are merged where that saves more steps than it pads.

    Args:
        frames: (M,) their numbers.
        atoms: (M,) atoms of each.
        slots: (M, L) most neighbors of an atom of each, list by list.
        most: shapes at the end, unless `exact`.
        exact: whether atoms may not be padded: sums over a system would see them.
        counted: frames of which each shape must have `least`, those trained on.
        frames_a_step: how many frames of so many atoms, and slots of the first list, a step takes.
        least: see `counted`.
    """
    slots = -(-np.maximum(slots, 1) // _SLOTS) * _SLOTS
    drafts = []
    for chosen in _ladder(atoms, np.arange(len(atoms)), 1.0 if exact else _WASTE):
        for rows in _ladder(slots[:, 0], chosen, np.inf if exact else _WASTE):
            longest = tuple(int(value) for value in slots[rows].max(0))
            trained = int(np.isin(frames[rows], counted).sum())
            drafts.append(_Draft(int(atoms[rows].max()), longest, [rows], len(rows), trained))
    while not exact and len(drafts) > 1:
        poor = [draft for draft in drafts if 0 < draft.trained < least]
        costs = [
            (
                one.joined(other).cost(frames_a_step)
                - one.cost(frames_a_step)
                - other.cost(frames_a_step),
                i,
                j,
            )
            for i, one in enumerate(drafts)
            for j, other in enumerate(drafts)
            if i != j and (not poor or one is poor[0])
        ]
        added, i, j = min(costs)
        if len(drafts) <= most and not poor and added >= 0:
            break
        merged = drafts[i].joined(drafts[j])
        drafts = [draft for k, draft in enumerate(drafts) if k not in (i, j)] + [merged]
    shapes = [
        Shape(draft.atoms, draft.slots, np.sort(frames[np.concatenate(draft.parts)]))
        for draft in drafts
    ]
    return sorted(shapes, key=lambda shape: (shape.atoms, shape.slots))


def _ladder(
    sizes: NDArray[np.int64], chosen: NDArray[np.int64], waste: float
) -> list[NDArray[np.int64]]:
    """Rows grouped so that sizes within a group differ by the factor `waste` at most."""
    left, groups = chosen, []
    while len(left):
        near = sizes[left] * waste >= sizes[left].max()
        groups.append(left[near])
        left = left[~near]
    return groups
