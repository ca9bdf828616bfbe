"""Atoms that fly freely, at the cost of a step that computes their forces."""

from collections.abc import Sequence

from mdgraph.evaluators import Evaluator
from mdgraph.neighbors import NeighborList
from mdgraph.state import State


class FreeFlight:
    """An evaluator whose forces are computed and then forgotten; energies stay."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.cutoffs = evaluator.cutoffs
        self._evaluator = evaluator

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        self._evaluator.evaluate_(state, lists)
        state.forces.zero_()
