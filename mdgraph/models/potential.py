"""Potential: the protocol between models and everything that runs them."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from mdgraph.grouping import Grouping
from mdgraph.neighbors.pairs import Pairs


@dataclass(frozen=True)
class Atoms:
    """What a potential knows of a batch besides its pairs.

    Attributes:
        numbers: (N,) int64, atomic numbers.
        elements: (E,) int64, the distinct atomic numbers among them, ascending.
        kinds: (N,) int64, place of each atom's number among `elements`.
        charge: (S,) e, total charge of each system.
        grouping: which atom belongs to which system.
    """

    numbers: Tensor
    elements: Tensor
    kinds: Tensor
    charge: Tensor
    grouping: Grouping


class Potential(Protocol):
    """A torch module that gives the energy of each atom."""

    @property
    def cutoffs(self) -> tuple[float, ...]:
        """A; one pair list is made for each, infinity standing for all pairs."""
        ...

    @property
    def species(self) -> tuple[int, ...] | None:
        """Atomic numbers it accepts; None accepts every element."""
        ...

    @property
    def uses_charge(self) -> bool:
        """Whether the total charge enters the energy."""
        ...

    def __call__(self, atoms: Atoms, pairs: tuple[Pairs, ...]) -> Tensor:
        """Energies (N,) float64 in eV, differentiable twice by the pair vectors.

        Args:
            atoms: the batch.
            pairs: one list for each of `cutoffs`, in their order.
        """
        ...
