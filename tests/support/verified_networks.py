"""Fast evaluators with made-up faults, and what they compute."""

from collections.abc import Callable, Sequence

import torch
from random_networks import TENSORNET, network

from mdgraph.evaluators import AutogradEvaluator, Evaluator
from mdgraph.models import TensorNetPotential
from mdgraph.neighbors import NeighborList
from mdgraph.state import State

Fault = Callable[[State], None]


def nothing(state: State) -> None:
    """No fault."""


class Fast(Evaluator):
    """Stands in for a fast evaluator: autograd of its potential, with a fault built in."""

    def __init__(
        self,
        potential: TensorNetPotential,
        kind: torch.dtype = torch.float32,
        fault: Fault = nothing,
    ) -> None:
        self.potential = potential
        self.cutoffs = potential.cutoffs
        self.fault = fault
        self._inner = AutogradEvaluator(potential.at_precision(kind))

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        self._inner.evaluate_(state, lists)
        self.fault(state)


def steep_network() -> TensorNetPotential:
    """Two layers, 3.4 A, a shift and references; forces of some eV/A."""
    made = network(**TENSORNET)
    made.scale.fill_(40.0)
    return made
