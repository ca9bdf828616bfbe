"""What rank 0 sends so that other ranks make the same evaluators, systems and lists."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from mdgraph.decomposition.bricks import BrickGrid, wrapped_in
from mdgraph.decomposition.exchange import Exchange
from mdgraph.decomposition.region import Region
from mdgraph.fused.evaluator import FusedTensorNet
from mdgraph.models import TensorNetPotential
from mdgraph.neighbors import NeighborList
from mdgraph.neighbors.torch_builder import Brick
from mdgraph.precision import Precision
from mdgraph.state import State
from mdgraph.system import System

_NUMBERS: Final = itertools.count(1)
"""Numbers of evaluators, systems, states and lists, in calls of other ranks."""

_NUMBERED: Final[WeakKeyDictionary[Any, tuple[int, object]]] = WeakKeyDictionary()

_REGIONS: Final[WeakValueDictionary[int, Region]] = WeakValueDictionary()
_LISTS: Final[WeakValueDictionary[int, NeighborList]] = WeakValueDictionary()
"""Those of this rank, by the numbers of the state and the lists of the whole."""


def number_of(thing: State | NeighborList, version: object = None) -> int:
    """The number of a state or a list, another one for another version of it."""
    number, known = _NUMBERED.get(thing, (0, None))
    if not number or known is not version:
        number = next(_NUMBERS)
        _NUMBERED[thing] = number, version
    return number


def new_number() -> int:
    """A number for what ranks have together."""
    return next(_NUMBERS)


@dataclass(frozen=True)
class SystemReference:
    """What another rank needs to make the same lists, on the host.

    Attributes:
        evaluator: its number.
        system: number of the state, of which evaluators have one together.
        list_numbers: of the lists, likewise.
        numbers, pbc: of the system.
        positions, cell: that the lists were built from, as the state has them.
        skins: A, of each list.
        capacities: slots a row, of each list.
        planes: between the bricks.
        margin: A, see OwnAtoms.
    """

    evaluator: int
    system: int
    list_numbers: tuple[int, ...]
    numbers: Any
    pbc: Any
    positions: Any
    cell: Any
    skins: tuple[float, ...]
    capacities: tuple[int, ...]
    planes: Any
    margin: float

    @classmethod
    def of(
        cls,
        evaluator: int,
        state: State,
        lists: Sequence[NeighborList],
        planes: Tensor,
        margin: float,
    ) -> "SystemReference":
        """That of a state and its lists; syncs."""
        first = lists[0]
        return cls(
            evaluator,
            number_of(state),
            tuple(number_of(item, item.offsets) for item in lists),
            state.numbers.cpu().numpy(),
            state.pbc[0].cpu().numpy(),
            first.reference_positions.cpu().numpy(),
            first.reference_cell.cpu().numpy(),
            tuple(item.skin for item in lists),
            tuple(item.capacity for item in lists),
            planes.cpu().numpy(),
            margin,
        )

    def region(
        self, whole: FusedTensorNet, brick: Brick, exchange: Exchange
    ) -> tuple[State, Region]:
        """A state and its region, with room for the atoms near a brick, which come later.

        Those that there are, of another evaluator of the same system.

        Args:
            whole: evaluator of the system.
            brick: with its margin.
            exchange: between the ranks.
        """
        known = _REGIONS.get(self.system)
        if known is not None:
            return known.state, known
        system = System(self.numbers, self.positions.astype(np.float64), self.cell[0], self.pbc)
        places, cell, pbc = map(torch.from_numpy, (self.positions, self.cell, self.pbc[None]))
        wrapped, _, inverted = wrapped_in(places, cell, pbc)
        reach, on_host = (
            max(whole.cutoffs) + max(self.skins),
            replace(brick, planes=brick.planes.cpu()),
        )
        near = on_host.is_near(wrapped, inverted, pbc, reach).numpy()
        made = Region.near(system, whole.precision.state, whole.device, near, exchange)
        _REGIONS[self.system] = made[1]
        return made

    def lists(self, state: State, cutoffs: Sequence[float], brick: Brick) -> list[NeighborList]:
        """Lists of such a state, one for each cutoff, with rows for a brick; known ones again."""
        found = []
        limits = zip(self.list_numbers, cutoffs, self.skins, self.capacities, strict=True)
        for number, cutoff, skin, capacity in limits:
            item = _LISTS.get(number)
            if item is None:
                item = NeighborList(state, cutoff, skin, capacity, brick=brick)
                _LISTS[number] = item
            found.append(item)
        return found


@dataclass(frozen=True)
class EvaluatorPart:
    """What another rank needs to make the same evaluator; see DecomposedEvaluator."""

    potential: TensorNetPotential
    precision: Precision
    device_type: str
    atoms: int
    grid: BrickGrid
