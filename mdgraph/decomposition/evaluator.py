"""DecomposedEvaluator: evaluates one system in several domains, layer by layer.

What costs, features and their products (54 of 59 KB an atom at 128 channels and two layers), is
divided: a domain evaluates its own atoms, and receives features of the atoms around it before
every sum over neighbors, and their gradients on the way back. Forces on these atoms go back to
their owners in one sum. On several ranks steps are divided too: each rank moves its own atoms
(`mdgraph.engine.own_steps`), and evaluates them from positions that it has, within `steps` of a
`DividedSystem`; rank 0 alone drives, and a single evaluation is one that it sends positions for.
"""

import itertools
import logging
import math
import os
import signal
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary, finalize, ref

import numpy as np
import torch
from torch import Tensor

from mdgraph.decomposition.bricks import BrickGrid, widths_of
from mdgraph.decomposition.division import Division
from mdgraph.decomposition.exchange import (
    Call,
    CallMessage,
    Exchange,
    LocalExchange,
    MessageLink,
    ProcessExchange,
)
from mdgraph.decomposition.own_atoms import MARGIN, OwnAtoms
from mdgraph.decomposition.own_rows import operations
from mdgraph.decomposition.subdomain import Subdomain
from mdgraph.errors import InputError, LostRankError
from mdgraph.evaluators import Evaluator, MultipleTimeStepEvaluator, SumEvaluator
from mdgraph.fused.evaluator import FusedTensorNet
from mdgraph.gpu.launch import Branch
from mdgraph.models import ListRoles, TensorNetPotential
from mdgraph.neighbors import NeighborList
from mdgraph.neighbors.torch_builder import Brick
from mdgraph.precision import Precision
from mdgraph.signals import SIGNALS
from mdgraph.state import State
from mdgraph.system import System

logger = logging.getLogger(__name__)


_SMALL: Final = 16_000
"""Rows of a domain up to which two of a process are evaluated side by side: of 12,000 atoms each
they take 4 % less on an H200 than one after the other, of 24,600 3 % more, as each takes what the
other has in the cache."""


class DividedSystem:
    """What a process has of a divided system: its domains, and what goes between processes.

    Attributes:
        number: of the system, in calls of other ranks.
        lists: of it.
        grid: the bricks.
        planes: (P,) T, between the bricks; they stay where they were at the start.
        margin: A, see OwnAtoms.
        stale: whether buffers are too small.
        cuts: how often buffers were made.
        needed: () float64, A, largest margin that any rank needed.
        outgrown: () bool, whether buffers of any rank were too small since `divide_`; of rank 0.
    """

    def __init__(
        self,
        number: int,
        state: State,
        lists: Sequence[NeighborList],
        evaluator: "DecomposedEvaluator",
        planes: Tensor,
    ) -> None:
        """Divides nothing yet.

        Args:
            number: see above.
            state: of the whole system, which other ranks have without velocities.
            lists: of it.
            evaluator: of it.
            planes: between the bricks.
        """
        self.number, self.planes, self.stale = number, planes, True
        self.margin, self.needed = evaluator.margin, state.energy.new_zeros(())
        self.cuts = 0
        self._own: OwnAtoms | None = None
        self._adds_up, self._zeroes = True, True
        self._constant = state.energies.new_zeros(0)
        self._operations = operations(state.device)
        self._state = ref(state)
        self.lists, self._whole = list(lists), evaluator.whole
        self._exchange, self.grid = evaluator.exchange, evaluator.grid
        self._beside = Branch(state.device, "domains")
        if not self._exchange.alone:
            (domain,) = self._exchange.numbers
            for item in lists:
                item.limit_(self.grid.brick(domain, planes, self.margin))
        # Replaced whenever buffers are; kept, as an address would be that of later buffers too.
        self._offsets = [item.offsets for item in lists]
        self._division: Division | None = None
        self.outgrown = torch.zeros((), dtype=torch.bool, device=state.device)

    @property
    def domains(self) -> Sequence[Subdomain]:
        """Those of this process; empty before `divide_`."""
        return () if self._division is None else self._division.domains

    def serves(self, lists: Sequence[NeighborList]) -> bool:
        """Whether these are its lists, in the buffers that they had."""
        return all(own is item.offsets for own, item in zip(self._offsets, lists, strict=True))

    def _inputs(self, state: State) -> list[Tensor]:
        """What other ranks need for an evaluation, all in the dtype of the state.

        Positions, cell, charge and planes, then reference positions and cell of each list.
        """
        references = [(item.reference_positions, item.reference_cell) for item in self.lists]
        own = [state.positions, state.cell, state.charge, self.planes]
        return [*own, *itertools.chain(*references)]

    def divide_(self) -> None:
        """Makes buffers with room for the atoms as they are; all ranks call it together. Syncs."""
        state = self._whole_state()
        self._share_(state)
        if not self._exchange.leads:
            # Their plans know nothing of what lists of rank 0 had met before they were sent.
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
        if not self._exchange.alone:
            self._constant = self._whole.constant_energies(state)
        self.stale = False
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
        state, division = self._whole_state(), self._division
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
            self._operations.take_(atoms, used, domain.place, domain.result, self._constant, state)
            if self._adds_up:
                self._add_up_([state.energy, state.virial])

    def settle_(self, sums: Sequence[Tensor]) -> None:
        """Adds up sums over own atoms at the end of `steps`, and what has outgrown its buffers.

        Static shapes; does not sync on CUDA. All ranks call it together.
        """
        assert self._division is not None
        assert self._own is not None
        outgrown = self._overflowed(self._division) | self._own.outgrown()
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

    def evaluate_(self) -> Tensor:
        """Evaluates the domains of this process; all ranks call it together.

        Static shapes; does not sync on CUDA. On rank 0 results are written into the state.

        Returns:
            (4N + 10,) float64: what was found here of forces, energies, virial, and whether
            buffers are too small; on rank 0 of all ranks.
        """
        state, division = self._whole_state(), self._division
        assert division is not None
        with torch.no_grad():
            self._share_(state)
            division.update_()
            domains = division.domains
            self._exchange_features(domains)
            atoms = len(state.numbers)
            found = state.energies.new_zeros(4 * atoms + 10)
            forces, energies, virial, outgrown = found.split([3 * atoms, atoms, 9, 1])
            virials = virial.new_zeros(9, atoms)
            for domain in domains:
                domain.add_to_(forces.view(atoms, 3), energies, virials)
            # Over atoms, not rows, whose number would change the bits.
            torch.sum(virials, 1, out=virial)
            outgrown.copy_(self._overflowed(division))
            self._exchange.sum_(found)
            if not self._exchange.leads:
                return found
            self.outgrown.logical_or_(outgrown[0] != 0)
            state.forces.copy_(forces.view(atoms, 3))
            torch.add(energies, self._whole.constant_energies(state), out=state.energies)
            state.energy.copy_(state.energies.sum(0, keepdim=True))
            state.virial.copy_(virial.view(1, 3, 3))
        return found

    def _whole_state(self) -> State:
        state = self._state()
        assert state is not None
        return state

    def _share_(self, state: State) -> None:
        """Brings state and lists of other ranks up to date with those of rank 0."""
        if self._exchange.alone:
            self._join()
            return
        own = self._inputs(state)
        shared = torch.cat([value.flatten() for value in own])
        wait = self._exchange.share_(shared)
        if self._exchange.leads:
            self._join()  # searches meanwhile
            wait()
            return
        wait()
        parts = shared.split([value.numel() for value in own])
        positions, cell, charge, planes, *references = (
            part.view_as(value) for part, value in zip(parts, own, strict=True)
        )
        state.positions.copy_(positions)
        state.cell.copy_(cell)
        state.charge.copy_(charge)
        moved = self.take_planes_(planes)
        for item, place, vectors in zip(self.lists, references[::2], references[1::2], strict=True):
            item.follow_(place, vectors, moved)

    def leave(self) -> None:
        """Lets the lists have rows of all atoms again; reads the device."""
        for item in self.lists:
            item.limit_(None)

    def _join(self) -> None:
        for item in self.lists:
            item.join()

    def _overflowed(self, division: Division) -> Tensor:
        """() bool, of this process; lists of rank 0 have a check of their own."""
        flag = division.outgrown()
        if not self._exchange.leads:
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
        domain.load_(self._whole_state())
        owned = domain.capacity.owned
        yield from self._whole.domain_stages_(domain.state, domain.lists, domain.result, owned)


class DecomposedEvaluator(Evaluator):
    """A FusedTensorNet whose work on one system is divided among domains.

    Planes between bricks are put such that all hold as many atoms at the start, and stay; the
    domains are cut anew whenever the lists are built. States of another number of atoms are
    evaluated whole, by this process.

    Attributes:
        whole: the evaluator of undivided states.
        atoms: of the system.
        grid: the bricks.
        exchange: between the domains.
        margin: A, see OwnAtoms.
        number: of the evaluator, in calls of other ranks.
        divides: whether it does; see `divide_`.
    """

    potential: TensorNetPotential

    def __init__(
        self, whole: FusedTensorNet, atoms: int, grid: BrickGrid, exchange: Exchange | None = None
    ) -> None:
        """Allocates nothing.

        Args:
            whole: what evaluates a domain.
            atoms: of the system.
            grid: bricks along the axes.
            exchange: between the domains; without it all are in this process.

        Raises:
            InputError: see `FusedTensorNet.rounding`.
        """
        self.rounding = whole.rounding
        self.whole, self.grid = whole, grid
        self.exchange = LocalExchange(len(grid)) if exchange is None else exchange
        self.atoms = atoms
        self.divides, self.margin = True, MARGIN
        self.number = next(_NUMBERS)
        self.potential = whole.potential
        self.cutoffs, self.precision, self.device = whole.cutoffs, whole.precision, whole.device
        self.rounds = whole.rounds
        if self.exchange.leads:
            kind = whole.device.type
            self.exchange.call_(
                Call.ADD,
                self.number,
                lambda: _Part(deepcopy(whole.potential).cpu(), whole.precision, kind, atoms, grid),
            )
            self.exchange.open_(kind)
            self.exchange.finish_()
            drop = self.exchange.drop
            finalize(self, drop, Call.DROP_EVALUATOR, self.number).atexit = False

    @property
    def list_roles(self) -> ListRoles:
        """See Evaluator."""
        return self.whole.list_roles

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        """See Evaluator. Static shapes; does not sync on CUDA once buffers are there.

        Where a list overflowed before there are any nothing is written, as the step will be
        repeated.
        """
        if not self.divides or state.grouping.sizes != (self.atoms,):
            self.whole.evaluate_(state, lists)
            return
        own: DividedSystem | None = state.workspaces.get(self)
        if own is not None and own.takes_steps:
            own.evaluate_own_()
            return
        divided = self.divided(state, lists)
        if divided is None:
            return
        self.exchange.call_(Call.EVALUATE, divided.number)
        divided.evaluate_()
        self.exchange.finish_()

    def division(self, state: State) -> dict[str, Tensor]:
        """See Evaluator."""
        divided: DividedSystem | None = state.workspaces.get(self)
        return {} if divided is None else {f"planes of {self.grid}": divided.planes}

    def outgrown(self, state: State) -> Tensor | None:
        """See Evaluator."""
        divided: DividedSystem | None = state.workspaces.get(self)
        return None if divided is None else divided.outgrown

    def grow_(self, state: State) -> None:
        """See Evaluator."""
        divided: DividedSystem | None = state.workspaces.get(self)
        if divided is not None:
            divided.stale = True
            if (needed := float(divided.needed)) > self.margin:
                # Steps that come after an overflow are repeated, and may have led anywhere.
                self.margin = min(1.3 * needed, 2.0 * self.margin + 2.0)

    def has(self, divided: DividedSystem, state: State) -> bool:
        """Whether this evaluator has made the domains of a state."""
        return state.workspaces.get(self) is divided

    def shares(self, state: State) -> bool:
        """Whether other ranks have a part of a state, so that all take steps together."""
        return not self.exchange.alone and self.divides and state.grouping.sizes == (self.atoms,)

    def divided(self, state: State, lists: Sequence[NeighborList]) -> DividedSystem | None:
        """Domains of a state; made, and enlarged, by all ranks together. None: see `evaluate_`."""
        divided: DividedSystem | None = state.workspaces.get(self)
        same = divided is not None and divided.serves(lists) and divided.margin == self.margin
        if divided is not None and same and not divided.stale:
            return divided
        if not all(item.status().complete for item in lists):
            return None
        if divided is None or not same:
            first = lists[0]
            if divided is not None:
                planes = divided.planes
            elif first.brick is not None:  # of another evaluator with the same lists
                planes = first.brick.planes
            else:
                planes = self.grid.planes(
                    first.reference_positions, first.reference_cell, state.pbc
                )
            divided = None
            state.workspaces.pop(self, None)  # frees its memory first
            divided = DividedSystem(next(_NUMBERS), state, lists, self, planes)
            if not self.exchange.alone:
                finalize(divided, self.exchange.drop, Call.DROP, divided.number).atexit = False
            state.workspaces[self] = divided
            message = partial(_Reference.of, self, state, lists, planes)
            self.exchange.call_(Call.BEGIN, divided.number, message)
        else:
            self.exchange.call_(Call.GROW, divided.number)
        divided.divide_()
        self.exchange.finish_()
        return divided

    def divide_(self, state: State, divides: bool) -> None:
        """Divides the work on a state from here on, or does it whole, on rank 0.

        Lists must be built again before the next evaluation, and graphs captured. The memory that
        the other way took is free then.
        """
        self.divides = divides
        if divides:
            self.whole.release_(state)
        else:
            self.replace_(state)

    def replace_(self, state: State) -> None:
        """See WorkspaceOwner: domains are cut anew for other systems."""
        divided: DividedSystem | None = state.workspaces.pop(self, None)
        if divided is not None:
            divided.leave()


_NUMBERS: Final = itertools.count(1)
"""Numbers of evaluators, systems, states and lists, in calls of other ranks."""

_NUMBERED: Final[WeakKeyDictionary[Any, tuple[int, object]]] = WeakKeyDictionary()


def _number_of(thing: State | NeighborList, version: object = None) -> int:
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
class _Reference:
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
        evaluator: "DecomposedEvaluator",
        state: State,
        lists: Sequence[NeighborList],
        planes: Tensor,
    ) -> "_Reference":
        """That of a state and its lists; syncs."""
        first = lists[0]
        return cls(
            evaluator.number,
            _number_of(state),
            tuple(_number_of(item, item.offsets) for item in lists),
            state.numbers.cpu().numpy(),
            state.pbc[0].cpu().numpy(),
            first.reference_positions.cpu().numpy(),
            first.reference_cell.cpu().numpy(),
            tuple(item.skin for item in lists),
            tuple(item.capacity for item in lists),
            planes.cpu().numpy(),
            evaluator.margin,
        )

    def state(self, device: torch.device, dtype: torch.dtype) -> State:
        """A state at the reference."""
        system = System(self.numbers, self.positions.astype(np.float64), self.cell[0], self.pbc)
        state = State([system], device, dtype)
        state.positions.copy_(torch.from_numpy(self.positions))
        return state

    def lists(
        self,
        state: State,
        cutoffs: Sequence[float],
        brick: Brick,
        known: MutableMapping[int, NeighborList] | None = None,
    ) -> list[NeighborList]:
        """Lists of such a state, one for each cutoff, with rows for a brick; known ones again."""
        known = {} if known is None else known
        found = []
        limits = zip(self.list_numbers, cutoffs, self.skins, self.capacities, strict=True)
        for number, cutoff, skin, capacity in limits:
            item = known.get(number)
            if item is None:
                item = NeighborList(state, cutoff, skin, capacity, brick=brick)
                known[number] = item
            found.append(item)
        return found


@dataclass(frozen=True)
class _Part:
    """What another rank needs to make the same evaluator; see DecomposedEvaluator."""

    potential: TensorNetPotential
    precision: Precision
    device_type: str
    atoms: int
    grid: BrickGrid


def join_ranks() -> ProcessExchange | None:
    """Joins the ranks that torchrun started; those other than 0 do not come back from here.

    They evaluate domains until rank 0 ends, and exit. Signals are left to rank 0, which ends them.

    Returns:
        What rank 0 calls the others by; None without other ranks.

    Raises:
        InputError: see `ProcessRank.joined`.
    """
    exchange = ProcessExchange.joined()
    if exchange is None or exchange.leads:
        return exchange
    for ending in SIGNALS:
        signal.signal(ending, signal.SIG_IGN)
    logging.getLogger("mdgraph").setLevel(logging.WARNING)  # rank 0 tells what all do
    try:
        _Server(exchange).serve()
    except LostRankError as error:
        raise SystemExit(1) from error
    raise SystemExit(0)


@dataclass(frozen=True)
class DividedPart:
    """What a rank has of a system, and of one of its evaluators."""

    evaluator: DecomposedEvaluator
    state: State
    divided: DividedSystem


class Follower(Protocol):
    """Takes steps on a rank other than 0."""

    def follow(self, request: Any) -> None:
        """Takes those that rank 0 asks for."""
        ...

    def forget(self) -> None:
        """Drops graphs."""
        ...


class Beginning(Protocol):
    """What rank 0 sends so that other ranks can take steps of a system.

    Attributes:
        before: number of the steps whose place these take, or 0.
    """

    before: int

    def follower(self, part: Callable[[int], DividedPart], before: Follower | None) -> Follower:
        """What takes them.

        Args:
            part: what this rank has of each divided system, by its number.
            before: what took the steps before.
        """
        ...


class _Server:
    """Does on a rank other than 0 what rank 0 calls for."""

    def __init__(self, exchange: ProcessExchange) -> None:
        self._exchange = exchange
        self._evaluators: dict[int, DecomposedEvaluator] = {}
        self._systems: dict[int, tuple[State, DividedSystem]] = {}
        self._states: WeakValueDictionary[int, State] = WeakValueDictionary()
        self._lists: WeakValueDictionary[int, NeighborList] = WeakValueDictionary()
        self._steps: dict[int, Follower] = {}
        self._device = torch.device("cpu")

    def serve(self) -> None:
        """Until rank 0 ends; raises LostRankError."""
        while (message := self._exchange.receive()).call is not Call.END:
            self._do(message)

    def _do(self, message: CallMessage) -> None:
        number, content = message.number, message.content
        match message.call:
            case Call.ADD:
                self._device = self._exchange.open_(content.device_type)
                whole = FusedTensorNet(content.potential, content.precision, self._device)
                self._evaluators[number] = DecomposedEvaluator(
                    whole, content.atoms, content.grid, self._exchange
                )
            case Call.BEGIN:
                self._begin(number, content)
            case Call.GROW:
                self._systems[number][1].divide_()
            case Call.EVALUATE:
                self._systems[number][1].evaluate_()
            case Call.BEGIN_STEPS:
                before = self._steps.pop(content.before, None)
                self._steps[number] = content.follower(self.part, before)
            case Call.STEPS:
                self._steps[number].follow(content)
            case Call.FORGET:
                if number in self._steps:
                    self._steps[number].forget()
            case Call.DROP_STEPS:
                self._steps.pop(number, None)
            case Call.DROP:
                self._systems.pop(number, None)
            case Call.DROP_EVALUATOR:
                self._evaluators.pop(number, None)

    def _begin(self, number: int, content: _Reference) -> None:
        evaluator = self._evaluators[content.evaluator]
        whole = evaluator.whole
        state = self._states.get(content.system)
        if state is None:
            state = content.state(whole.device, whole.precision.state)
            self._states[content.system] = state
        planes = torch.from_numpy(content.planes).to(whole.device)
        evaluator.margin = content.margin
        (domain,) = self._exchange.numbers
        brick = evaluator.grid.brick(domain, planes, content.margin)
        lists = content.lists(state, evaluator.cutoffs, brick, self._lists)
        divided = DividedSystem(number, state, lists, evaluator, planes)
        state.workspaces[evaluator] = divided
        self._systems[number] = state, divided
        divided.divide_()

    def part(self, number: int) -> "DividedPart":
        """What there is of a system that is divided."""
        state, divided = self._systems[number]
        (evaluator,) = [one for one in self._evaluators.values() if one.has(divided, state)]
        return DividedPart(evaluator, state, divided)


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
