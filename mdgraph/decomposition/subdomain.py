"""A domain: its own atoms, copies of the atoms of others that they have as neighbors, their rows.

Local rows are those of own atoms in their order, padding, and a region for each other domain that
has neighbors here, with padding again. Regions have room for more atoms than the first cut needs,
so that later cuts write into the same buffers, which a CUDA graph may hold. The list has both
directions of every pair, so what a domain sends to another follows from its own rows: the atoms
that have a neighbor there. Both of them count these atoms, so both give them the same room.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from mdgraph.fused.backend import NetworkResult
from mdgraph.neighbors import NeighborList
from mdgraph.state import BatchCapacity, State
from mdgraph.system import System


@dataclass(frozen=True)
class SubdomainRows:
    """NeighborRows of n local atoms.

    Rows of own atoms are those of the list, taken in its order. A row of another domain's atom has
    its own-atom neighbors alone.
    """

    index: Tensor
    image: Tensor
    reverse: Tensor
    count: Tensor
    wrap: Tensor
    offsets: Tensor
    order: Tensor
    capacity: int

    def join(self) -> None:
        """See NeighborRows; reverse slots are there."""


@dataclass(frozen=True)
class SubdomainCapacity:
    """Shapes of the buffers of a domain.

    Attributes:
        own: rows of own atoms.
        send: atoms that each domain, by its number, gets from this one.
        receive: atoms that each domain sends.
        lists: slots a row and translations of each list.
    """

    own: int
    send: tuple[int, ...]
    receive: tuple[int, ...]
    lists: tuple[tuple[int, int], ...]

    @property
    def rows(self) -> int:
        """Local rows."""
        return self.own + sum(self.receive)

    @property
    def begins(self) -> list[int]:
        """First row of the region of each domain."""
        return [self.own + sum(self.receive[:number]) for number in range(len(self.receive))]


@dataclass(frozen=True)
class _Members:
    """Atoms of a domain at one cut.

    Attributes:
        own: (n,) int64, ascending.
        others: (m,) int64, neighbors that other domains own, by owner and index.
        received: (D,) numbers of them, by owner.
        sent: own atoms (int64, of n) that have a neighbor in each other domain, by its number.
        neighbors: (n, K) int64 of own atoms, of each list; empty slots hold the atom itself.
    """

    own: Tensor
    others: Tensor
    received: list[int]
    sent: Mapping[int, Tensor]
    neighbors: Sequence[Tensor]

    @classmethod
    def of(
        cls, number: int, count: int, owner: Tensor, lists: Sequence[NeighborList]
    ) -> "_Members":
        """Those of one of so many domains; reads the device."""
        own = (owner == number).nonzero().flatten()
        neighbors = [item.index[own].to(torch.int64) for item in lists]
        owners = [owner[index] for index in neighbors]
        present = torch.zeros_like(owner, dtype=torch.bool)
        for index in neighbors:
            present[index.flatten()] = True
        others = (present & (owner != number)).nonzero().flatten()
        others = others[owner[others].argsort(stable=True)]
        received = owner[others].bincount(minlength=count).tolist()
        sent = {
            other: torch.stack([(of == other).any(1) for of in owners]).any(0).nonzero().flatten()
            for other, size in enumerate(received)
            if size
        }
        return cls(own, others, received, sent, neighbors)

    def capacity(
        self, lists: Sequence[NeighborList], rounding: int, before: SubdomainCapacity | None
    ) -> SubdomainCapacity:
        """Room for them: that of an earlier cut wherever it suffices."""
        none = (0,) * len(self.received)
        if before is None:
            before = SubdomainCapacity(0, none, none, ())
        sent = [len(self.sent.get(other, ())) for other in range(len(none))]
        return SubdomainCapacity(
            own=_room(len(self.own), before.own, _MORE_OWN, rounding),
            send=tuple(map(_room_of_others, sent, before.send)),
            receive=tuple(map(_room_of_others, self.received, before.receive)),
            lists=tuple((item.capacity, len(item.offsets)) for item in lists),
        )


_MORE_OWN: Final = 0.01
_MORE_OTHERS: Final = 0.05
"""Padding over the rows of the first cut."""


def _room(count: int, before: int, more: float, rounding: int) -> int:
    """Padded number of rows; a function of the counts of all cuts alone."""
    return before if count <= before else math.ceil((1.0 + more) * count / rounding) * rounding


def _room_of_others(count: int, before: int) -> int:
    return _room(count, before, _MORE_OTHERS, 1)


class Subdomain:
    """What a process holds of one domain.

    Attributes:
        number: of the domain.
        capacity: shapes of its buffers.
        padded: number of rows before those of others.
        source: (R,) int64, the atom in the system of each local row; any atom for padding.
        is_used: (R,) bool, false for padding.
        state: of all local rows.
        lists: rows, one for each list of the system.
        send: local rows (int64) whose features each other domain needs, by its number.
        receive: local rows whose features each other domain knows, by its number.
        result: what its pairs give.
    """

    def __init__(self, number: int, system: State, capacity: SubdomainCapacity) -> None:
        """Allocates for a domain of the system.

        Args:
            number: of the domain.
            system: what is divided.
            capacity: shapes.
        """
        rows, device = capacity.rows, system.device
        self.number, self.capacity, self.padded = number, capacity, capacity.own
        self.source = torch.zeros(rows, dtype=torch.int64, device=device)
        self.is_used = torch.zeros(rows, dtype=torch.bool, device=device)
        self.state = _buffers(system, rows)
        self.result = NetworkResult(
            torch.zeros_like(self.state.energies),
            torch.zeros_like(self.state.energies),
            torch.zeros_like(self.state.forces),
            self.state.energies.new_zeros(9, rows),
        )
        self.lists: list[SubdomainRows] = []
        self.send = {
            other: torch.zeros(size, dtype=torch.int64, device=device)
            for other, size in enumerate(capacity.send)
            if size
        }
        self.receive = {
            other: slice(begin, begin + size)
            for other, (begin, size) in enumerate(
                zip(capacity.begins, capacity.receive, strict=True)
            )
            if size
        }

    @classmethod
    def cut(
        cls,
        number: int,
        count: int,
        owner: Tensor,
        state: State,
        lists: Sequence[NeighborList],
        rounding: int,
        kept: "Subdomain | None" = None,
    ) -> "Subdomain":
        """Cuts a domain out of a system; reads the device.

        Args:
            number: of the domain.
            count: of all domains.
            owner: (N,) int64, domain of each atom.
            state: of the system.
            lists: complete ones.
            rounding: the number of own rows is padded to a multiple.
            kept: the same domain of an earlier cut; it is written anew and returned, with the same
                buffers, if they suffice.
        """
        members = _Members.of(number, count, owner, lists)
        before = None if kept is None else kept.capacity
        capacity = members.capacity(lists, rounding, before)
        if kept is None or capacity != before or not kept._is_for(state):
            if kept is not None:
                kept.state.workspaces.clear()  # frees its memory first
            kept = cls(number, state, capacity)
        kept._write_(members, owner, state, lists)
        return kept

    def load_(self, state: State) -> None:
        """Copies positions, cell and charge of the system; does not sync."""
        torch.index_select(state.positions, 0, self.source, out=self.state.positions)
        self.state.cell.copy_(state.cell)
        self.state.charge.copy_(state.charge)

    def add_to_(self, forces: Tensor, energies: Tensor, virial: Tensor) -> None:
        """Adds what its pairs gave; does not sync.

        Args:
            forces: (N, 3) float64, eV/A, of the system.
            energies: (N,) float64, eV.
            virial: (9,) float64, eV.
        """
        result, own = self.result, slice(self.padded)
        # Each atom has one row at most; padding adds zeros, and never the only row of an atom.
        found = torch.where(self.is_used[:, None], result.forces.to(forces.dtype), 0.0)
        forces.index_add_(0, self.source, found)
        found = torch.where(self.is_used[own], result.energies[own], 0.0)
        energies.index_add_(0, self.source[own], found)
        virial += result.virials[:, own].sum(1)

    def _is_for(self, state: State) -> bool:
        """Whether the buffers are of a system with these elements and periodic directions."""
        own = self.state
        return torch.equal(own.elements, state.elements) and torch.equal(own.pbc, state.pbc)

    def _write_(
        self, members: _Members, owner: Tensor, state: State, lists: Sequence[NeighborList]
    ) -> None:
        own, others, local = members.own, members.others, self.state
        device, owners = own.device, owner[others]
        begins = torch.tensor(self.capacity.begins, device=device)
        counts = torch.tensor(members.received, device=device)
        within = torch.arange(len(others), device=device) - (counts.cumsum(0) - counts)[owners]
        rows = torch.cat([torch.arange(len(own), device=device), begins[owners] + within])
        atoms = torch.cat([own, others])
        place = torch.full_like(owner, -1)
        place[atoms] = rows
        # Padding is spread over all atoms, so that nothing adds to one of them again and again.
        torch.arange(len(self.source), out=self.source)
        self.source.remainder_(len(owner))
        self.source[rows] = atoms
        self.is_used.zero_()
        self.is_used[rows] = True
        local.numbers.copy_(state.numbers[self.source])
        local.kinds.copy_(state.kinds[self.source])
        for other, sent in members.sent.items():
            self.send[other].zero_()
            self.send[other][: len(sent)] = sent
        if not self.lists:
            self.lists = [_allocated(item, self.capacity) for item in lists]
        for item, listed, index in zip(self.lists, lists, members.neighbors, strict=True):
            _write_rows_(item, listed, index, own, place, self)
        for user in list(local.workspaces):
            user.replace_(local)


def _buffers(state: State, count: int) -> State:
    """Buffers for so many local atoms, all of them of the kind of the system's first one yet."""
    system = System(
        numbers=np.full(count, int(state.numbers[0])),
        positions=np.zeros((count, 3)),
        cell=state.cell[0].double().cpu().numpy(),
        pbc=state.pbc[0].cpu().numpy(),
    )
    room = BatchCapacity(count, tuple(state.elements.tolist()))
    return State([system], state.device, state.dtype, room=room)


def _allocated(item: NeighborList, capacity: SubdomainCapacity) -> SubdomainRows:
    """Rows of a domain for a list, not written yet."""
    shape = (capacity.rows, item.capacity)
    return SubdomainRows(
        index=item.index.new_empty(shape),
        image=item.image.new_empty(shape),
        reverse=item.reverse.new_empty(shape),
        count=item.count.new_empty(capacity.rows),
        wrap=item.wrap.new_empty(capacity.rows, 3),
        offsets=torch.empty_like(item.offsets),
        order=item.order.new_empty(capacity.own),
        capacity=item.capacity,
    )


def _write_rows_(
    rows: SubdomainRows,
    item: NeighborList,
    neighbors: Tensor,
    own: Tensor,
    place: Tensor,
    domain: Subdomain,
) -> None:
    """Writes the rows of local atoms, of one list with the neighbors (n, K) of own atoms."""
    padded, count, device = domain.padded, len(domain.source), own.device
    slots = torch.arange(item.capacity, device=device)
    local_rows = torch.arange(count, dtype=torch.int32, device=device)
    rows.index.copy_(local_rows[:, None].expand_as(rows.index))
    rows.image.fill_(len(item.offsets) // 2)
    rows.reverse.copy_(slots.expand_as(rows.reverse))
    rows.count.zero_()
    rows.wrap.copy_(item.wrap[domain.source])
    rows.offsets.copy_(item.offsets)
    rows.order[: len(own)] = _in_order(item, place, padded)
    rows.order[len(own) :] = local_rows[len(own) : padded]
    used = slots < item.count[own][:, None]
    local = torch.where(used, place[neighbors], 0)
    first = slice(len(own))
    rows.index[first] = torch.where(used, local.to(torch.int32), rows.index[first])
    rows.image[first] = item.image[own]
    rows.reverse[first] = item.reverse[own]
    rows.count[first] = item.count[own]
    atom, slot = (local >= padded).nonzero().unbind(1)
    other = local[atom, slot]
    order = other.argsort(stable=True)
    atom, slot, other = atom[order], slot[order], other[order]
    found = other.bincount(minlength=count)
    back = torch.arange(len(other), device=device) - (found.cumsum(0) - found)[other]
    rows.index[other, back] = atom.to(torch.int32)
    # Translations are numbered symmetrically, so that of the reverse pair counts from the end.
    rows.image[other, back] = len(item.offsets) - 1 - item.image[own[atom], slot]
    rows.reverse[other, back] = slot.to(torch.int32)
    rows.count[padded:] = found[padded:].to(torch.int32)


def _in_order(item: NeighborList, place: Tensor, padded: int) -> Tensor:
    """Rows (n_own,) int32 of own atoms in the order of the list."""
    rows = place[item.order.to(torch.int64)]
    return rows[(rows >= 0) & (rows < padded)].to(torch.int32)
