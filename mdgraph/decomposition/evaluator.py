"""DecomposedEvaluator: evaluates one system in several domains, layer by layer.

What costs, features and their products (59 KB an atom at 128 channels and two layers), is
divided: a domain evaluates its own atoms, and receives features of the atoms around it before
every sum over neighbors, and their gradients on the way back. Forces on these atoms go back to
their owners in one sum. What does not cost, positions and velocities and all that a step does with
them, stays whole, on rank 0: integrators, thermostats, barostats, records, checkpoints and random
numbers are those of a single process, and know nothing of domains.
"""

import math
import os
import signal
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mdgraph.decomposition.bricks import BrickGrid, widths_of
from mdgraph.decomposition.exchange import Exchange, LocalExchange, ProcessExchange
from mdgraph.decomposition.subdomain import Subdomain
from mdgraph.errors import InputError, LostRankError
from mdgraph.evaluators import Evaluator, MultipleTimeStepEvaluator, SumEvaluator
from mdgraph.fused.evaluator import FusedTensorNet
from mdgraph.models import ListRoles, TensorNetPotential
from mdgraph.neighbors import NeighborList
from mdgraph.precision import Precision
from mdgraph.signals import SIGNALS
from mdgraph.state import BatchCapacity, State
from mdgraph.system import System


@dataclass(frozen=True, eq=False)
class _Cut:
    """The domains of this process for one build of the lists.

    Attributes:
        key: of what the other ranks have; they drop it for the next cut or evaluator.
        builds: of each list, when they were cut, with its capacity.
        domains: of this process.
        found: (4 N + 9,) float64: forces, energies and virial of all atoms.
    """

    key: tuple[int, int]
    builds: tuple[tuple[int, int], ...]
    domains: list[Subdomain]
    found: Tensor

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Forces (N, 3), energies (N,) and virial (9,) in `found`."""
        atoms = (len(self.found) - 9) // 4
        forces, energies, virial = self.found.split([3 * atoms, atoms, 9])
        return forces.view(atoms, 3), energies, virial


class DecomposedEvaluator(Evaluator):
    """A FusedTensorNet whose work on one system is divided among domains.

    Bricks are cut anew whenever the lists are built, so they follow the atoms, and are a function
    of the positions at that time alone. States of another number of atoms are evaluated whole, by
    this process.

    Attributes:
        whole: the evaluator of undivided states.
        grid: the bricks.
        exchange: between the domains.
        number: of the evaluator, in calls of other ranks.
    """

    potential: TensorNetPotential

    def __init__(
        self,
        whole: FusedTensorNet,
        atoms: int,
        grid: BrickGrid,
        exchange: Exchange | None = None,
        number: int | None = None,
    ) -> None:
        """Allocates nothing.

        Args:
            whole: what evaluates a domain.
            atoms: of the system.
            grid: bricks along the axes.
            exchange: between the domains; without it all are in this process.
            number: see above; None lets the other ranks make the evaluator too.

        Raises:
            InputError: see `FusedTensorNet.rounding`.
        """
        self.rounding = whole.rounding
        self.whole, self.grid = whole, grid
        self.exchange = LocalExchange(len(grid)) if exchange is None else exchange
        self._atoms, self._cuts = atoms, 0
        if number is None:
            kind = whole.device.type
            number = self.exchange.add_(
                lambda: _Part(deepcopy(whole.potential).cpu(), whole.precision, kind, atoms, grid),
                kind,
            )
        self.number = number
        self.potential = whole.potential
        self.cutoffs, self.precision, self.device = whole.cutoffs, whole.precision, whole.device
        self.rounds = whole.rounds

    @property
    def list_roles(self) -> ListRoles:
        """See Evaluator."""
        return self.whole.list_roles

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        """See Evaluator. Waits for the other ranks.

        Where a list overflowed nothing is written, as the step will be repeated.
        """
        if state.grouping.sizes != (self._atoms,):
            self.whole.evaluate_(state, lists)
            return
        if not all(item.status().complete for item in lists):
            return
        builds = tuple((int(item.rebuilds), item.capacity) for item in lists)
        cut: _Cut | None = state.workspaces.get(self)
        due = cut is None or cut.builds != builds or cut.key != self._key
        elsewhere = len(self.exchange.numbers) < len(self.grid)
        message = _Reference.of(state, lists) if due and elsewhere else None
        changing = (state.positions, state.cell, state.charge)
        self.exchange.call_(self.number, changing, message)
        if cut is None or due:
            state.workspaces[self] = cut = self._cut(state, lists, builds, cut)
        self._evaluate(cut, state)
        forces, energies, virial = cut.parts
        state.forces.copy_(forces)
        torch.add(energies, self.whole.constant_energies(state), out=state.energies)
        state.energy.copy_(state.energies.sum(0, keepdim=True))
        state.virial.copy_(virial.view(1, 3, 3))

    @property
    def _key(self) -> tuple[int, int]:
        return self._cuts, self.exchange.added

    def _cut(
        self,
        state: State,
        lists: Sequence[NeighborList],
        builds: tuple[tuple[int, int], ...],
        kept: _Cut | None,
    ) -> _Cut:
        for item in lists:
            item.join()
        first = lists[0]
        owner = self.grid.owners(first.reference_positions, first.reference_cell, state.pbc)
        before = [None] * len(self.exchange.numbers) if kept is None else kept.domains
        domains = [
            Subdomain.cut(number, owner, state, lists, self.rounding, domain)
            for number, domain in zip(self.exchange.numbers, before, strict=True)
        ]
        self._cuts += 1
        found = state.energies.new_zeros(4 * self._atoms + 9) if kept is None else kept.found
        return _Cut(self._key, builds, domains, found)

    def _evaluate(self, cut: _Cut, state: State) -> None:
        """Evaluates the domains of this process and adds up all, in their order, on rank 0."""
        with torch.no_grad():
            for domain in cut.domains:
                domain.load_(state)
            for features in zip(*map(self._stages, cut.domains), strict=True):
                self.exchange.fill_(cut.domains, features)
            cut.found.zero_()
            forces, energies, virial = cut.parts
            for domain in cut.domains:
                result, own = domain.result, len(domain.own)
                forces.index_add_(0, domain.atoms, result.forces[domain.rows].double())
                energies[domain.own] = result.energies[:own]
                virial += result.virials[:, :own].sum(1)
            self.exchange.sum_(cut.found)

    def _stages(self, domain: Subdomain) -> Iterator[Tensor]:
        return self.whole.domain_stages_(domain.state, domain.lists, domain.result, domain.padded)

    def replace_(self, state: State) -> None:
        """See WorkspaceOwner: domains are cut anew for other systems."""
        state.workspaces.pop(self, None)


@dataclass(frozen=True)
class _Reference:
    """What another rank needs to build the same lists, on the host.

    Attributes:
        numbers, pbc, elements: of the system.
        positions, cell: that the lists were built from, as the state has them.
        skins: A, of each list.
    """

    numbers: Any
    pbc: Any
    elements: tuple[int, ...]
    positions: Any
    cell: Any
    skins: tuple[float, ...]

    @classmethod
    def of(cls, state: State, lists: Sequence[NeighborList]) -> "_Reference":
        first = lists[0]
        return cls(
            state.numbers.cpu().numpy(),
            state.pbc[0].cpu().numpy(),
            tuple(state.elements.tolist()),
            first.reference_positions.cpu().numpy(),
            first.reference_cell.cpu().numpy(),
            tuple(item.skin for item in lists),
        )

    def state(self, device: torch.device, dtype: torch.dtype) -> State:
        """A state at the reference."""
        system = System(self.numbers, self.positions.astype(np.float64), self.cell[0], self.pbc)
        room = BatchCapacity(len(system), self.elements)
        state = State([system], device, dtype, room=room)
        state.positions.copy_(torch.from_numpy(self.positions))
        return state


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
    if exchange is None or exchange.rank.rank == 0:
        return exchange
    for ending in SIGNALS:
        signal.signal(ending, signal.SIG_IGN)
    try:
        _serve(exchange)
    except LostRankError as error:
        raise SystemExit(1) from error
    raise SystemExit(0)


def _serve(exchange: ProcessExchange) -> None:
    """Evaluates this rank's domain whenever rank 0 evaluates; raises LostRankError."""
    evaluators: dict[int, DecomposedEvaluator] = {}
    held: dict[int, tuple[State, _Cut]] = {}
    while (call := exchange.called()) is not None:
        number, message = call
        if isinstance(message, _Part):
            held.clear()
            device = exchange.open_(message.device_type)
            whole = FusedTensorNet(message.potential, message.precision, device)
            evaluators[number] = DecomposedEvaluator(
                whole, message.atoms, message.grid, exchange, number
            )
            continue
        evaluator = evaluators[number]
        if message is not None:
            _, kept = held.pop(number, (None, None))
            whole = evaluator.whole
            state = message.state(whole.device, whole.precision.state)
            lists = [
                NeighborList(state, cutoff, skin)
                for cutoff, skin in zip(evaluator.cutoffs, message.skins, strict=True)
            ]
            held[number] = state, evaluator._cut(state, lists, (), kept)
        state, cut = held[number]
        exchange.share_((state.positions, state.cell, state.charge))
        evaluator._evaluate(cut, state)


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
            "form; leave domains out, or take another potential, precision or evaluator."
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
        return MultipleTimeStepEvaluator(large, small, evaluator.steps)
    assert isinstance(evaluator, FusedTensorNet)
    return DecomposedEvaluator(evaluator, atoms, grid, exchange)
