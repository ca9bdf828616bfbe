"""DividedSystem: what a process has of a system that is divided among domains."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from weakref import ReferenceType

import torch
from torch import Tensor

from mdgraph.decomposition.bricks import BrickGrid
from mdgraph.decomposition.division import Division
from mdgraph.decomposition.exchange import Exchange, MessageLink, ProcessExchange
from mdgraph.decomposition.own_atoms import OwnAtoms
from mdgraph.decomposition.region import Region
from mdgraph.decomposition.row_operations import operations
from mdgraph.decomposition.subdomain import Subdomain
from mdgraph.fused.evaluator import FusedTensorNet
from mdgraph.gpu.launch import Branch
from mdgraph.host_tensors import zeros_on_host
from mdgraph.neighbors import NeighborList
from mdgraph.neighbors.torch_builder import Brick
from mdgraph.state import State

_SMALL: Final = 16_000
"""Rows of a domain up to which two of a process are evaluated side by side: of 12,000 atoms each
they take 4 % less on an H200 than one after the other, of 24,600 3 % more, as each takes what the
other has in the cache."""

_ROUNDING: Final = 1e-3
"""A, so that ranks that know fewer atoms differ in none that is near."""


@dataclass(frozen=True)
class WholeSystem:
    """The system that is divided, of which rank 0 has all atoms.

    Attributes:
        reference: to the state, which has what is made of it.
        lists: of the state. Where the region of rank 0 is a part they have no rows, and rest; their
            references say from what the lists of regions are built.
        planes: between the bricks; those of regions follow them.
    """

    reference: "ReferenceType[State]"
    lists: Sequence[NeighborList]
    planes: Tensor

    @property
    def state(self) -> State:
        """Of all atoms."""
        state = self.reference()
        assert state is not None
        return state


class DividedSystem:
    """What a process has of a divided system: its domains, and what goes between processes.

    Attributes:
        number: of the system, in calls of other ranks.
        region: the atoms that this process has.
        whole: on rank 0, or where there is no other; None elsewhere.
        lists: of the region.
        grid: the bricks.
        planes: (P,) T, between the bricks; on several ranks they follow atoms, before a chunk.
        margin: A, see OwnAtoms.
        constant: (M,) float64, eV, energies of the atoms that depend on no position.
        cuts: how often buffers were made.
        needed: () float64, A, largest margin that any rank needed.
        outgrown: () bool, whether buffers of any rank were too small since `divide_`; of rank 0.
    """

    def __init__(
        self,
        number: int,
        region: Region,
        lists: Sequence[NeighborList],
        planes: Tensor,
        whole: FusedTensorNet,
        grid: BrickGrid,
        exchange: Exchange,
        margin: float,
        given: WholeSystem | None = None,
    ) -> None:
        """Divides nothing yet.

        Args:
            number: see above.
            region: of this process.
            lists: of its atoms.
            planes: between the bricks.
            whole: what evaluates a domain.
            grid: the bricks.
            exchange: between the domains.
            margin: A, see OwnAtoms.
            given: see `whole`.
        """
        state = region.state
        self.number, self.planes, self.region = number, planes, region
        self.whole = given
        # The state of a part lives as long as this; the whole is somebody else's.
        self._part = None if region.is_whole or exchange.alone else state
        self.margin, self.needed = margin, state.energy.new_zeros(())
        self._stale, self._generation = True, region.generation
        self.cuts = 0
        self._own: OwnAtoms | None = None
        self._adds_up, self._zeroes = True, True
        self.constant = state.energies.new_zeros(0)
        self._operations = operations(state.device)
        self.lists, self._whole = list(lists), whole
        self._exchange, self.grid = exchange, grid
        self._beside = Branch(state.device, "domains")
        self.brick: Brick | None = None
        if not self._exchange.alone:
            (domain,) = self._exchange.numbers
            self.brick = self.grid.brick(domain, planes, margin)
            for item in lists:
                item.limit_(self.brick)
        # Replaced whenever buffers are; kept, as an address would be that of later buffers too.
        self._offsets = [item.offsets for item in (lists if given is None else given.lists)]
        self._division: Division | None = None
        self.outgrown = torch.zeros((), dtype=torch.bool, device=state.device)

    @property
    def domains(self) -> Sequence[Subdomain]:
        """Those of this process; empty before `divide_`."""
        return () if self._division is None else self._division.domains

    def serves(self, lists: Sequence[NeighborList]) -> bool:
        """Whether these are its lists, in the buffers that they had."""
        return all(own is item.offsets for own, item in zip(self._offsets, lists, strict=True))

    @property
    def stale(self) -> bool:
        """Whether buffers are too small."""
        return self._stale or self._generation != self.region.generation

    def outgrow(self) -> None:
        """Has buffers made anew before the next evaluation."""
        self._stale = True

    def divide_(self) -> None:
        """Makes buffers with room for the atoms as they are; all ranks call it together. Syncs."""
        state = self.region.state
        self.share_()
        while not self._exchange.alone and self.region.agree_():
            self.share_()
        self._generation = self.region.generation
        if not self.region.is_whole and not self._exchange.alone:
            # Their plans know nothing of what lists of the whole had met before they were sent.
            for item in self.lists:
                if not item.status().complete:
                    item.grow()
        self._division = Division(
            self._exchange.numbers,
            self.grid,
            self.planes,
            state,
            self.lists,
            self._whole.rounding,
            before=self._division,
            agree_=None if self._exchange.alone else self._exchange.agree_,
        )
        self._link = self._exchange.link(self._division.domains)
        self.outgrown.zero_()
        self.needed.zero_()
        self._stale = False
        self.cuts += 1

    def take_planes_(self, planes: Tensor) -> Tensor:
        """Takes planes (P,) of rank 0, where they are others; () bool. Does not sync on CUDA."""
        moved = (planes != self.planes).any()
        if self._division is not None and len(planes):
            self._division.replace_planes_(planes)
        else:
            self.planes.copy_(planes)
        return moved

    @contextmanager
    def steps(self, own: OwnAtoms, *, adds_up: bool, zeroes: bool) -> Iterator[None]:
        """Within it each rank evaluates its own atoms, from positions that it has.

        All ranks enter it together. Does not sync on CUDA.

        Args:
            own: assigned by the positions of the moment.
            adds_up: whether each evaluation adds up energy and virial; else `settle_` does.
            zeroes: whether each evaluation writes zeros for atoms of others.
        """
        assert self._division is not None
        self._division.give_(own.owner)
        self._own, self._adds_up, self._zeroes = own, adds_up, zeroes
        try:
            yield
        finally:
            self._own = None
            self._division.give_(None)

    @property
    def ranks(self) -> ProcessExchange:
        """The exchange between processes, of which there are several."""
        assert isinstance(self._exchange, ProcessExchange)
        return self._exchange

    @property
    def takes_steps(self) -> bool:
        """Whether it is within `steps`."""
        return self._own is not None

    def evaluate_own_(self) -> None:
        """Evaluates within `steps`; all ranks call it together.

        Static shapes; does not sync on CUDA. Energies and forces of own atoms are written into
        the state; energy and virial are those of own atoms until they are added up.
        """
        state, division = self.region.state, self._division
        assert division is not None
        assert self._own is not None
        with torch.no_grad():
            self._join()
            division.update_()
            (domain,) = division.domains
            self._exchange_features(division.domains)
            assert isinstance(self._link, MessageLink)
            self._link.give_back_(domain.result.forces)
            if self._zeroes:
                state.forces.zero_()
                state.energies.zero_()
            atoms, used = self._own.atoms, self._own.used
            self._operations.take_(atoms, used, domain.place, domain.result, self.constant, state)
            if self._adds_up:
                self._add_up_([state.energy, state.virial])

    def settle_(self, sums: Sequence[Tensor], outgrown: Tensor) -> None:
        """Adds up sums over own atoms at the end of `steps`, and what has outgrown its buffers.

        Static shapes; does not sync on CUDA. All ranks call it together.

        Args:
            sums: of this rank; written.
            outgrown: () bool, whether buffers for own atoms have been too small.
        """
        assert self._division is not None
        assert self._own is not None
        outgrown = self._overflowed(self._division) | outgrown
        flags = self._add_up_(sums, [outgrown.double()[None], self._own.start.needed.amax()[None]])
        torch.maximum(self.needed, flags[:, 1].amax(), out=self.needed)
        self.outgrown.logical_or_((flags[:, 0] != 0).any() | (self.needed > self.margin))

    def _add_up_(self, sums: Sequence[Tensor], flags: Sequence[Tensor] = ()) -> Tensor:
        """Adds up sums in the order of the ranks, and returns the flags (P, F) of all ranks."""
        found = self.ranks.gather(torch.cat([*(value.flatten() for value in sums), *flags]))
        sizes = [value.numel() for value in sums]
        parts = found[:, : sum(sizes)].sum(0).split(sizes)
        for value, part in zip(sums, parts, strict=True):
            value.copy_(part.view_as(value))
        return found[:, sum(sizes) :]

    def _exchange_features(self, domains: Sequence[Subdomain]) -> None:
        """Evaluates domains of this process, with features of the others."""
        for number, features in enumerate(self._stages(domains)):
            if number % 2 == 0:
                self._link.begin_(features)
            else:
                self._link.end_()

    def evaluate_(self) -> Tensor | None:
        """Evaluates the domains of this process; all ranks call it together.

        Static shapes; does not sync on CUDA. On rank 0 results are written into the state.

        Returns:
            On other ranks (M + 2, 5) float64, what was found here: number, force and energy of each
            atom, then the virial and whether buffers are too small.
        """
        state, division, exchange = self.region.state, self._division, self._exchange
        assert division is not None
        with torch.no_grad():
            self.share_()
            division.update_()
            domains = division.domains
            self._exchange_features(domains)
            atoms, alone = len(state.numbers), exchange.alone
            forces, energies = state.energies.new_zeros(atoms, 3), state.energies.new_zeros(atoms)
            virials = energies.new_zeros(9, atoms)
            for domain in domains:
                domain.add_to_(forces, energies, virials)
            # One after the other, so that the number of other atoms moves no bit.
            virial = virials.sum(1) if alone else virials.cumsum(1)[:, -1]
            sums = torch.cat([virial, self._overflowed(division).double()[None]])
            found, lengths = [], [size + 2 for size in self.region.sizes]
            if not self.region.is_whole:
                columns = [self.region.atoms.double()[:, None], forces, energies[:, None]]
                found.append(torch.cat([torch.cat(columns, 1), sums.view(2, 5)]))
                if not exchange.leads:
                    exchange.collect(found[0], lengths)
                    return found[0]
                assert self.whole is not None
                total, device = self.region.total, state.device
                zeros = zeros_on_host if self.whole.state.on_host else torch.zeros
                forces, energies = (
                    zeros(*shape, dtype=torch.float64, device=device)
                    for shape in ((total, 3), (total,))
                )
                sums = torch.zeros_like(sums)
            found += exchange.collect(sums.view(2, 5), lengths)
            self._take_whole_(forces, energies, sums, found)
        return None

    def _take_whole_(
        self, forces: Tensor, energies: Tensor, sums: Tensor, found: Sequence[Tensor]
    ) -> None:
        """Writes results into the whole state, those of regions (M + 2, 5) added up in order."""
        for one in found:
            numbers = one[:-2, 0].to(torch.int64)
            forces.index_add_(0, numbers, one[:-2, 1:4])
            energies.index_add_(0, numbers, one[:-2, 4])
            sums += one[-2:].flatten()
        self.outgrown.logical_or_(sums[-1] != 0)
        assert self.whole is not None
        state = self.whole.state
        state.forces.copy_(forces)
        torch.add(energies, self._whole.constant_energies(state), out=state.energies)
        state.energy.copy_(state.energies.sum(0, keepdim=True))
        state.virial.copy_(sums[:-1].view(1, 3, 3))

    @property
    def reach(self) -> float:
        """A, from a brick, within which its rank needs atoms, however old lists are."""
        return max(item.cutoff + 2.0 * item.skin for item in self.lists) + _ROUNDING

    def share_(self) -> None:
        """Brings region and lists of other ranks up to date with those of rank 0.

        All ranks call it together. Does not sync on CUDA.
        """
        self._join()
        if self.brick is None:
            return
        region, whole = self.region, self.whole
        state, lists = region.state, self.lists
        known: Sequence[NeighborList] = lists
        given, planes = state, self.planes
        if whole is not None:
            given, known, planes = whole.state, whole.lists, whole.planes
        own = [given.cell, given.charge, planes, *(item.reference_cell for item in known)]
        shared = torch.cat([value.flatten() for value in own])
        self._exchange.share_(shared)()
        parts = shared.split([value.numel() for value in own])
        cell, charge, planes, *cells = (
            part.view_as(value) for part, value in zip(parts, own, strict=True)
        )
        places = [given.positions, *(item.reference_positions for item in known)]
        moved = self.take_planes_(planes)
        if not region.is_whole:
            state.cell.copy_(cell)
            state.charge.copy_(charge)
        found = region.share_(
            given.numbers, places, [state.cell, *cells], [], self.brick, self.reach
        )
        self.take_constant_()
        for item, place, vectors in zip(lists, found[1:], cells, strict=False):
            if item.grouping is not state.grouping:
                item.renew_(state, place, vectors)
            else:
                item.follow_(place, vectors, moved)

    def take_constant_(self) -> None:
        """Finds constant energies of the atoms that the region has now; does not sync."""
        constant = self._whole.constant_energies(self.region.state, self.region.total)
        if self.constant.shape == constant.shape:
            self.constant.copy_(constant)  # which graphs read
        else:
            self.constant = constant

    def leave(self) -> None:
        """Lets the lists of the whole have rows of all atoms again; reads the device."""
        for item in self.lists if self.whole is None else self.whole.lists:
            item.limit_(None)

    def _join(self) -> None:
        for item in self.lists:
            item.join()

    def _overflowed(self, division: Division) -> Tensor:
        """() bool, of this process; lists of the whole have a check of their own."""
        flag = division.outgrown()
        if not self.region.is_whole:
            flag = flag | self.region.outgrown()
            for item in self.lists:
                flag = flag | item.overflowed()
        return flag

    def _stages(self, domains: Sequence[Subdomain]) -> Iterator[Sequence[Tensor]]:
        """Features of all domains at each stage, see `DividedNetwork`.

        Every second small domain of a process is evaluated on a stream of its own: a kernel of a
        part of the atoms ends with multiprocessors that have nothing to do, and kernels of another
        domain fill them.
        """
        stages = [self._stages_of(domain) for domain in domains]
        features: list[Any] = [None] * len(stages)
        beside = len(stages) > 1 and max(one.capacity.owned for one in domains) <= _SMALL
        step = 2 if beside else 1
        while True:
            if beside:
                with self._beside.fork():
                    features[1::2] = [next(one, None) for one in stages[1::2]]
            features[::step] = [next(one, None) for one in stages[::step]]
            self._beside.join()
            if features[0] is None:
                return
            yield features

    def _stages_of(self, domain: Subdomain) -> Iterator[Tensor]:
        domain.load_(self.region.state)
        owned = domain.capacity.owned
        yield from self._whole.domain_stages_(domain.state, domain.lists, domain.result, owned)
