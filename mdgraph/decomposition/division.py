"""Division: which atoms belong to which domain, cut anew whenever a list was built.

Two cutters do it: torch on the host, and Triton's kernels, which have static shapes and return at
once where no list was built since, so that they are part of a CUDA graph. Both are functions of
the positions that the lists were built from and of planes. Where a domain has more atoms than its
buffers have room for, the rest is left out, and `outgrown` says so.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import torch
from torch import Tensor

from mdgraph.decomposition.bricks import BrickGrid
from mdgraph.decomposition.subdomain import Subdomain, SubdomainCapacity
from mdgraph.gpu.launch import step_kernels_on
from mdgraph.neighbors import NeighborList
from mdgraph.state import State

_LEAP: Final = 64
"""Atoms beside twice the room of a region, by which it grows at most for what a run met."""


class Cutter(Protocol):
    """Cuts domains of a system."""

    def membership(self) -> tuple[Tensor, Tensor]:
        """Owner (N,) int64 and neighbors (N, D) bool of all atoms, see `Subdomain.cut_`."""
        ...

    def cut_(self, domains: Sequence[Subdomain]) -> None:
        """Cuts them, if a list was built since the last cut."""
        ...

    def forget_where_(self, condition: Tensor) -> None:
        """Makes the next cut due where a condition () bool holds."""
        ...

    def give_(self, owner: Tensor | None) -> None:
        """Takes these owners (N,) int64 from here on, or bricks again; the next cut is due."""
        ...


class TorchCutter:
    """Cuts by torch, where the host finds a cut due."""

    def __init__(
        self, grid: BrickGrid, planes: Tensor, state: State, lists: Sequence[NeighborList]
    ) -> None:
        """Allocates nothing.

        Args:
            grid: of the bricks.
            planes: (P,) between them; read at each cut.
            state: of the system.
            lists: of the system.
        """
        self._grid, self._planes, self._state, self._lists = grid, planes, state, lists
        self._builds: list[int] = []
        self._owner: Tensor | None = None

    def give_(self, owner: Tensor | None) -> None:
        """See Cutter."""
        self._owner, self._builds = owner, []

    def forget_where_(self, condition: Tensor) -> None:
        """See Cutter; syncs."""
        if bool(condition):
            self._builds = []

    def membership(self) -> tuple[Tensor, Tensor]:
        """See Cutter."""
        owner = self._owner
        if owner is None:
            first = self._lists[0]
            reference = first.reference_positions, first.reference_cell
            owner = self._grid.owners(*reference, self._state.pbc, self._planes)
        neighbors = torch.zeros(len(owner), len(self._grid), dtype=torch.bool, device=owner.device)
        for listed in self._lists:
            atoms = listed.count.nonzero().flatten()
            found = owner[listed.index[listed.rows_of(atoms)].to(torch.int64)]
            neighbors[atoms] |= torch.zeros_like(neighbors[atoms]).scatter_(1, found, True)
        return owner, neighbors

    def cut_(self, domains: Sequence[Subdomain]) -> None:
        """See Cutter; syncs."""
        builds = [int(listed.rebuilds) for listed in self._lists]
        if builds == self._builds:
            return
        owner, neighbors = self.membership()
        for domain in domains:
            domain.cut_(owner, neighbors, self._state, self._lists)
        self._builds = builds


def _cutter_class(device: torch.device) -> Callable[..., Cutter]:
    """Kernels on CUDA, where Triton is installed; torch elsewhere."""
    if step_kernels_on(device):
        from mdgraph.decomposition.cutting_kernels import KernelCutter

        return KernelCutter
    return TorchCutter


class Division:
    """The domains of one process.

    Attributes:
        domains: in the order of their numbers.
    """

    def __init__(
        self,
        numbers: Sequence[int],
        grid: BrickGrid,
        planes: Tensor,
        state: State,
        lists: Sequence[NeighborList],
        rounding: int,
        before: "Division | None" = None,
        agree_: Callable[[Tensor], None] | None = None,
    ) -> None:
        """Allocates room for the domains as they are now, and cuts them. Reads the device.

        Args:
            numbers: of the domains of this process.
            grid: of all bricks.
            planes: (P,) between them, a buffer.
            state: of the system.
            lists: complete ones.
            rounding: of which the number of own rows of a domain is a multiple.
            before: a division of the same system, whose largest counts, and buffers where they
                suffice, are taken over.
            agree_: gives all processes the largest of their numbers, on the host; None for one.
        """
        self._planes = planes
        self._cutter = _cutter_class(state.device)(grid, planes, state, lists)
        owner, neighbors = self._cutter.membership()
        earlier = {} if before is None else {domain.number: domain for domain in before.domains}
        found = []
        for number in numbers:
            counts = _counts(number, owner, neighbors, state)
            if number in earlier:
                counts = torch.maximum(counts, _credible(earlier[number]))
            found.append(counts)
        if agree_ is not None:
            _agree_(numbers, found, len(state.elements), agree_)
        self.domains: list[Subdomain] = []
        for number, counts in zip(numbers, found, strict=True):
            known = earlier.pop(number, None)
            capacity = SubdomainCapacity.of(
                counts.tolist(),
                len(state.elements),
                rounding,
                None if known is None else known.capacity,
            )
            if known is None or known.capacity != capacity or not known.fits(state, lists):
                if known is not None:
                    known.state.workspaces.clear()  # frees most of its memory first
                known = Subdomain(number, state, lists, capacity)
                known.most.copy_(counts)
            self.domains.append(known)
        sizes = [size for domain in self.domains for size in domain.capacity.sizes]
        self._sizes = torch.tensor(sizes, dtype=torch.int32, device=state.device)
        self._cutter.cut_(self.domains)

    def update_(self) -> None:
        """Cuts the domains anew if a list was built; static shapes, does not sync on CUDA."""
        self._cutter.cut_(self.domains)

    def give_(self, owner: Tensor | None) -> None:
        """Has the domains hold the atoms that they own by (N,) int64, or those in their bricks.

        The next update cuts them anew; does not sync.
        """
        self._cutter.give_(owner)

    def replace_planes_(self, planes: Tensor) -> None:
        """Takes other planes (P,), which makes the next cut due; does not sync on CUDA."""
        self._cutter.forget_where_((planes != self._planes).any())
        self._planes.copy_(planes)

    def outgrown(self) -> Tensor:
        """() bool, whether a domain had more atoms than its buffers hold; does not sync."""
        most = torch.cat([domain.most for domain in self.domains])
        return (most > self._sizes).any()


def _credible(domain: Subdomain) -> Tensor:
    """Largest counts of a domain, as far as it may have met them without having outgrown before.

    Steps that come after an overflow are repeated, and may have led anywhere.
    """
    sizes = torch.tensor(domain.capacity.sizes, dtype=torch.int32, device=domain.most.device)
    return torch.minimum(domain.most, 2 * sizes + _LEAP)


def _agree_(
    numbers: Sequence[int],
    counts: Sequence[Tensor],
    elements: int,
    agree_: Callable[[Tensor], None],
) -> None:
    """Raises what domains send and receive to the largest number that either side found.

    Both count the same atoms, unless a list was incomplete on one side alone.
    """
    domains = (len(counts[0]) - elements - 1) // 2
    parts = [item[elements:-1].view(2, domains) for item in counts]
    sent = torch.zeros(domains, domains, dtype=torch.int32)
    for number, (received, given) in zip(numbers, parts, strict=True):
        sent[number] = torch.maximum(sent[number], given.cpu())
        sent[:, number] = torch.maximum(sent[:, number], received.cpu())
    agree_(sent)
    for number, part in zip(numbers, parts, strict=True):
        part.copy_(torch.stack([sent[:, number], sent[number]]))


def _counts(number: int, owner: Tensor, neighbors: Tensor, state: State) -> Tensor:
    """(E + 2 D + 1,) int32, atoms in the regions of a domain, see `Subdomain.most`."""
    elements, domains = len(state.elements), neighbors.shape[1]
    own = owner == number
    # Without bincount, whose length depends on values.
    of_elements = torch.stack([(own & (state.kinds == kind)).sum() for kind in range(elements)])
    needed = neighbors[:, number] & ~own
    received = torch.stack([(needed & (owner == other)).sum() for other in range(domains)])
    sent = (neighbors & own[:, None]).sum(0)
    sent[number] = 0
    others = torch.arange(domains, device=owner.device) != number
    boundary = (own & (neighbors & others).any(1)).sum()
    return torch.cat([of_elements, received, sent, boundary[None]]).to(torch.int32)
