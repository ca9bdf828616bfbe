"""Frames that are the same: within a part of a split and, as leakage, between its parts.

Exact copies are found by their digests, so that only one of them is described; the rest is
compared block by block, and pairs are counted, not kept.
"""

import hashlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mdgraph.data.composition import compositions
from mdgraph.data.dataset import Dataset
from mdgraph.data.frames import LabelledFrame
from mdgraph.data.likeness import close_pairs, describe_frame, response

Index = NDArray[np.int64]

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


def alike_frames(dataset: Dataset, parts: Index, near: float) -> dict[tuple[int, int], Alike]:
    """Pairs by the parts of their frames, the lower first; reads all frames.

    Args:
        dataset: the data.
        parts: (M,) part of each frame, from 0.
        near: A; frames count as the same where random displacements of this size an atom
            would make as much of a difference.
    """
    digests = np.array([_digest(frame) for frame in dataset.frames()], dtype=object)
    elements, counts = compositions(dataset)
    families: dict[bytes, list[int]] = defaultdict(list)
    for index, row in enumerate(counts):
        families[row.tobytes()].append(index)
    found: dict[tuple[int, int], Alike] = defaultdict(Alike)
    for listed in families.values():
        if len(listed) < 2:
            continue
        members = np.array(listed)
        _, first, kind = np.unique(digests[members], return_index=True, return_inverse=True)
        copies = _Copies(members, parts, kind)
        every = np.arange(len(first))
        copies.count(found, every, every)
        if len(first) > 1:
            present = elements[counts[members[0]] > 0].tolist()
            chosen = np.sort(first)  # frames are read in their order
            described = np.array(
                [describe_frame(frame, present) for frame in dataset.frames(members[chosen])]
            )
            reach = near * response(dataset.frame(int(members[0])), present)
            for one, other in close_pairs(described, reach):
                copies.count(found, kind[chosen[one]], kind[chosen[other]])
    return {key: alike for key, alike in sorted(found.items()) if alike.pairs}


def _digest(frame: LabelledFrame) -> bytes:
    found = hashlib.blake2b(frame.numbers.tobytes(), digest_size=16)
    found.update(frame.positions.tobytes())
    found.update(frame.pbc.tobytes())
    if frame.pbc.any():
        found.update(frame.cell.tobytes())
    return found.digest()


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

    def count(self, found: dict[tuple[int, int], Alike], one: Index, other: Index) -> None:
        """Adds the pairs of frames of geometries (R,) and (R,), all the same or all different."""
        same = np.array_equal(one, other)
        for part in range(self._shape[1]):
            for second in range(part if same else 0, self._shape[1]):
                pairs = self._held[one, part] * self._held[other, second]
                if same and part == second:
                    pairs = self._held[one, part] * (self._held[one, part] - 1) // 2
                alike = found[min(part, second), max(part, second)]
                alike.pairs += int(pairs.sum())
                for row in np.flatnonzero(pairs)[: _EXAMPLES - len(alike.examples)]:
                    pair = self._first[one[row], part], self._last[other[row], second]
                    alike.examples.append((int(min(pair)), int(max(pair))))
