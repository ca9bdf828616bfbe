"""OwnAtoms: the atoms of one system that a rank integrates, and whose positions go between ranks.

Before each stretch of steps a rank has the positions of all atoms near its brick, and atoms belong
to ranks by the bricks that they lie in then. Within the stretch a rank moves its own atoms alone
and gets positions of those near its brick, within the range of the lists and a margin: atoms may go
half the margin from where they were, before a neighbor could be missed. Where they go further the
stretch is repeated with a wider margin, as after any overflow. So no atom changes hands within a
stretch, and all shapes are static.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from mdgraph.decomposition.bricks import BrickGrid, wrapped_in
from mdgraph.decomposition.exchange import ProcessExchange
from mdgraph.decomposition.own_rows import BLOCK, MarginStart, sum_of_rows
from mdgraph.decomposition.region import Region
from mdgraph.decomposition.row_operations import operations
from mdgraph.neighbors import NeighborList
from mdgraph.neighbors.geometry import complete_cell
from mdgraph.neighbors.list import with_room
from mdgraph.state import State

MARGIN: Final = 3.0
"""A; 768 atoms of water at 550 K need 2.7 in 32 steps of 0.5 fs, twice the way of the fastest."""

_MORE: Final = 0.05
"""Part of the room for the atoms of the first stretch; see `with_room`."""


@dataclass(frozen=True)
class OwnCapacity:
    """Room for atoms of a rank.

    Attributes:
        own: of its own, a multiple of 64, of all ranks.
        send: that each other rank gets positions of.
        receive: that each other rank sends.
    """

    own: tuple[int, ...]
    send: tuple[int, ...]
    receive: tuple[int, ...]


class OwnAtoms:
    """Which atoms of a region of M are those of a rank; see the module.

    Attributes:
        exchange: between the ranks.
        owner: (M,) int64, the rank of each atom of the region.
        atoms: (C,) int64, those of this rank, ascending; the first again where there are no more.
        used: (C,) bool, rows with an atom.
        kept: (C,) int64, the row itself, or the first one where there is no atom.
        capacity: see OwnCapacity.
        margin: A.
        start: of the stretch, and the margin that own atoms have needed since.
        counts: (1,) int64, atoms of the system.
    """

    capacity: OwnCapacity
    _most: Tensor

    def __init__(
        self,
        exchange: ProcessExchange,
        grid: BrickGrid,
        planes: Tensor,
        region: Region,
        lists: Sequence[NeighborList],
        margin: float,
        before: "OwnAtoms | None" = None,
    ) -> None:
        """Allocates room for the atoms as they are; all ranks call it together. Syncs.

        Args:
            exchange: between the ranks.
            grid: of the bricks.
            planes: (P,) between them, a buffer.
            region: of the rank, with positions of the moment.
            lists: whose ranges count.
            margin: A.
            before: whose largest counts are taken over.
        """
        (self._rank,) = exchange.numbers
        state = region.state
        self.exchange, self._grid, self._planes, self._region = exchange, grid, planes, region
        self._state = state
        self._lists, self._operations = list(lists), operations(state.device)
        self._reach = max(item.cutoff + item.skin for item in lists)
        self.margin = margin
        device, count = state.device, len(grid)
        table = self._counts()
        if before is not None:
            met, capacity = before._most.cpu(), before.capacity
            rooms = (capacity.own[self._rank], *capacity.send, *capacity.receive)
            for number, size in enumerate(rooms):
                # Steps that come after an overflow are repeated, and may have led anywhere.
                most = min(int(met[number]), 2 * size + BLOCK)
                place = (self._rank, self._rank)
                if number:
                    other = (number - 1) % count
                    place = (self._rank, other) if number <= count else (other, self._rank)
                    if other == self._rank:
                        continue
                table[place] = max(int(table[place]), most)
        exchange.agree_(table)
        self.capacity = self._room(table)
        # Where all ranks send each other positions, flags go along with these.
        self._all_near = bool((table + torch.eye(count, dtype=table.dtype) > 0).all())
        self.owner = torch.zeros_like(state.numbers)
        rows = self.capacity.own[self._rank]
        self.atoms = torch.zeros(rows, dtype=torch.int64, device=device)
        self.used = torch.zeros_like(self.atoms, dtype=torch.bool)
        self.kept = torch.zeros_like(self.atoms)
        self._rows = torch.arange(rows, device=device)
        # Of which the first number counts; apart, as kernels read them from aligned addresses.
        self._flags = torch.zeros(len(lists), 4, dtype=torch.int32, device=device)
        self._sent, self._send = self._regions(self.capacity.send)
        self._found, self._receive = self._regions(self.capacity.receive)
        sizes = [rows, *self.capacity.send, *self.capacity.receive]
        self._sizes = torch.tensor(sizes, device=device)
        self._most = torch.zeros_like(self._sizes)
        self._fewest = torch.ones_like(self._sizes[0])
        self.counts = torch.full_like(state.grouping.counts, region.total)
        cut = [number > 1 for number in grid.shape]
        varies = any(item.cell_varies for item in lists)
        programs = self._operations.programs(rows)
        self.start = MarginStart(
            state, rows, self._reach, cut, cell_varies=varies, programs=programs
        )
        self.assign_()

    def _regions(self, sizes: Sequence[int]) -> tuple[Tensor, dict[int, Tensor]]:
        """What messages hold, see `pack_`: rows for each other rank and all flags; these rows."""
        flags = torch.arange(-1, -1 - len(self._flags), -1, device=self._state.device)
        parts = [torch.cat([flags.new_zeros(size), flags]) for size in sizes if size]
        entries = torch.cat([flags[:0], *parts])
        views = entries.split([len(part) for part in parts])
        others = [other for other, size in enumerate(sizes) if size]
        rows = [view[: -len(flags)] for view in views]
        return entries, dict(zip(others, rows, strict=True))

    def _room(self, table: Tensor) -> OwnCapacity:
        rank, atoms = self._rank, self._region.total
        counts = table.tolist()
        others = range(len(counts))
        own = tuple(
            -(-min(with_room(max(1, counts[one][one]), _MORE), atoms) // BLOCK) * BLOCK
            for one in others
        )
        send = tuple(
            0 if other == rank else with_room(counts[rank][other], _MORE) for other in others
        )
        receive = tuple(
            0 if other == rank else with_room(counts[other][rank], _MORE) for other in others
        )
        return OwnCapacity(own, send, receive)

    def _counts(self) -> Tensor:
        """(P, P) int64 on the host: atoms that each rank sends to each; own ones on the diagonal.

        Those of this rank, zeros for others. Syncs.
        """
        self._locate_()
        count = len(self._grid)
        own = self._owner_of_all() == self._rank
        table = torch.zeros(count, count, dtype=torch.int64)
        for other in range(count):
            sent = own if other == self._rank else own & self._near(other)
            table[self._rank, other] = int(sent.sum())
        return table

    def _locate_(self) -> None:
        """Finds coordinates of all atoms in cells, wrapped and by how much; does not sync."""
        state = self._state
        cell = state.cell.double()
        self._wrapped, self._turns, inverted = wrapped_in(state.positions.double(), cell, state.pbc)
        self._lattice = complete_cell(cell, state.pbc), inverted

    def _owner_of_all(self) -> Tensor:
        return self._grid.owners_at(self._wrapped, self._planes)

    def _near(self, rank: int, atoms: Tensor | None = None) -> Tensor:
        """(n,) bool, which of all atoms, or of some (n,) int64, a rank may need."""
        places = self._wrapped if atoms is None else self._wrapped.index_select(0, atoms)
        brick = self._grid.brick(rank, self._planes, self.margin)
        return brick.is_near(places, self._lattice[1], self._state.pbc, self._reach)

    def assign_(self) -> None:
        """Gives atoms to ranks by the positions of the region, where they are known alike.

        Static shapes; does not sync on CUDA.
        """
        self._locate_()
        owner = self._owner_of_all()
        self.owner.copy_(owner)
        rank, everyone = self._rank, torch.arange(len(owner), device=owner.device)
        # Others may lie elsewhere now, and their owners do not count them among those near.
        known = everyone < self._region.count
        own = known & (owner == rank)
        # Places without an atom in a message bring the first flag, once more.
        fill = torch.full_like(everyone[0], -1)
        count = _packed_(self.atoms, own, everyone, own.to(torch.int8).argmax())
        torch.lt(self._rows, count, out=self.used)
        torch.mul(self._rows, self.used, out=self.kept)
        sent = torch.zeros_like(self._most[1 : 1 + len(self._grid)])
        for other in range(len(self._grid)):
            if other != rank:
                chosen = self.used & self._near(other, self.atoms)
                sent[other] = _packed_(self._send.get(other), chosen, self._rows, fill)
        near_here = known & self._near(rank) & ~own
        received = torch.zeros_like(sent).index_add_(0, owner, near_here.to(sent.dtype))
        for other, atoms in self._receive.items():
            _packed_(atoms, near_here & (owner == other), everyone, fill)
        torch.maximum(self._most, torch.cat([count[None], sent, received]), out=self._most)
        torch.minimum(self._fewest, count, out=self._fewest)

    def outgrown(self) -> Tensor:
        """() bool, whether there were more atoms than there is room for, or none at all.

        Does not sync.
        """
        return (self._most > self._sizes).any() | (self._fewest == 0)

    def begin_(self) -> None:
        """Takes note of where atoms lay when they were assigned, at the start of a stretch.

        Does not sync.
        """
        places = self._wrapped + self._turns
        self.start.begin_(self.atoms, places, *self._lattice)
        self._begun = places if self.start.cell_varies else None
        del self._wrapped, self._turns

    def carried(self) -> Tensor:
        """Where atoms of the region lie that others own, as far as this rank knows; (M, 3) A.

        Those that were not brought up to date have moved with the cell. Does not sync.
        """
        state = self._state
        if self._begun is None:
            return state.positions
        return self._begun @ complete_cell(state.cell.double(), state.pbc)[0]

    def bring_(self, own: State, lists: Sequence[NeighborList]) -> None:
        """Brings positions of the state up to date, of own atoms and of others' near them.

        Also finds, on all ranks alike, which lists are due, and measures the margin that own
        atoms need. Within `deciding`. Static shapes, capturable, does not sync on CUDA.

        Args:
            own: C rows.
            lists: that will be updated.
        """
        state, rows = self._state, self._operations
        for item in lists:
            item.join()  # a search that waits reads its flag
        self._flags.zero_()
        rows.put_(own.positions, self.atoms, self.used, state, self.start)
        for item in lists:
            assert item.due is not None
            item.look_(item.due, own.positions, own.cell, self.atoms, self.used)
        sent = state.positions.new_empty(len(self._sent), 3)
        found = state.positions.new_empty(len(self._found), 3)
        rows.pack_(own.positions, self._sent, self._flags, sent)
        self.exchange.swap(self._parts(sent, self._send), self._parts(found, self._receive))
        rows.unpack_(found, self._found, state.positions, self._flags)
        if not self._all_near:
            self.exchange.raise_(self._flags)

    def take_(self, values: Tensor, own: Tensor) -> None:
        """Writes what all atoms (N, 3) have into rows (C, 3); static shapes, does not sync."""
        self._operations.gather_(values, self.atoms, own)

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Within it lists are updated where `bring_` finds, for all ranks, that they are due."""
        for number, item in enumerate(self._lists):
            item.due = self._flags[number, :1]
        try:
            yield
        finally:
            for item in self._lists:
                item.due = None

    def _parts(self, message: Tensor, regions: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """The part of each other rank, flags behind rows."""
        sizes = [len(rows) + len(self._flags) for rows in regions.values()]
        return dict(zip(regions, message.split(sizes), strict=True))

    def sum(self, values: Tensor) -> Tensor:
        """See RankSums."""
        return self.add(sum_of_rows(values))

    def largest(self, values: Tensor) -> Tensor:
        """See RankSums."""
        found = values[self.kept].amax()[None]
        self.exchange.raise_(found)
        return found

    def add(self, parts: Tensor) -> Tensor:
        """See RankSums."""
        return self.exchange.gather(parts).sum(0)

    def collect_(self, here: Mapping[str, Tensor], there: Mapping[str, Tensor]) -> None:
        """Brings what all ranks have of their atoms to rank 0; does not sync on CUDA.

        Args:
            here: by name, rows (C, ...) of own atoms; those without an atom do not count.
            there: by name, buffers (N, ...) of rank 0; of others any of the same sizes of rows.
        """
        numbers = self._region.numbers_of(self.atoms)
        rows, columns = len(self.atoms), [numbers.double()[:, None]]
        own = (here[name].index_select(0, self.kept).double() for name in there)
        columns += [value.reshape(rows, -1) for value in own]
        message = torch.cat(columns, 1)
        if self._rank:
            self.exchange.swap({0: message}, {})
            return
        widths = [1, *(column.shape[1] for column in columns[1:])]
        for other, count in enumerate(self.capacity.own):
            if other:
                message = message.new_empty(count, sum(widths))
                self.exchange.swap({}, {other: message})
            number, *parts = message.split(widths, 1)
            atoms = number[:, 0].to(torch.int64)
            for buffer, part in zip(there.values(), parts, strict=True):
                values = part.to(buffer.dtype).reshape(len(atoms), *buffer.shape[1:])
                buffer.index_copy_(0, atoms, values)


def _packed_(target: Tensor | None, chosen: Tensor, numbers: Tensor, fill: Tensor) -> Tensor:
    """Writes the numbers (n,) that are chosen, (n,) bool, as far as there is room, and counts all.

    In their order; `fill`, () int64, where there are no more. Static shapes, does not sync.
    """
    if target is None:
        return chosen.sum()
    size = len(target)
    place = chosen.cumsum(0) - 1
    place = torch.where(chosen & (place < size), place, size)
    found = fill.expand(size + 1).clone()
    found.scatter_(0, place, numbers)
    target.copy_(found[:size])
    return chosen.sum()
