"""Pairs: the neighbor list in the form that models read.

Features of an atom are (9, F): one scalar, three vector and five symmetric traceless components
of each channel. An edge has one weight for each of these three parts.
"""

from dataclasses import dataclass
from typing import Final

from torch import Tensor

KINDS: Final = (slice(0, 1), slice(1, 4), slice(4, 9))
"""Components of the scalar, vector and symmetric traceless parts."""

WIDTHS: Final = (1, 3, 5)
"""Number of components of each part; `split` has a cheaper gradient than slices."""


@dataclass(frozen=True)
class PairBlock:
    """A block of B slots of every row.

    Attributes:
        vectors: (N, B, 3) A, from the atom to its neighbor; a leaf that requires gradients.
        index: (N, B) int32, the neighbor.
        valid: (N, B) bool, False in empty slots, whose vectors are longer than the cutoff.
    """

    vectors: Tensor
    index: Tensor
    valid: Tensor


@dataclass(frozen=True)
class Undirected:
    """P undirected pairs of a list of one block; each pair fills two slots.

    Attributes:
        one, other: (P,) int, flat slots of both directions; arbitrary slots for padding.
        valid: (P,) bool, False for padding.
        number: (N, K) int32, the pair of each slot; an arbitrary pair for empty slots.
    """

    one: Tensor
    other: Tensor
    valid: Tensor
    number: Tensor


@dataclass(frozen=True)
class Pairs:
    """All slots of a list at one step.

    Attributes:
        blocks: the slots, in blocks of equal width.
        index: (N, K) int32, the neighbor in each slot; an empty slot holds its own atom.
        count: (N,) int32, number of slots in use.
        reverse: (N K,) int, flat slot of the reverse pair; an empty slot is its own reverse.
        cutoff: A; slots at or beyond it must contribute exactly zero.
        undirected: every pair once, or None. Only frames of training have it: in dynamics the
            number of pairs changes.
    """

    blocks: tuple[PairBlock, ...]
    index: Tensor
    count: Tensor
    reverse: Tensor
    cutoff: float
    undirected: Undirected | None = None

    @property
    def vectors(self) -> list[Tensor]:
        """Pair vectors of all blocks, the leaves by which an energy is differentiated."""
        return [block.vectors for block in self.blocks]
