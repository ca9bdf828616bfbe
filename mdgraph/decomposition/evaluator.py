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
from functools import partial
from weakref import finalize

from torch import Tensor

from mdgraph.decomposition.bricks import BrickGrid
from mdgraph.decomposition.divided_system import DividedSystem
from mdgraph.decomposition.exchange import Call, Exchange, LocalExchange
from mdgraph.decomposition.own_atoms import MARGIN
from mdgraph.decomposition.references import EvaluatorPart, SystemReference, new_number
from mdgraph.decomposition.region import Region
from mdgraph.evaluators import Evaluator
from mdgraph.fused.evaluator import FusedTensorNet
from mdgraph.models import ListRoles, TensorNetPotential
from mdgraph.neighbors import NeighborList
from mdgraph.state import State


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
        own: DividedSystem | None = state.workspaces.get(self)
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
            divided.outgrow()
            if (needed := float(divided.needed)) > self.margin:
                # Steps that come after an overflow are repeated, and may have led anywhere.
                self.margin = min(1.3 * needed, 2.0 * self.margin + 2.0)

    def has(self, divided: DividedSystem) -> bool:
        """Whether this evaluator has made the domains of a system."""
        return divided.region.state.workspaces.get(self) is divided

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
            divided = DividedSystem(
                new_number(),
                Region.of(state, self.exchange),
                lists,
                planes,
                self.whole,
                self.grid,
                self.exchange,
                self.margin,
            )
            if not self.exchange.alone:
                finalize(divided, self.exchange.drop, Call.DROP, divided.number).atexit = False
            state.workspaces[self] = divided
            message = partial(SystemReference.of, self.number, state, lists, planes, self.margin)
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
