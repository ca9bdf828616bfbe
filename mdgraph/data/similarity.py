"""Similarity of frames: duplicates, leakage between splits, and temporal leakage.

A frame is described by smooth histograms of its pair distances, one for each pair of
elements. A small random displacement of every atom moves such a description by an amount that
a trial displacement measures, so differences are told in A.

How near a frame's nearest other one is depends on how many there are and on how many ways the
atoms have to move: from 0.8 down to 0.5 of the usual distance for independent frames of
published sets, and from 0.6 to 0.4 for dynamics at 3 fs. What tells them apart is which frame is
the nearest one. For independent frames it is anywhere; in a run of dynamics it is one of those
just before and after, also where the file holds many runs, one after the other.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from ase.neighborlist import primitive_neighbor_list
from numpy.typing import NDArray

from mdgraph.data.dataset import Dataset, LabelledFrame, compositions
from mdgraph.system import System

CUTOFF: Final = 5.0
"""A; pairs closer than this are compared."""

NEAR: Final = 0.01
"""A an atom; frames nearer than this count as the same."""

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
    cell = full_cell(frame)
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


def full_cell(frame: LabelledFrame | System) -> NDArray[np.float64]:
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


Index = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Family:
    """Two frames or more of one composition, F of them with K distinct geometries.

    Attributes:
        members: (F,) frame numbers, ascending.
        geometry: (F,) which geometry each has, in no order.
        chosen: (K,) the first of `members` with each geometry, as places in it, ascending.
        described: (K, D) descriptions of the chosen, see `describe_frame`.
        response: how far a description moves for each A of random displacement.
    """

    members: Index
    geometry: Index
    chosen: Index
    described: NDArray[np.float32]
    response: float


def families(dataset: Dataset) -> Iterator[Family]:
    """All families; reads all frames. Where all members are copies, nothing is described."""
    digests = np.array([_digest(frame) for frame in dataset.frames()], dtype=object)
    elements, counts = compositions(dataset)
    members_by_row: dict[bytes, list[int]] = defaultdict(list)
    for index, row in enumerate(counts):
        members_by_row[row.tobytes()].append(index)
    for listed in members_by_row.values():
        if len(listed) < 2:
            continue
        members = np.array(listed)
        _, first, geometry = np.unique(digests[members], return_index=True, return_inverse=True)
        chosen = np.sort(first)  # frames are read in their order
        described, moved = np.zeros((1, 0), dtype=np.float32), 1.0
        if len(chosen) > 1:
            present = elements[counts[members[0]] > 0].tolist()
            described = np.array(
                [describe_frame(frame, present) for frame in dataset.frames(members[chosen])]
            )
            moved = response(dataset.frame(int(members[0])), present)
        yield Family(members, geometry, chosen, described, moved)


def _digest(frame: LabelledFrame) -> bytes:
    digest = hashlib.blake2b(frame.numbers.tobytes(), digest_size=16)
    digest.update(frame.positions.tobytes())
    digest.update(frame.pbc.tobytes())
    if frame.pbc.any():
        digest.update(frame.cell.tobytes())
    return digest.digest()


_EXAMPLES: Final = 4


@dataclass
class Alike:
    """Pairs of frames that are the same.

    Attributes:
        pairs: how many.
        examples: the first few, as two frame numbers.
    """

    pairs: int = 0
    examples: list[tuple[int, int]] = field(default_factory=list)

    def joined(self, other: "Alike") -> "Alike":
        """Both together."""
        return Alike(self.pairs + other.pairs, (self.examples + other.examples)[:_EXAMPLES])

    def named(self) -> str:
        """For a sentence."""
        shown = ", ".join(f"{first} and {second}" for first, second in self.examples)
        left = self.pairs - len(self.examples)
        return f"{shown} and {left} more" if left else shown


class AlikeFrames:
    """Pairs by the parts of their frames, counted family by family."""

    def __init__(self, parts: Index, near: float) -> None:
        """Nothing is counted yet.

        Args:
            parts: (M,) part of each frame, from 0.
            near: A; frames count as the same where random displacements of this size an atom
                would make as much of a difference.
        """
        self._parts, self._near = parts, near
        self._found: dict[tuple[int, int], Alike] = {}

    def add(self, family: Family) -> None:
        """Counts the pairs of a family."""
        copies = _Copies(family.members, self._parts, family.geometry)
        every = np.arange(len(family.chosen))
        copies.count(self._found, every, every)
        reach = self._near * family.response
        geometry = family.geometry[family.chosen]
        for one, other in close_pairs(family.described, reach):
            copies.count(self._found, geometry[one], geometry[other])

    def pairs(self) -> dict[tuple[int, int], Alike]:
        """By two parts, the lower first, without those that share none."""
        return {key: alike for key, alike in sorted(self._found.items()) if alike.pairs}


class _Copies:
    """Frames of one composition: of each distinct geometry and part how many, first and last."""

    def __init__(self, members: Index, parts: Index, kind: Index) -> None:
        self._shape = int(kind.max()) + 1, int(parts.max()) + 1
        self._held = np.zeros(self._shape, dtype=np.int64)
        self._first, self._last = self._held.copy(), self._held.copy()
        places = kind, parts[members]
        np.add.at(self._held, places, 1)
        self._last[places] = members
        self._first[kind[::-1], parts[members[::-1]]] = members[::-1]

    def count(
        self, pairs_by_part: dict[tuple[int, int], Alike], first_row: Index, other: Index
    ) -> None:
        """Adds the pairs of frames of geometries (R,) and (R,), all the same or all different."""
        same = np.array_equal(first_row, other)
        for part in range(self._shape[1]):
            for second in range(part if same else 0, self._shape[1]):
                pairs = self._held[first_row, part] * self._held[other, second]
                if same and part == second:
                    pairs = self._held[first_row, part] * (self._held[first_row, part] - 1) // 2
                alike = pairs_by_part.setdefault((min(part, second), max(part, second)), Alike())
                alike.pairs += int(pairs.sum())
                for row in np.flatnonzero(pairs)[: _EXAMPLES - len(alike.examples)]:
                    pair = self._first[first_row[row], part], self._last[other[row], second]
                    alike.examples.append((int(min(pair)), int(max(pair))))


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
        """How near the frames of a part are to training frames, and whether they leak."""
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
