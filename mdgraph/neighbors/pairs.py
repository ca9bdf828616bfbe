"""Pairs: the neighbor list as a model sees it.

Features of an atom are (9, F): one scalar, three vector and five symmetric traceless
components of each channel; an edge carries one weight for each of the three kinds.
"""

from dataclasses import dataclass
from typing import Final

from torch import Tensor

KINDS: Final = (slice(0, 1), slice(1, 4), slice(4, 9))
"""Components of the scalar, the vector and the symmetric traceless part."""

WIDTHS: Final = (1, 3, 5)
"""How many they are; splitting by widths has a cheaper gradient than slicing."""


@dataclass(frozen=True)
class PairBlock:
    """B slots of every row.

    Attributes:
        vectors: (N, B, 3) A, from the atom to its neighbor; a leaf that asks for gradients.
        index: (N, B) int32, the neighbor.
        valid: (N, B) bool, False on empty slots, whose vectors lie beyond the cutoff.
    """

    vectors: Tensor
    index: Tensor
    valid: Tensor


@dataclass(frozen=True)
class Undirected:
    """P pairs of a list of one block, each of which fills two slots.

    Attributes:
        one, other: (P,) int, flat slots of both directions; of padding any that exist.
        valid: (P,) bool, False on padding.
        number: (N, K) int32, the pair of each slot; of an empty one any that exists.
    """

    one: Tensor
    other: Tensor
    valid: Tensor
    number: Tensor


@dataclass(frozen=True)
class Pairs:
    """All slots of a list at one moment.

    Attributes:
        blocks: the slots, in blocks of equal width.
        index: (N, K) int32, the neighbor in each slot; an empty slot holds its own atom.
        count: (N,) int32, slots in use.
        reverse: (N K,) int, flat slot of the reverse pair; an empty slot is its own reverse.
        cutoff: A; slots at or beyond it must contribute exactly zero.
        undirected: every pair once, where someone counted them: numbers of pairs change as
            atoms move, so only fixed frames have it.
    """

    blocks: tuple[PairBlock, ...]
    index: Tensor
    count: Tensor
    reverse: Tensor
    cutoff: float
    undirected: Undirected | None = None

    @property
    def vectors(self) -> list[Tensor]:
        """The leaves with respect to which an energy is differentiated."""
        return [block.vectors for block in self.blocks]
