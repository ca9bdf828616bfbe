"""A domain: its own atoms, copies of the atoms of others that they have as neighbors, their rows.

Local atoms are own ones in their order, padding, the others, sorted by the domain that owns them,
and padding again. There is some more padding than the first cut needs, so that later ones find
their places in the same buffers. The list has both directions of every pair, so what a domain
sends to another follows from its own rows: the atoms that have a neighbor there.
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


@dataclass(frozen=True, eq=False)
class Subdomain:
    """What a process holds of one domain.

    Attributes:
        own: (n_own,) int64, indices of its own atoms in the system, ascending.
        rows: local rows (int64) of own atoms and of the others, without padding.
        atoms: their indices in the system, int64.
        padded: number of rows before those of the others.
        state: of all local atoms.
        lists: rows, one for each list of the system.
        send: local rows whose features each other domain needs, by its number.
        receive: local rows whose features each other domain knows, by its number.
        result: what its pairs give.
    """

    own: Tensor
    rows: Tensor
    atoms: Tensor
    padded: int
    state: State
    lists: Sequence[SubdomainRows]
    send: Mapping[int, Tensor]
    receive: Mapping[int, slice]
    result: NetworkResult

    def load_(self, state: State) -> None:
        """Copies positions, cell and charge of the system."""
        self.state.positions[self.rows] = state.positions[self.atoms]
        self.state.cell.copy_(state.cell)
        self.state.charge.copy_(state.charge)

    @classmethod
    def cut(
        cls,
        number: int,
        owner: Tensor,
        state: State,
        lists: Sequence[NeighborList],
        rounding: int,
        kept: "Subdomain | None" = None,
    ) -> "Subdomain":
        """Cuts a domain out of a system; reads the device.

        Args:
            number: of the domain.
            owner: (N,) int64, domain of each atom.
            state: of the system.
            lists: complete ones.
            rounding: the number of own rows is padded to a multiple.
            kept: the same domain of an earlier cut, whose buffers are used again if they suffice.
        """
        own = (owner == number).nonzero().flatten()
        # Empty slots hold the atom itself.
        neighbors = [item.index[own].to(torch.int64) for item in lists]
        others = _others(neighbors, owner, number)
        if kept is not None and not kept._has_room(state, own, others):
            kept.state.workspaces.clear()  # frees its memory first
            kept = None
        if kept is None:
            padded = _roomy(len(own), _MORE_OWN, rounding)
            local = _buffers(state, padded + _roomy(len(others), _MORE_OTHERS, 1))
            result = _result(local)
        else:
            padded, local, result = kept.padded, kept.state, kept.result
        last = padded + len(others)
        rows = torch.cat([torch.arange(len(own)), torch.arange(padded, last)]).to(own.device)
        atoms = torch.cat([own, others])
        place = torch.full_like(owner, -1)
        place[atoms] = rows
        begins = owner[others].bincount(minlength=int(owner.max()) + 1)
        ends = (begins.cumsum(0) + padded).tolist()
        receive = {
            other: slice(end - size, end)
            for other, (end, size) in enumerate(zip(ends, begins.tolist(), strict=True))
            if size
        }
        local.numbers[rows] = state.numbers[atoms]
        local.kinds[rows] = state.kinds[atoms]
        for user in list(local.workspaces):
            user.replace_(local)
        return cls(
            own=own,
            rows=rows,
            atoms=atoms,
            padded=padded,
            state=local,
            lists=[
                _rows(item, index, own, others, place, padded, len(local.numbers))
                for item, index in zip(lists, neighbors, strict=True)
            ],
            send={other: _sent(neighbors, owner, other) for other in receive},
            receive=receive,
            result=result,
        )

    def _has_room(self, state: State, own: Tensor, others: Tensor) -> bool:
        """Whether so many atoms of a system find room; it may be another one."""
        held = self.state
        alike = torch.equal(held.elements, state.elements) and torch.equal(held.pbc, state.pbc)
        rest = len(held.numbers) - self.padded
        return alike and len(own) <= self.padded and len(others) <= rest


_MORE_OWN: Final = 0.01
_MORE_OTHERS: Final = 0.05
"""Padding over the rows of the first cut."""


def _roomy(count: int, more: float, rounding: int) -> int:
    return math.ceil((1.0 + more) * count / rounding) * rounding


def _others(neighbors: Sequence[Tensor], owner: Tensor, number: int) -> Tensor:
    """Atoms of other domains among the neighbors, by owner and index."""
    present = torch.zeros_like(owner, dtype=torch.bool)
    for index in neighbors:
        present[index.flatten()] = True
    others = (present & (owner != number)).nonzero().flatten()
    return others[owner[others].argsort(stable=True)]


def _sent(neighbors: Sequence[Tensor], owner: Tensor, other: int) -> Tensor:
    """Rows of own atoms that have a neighbor in another domain."""
    there = [(owner[index] == other).any(1) for index in neighbors]
    return torch.stack(there).any(0).nonzero().flatten()


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


def _result(local: State) -> NetworkResult:
    return NetworkResult(
        torch.zeros_like(local.energies),
        torch.zeros_like(local.energies),
        torch.zeros_like(local.forces),
        local.energies.new_zeros(9, len(local.numbers)),
    )


def _rows(
    item: NeighborList,
    neighbors: Tensor,
    own: Tensor,
    others: Tensor,
    place: Tensor,
    padded: int,
    count: int,
) -> SubdomainRows:
    """Rows of local atoms, of one list with the neighbors (n_own, K) of own atoms."""
    slots, last = torch.arange(item.capacity, device=own.device), padded + len(others)
    index = torch.arange(count, dtype=torch.int32, device=own.device)[:, None]
    rows = SubdomainRows(
        index=index.repeat(1, item.capacity),
        image=torch.full_like(index, len(item.offsets) // 2).repeat(1, item.capacity),
        reverse=slots.to(torch.int32).repeat(count, 1),
        count=torch.zeros_like(index[:, 0]),
        wrap=item.wrap.new_zeros(count, 3),
        offsets=item.offsets,
        order=torch.cat([_in_order(item, place, padded), index[len(own) : padded, 0]]),
        capacity=item.capacity,
    )
    used = slots < item.count[own][:, None]
    local = torch.where(used, place[neighbors], 0)
    rows.index[: len(own)] = torch.where(used, local.to(torch.int32), rows.index[: len(own)])
    rows.image[: len(own)] = item.image[own]
    rows.reverse[: len(own)] = item.reverse[own]
    rows.count[: len(own)] = item.count[own]
    rows.wrap[: len(own)] = item.wrap[own]
    rows.wrap[padded:last] = item.wrap[others]
    atom, slot = (used & (local >= padded)).nonzero().unbind(1)
    other = local[atom, slot]
    order = other.argsort(stable=True)
    atom, slot, other = atom[order], slot[order], other[order]
    found = other.bincount(minlength=count)
    back = torch.arange(len(other), device=own.device) - (found.cumsum(0) - found)[other]
    rows.index[other, back] = atom.to(torch.int32)
    # Translations are numbered symmetrically, so that of the reverse pair counts from the end.
    rows.image[other, back] = len(item.offsets) - 1 - item.image[own[atom], slot]
    rows.reverse[other, back] = slot.to(torch.int32)
    rows.count[padded:] = found[padded:].to(torch.int32)
    return rows


def _in_order(item: NeighborList, place: Tensor, padded: int) -> Tensor:
    """Rows (n_own,) int32 of own atoms in the order of the list."""
    rows = place[item.order.to(torch.int64)]
    return rows[(rows >= 0) & (rows < padded)].to(torch.int32)
