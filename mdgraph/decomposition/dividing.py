"""Dividing an evaluator: its fused parts among domains of this process, or of all ranks.

Other ranks make theirs by a recipe.
"""

import math
import os
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Final

from mdgraph.decomposition.bricks import BrickGrid, widths_of
from mdgraph.decomposition.evaluator import DecomposedEvaluator
from mdgraph.decomposition.exchange import Exchange, LocalExchange
from mdgraph.decomposition.server import join_ranks
from mdgraph.errors import InputError
from mdgraph.evaluators import Evaluator, MultipleTimeStepEvaluator, SumEvaluator
from mdgraph.fused.evaluator import FusedTensorNet
from mdgraph.models.sum import SumPotential
from mdgraph.neighbors import NeighborList
from mdgraph.state import State
from mdgraph.system import System

_LARGE: Final = 10_000
"""Atoms a domain from which on two GPUs are faster than one: 12,000 on each gain 1.75 times."""


def in_domains(
    evaluator: Evaluator, systems: Sequence[System], domains: str | int | Sequence[int]
) -> Evaluator:
    """The evaluator with its work divided among domains: of one process, or one a rank.

    Args:
        evaluator: a FusedTensorNet, or a sum or pair of them.
        systems: the one system.
        domains: a number, or numbers along the three cell vectors, such as (2, 1, 1) or `2x1x1`.

    Raises:
        InputError: an evaluator that cannot be divided, several systems, more domains than the
            system has room for, or another number of domains than ranks.
    """
    if len(systems) != 1:
        raise InputError("Domains divide one system; leave them out, or the replicas.")
    check_divisible(evaluator)
    grid = grid_of(domains, systems[0], max(evaluator.cutoffs))
    ranks = join_ranks()
    exchange = LocalExchange(len(grid)) if ranks is None else ranks
    if len(grid) == 1 and ranks is None:
        return evaluator
    device = evaluator.device
    if ranks is not None and device is not None and device.index not in (None, ranks.rank.local):
        raise InputError(
            f"The device is {device}, and each rank has the GPU of its number; ask for cuda, and "
            "choose GPUs by CUDA_VISIBLE_DEVICES or --devices."
        )
    if ranks is not None and ranks.rank.count != len(grid):
        raise InputError(
            f"There are {len(grid)} domains ({grid}) and {ranks.rank.count} ranks; give each rank "
            f"one, by {len(grid)} ranks or by {ranks.rank.count} domains."
        )
    return _divided(evaluator, len(systems[0]), grid, exchange)


def grid_of(domains: str | int | Sequence[int], system: System, reach: float) -> BrickGrid:
    """The grid of a system, see `BrickGrid.fitting`; raises InputError also for empty bricks."""
    grid = BrickGrid.fitting(domains, widths_of(State([system])), reach)
    if len(grid) > len(system):
        raise InputError(
            f"{len(grid)} domains are asked for, and the system has {len(system)} atoms; take "
            "fewer."
        )
    return grid


def atoms_here(domains: str | int | Sequence[int], system: System, reach: float) -> int:
    """Atoms whose features the ranks of this machine hold, with copies, about; see `grid_of`."""
    grid = grid_of(domains, system, reach)
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", len(grid)))
    share = grid.share(widths_of(State([system])), reach)
    return math.ceil(len(system) * share * min(ranks, len(grid)))


def divided_parts(evaluator: Evaluator) -> list[DecomposedEvaluator]:
    """The divided parts of an evaluator; none of one that is not divided."""
    if isinstance(evaluator, DecomposedEvaluator):
        return [evaluator]
    parts: Sequence[Evaluator] = ()
    if isinstance(evaluator, SumEvaluator):
        parts = evaluator.terms
    elif isinstance(evaluator, MultipleTimeStepEvaluator):
        parts = evaluator.large, evaluator.small
    return [one for part in parts for one in divided_parts(part)]


def parts_with_lists(
    evaluator: Evaluator, lists: Sequence[NeighborList]
) -> list[tuple[DecomposedEvaluator, Sequence[NeighborList]]]:
    """The divided parts of an evaluator, and the lists that each reads."""
    if isinstance(evaluator, DecomposedEvaluator):
        return [(evaluator, lists)]
    parts: list[tuple[Evaluator, Sequence[NeighborList]]] = []
    if isinstance(evaluator, SumEvaluator):
        terms = enumerate(evaluator.terms)
        parts = [(term, evaluator.lists_of(number, lists)) for number, term in terms]
    elif isinstance(evaluator, MultipleTimeStepEvaluator):
        both = evaluator.large, evaluator.small
        parts = [(part, evaluator.lists_of(part, lists)) for part in both]
    return [one for part, own in parts for one in parts_with_lists(part, own)]


@dataclass(frozen=True)
class EvaluatorRecipe:
    """How an evaluator is made of divided ones.

    Attributes:
        potential: of a sum, on the host.
        terms: of a sum, or a large and a small potential; none of a divided one.
        steps: of the small potential to one of the large; 0 for others.
        virials: whether those of the small potential are computed.
    """

    potential: SumPotential | None = None
    terms: "tuple[EvaluatorRecipe, ...]" = ()
    steps: int = 0
    virials: bool = False

    @classmethod
    def of(cls, evaluator: Evaluator) -> "EvaluatorRecipe":
        """That of an evaluator all of whose parts are divided."""
        if isinstance(evaluator, SumEvaluator):
            terms = tuple(cls.of(term) for term in evaluator.terms)
            return cls(deepcopy(evaluator.potential).cpu(), terms)
        if isinstance(evaluator, MultipleTimeStepEvaluator):
            both = cls.of(evaluator.large), cls.of(evaluator.small)
            return cls(None, both, evaluator.steps, evaluator.virials)
        return cls()

    def make(self, parts: list[Evaluator]) -> Evaluator:
        """Makes it; takes its parts from the front of the list."""
        if not self.terms:
            return parts.pop(0)
        terms = [term.make(parts) for term in self.terms]
        if self.potential is not None:
            return SumEvaluator(self.potential, terms)
        large, small = terms
        return MultipleTimeStepEvaluator(large, small, self.steps, self.virials)


def check_divisible(evaluator: Evaluator) -> None:
    """Raises InputError for what is not fused, and for TensorNet2."""
    if isinstance(evaluator, SumEvaluator):
        for term in evaluator.terms:
            check_divisible(term)
    elif isinstance(evaluator, MultipleTimeStepEvaluator):
        check_divisible(evaluator.large)
        check_divisible(evaluator.small)
    elif not isinstance(evaluator, FusedTensorNet):
        raise InputError(
            "Domains need the fused form of a TensorNet, and this potential runs in its reference "
            "form or has other terms; leave domains out, or ask for the fused evaluator, which "
            "takes double too, or another potential."
        )
    else:
        _ = evaluator.rounding  # raises


def _divided(evaluator: Evaluator, atoms: int, grid: BrickGrid, exchange: Exchange) -> Evaluator:
    """The evaluator with all its fused parts divided."""
    if isinstance(evaluator, SumEvaluator):
        terms = [_divided(term, atoms, grid, exchange) for term in evaluator.terms]
        return SumEvaluator(evaluator.potential, terms)
    if isinstance(evaluator, MultipleTimeStepEvaluator):
        large, small = (
            _divided(part, atoms, grid, exchange) for part in (evaluator.large, evaluator.small)
        )
        return MultipleTimeStepEvaluator(large, small, evaluator.steps, evaluator.virials)
    assert isinstance(evaluator, FusedTensorNet)
    return DecomposedEvaluator(evaluator, atoms, grid, exchange)


def may_be_whole(evaluator: Evaluator, domains: str | int | Sequence[int]) -> bool:
    """Whether one rank may be faster than all, and somebody asked for a number, not a grid."""
    parts = divided_parts(evaluator)
    if not parts or parts[0].exchange.alone:
        return False
    named = "x" in domains.lower() if isinstance(domains, str) else isinstance(domains, Sequence)
    return not named and parts[0].atoms <= _LARGE * len(parts[0].grid)
