"""Region: the atoms of a divided system that a rank has, those near its brick.

Rank 0 sends what there is by atom in pieces, of which each rank, itself included, keeps the atoms
near its brick. So no rank works on anything of the size of the system, unless something looks at
all atoms in each step: then the region of rank 0 is the whole. A region has as many
rows at all times, and none is empty: the atoms near come first, in the order of their numbers, and
any others fill the rest, as they are at the moment. Rows of lists and domains know them, like all
atoms far away, only as what they are not near to. Where more atoms are near than there are rows,
`outgrown` says so, as of any overflow.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
from torch import Tensor

from mdgraph.decomposition.bricks import wrapped_in
from mdgraph.decomposition.exchange import Exchange
from mdgraph.neighbors.list import with_room
from mdgraph.neighbors.torch_builder import Brick
from mdgraph.state import State
from mdgraph.system import System

PIECE: Final = 131_072
"""Atoms that rank 0 sends at a time."""

_MORE: Final = 0.05
"""Part of the rows for the atoms near a brick; see `with_room`."""

_LEAP: Final = 64
"""Rows beside twice those that there are, by which a region grows at most for what a run met."""

_WHOLE: Final[WeakKeyDictionary[State, "Region"]] = WeakKeyDictionary()


class Region:
    """Of M atoms of a system of N; see the module.

    Attributes:
        total: N.
        is_whole: whether it has all atoms, each in the row of its number.
        atoms: (M,) int64, their numbers in the system.
        count: () int64, how many came last of those near the brick, which are in the first rows.
        most: () int64, largest number of atoms near the brick that was met.
        generation: how often regions of the system have grown, the same on all ranks.
        sizes: M of each rank, after `agree_`.
    """

    def __init__(self, state: State, total: int, exchange: Exchange) -> None:
        """Of a state of M atoms; see `of` and `near`."""
        self._exchange, self.total, self.generation = exchange, total, 0
        self.is_whole = False
        self._reference = ref(state)  # which has what is made of the region
        self.atoms = torch.arange(len(state.numbers), device=state.device)
        self.count = torch.full_like(self.atoms[0], len(self.atoms))
        self.most = self.atoms.new_zeros(())
        self.sizes: Sequence[int] = ()

    @classmethod
    def of(cls, state: State, exchange: Exchange) -> "Region":
        """The whole system, which rank 0 alone has."""
        region = _WHOLE.get(state)
        if region is None or region._exchange is not exchange:
            region = _WHOLE[state] = cls(state, len(state.numbers), exchange)
            region.is_whole = True
        return region

    @classmethod
    def near(
        cls, system: System, dtype: torch.dtype, device: torch.device, near: Any, exchange: Exchange
    ) -> "tuple[State, Region]":
        """A state and its region, with room for the atoms near a brick, which come later.

        Args:
            system: the whole, on the host.
            dtype: of the state.
            device: of the state.
            near: (N,) bool, which atoms are near.
            exchange: between the ranks.
        """
        total, kinds = len(system), np.unique(system.numbers)
        rows = min(with_room(int(np.count_nonzero(near)), _MORE), total)
        order = np.argsort(~np.asarray(near), kind="stable")[:rows]
        state = _state_of(system, order, dtype, device)
        region = cls(state, total, exchange)
        region._state_elements(torch.from_numpy(kinds))
        return state, region

    @property
    def state(self) -> State:
        """Of the M atoms."""
        state = self._reference()
        assert state is not None
        return state

    def numbers_of(self, rows: Tensor) -> Tensor:
        """Numbers in the system of atoms in rows (n,) int64."""
        return rows if self.is_whole else self.atoms.index_select(0, rows)

    def outgrown(self) -> Tensor:
        """() bool, whether more atoms were near the brick than there are rows; does not sync."""
        return self.most > len(self.atoms)

    def agree_(self) -> bool:
        """Tells all ranks how many rows each has; enlarges those that were too few. Syncs.

        All ranks call it together.

        Returns:
            Whether any was enlarged, so that all must be shared again.
        """
        outgrown = torch.tensor(int(self.outgrown()))
        self._exchange.agree_(outgrown)
        if bool(outgrown):
            self.generation += 1
            if bool(self.outgrown()):
                self._grow()
        ranks = self._exchange.count
        sizes = torch.zeros(ranks, dtype=torch.int64)
        for number in self._exchange.numbers:
            sizes[number] = len(self.atoms)
        self._exchange.agree_(sizes)
        self.sizes = sizes.tolist()
        return bool(outgrown)

    def _grow(self) -> None:
        state, elements = self.state, self.state.elements
        # Steps that come after an overflow are repeated, and may have led anywhere.
        met = min(int(self.most), 2 * len(self.atoms) + _LEAP)
        rows = min(with_room(met, _MORE), self.total)
        order = np.arange(rows) % len(self.atoms)
        system = System(
            numbers=state.numbers.cpu().numpy(),
            positions=state.positions.double().cpu().numpy(),
            cell=state.cell[0].double().cpu().numpy(),
            pbc=state.pbc[0].cpu().numpy(),
        )
        known = state.workspaces
        for user, made in list(known.items()):
            if not isinstance(made, ref):  # buffers of the old size
                del known[user]
        # The same object, by which divided evaluators know what they have of it.
        vars(state).update(vars(_state_of(system, order, state.dtype, state.device)))
        state.workspaces = known
        self._state_elements(elements)
        self.atoms = torch.arange(rows, device=state.device)

    def _state_elements(self, elements: Tensor) -> None:
        """Gives the state the elements of the whole system, of which it may lack some."""
        state = self.state
        state.elements = elements.to(state.device)
        state.kinds = torch.searchsorted(state.elements, state.numbers)

    def share_(
        self,
        numbers: Tensor,
        places: Sequence[Tensor],
        cells: Sequence[Tensor],
        columns: Sequence[Tensor],
        brick: Brick,
        reach: float,
    ) -> list[Tensor]:
        """Brings what rank 0 has of atoms to the ranks that have them near; does not sync on CUDA.

        The state of a region gets numbers and positions. All ranks call it together.

        Args:
            numbers: (N,) int64, atomic ones of the whole; on other ranks than 0 anything like it,
                as all that follows.
            places: (N, 3) A, positions and others that count for who is near.
            cells: (1, 3, 3) A, theirs, the same on all ranks.
            columns: (N, ...), what else there is by atom, of types that float64 holds.
            brick: of this rank.
            reach: A, from the brick.

        Returns:
            The places and columns of the atoms of the region, (M, ...); none where it is whole.
        """
        given = [numbers, *places, *columns]
        pieces = self._pieces(given)
        if self.is_whole:
            for _ in pieces:
                pass
            return []
        width = sum(value[0].numel() for value in given)
        return self.take_(self._received(pieces, width, cells, self.state, brick, reach), given)

    def take_(self, table: Tensor, given: Sequence[Tensor]) -> list[Tensor]:
        """Takes what came of the atoms of the region, their elements and positions into the state.

        Args:
            table: (M, W) float64, columns side by side.
            given: tensors of their types and sizes of rows: numbers, positions, and any others.

        Returns:
            The columns but the numbers, (M, ...).
        """
        state = self.state
        parts = table.split([value[0].numel() for value in given], 1)
        numbers, *found = (
            part.to(value.dtype).reshape(len(part), *value.shape[1:])
            for part, value in zip(parts, given, strict=True)
        )
        state.numbers.copy_(numbers)
        torch.searchsorted(state.elements, state.numbers, out=state.kinds)
        state.positions.copy_(found[0])
        return found

    def _pieces(self, given: Sequence[Tensor]) -> Iterator[tuple[int, Tensor]]:
        """First atoms, and tables (n, W) float64, of the pieces that rank 0 sends."""
        width = sum(value[0].numel() for value in given)
        for begin in range(0, self.total, PIECE):
            rows = min(PIECE, self.total - begin)
            if self._exchange.leads:
                parts = [value[begin : begin + rows].reshape(rows, -1).double() for value in given]
                piece = torch.cat(parts, 1)
            else:
                piece = given[0].new_empty(rows, width, dtype=torch.float64)
            self._exchange.share_(piece)()
            yield begin, piece

    def _received(
        self,
        pieces: Iterator[tuple[int, Tensor]],
        width: int,
        cells: Sequence[Tensor],
        state: State,
        brick: Brick,
        reach: float,
    ) -> Tensor:
        """(M, W) float64, what came of the atoms that are in the region now."""
        size, device = len(self.atoms), self.atoms.device
        table = torch.zeros(size + 1, width, dtype=torch.float64, device=device)
        atoms = torch.zeros(size + 1, dtype=torch.int64, device=device)
        near_count, far_count = atoms.new_zeros(()), atoms.new_zeros(())
        for begin, piece in pieces:
            rows = len(piece)
            near = torch.zeros(rows, dtype=torch.bool, device=device)
            for number, cell in enumerate(cells):
                place = piece[:, 1 + 3 * number : 4 + 3 * number]
                wrapped, _, inverted = wrapped_in(place, cell.double(), state.pbc)
                near |= brick.is_near(wrapped, inverted, state.pbc, reach)
            first = near.cumsum(0) - 1 + near_count
            last = size - (~near).cumsum(0) - far_count
            near_count = near_count + near.sum()
            far_count = far_count + (~near).sum()
            # Those near are written over others that have come before.
            last = torch.where(last >= near_count, last, size)
            row = torch.where(near, first.clamp(max=size), last)
            table.index_copy_(0, row, piece)
            atoms.index_copy_(0, row, torch.arange(begin, begin + rows, device=device))
        self.take_atoms_(atoms[:size], near_count)
        return table[:size]

    def take_atoms_(self, atoms: Tensor, count: Tensor) -> None:
        """Takes numbers (M,) of atoms, of which the first () are near the brick; does not sync."""
        self.atoms.copy_(atoms)
        self.count.copy_(count)
        torch.maximum(self.most, count, out=self.most)

    def share_rows_(self, values: Tensor) -> None:
        """Brings rows (N, ...) of rank 0 to buffers (M, ...) of others, of the atoms there.

        Static shapes, capturable; does not sync on CUDA. All ranks call it together.
        """
        for begin in range(0, self.total, PIECE):
            rows = min(PIECE, self.total - begin)
            if self._exchange.leads:
                self._exchange.share_(values[begin : begin + rows])()
                continue
            piece = values.new_empty(rows, *values.shape[1:])
            self._exchange.share_(piece)()
            place = self.atoms - begin
            inside = ((place >= 0) & (place < rows)).view(-1, *[1] * (values.dim() - 1))
            here = piece.index_select(0, place.clamp(0, rows - 1))
            values.copy_(torch.where(inside, here, values))


def _state_of(system: System, order: Any, dtype: torch.dtype, device: torch.device) -> State:
    """A state of these atoms (M,) of a system, at rest."""
    part = System(
        numbers=system.numbers[order],
        positions=system.positions[order],
        cell=system.cell,
        pbc=system.pbc,
    )
    return State([part], device, dtype)
