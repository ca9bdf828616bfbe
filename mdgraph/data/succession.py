"""Held-out frames that follow training frames in one run of dynamics.

How near a frame's nearest other one is depends on how many there are and on how many ways the
atoms have to move: from 0.8 down to 0.5 of the usual distance for independent frames of
published sets, and from 0.6 to 0.4 for dynamics at 3 fs. What tells them apart is which frame is
the nearest one. For independent frames it is anywhere; in a run of dynamics it is one of those
just before and after, also where the file holds many runs, one after the other.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mdgraph.data.families import Family
from mdgraph.data.likeness import gaps

Index = NDArray[np.int64]

_PLACES: Final = 2
"""Frames before and after that count as following."""

_LOOKED: Final = 512
"""Frames of a family that are looked at, at random."""

_BEYOND: Final = 0.2
"""Share of frames, beyond chance, whose nearest frame follows.

Of 100 independent frames of published molecules and water at most 0.1 in all do, of 100 frames of
dynamics of water, ethanol and acetylacetone at 3 fs at least 0.4.
"""

_ERRORS: Final = 5.0
"""Standard deviations of chance that the share must be beyond it."""


@dataclass
class HeldOut:
    """Frames of one part against those trained on.

    Attributes:
        frames: that were looked at.
        following: those whose nearest training frame follows them or is followed by them.
        chance: how many would be if the order in the file meant nothing.
        nearest: A, median distance to the nearest training frame.
        usual: A, median distance to training frames.
        leak: whether the data are of a run of dynamics that the split cuts too finely.
    """

    frames: int
    following: int
    chance: float
    nearest: float
    usual: float
    leak: bool

    def sentence(self, name: str) -> str:
        """For a person, of a part of this name that leaks."""
        return (
            f"Of {self.frames} frames of {name}, {self.following} have their nearest training "
            f"frame within {_PLACES} places of them in the file ({self.chance:.1f} by chance), as "
            "in a run of dynamics; their median distance to the nearest training frame is "
            f"{self.nearest:.2g} A an atom, to any training frame {self.usual:.2g}: errors on "
            f"{name} will look better than they are; split with --method blocks (long ones), "
            "group or file."
        )


class SuccessiveFrames:
    """Nearest frames, family by family; part 0 is trained on."""

    def __init__(self, parts: Index) -> None:
        """Nothing is known yet; `parts` (M,) is the part of each frame."""
        self._parts = parts
        self._all: list[NDArray[np.float64]] = []
        self._held: list[NDArray[np.float64]] = []

    def add(self, family: Family) -> None:
        """Looks at the frames of a family, of exact copies at the first."""
        parts = self._parts[family.members[family.chosen]]
        count = len(parts)
        if count < 2 * _PLACES + 2:
            return
        rows = np.random.default_rng(0).permutation(count)[:_LOOKED]
        for row in np.sort(rows):
            distance = gaps(family.described, int(row)) / family.response
            others = np.arange(count) != row
            self._all.append(_nearest(distance, int(row), others))
            trained = others & (parts == 0)
            if parts[row] and trained.any():
                found = _nearest(distance, int(row), trained)
                usual = np.median(distance[trained])
                self._held.append(np.array([*found, usual, parts[row]]))

    def of_part(self, part: int) -> HeldOut:
        """What was found of the frames of a part."""
        held = np.array(self._held).reshape(-1, 5)
        held = held[held[:, 4] == part]
        if not len(held):
            return HeldOut(0, 0, 0.0, np.nan, np.nan, False)
        following, chance = held[:, 0].sum(), held[:, 1].sum()
        leak = self._is_run() and following - chance > _BEYOND * len(held)
        nearest, usual = np.median(held[:, 2:4], axis=0)
        return HeldOut(len(held), int(following), chance, nearest, usual, bool(leak))

    def _is_run(self) -> bool:
        """Whether frames that follow each other are alike, in all parts together."""
        follows, chance, _ = np.array(self._all).T
        error = np.sqrt((chance * (1.0 - chance)).sum())
        beyond = (follows - chance).sum()
        return bool(beyond > max(_BEYOND * len(follows), _ERRORS * error))


def _nearest(
    distance: NDArray[np.float64], row: int, among: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Whether the nearest one follows, the chance that it does, and its distance."""
    places = np.abs(np.flatnonzero(among) - row) <= _PLACES
    nearest = int(np.argmin(distance[among]))
    return np.array([places[nearest], places.mean(), distance[among][nearest]])
