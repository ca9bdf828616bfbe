"""DecomposedEvaluator: evaluates one system in several domains, layer by layer.

What costs, features and their products (54 of 59 KB an atom at 128 channels and two layers), is
divided: a domain evaluates its own atoms, and receives features of the atoms around it before
every sum over neighbors, and their gradients on the way back. Forces on these atoms go back to
their owners in one sum. On several ranks steps are divided too: each rank moves its own atoms
(`mdgraph.engine.own_steps`), and evaluates them from positions that it has, within `steps` of a
`DividedSystem`; rank 0 alone drives, and a single evaluation is one that it sends positions for.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Final
from weakref import finalize, ref

from torch import Tensor

from mdgraph.decomposition.bricks import BrickGrid
from mdgraph.decomposition.divided_system import DividedSystem, WholeSystem
from mdgraph.decomposition.exchange import Call, Exchange, LocalExchange
from mdgraph.decomposition.own_atoms import MARGIN
from mdgraph.decomposition.references import EvaluatorPart, SystemReference, new_number
from mdgraph.decomposition.region import Region
from mdgraph.evaluators import Evaluator
from mdgraph.fused.evaluator import FusedTensorNet
from mdgraph.models import ListRoles, TensorNetPotential
from mdgraph.neighbors import NeighborList
from mdgraph.neighbors.torch_builder import Brick
from mdgraph.state import State

_NOWHERE: Final = -1e9
"""A, margin of a brick that no atom is near to."""


class DecomposedEvaluator(Evaluator):
    """A FusedTensorNet whose work on one system is divided among domains.

    Planes between bricks are put such that all hold as many atoms at the start; steps of several
    ranks move them where atoms gather. Domains are cut anew whenever the lists are built. States
    of another number of atoms are evaluated whole, by this process.

    Attributes:
        whole: the evaluator of undivided states.
        atoms: of the system.
        grid: the bricks.
        exchange: between the domains.
        margin: A, see OwnAtoms.
        number: of the evaluator, in calls of other ranks.
        divides: whether it does; see `divide_`.
        keeps_all: whether the region of rank 0 is the whole, as something there looks at all atoms
            in each step.
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
        self.divides, self.margin, self.keeps_all = True, MARGIN, self.exchange.alone
        self.number = new_number()
        self.potential = whole.potential
        self.cutoffs, self.precision, self.device = whole.cutoffs, whole.precision, whole.device
        self.rounds = whole.rounds
        if self.exchange.leads:
            kind = whole.device.type
            self.exchange.call_(
                Call.ADD,
                self.number,
                lambda: EvaluatorPart(
                    deepcopy(whole.potential).cpu(), whole.precision, kind, atoms, grid
                ),
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
        own = self._known(state)
        if own is not None and own.takes_steps:
            own.evaluate_own_()
            return
        if not self.divides or state.grouping.sizes != (self.atoms,):
            self.whole.evaluate_(state, lists)
            return
        divided = self.divided(state, lists)
        if divided is None:
            return
        self.exchange.call_(Call.EVALUATE, divided.number)
        divided.evaluate_()
        self.exchange.finish_()

    def division(self, state: State) -> dict[str, Tensor]:
        """See Evaluator."""
        divided = self._known(state)
        if divided is None or divided.whole is None:
            return {}
        return {f"planes of {self.grid}": divided.whole.planes}

    def outgrown(self, state: State) -> Tensor | None:
        """See Evaluator."""
        divided = self._known(state)
        return None if divided is None else divided.outgrown

    def grow_(self, state: State) -> None:
        """See Evaluator."""
        divided = self._known(state)
        if divided is not None:
            divided.outgrow()
            if (needed := float(divided.needed)) > self.margin:
                # Steps that come after an overflow are repeated, and may have led anywhere.
                self.margin = min(1.3 * needed, 2.0 * self.margin + 2.0)

    def has(self, divided: DividedSystem) -> bool:
        """Whether this evaluator has made the domains of a system."""
        return self._known(divided.region.state) is divided

    def _known(self, state: State) -> DividedSystem | None:
        """What was made of a state, or of the whole that it is a part of."""
        found: DividedSystem | ref[DividedSystem] | None = state.workspaces.get(self)
        return found() if isinstance(found, ref) else found

    def part(
        self,
        number: int,
        reference: SystemReference,
        planes: Tensor,
        whole: WholeSystem | None = None,
    ) -> DividedSystem:
        """What this rank has of a system, by what rank 0 tells of it; reads the device.

        Args:
            number: of the system, in calls of other ranks.
            reference: to the whole.
            planes: (P,) between the bricks, a buffer.
            whole: on rank 0.
        """
        (domain,) = self.exchange.numbers
        brick = self.grid.brick(domain, planes, reference.margin)
        state, region = reference.region(self.whole, brick, self.exchange)
        lists = reference.lists(state, self.cutoffs, brick)
        parts = self.whole, self.grid, self.exchange, reference.margin
        divided = DividedSystem(number, region, lists, planes, *parts, whole)
        state.workspaces[self] = ref(divided)  # which has the state
        return divided

    def shares(self, state: State) -> bool:
        """Whether other ranks have a part of a state, so that all take steps together."""
        return not self.exchange.alone and self.divides and state.grouping.sizes == (self.atoms,)

    def divided(self, state: State, lists: Sequence[NeighborList]) -> DividedSystem | None:
        """Domains of a state; made, and enlarged, by all ranks together. None: see `evaluate_`."""
        divided = self._known(state)
        same = divided is not None and divided.serves(lists) and divided.margin == self.margin
        if divided is not None and divided.region.is_whole != self.keeps_all:
            same = False
        if divided is not None and same and not divided.stale:
            return divided
        if not all(item.status().complete for item in lists):
            return None
        if divided is None or not same:
            planes = self._planes(divided, state, lists)
            divided = None
            state.workspaces.pop(self, None)  # frees its memory first
            divided = state.workspaces[self] = self._begin(state, lists, planes)
        else:
            self.exchange.call_(Call.GROW, divided.number)
        divided.divide_()
        self.exchange.finish_()
        return divided

    def _planes(
        self, before: DividedSystem | None, state: State, lists: Sequence[NeighborList]
    ) -> Tensor:
        """(P,) between the bricks: those that there are, else put by the atoms."""
        first = lists[0]
        if before is not None and before.whole is not None:
            return before.whole.planes
        if first.brick is not None:  # of another evaluator with the same lists
            return first.brick.planes
        return self.grid.planes(first.reference_positions, first.reference_cell, state.pbc)

    def no_brick(self, state: State) -> Brick:
        """One that no atom of a state is near to, with planes between the bricks of all."""
        return self._no_brick(self.grid.planes(state.positions, state.cell, state.pbc))

    def _no_brick(self, planes: Tensor) -> Brick:
        return replace(self.grid.brick(0, planes), margin=_NOWHERE)

    def _begin(self, state: State, lists: Sequence[NeighborList], planes: Tensor) -> DividedSystem:
        """A divided system that all ranks begin, without buffers."""
        number, exchange, margin = new_number(), self.exchange, self.margin
        whole = WholeSystem(ref(state), lists, planes)
        if self.keeps_all:
            parts = self.whole, self.grid, exchange, margin, whole
            divided = DividedSystem(number, Region.of(state, exchange), lists, planes, *parts)
            message = partial(SystemReference.of, self.number, state, lists, planes, margin)
            exchange.call_(Call.BEGIN, number, message)
        else:
            for item in lists:
                item.limit_(self._no_brick(planes))
                item.rest_(leaves_device=state.on_host)
            reference = SystemReference.of(self.number, state, lists, planes, margin)
            exchange.call_(Call.BEGIN, number, lambda: reference)
            divided = self.part(number, reference, planes.clone(), whole)
        if not exchange.alone:
            finalize(divided, exchange.drop, Call.DROP, number).atexit = False
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
        divided = self._known(state)
        state.workspaces.pop(self, None)
        if divided is not None:
            divided.leave()
