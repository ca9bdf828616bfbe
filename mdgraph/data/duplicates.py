"""Frames that are the same: within a part of a split and, as leakage, between its parts.

Geometries are compared block by block, and pairs are counted, not kept.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mdgraph.data.families import Family
from mdgraph.data.likeness import close_pairs

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

    def count(self, found: dict[tuple[int, int], Alike], one: Index, other: Index) -> None:
        """Adds the pairs of frames of geometries (R,) and (R,), all the same or all different."""
        same = np.array_equal(one, other)
        for part in range(self._shape[1]):
            for second in range(part if same else 0, self._shape[1]):
                pairs = self._held[one, part] * self._held[other, second]
                if same and part == second:
                    pairs = self._held[one, part] * (self._held[one, part] - 1) // 2
                alike = found.setdefault((min(part, second), max(part, second)), Alike())
                alike.pairs += int(pairs.sum())
                for row in np.flatnonzero(pairs)[: _EXAMPLES - len(alike.examples)]:
                    pair = self._first[one[row], part], self._last[other[row], second]
                    alike.examples.append((int(min(pair)), int(max(pair))))
