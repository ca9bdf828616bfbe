"""Planner: which search a list uses, and how far it looks."""

import math

import torch
from torch import Tensor

from mdgraph.neighbors.cell_list import CellList
from mdgraph.neighbors.every_pair import EveryPair
from mdgraph.neighbors.geometry import Lattice, fractional_coordinates
from mdgraph.neighbors.rows import Counters
from mdgraph.neighbors.search import Frame, Search
from mdgraph.state import State


class Planner:
    """Chooses between the searches for one list, with what it has found so far."""

    def __init__(self, state: State, counters: Counters, cell_varies: bool) -> None:
        """Knows the systems; does not sync.

        Args:
            state: that of the list.
            counters: that builds of the list write.
            cell_varies: whether later builds look at the cell again.
        """
        self._grouping, self._pbc = state.grouping, state.pbc
        self._counters = counters
        self._cell_varies = cell_varies
        # Systems that take the places of these must find the same plan good enough.
        self._widest = None if state.room is None else torch.zeros_like(state.cell[0, 0, 0])

    def plan(self, positions: Tensor, lattice: Lattice, list_range: float, bin_cost: int) -> Search:
        """The search that costs less; reads the device.

        Args:
            positions: (N, 3) A.
            lattice: of the cells.
            list_range: A; infinite where every pair of a molecule is listed.
            bin_cost: of a candidate in a bin over one of every pair.
        """
        reach = lattice.reach
        if self._cell_varies:
            # A run that has gone astray may have seen absurd cells; they are not planned for.
            reach = torch.maximum(reach * 1.02, torch.minimum(self._counters.reach, 2.0 * reach))
        if self._widest is not None:
            self._widest = torch.maximum(self._widest, reach.amax())
            reach = torch.where(reach > 0.0, self._widest, 0.0)
        every = EveryPair(self._grouping, reach, positions.device)
        if math.isinf(list_range) or self._widest is not None:
            return every
        fractional, _ = fractional_coordinates(
            positions, lattice.inverse, self._pbc, self._grouping.index
        )
        # Translations play no part in planning.
        frame = Frame(positions, fractional, reach, positions.new_zeros(()))
        occupancy = int(self._counters.sticky[1])
        cells = CellList(self._grouping, frame, list_range, occupancy)
        return cells if bin_cost * cells.candidates < every.candidates else every
