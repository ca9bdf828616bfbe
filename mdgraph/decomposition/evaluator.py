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
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from mdgraph.decomposition.bricks import BrickGrid, widths_of
from mdgraph.decomposition.exchange import Exchange, LocalExchange, ProcessExchange
from mdgraph.decomposition.links import FeatureLink
from mdgraph.decomposition.subdomain import Subdomain
from mdgraph.errors import InputError, LostRankError
from mdgraph.evaluators import Evaluator, MultipleTimeStepEvaluator, SumEvaluator
from mdgraph.fused.evaluator import FusedTensorNet
from mdgraph.gpu.graphs import CapturedGraph, captured
from mdgraph.models import ListRoles, TensorNetPotential
from mdgraph.neighbors import NeighborList
from mdgraph.precision import Precision
from mdgraph.signals import SIGNALS
from mdgraph.state import State
from mdgraph.system import System


@dataclass(eq=False)
class _Cut:
    """The domains of this process for one build of the lists, and the graph of their evaluation.

    Attributes:
        key: of what the other ranks have; they drop it for the next cut or evaluator.
        builds: of each list, when they were cut, with its capacity.
        skins: of each list, A.
        domains: of this process.
        link: between them and those of other processes.
        found: (4 N + 9,) float64: forces, energies and virial of all atoms.
        evaluations: in these buffers, on all ranks.
        graph: of an evaluation; None before it is captured, or without one.
    """

    key: tuple[int, int]
    builds: tuple[tuple[int, int], ...]
    skins: tuple[float, ...]
    domains: list[Subdomain]
    link: FeatureLink
    found: Tensor
    evaluations: int = 0
    graph: CapturedGraph | None = None

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
        captures: whether evaluations are CUDA graphs on a GPU; the same on all ranks.
    """

    captures: ClassVar = True
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
        skins = tuple(item.skin for item in lists)
        cut: _Cut | None = state.workspaces.get(self)
        elsewhere = len(self.exchange.numbers) < len(self.grid)
        if cut is not None and elsewhere and (cut.key != self._key or cut.skins != skins):
            cut = None  # the other ranks have nothing that belongs to it
            state.workspaces.pop(self)  # frees its memory first
        first, due = cut is None, cut is None or cut.builds != builds
        message = partial(_Reference.of, state, lists) if first else None
        self.exchange.call_(self.number, due, message)
        if cut is None or due:
            for item in lists:
                item.join()
                self.exchange.share_((item.reference_positions, item.reference_cell))
            cut = self._cut(state, lists, cut)
            cut.builds, cut.skins = builds, skins
            state.workspaces[self] = cut
        self._run(cut, state)
        self.exchange.finish_()
        forces, energies, virial = cut.parts
        state.forces.copy_(forces)
        torch.add(energies, self.whole.constant_energies(state), out=state.energies)
        state.energy.copy_(state.energies.sum(0, keepdim=True))
        state.virial.copy_(virial.view(1, 3, 3))

    @property
    def _key(self) -> tuple[int, int]:
        return self._cuts, self.exchange.added

    def _cut(self, state: State, lists: Sequence[NeighborList], kept: _Cut | None) -> _Cut:
        """Domains by the positions of the lists; all ranks call it together.

        Args:
            state: of the system.
            lists: just built.
            kept: an earlier cut of this state, whose buffers are used again where they suffice.
        """
        first = lists[0]
        owner = self.grid.owners(first.reference_positions, first.reference_cell, state.pbc)
        before = [None] * len(self.exchange.numbers) if kept is None else kept.domains
        domains = [
            Subdomain.cut(number, len(self.grid), owner, state, lists, self.rounding, domain)
            for number, domain in zip(self.exchange.numbers, before, strict=True)
        ]
        self._cuts += 1
        # Other buffers of any rank let all of them capture again, as they do that together.
        changed = any(old is not new for old, new in zip(before, domains, strict=True))
        if self.exchange.any(changed) or kept is None:
            found = state.energies.new_zeros(4 * self._atoms + 9)
            return _Cut(self._key, (), (), domains, self.exchange.link(domains), found)
        kept.key = self._key
        return kept

    def _run(self, cut: _Cut, state: State) -> None:
        """Evaluates the domains; the second evaluation in their buffers is captured on a GPU.

        A graph holds exchanges between GPUs too. All ranks capture, and replay, together.
        """
        if cut.evaluations == 1 and state.device.type == "cuda" and self.captures:
            cut.graph = captured(lambda: self._evaluate(cut, state), state.device)
            if self.exchange.any(cut.graph is None):
                cut.graph = None  # all go on alike
            if cut.graph is not None:
                self.exchange.hold(cut.graph)
        cut.evaluations += 1
        if cut.graph is None:
            self._evaluate(cut, state)
        else:
            cut.graph.replay()

    def _evaluate(self, cut: _Cut, state: State) -> None:
        """Evaluates the domains of this process and adds up all, in their order, on rank 0.

        Static shapes; does not sync on CUDA.
        """
        with torch.no_grad():
            self.exchange.share_((state.positions, state.cell, state.charge))
            for domain in cut.domains:
                domain.load_(state)
            stages = zip(*map(self._stages, cut.domains), strict=True)
            for number, features in enumerate(stages):
                cut.link.fill_(number, features)
            cut.found.zero_()
            for domain in cut.domains:
                domain.add_to_(*cut.parts)
            self.exchange.sum_(cut.found)

    def _stages(self, domain: Subdomain) -> Iterator[Tensor]:
        return self.whole.domain_stages_(domain.state, domain.lists, domain.result, domain.padded)

    def replace_(self, state: State) -> None:
        """See WorkspaceOwner: domains are cut anew for other systems."""
        state.workspaces.pop(self, None)


@dataclass(frozen=True)
class _Reference:
    """What another rank needs to make the same lists, on the host.

    Attributes:
        numbers, pbc: of the system.
        positions, cell: that the lists were built from, as the state has them.
        skins: A, of each list.
    """

    numbers: Any
    pbc: Any
    positions: Any
    cell: Any
    skins: tuple[float, ...]

    @classmethod
    def of(cls, state: State, lists: Sequence[NeighborList]) -> "_Reference":
        """That of a state and its lists; syncs."""
        first = lists[0]
        return cls(
            state.numbers.cpu().numpy(),
            state.pbc[0].cpu().numpy(),
            first.reference_positions.cpu().numpy(),
            first.reference_cell.cpu().numpy(),
            tuple(item.skin for item in lists),
        )

    def state(self, device: torch.device, dtype: torch.dtype) -> State:
        """A state at the reference."""
        system = System(self.numbers, self.positions.astype(np.float64), self.cell[0], self.pbc)
        state = State([system], device, dtype)
        state.positions.copy_(torch.from_numpy(self.positions))
        return state

    def lists(self, state: State, cutoffs: Sequence[float]) -> list[NeighborList]:
        """Lists of such a state, one for each cutoff."""
        return [
            NeighborList(state, cutoff, skin)
            for cutoff, skin in zip(cutoffs, self.skins, strict=True)
        ]


@dataclass(eq=False)
class _ServedSystem:
    """What a rank other than 0 holds of a system.

    Attributes:
        state: the state.
        lists: one for each cutoff.
        cut: the last one; None before the first.
    """

    state: State
    lists: list[NeighborList]
    cut: _Cut | None = None

    def rebuild_(self, exchange: Exchange) -> None:
        """Builds the lists from what those of rank 0 were built from."""
        positions, cell = self.state.positions, self.state.cell
        for item in self.lists:
            exchange.share_((positions, cell))
            item.rebuild_(positions, cell)
            if not item.status().complete:
                item.grow()


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
    systems: dict[int, _ServedSystem] = {}
    while (call := exchange.called()) is not None:
        number, cut, message = call
        if isinstance(message, _Part):
            systems.clear()
            device = exchange.open_(message.device_type)
            whole = FusedTensorNet(message.potential, message.precision, device)
            evaluators[number] = DecomposedEvaluator(
                whole, message.atoms, message.grid, exchange, number
            )
            continue
        evaluator = evaluators[number]
        if isinstance(message, _Reference):
            systems.pop(number, None)  # frees its memory first
            whole = evaluator.whole
            state = message.state(whole.device, whole.precision.state)
            systems[number] = _ServedSystem(state, message.lists(state, evaluator.cutoffs))
        system = systems[number]
        if cut:
            system.rebuild_(exchange)
            system.cut = evaluator._cut(system.state, system.lists, system.cut)
        assert system.cut is not None
        evaluator._run(system.cut, system.state)


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
            "form or has other terms; leave domains out, or take another potential, precision or "
            "evaluator."
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
