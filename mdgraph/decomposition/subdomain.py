"""A domain: its own atoms, copies of the atoms of others that they have as neighbors, their rows.

Local rows lie in regions of fixed size: own atoms of each element, then copies of the atoms of each
other domain. Rows of a region that hold no atom are padding. So elements of own rows never change,
and a cut only says which atom is in which row: it has static shapes, and may be part of a CUDA
graph. The list has both directions of every pair, so what a domain sends to another follows from
its own rows: the atoms that have a neighbor there. Both of them count these atoms, so both give
them the same room.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from mdgraph.decomposition.row_operations import operations
from mdgraph.fused.backend import NetworkResult
from mdgraph.neighbors import NeighborList, StoredRows
from mdgraph.neighbors.list import with_room
from mdgraph.state import BatchCapacity, State
from mdgraph.system import System


class SubdomainRows(StoredRows):
    """NeighborRows of n local atoms.

    Rows of own atoms are those of the list. A row of another domain's atom has its own-atom
    neighbors alone.
    """

    @classmethod
    def allocate(cls, listed: NeighborList, capacity: "SubdomainCapacity") -> "SubdomainRows":
        """Rows for a list, not written yet.

        Args:
            listed: of the whole system.
            capacity: of the domain.
        """
        rows, own = capacity.rows, capacity.owned
        shape = (rows, listed.capacity)
        order = torch.arange(own, dtype=listed.order.dtype, device=listed.order.device)
        return cls(
            index=listed.index.new_zeros(shape),
            image=listed.image.new_zeros(shape),
            reverse=listed.reverse.new_zeros(shape),
            count=listed.count.new_zeros(rows),
            wrap=listed.wrap.new_zeros(rows, 3),
            offsets=listed.offsets.clone(),
            order=order,
            interior=capacity.interior,
            capacity=listed.capacity,
        )


@dataclass(frozen=True)
class SubdomainCapacity:
    """Sizes of the regions of a domain.

    Attributes:
        own: rows of own atoms, of each element.
        send: atoms that each domain, by its number, gets from this one.
        receive: rows of atoms that each domain sends.
        boundary: own atoms that have neighbors in other domains.
    """

    own: tuple[int, ...]
    send: tuple[int, ...]
    receive: tuple[int, ...]
    boundary: int

    @property
    def owned(self) -> int:
        """Rows of own atoms."""
        return sum(self.own)

    @property
    def rows(self) -> int:
        """Local rows."""
        return self.owned + sum(self.receive)

    @property
    def sizes(self) -> list[int]:
        """Of regions, in the layout of `Subdomain.most`."""
        return [*self.own, *self.receive, *self.send, self.boundary]

    @property
    def interior(self) -> int:
        """Rows in the order of a list before the first that may read features of others.

        A multiple of 16, as kernels read what follows by whole words.
        """
        return max(0, self.owned - self.boundary) // 16 * 16

    @property
    def begins(self) -> list[int]:
        """First row of each region of rows, own and received."""
        sizes = [*self.own, *self.receive]
        return [sum(sizes[:number]) for number in range(len(sizes))]

    @classmethod
    def of(
        cls, counts: Sequence[int], elements: int, rounding: int, before: "SubdomainCapacity | None"
    ) -> "SubdomainCapacity":
        """Room for so many atoms: that of an earlier cut wherever it suffices.

        Args:
            counts: of atoms in the regions, in the layout of `sizes`.
            elements: of the system.
            rounding: of which the number of own rows is a multiple.
            before: of an earlier cut.
        """
        earlier = [0] * len(counts) if before is None else before.sizes
        domains = (len(counts) - elements - 1) // 2
        more = [_MORE_OWN] * elements + [_MORE_OTHERS] * (2 * domains + 1)
        # Numbers that outgrew their room once fluctuate more than those of a liquid.
        often = 1.0 if before is None else 3.0
        sizes = [
            size if count <= size else with_room(count, often * part)
            for count, size, part in zip(counts, earlier, more, strict=True)
        ]
        own, receive = sizes[:elements], sizes[elements : elements + domains]
        own[-1] += -sum(own) % rounding
        return cls(tuple(own), tuple(sizes[elements + domains : -1]), tuple(receive), sizes[-1])


_MORE_OWN: Final = 0.01
_MORE_OTHERS: Final = 0.05
"""Padding over the n atoms of the first cut, as parts of n + 40 sqrt(n)."""


class Subdomain:
    """What a process holds of one domain.

    Attributes:
        number: of the domain.
        capacity: sizes of its regions.
        source: (R,) int64, the atom in the system of each local row; any atom for padding.
        is_used: (R,) bool, false for padding.
        place: (N,) int32, local row of each atom that has one; anything for others.
        most: (E + 2 D + 1,) int32, largest number of atoms found yet: own ones of each element, to
            receive from and to send to each domain, and own ones with neighbors in others.
        state: of all local rows, with the cell and the charge of the system.
        lists: rows, one for each list of the system.
        sent: (S,) int64, local rows whose features other domains need, by their numbers.
        send: the part of them that each other domain needs, by its number.
        receive: local rows whose features each other domain knows, by its number.
        result: what its pairs give.
    """

    def __init__(
        self,
        number: int,
        system: State,
        lists: Sequence[NeighborList],
        capacity: SubdomainCapacity,
    ) -> None:
        """Allocates for a domain of the system; reads the device.

        Args:
            number: of the domain.
            system: what is divided.
            lists: of the system.
            capacity: sizes.
        """
        rows, device = capacity.rows, system.device
        self.number, self.capacity = number, capacity
        self._operations = operations(device)
        self.source = torch.arange(rows, device=device).remainder_(len(system.numbers))
        self.is_used = torch.zeros(rows, dtype=torch.bool, device=device)
        self.place = torch.zeros(len(system.numbers), dtype=torch.int32, device=device)
        self.most = torch.zeros(len(capacity.sizes), dtype=torch.int32, device=device)
        self.state = _buffers(system, capacity)
        self.result = NetworkResult(
            torch.zeros_like(self.state.energies),
            torch.zeros_like(self.state.energies),
            torch.zeros_like(self.state.forces),
            self.state.energies.new_zeros(9, rows),
        )
        self.lists = [SubdomainRows.allocate(item, capacity) for item in lists]
        self.sent = torch.zeros(sum(capacity.send), dtype=torch.int64, device=device)
        parts = self.sent.split(list(capacity.send))
        self.send = {other: rows for other, rows in enumerate(parts) if len(rows)}
        begins = capacity.begins[len(capacity.own) :]
        self.receive = {
            other: slice(begin, begin + size)
            for other, (begin, size) in enumerate(zip(begins, capacity.receive, strict=True))
            if size
        }

    def fits(self, system: State, lists: Sequence[NeighborList]) -> bool:
        """Whether its rows suit a system and lists, which may have grown; syncs."""
        return len(self.place) == len(system.numbers) and all(
            rows.capacity == item.capacity and torch.equal(rows.offsets, item.offsets)
            for rows, item in zip(self.lists, lists, strict=True)
        )

    def load_(self, state: State) -> None:
        """Copies positions of the system; does not sync."""
        self._operations.gather_(state.positions, self.source, self.state.positions)

    def add_to_(self, forces: Tensor, energies: Tensor, virials: Tensor) -> None:
        """Adds what its pairs gave; does not sync.

        Args:
            forces: (N, 3) float64, eV/A, of the system.
            energies: (N,) float64, eV.
            virials: (9, N) float64, eV.
        """
        result, own = self.result, slice(self.capacity.owned)
        # Each atom has one row at most. Padding has no pairs, so its forces and virials are zeros.
        forces.index_add_(0, self.source, result.forces.to(forces.dtype))
        used, source = self.is_used[own], self.source[own]
        energies.index_add_(0, source, torch.where(used, result.energies[own], 0.0))
        virials.index_add_(1, source, result.virials[:, own])

    def cut_(
        self, owner: Tensor, neighbors: Tensor, system: State, lists: Sequence[NeighborList]
    ) -> None:
        """Writes which atom is in which row, and the rows; the reference for the kernels. Syncs.

        Args:
            owner: (N,) int64, domain of each atom.
            neighbors: (N, D) bool, whether an atom has a neighbor in each domain.
            system: what is divided.
            lists: complete ones.
        """
        own = owner == self.number
        kinds = system.kinds
        regions = [own & (kinds == kind) for kind in range(len(self.capacity.own))]
        regions += self._received(owner, neighbors)
        self.is_used.zero_()
        counts = []
        begins = self.capacity.begins
        for region, begin, size in zip(regions, begins, self.capacity.sizes, strict=False):
            atoms = region.nonzero().flatten()
            counts.append(len(atoms))
            rows = slice(begin, begin + len(atoms[:size]))
            self.source[rows] = atoms[:size]
            self.is_used[rows] = True
            self.place[atoms[:size]] = torch.arange(
                rows.start, rows.stop, dtype=torch.int32, device=owner.device
            )
        others = torch.arange(neighbors.shape[1], device=owner.device) != self.number
        at_boundary = own & (neighbors & others).any(1)
        for other in range(len(self.capacity.send)):
            sent = (own & neighbors[:, other]).nonzero().flatten()
            sent = sent[:0] if other == self.number else sent
            counts.append(len(sent))
            if other in self.send:
                kept = self.send[other].zero_()
                kept[: len(sent)] = self.place[sent[: len(kept)]].to(torch.int64)
        counts.append(int(at_boundary.sum()))
        torch.maximum(
            self.most, torch.tensor(counts, dtype=torch.int32, device=owner.device), out=self.most
        )
        self.state.numbers.copy_(system.numbers[self.source])
        self.state.kinds.copy_(kinds[self.source])
        # Padding counts as the element of its region, as own rows of all cuts do.
        own_rows, sizes = slice(self.capacity.owned), torch.tensor(self.capacity.own)
        self.state.kinds[own_rows] = torch.repeat_interleave(sizes).to(kinds.device)
        self.state.numbers[own_rows] = system.elements[self.state.kinds[own_rows]]
        for local, listed in zip(self.lists, lists, strict=True):
            self._write_rows_(local, listed, owner, at_boundary)
        for user in list(self.state.workspaces):
            user.replace_(self.state)

    def _received(self, owner: Tensor, neighbors: Tensor) -> list[Tensor]:
        needed = neighbors[:, self.number] & (owner != self.number)
        return [needed & (owner == other) for other in range(len(self.capacity.receive))]

    def _write_rows_(
        self, rows: SubdomainRows, listed: NeighborList, owner: Tensor, at_boundary: Tensor
    ) -> None:
        owned, count, device = self.capacity.owned, len(self.source), owner.device
        slots = torch.arange(rows.capacity, device=device)
        source = listed.rows_of(self.source)
        neighbor = listed.index[source].to(torch.int64)
        kept = (slots < listed.count[self.source][:, None]) & self.is_used[:, None]
        kept[owned:] &= owner[neighbor[owned:]] == self.number
        # Slots that are kept come first, in their order.
        order = (~kept).to(torch.int8).argsort(dim=1, stable=True)
        kept = kept.gather(1, order)
        itself = torch.arange(count, dtype=torch.int32, device=device)[:, None]
        index = self.place[neighbor.gather(1, order)]
        rows.index.copy_(torch.where(kept, index, itself))
        image = listed.image[source].gather(1, order)
        rows.image.copy_(torch.where(kept, image, len(listed.offsets) // 2))
        reverse = listed.reverse[source].gather(1, order)
        rows.reverse.copy_(torch.where(kept, reverse, slots.to(reverse.dtype)))
        rows.count.copy_(kept.sum(1))
        rows.wrap.copy_(listed.wrap[self.source])
        ordered = listed.order.to(torch.int64)
        ordered = ordered[owner[ordered] == self.number]
        far, near = (self.place[ordered[at_boundary[ordered] == flag]] for flag in (False, True))
        padding = (~self.is_used[:owned]).nonzero().flatten()
        order = torch.cat([far, padding, near])
        # Atoms that were left out may have the places of copies that they were before.
        order = order[order < owned][:owned]
        rows.order[: len(order)] = order.to(rows.order.dtype)


def _buffers(system: State, capacity: SubdomainCapacity) -> State:
    """Buffers for the local atoms; rows of own ones have the elements of their regions."""
    elements = system.elements.tolist()
    numbers = np.full(capacity.rows, elements[0])
    numbers[: capacity.owned] = np.repeat(elements, capacity.own)
    local = System(
        numbers=numbers,
        positions=np.zeros((capacity.rows, 3)),
        cell=system.cell[0].double().cpu().numpy(),
        pbc=system.pbc[0].cpu().numpy(),
    )
    room = BatchCapacity(capacity.rows, tuple(elements))
    state = State([local], system.device, system.dtype, room=room)
    state.cell, state.charge = system.cell, system.charge
    return state
