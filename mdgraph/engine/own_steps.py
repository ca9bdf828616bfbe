"""OwnSteps: steps of one system that all ranks take together, each of its own atoms.

Rank 0 has the whole state before and after a stretch of steps, so all that looks at it in between,
from checks of the run to restart files, is that of one process. The others have the atoms near
their bricks. Within the stretch each rank has a state of its own atoms alone, with an integrator of
its own, and gets positions of the atoms near them; cell, thermostat and barostat are the same on
all ranks, which add up what these need.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass
from functools import partial
from weakref import finalize, ref

import numpy as np
import torch
from torch import Tensor

from mdgraph.decomposition.divided_system import DividedSystem
from mdgraph.decomposition.dividing import parts_with_lists
from mdgraph.decomposition.exchange import Call
from mdgraph.decomposition.own_atoms import OwnAtoms
from mdgraph.decomposition.references import new_number
from mdgraph.decomposition.server import DividedPart, Follower
from mdgraph.engine.calculation import Calculation
from mdgraph.engine.integrators import Integrator
from mdgraph.engine.multiple_time_steps import outer_step_, steps_together
from mdgraph.engine.observables import OnlineObservables
from mdgraph.engine.step_graphs import StepGraphs
from mdgraph.evaluators import Evaluator, MultipleTimeStepEvaluator, SumEvaluator
from mdgraph.models.sum import SumPotential
from mdgraph.neighbors import NeighborList
from mdgraph.state import State
from mdgraph.system import System

_BY_ATOM = ("velocities", "forces", "masses", "inverse_masses")
"""Of the state beside positions, which rank 0 shares before a stretch."""

_REPLICATED = ("cell", "energy", "virial", "charge", "degrees", "step", "seed")
"""The same on all ranks at each step, and in the states of the system and of own atoms."""


@dataclass(frozen=True)
class StepRequest:
    """Steps that rank 0 asks for.

    Attributes:
        step: steps done before.
        count: to take.
        graphs: settings of StepGraphs.
    """

    step: int
    count: int
    graphs: tuple[bool, int, int]


@dataclass(frozen=True)
class StepsBeginning:
    """What other ranks need to take steps, see `Beginning`.

    Attributes:
        number: of the steps, in calls of other ranks.
        before: of those whose place they take, or 0.
        integrator: without buffers.
        remove_momentum: steps from one removal of momentum to the next, or 0.
        looks: whether something on rank 0 looks at all atoms at each step.
        pulls: whether that adds forces.
        recipe: of the evaluator of the system.
        parts: numbers of the divided systems.
        lists: number of the divided system, and place among its lists, of each list.
    """

    number: int
    before: int
    integrator: Integrator
    remove_momentum: int
    looks: bool
    pulls: bool
    recipe: "EvaluatorRecipe"
    parts: tuple[int, ...]
    lists: tuple[tuple[int, int], ...]

    def follower(self, part: Callable[[int], DividedPart], before: Follower | None) -> "OwnSteps":
        """See Beginning."""
        parts = {number: part(number) for number in self.parts}
        evaluator = self.recipe.make([parts[number].evaluator for number in self.parts])
        lists = [parts[number].divided.lists[place] for number, place in self.lists]
        state = parts[self.parts[0]].divided.region.state
        calculation = Calculation.of_parts(evaluator, state, lists)
        divided = [parts[number].divided for number in self.parts]
        return OwnSteps(
            calculation, divided, self, before if isinstance(before, OwnSteps) else None
        )


@dataclass(frozen=True)
class EvaluatorRecipe:
    """How an evaluator is made of divided ones.

    Attributes:
        potential: of a sum, on the host.
        terms: of a sum, or a large and a small potential; none of a divided one.
        steps: of the small potential to one of the large; 0 for others.
        virials: whether those of the small potential are computed.
    """

    potential: SumPotential | None = None
    terms: "tuple[EvaluatorRecipe, ...]" = ()
    steps: int = 0
    virials: bool = False

    @classmethod
    def of(cls, evaluator: Evaluator) -> "EvaluatorRecipe":
        """That of an evaluator all of whose parts are divided."""
        if isinstance(evaluator, SumEvaluator):
            terms = tuple(cls.of(term) for term in evaluator.terms)
            return cls(deepcopy(evaluator.potential).cpu(), terms)
        if isinstance(evaluator, MultipleTimeStepEvaluator):
            both = cls.of(evaluator.large), cls.of(evaluator.small)
            return cls(None, both, evaluator.steps, evaluator.virials)
        return cls()

    def make(self, parts: list[Evaluator]) -> Evaluator:
        """Makes it; takes its parts from the front of the list."""
        if not self.terms:
            return parts.pop(0)
        terms = [term.make(parts) for term in self.terms]
        if self.potential is not None:
            return SumEvaluator(self.potential, terms)
        large, small = terms
        return MultipleTimeStepEvaluator(large, small, self.steps, self.virials)


class OwnSteps:
    """Steps of the own atoms of this rank, and its part of what all ranks do with them.

    Attributes:
        own: the atoms, in rows with room for more; those without an atom have no mass.
        atoms: which ones they are.
        graphs: of these steps.
        number: see StepsBeginning.
    """

    atoms: OwnAtoms

    def __init__(
        self,
        calculation: Calculation,
        divided: Sequence[DividedSystem],
        beginning: StepsBeginning,
        before: "OwnSteps | None",
        online: OnlineObservables | None = None,
    ) -> None:
        """Allocates; reads the device. All ranks call it together.

        Args:
            calculation: of the region of this rank, whose positions are valid for own atoms and
                those near them within a stretch, and on rank 0 for all before and after it.
            divided: what ranks have of it, for each divided evaluator.
            beginning: of the steps.
            before: steps whose place these take.
            online: observables that each step records; on rank 0.

        Raises:
            InputError: see `Integrator.allocate`.
        """
        self._calculation, self._beginning, self._online = calculation, beginning, online
        self.number = beginning.number
        # Not kept here, so that they make room for larger ones.
        self._parts = [(ref(one), one.cuts) for one in divided]
        region = calculation.state
        (exchange,) = {one.ranks for one in divided}
        self._exchange = exchange
        first, margin = divided[0], max(one.margin for one in divided)
        first.share_()
        self._region = first.region
        places = first.grid, first.planes, self._region, calculation.lists, margin
        self.atoms = OwnAtoms(exchange, *places, before=None if before is None else before.atoms)
        rows, number = len(self.atoms.atoms), int(region.numbers[0])
        system = System(
            numbers=np.full(rows, number),
            positions=np.zeros((rows, 3)),
            cell=region.cell[0].double().cpu().numpy(),
            pbc=region.pbc[0].cpu().numpy(),
        )
        self.own = State([system], region.device, region.dtype)
        for name in _REPLICATED:
            setattr(self.own, name, getattr(region, name))
        self.own.ranks = self.atoms
        self._integrator = copy(beginning.integrator)
        self._integrator.allocate(self.own)
        own = self._integrator.tensors()
        self._names = [name for name, value in own.items() if value.shape[:1] == (rows,)]
        self._whole: Integrator | None = None
        self._pulls = torch.zeros_like(region.forces) if beginning.pulls else None
        together = steps_together(calculation.evaluator)
        self.graphs = StepGraphs(
            self._step_, self._integrator, self._unchanged, region.device, together, exchange
        )

    @property
    def serve(self) -> bool:
        """Whether the buffers are still there that these steps were made for."""
        parts = [(reference(), cuts) for reference, cuts in self._parts]
        return all(one is not None and one.cuts == cuts for one, cuts in parts)

    def _divided(self) -> list[DividedSystem]:
        return [one for reference, _ in self._parts if (one := reference()) is not None]

    def lead(self, graphs: StepGraphs, integrator: Integrator, step: int, count: int) -> None:
        """Takes steps on all ranks; on rank 0.

        Args:
            graphs: whose settings count, and get what is found of memory.
            integrator: of the whole system.
            step: steps done before.
            count: to take.
        """
        self._balance_()
        request = StepRequest(step, count, graphs.settings)
        self._exchange.call_(Call.STEPS, self.number, lambda: request)
        self._advance_(request, integrator)
        graphs.settings = self.graphs.settings
        self._exchange.finish_()

    def _balance_(self) -> None:
        """Moves the planes between bricks where atoms have gathered; does not sync on CUDA.

        Before a chunk alone, so that one that is repeated has the planes that it had.
        """
        region, parts = self._calculation.state, self._divided()
        first = parts[0]
        planes = first.grid.balanced(region.positions, region.cell, region.pbc, first.planes)
        moved = torch.stack([one.take_planes_(planes) for one in parts]).any()
        for item in self._calculation.lists:
            item.follow_(item.reference_positions, item.reference_cell, moved)
            item.rebuilds.sub_(moved.to(item.rebuilds.dtype))

    def follow(self, request: StepRequest) -> None:
        """Takes steps that rank 0 asks for; on other ranks."""
        self._advance_(request, None)

    def forget(self) -> None:
        """Drops the graphs, on rank 0 of all ranks."""
        self.graphs.forget()
        if self._exchange.leads:
            self._exchange.drop(Call.FORGET, self.number)

    def _advance_(self, request: StepRequest, whole: Integrator | None) -> None:
        """Takes the steps in stretches that end with the blocks that integrators prepare."""
        self.graphs.settings = request.graphs
        self._whole = whole
        step, end, block = request.step, request.step + request.count, self._integrator.block
        while step < end:
            count = min(end - step, block - step % block)
            self._stretch_(step, count, whole)
            step += count

    def _stretch_(self, step: int, count: int, whole: Integrator | None) -> None:
        with torch.no_grad():
            by_atom = self._share_(whole)
            self.atoms.assign_()
            with ExitStack() as stack:
                for one in self._divided():
                    stack.enter_context(
                        one.steps(self.atoms, adds_up=self._adds_up, zeroes=self._beginning.pulls)
                    )
                stack.enter_context(self.atoms.deciding())
                self._load_(by_atom)
                self.graphs.advance_(step, count)
                self._settle_()
                self._end_(whole)

    def _share_(self, whole: Integrator | None) -> dict[str, Tensor]:
        """Brings what rank 0 has of the state, the lists and the integrator to all ranks.

        Returns:
            Buffers of the integrator by atom of the region, (M, ...), by name.
        """
        state, own, parts = self._calculation.state, self._integrator, self._divided()
        lists = self._calculation.lists
        by_atom, others = self._evaluator_tensors()
        replicated = [*(getattr(state, name) for name in _REPLICATED), *others]
        tensors = (own if whole is None else whole).tensors()
        given = {name: value for name, value in tensors.items() if name not in self._names}
        planes = [one.planes for one in parts]
        cells = [item.reference_cell for item in lists]
        shared = _Bytes([*replicated, *given.values(), *planes, *cells])
        self._exchange.share_(shared.bytes)()
        if whole is None:
            values = iter(shared.values())
            for value in replicated:
                value.copy_(next(values))
            given = {name: next(values) for name in given}
            moved = torch.stack([one.take_planes_(next(values)) for one in parts]).any()
            cells = [*values]
        places = [state.positions, *(item.reference_positions for item in lists)]
        by_atom = [*(getattr(state, name) for name in _BY_ATOM), *by_atom]
        columns = [*by_atom, *(one.constant for one in parts), *(tensors[n] for n in self._names)]
        reach = max(one.reach for one in parts)
        bricks = [one.brick for one in parts if one.brick is not None]
        brick = max(bricks, key=lambda one: one.margin)
        found = self._region.share_(places, [state.cell, *cells], columns, brick, reach)
        own.restore(own.tensors() | given)
        if whole is not None:
            return {name: tensors[name] for name in self._names}
        _, *places = found[: len(places)]
        found = found[1 + len(lists) :]
        for value, new in zip(by_atom, found, strict=False):
            value.copy_(new)
        for one, constant in zip(parts, found[len(by_atom) :], strict=False):
            one.take_constant_(constant)
        for item, place, vectors in zip(lists, places, cells, strict=True):
            item.follow_(place, vectors, moved)
        return dict(zip(self._names, found[len(by_atom) + len(parts) :], strict=True))

    def _evaluator_tensors(self) -> tuple[list[Tensor], list[Tensor]]:
        """Those of the evaluator by atom, and others, which are the same on all ranks."""
        state = self._calculation.state
        atoms, tensors = len(state.numbers), self._calculation.evaluator.tensors(state).values()
        by_atom = [value for value in tensors if value.shape[:1] == (atoms,)]
        return by_atom, [value for value in tensors if value.shape[:1] != (atoms,)]

    def _load_(self, integrator_by_atom: Mapping[str, Tensor]) -> None:
        """Fills the rows with own atoms."""
        region, own, atoms = self._calculation.state, self.own, self.atoms
        own.atom.copy_(self._region.numbers_of(atoms.atoms))
        for name in ("positions", *_BY_ATOM):
            torch.index_select(getattr(region, name), 0, atoms.atoms, out=getattr(own, name))
        zeroed, buffers = (
            [own.velocities, own.masses, own.inverse_masses],
            self._integrator.tensors(),
        )
        for name, value in integrator_by_atom.items():
            torch.index_select(value, 0, atoms.atoms, out=buffers[name])
            zeroed.append(buffers[name])
        for value in zeroed:
            value.masked_fill_(~atoms.used.view(-1, *[1] * (value.dim() - 1)), 0.0)
        # Of others they stay zero, unless something on rank 0 pulls these.
        region.forces.zero_()
        region.energies.zero_()
        atoms.begin_()

    def _update_(self, update_: Callable[[], None], lists: Sequence[NeighborList]) -> None:
        """Brings the forces on own atoms up to date; static shapes, does not sync on CUDA.

        Args:
            update_: of the calculation.
            lists: that it updates.
        """
        region, own, atoms = self._calculation.state, self.own, self.atoms
        atoms.bring_(own, lists)
        if self._beginning.looks:
            atoms.collect_({"positions": own.positions}, {"positions": region.positions})
        update_()
        if self._pulls is not None:
            self._add_pulls_(self._pulls)
        atoms.take_(region.forces, own.forces)

    @property
    def _adds_up(self) -> bool:
        """Whether a step needs energy or virial of the whole: a barostat, and what looks at all."""
        return self._integrator.cell_varies or self._beginning.looks

    def _settle_(self) -> None:
        """Adds up what a step has not, and says what has outgrown its buffers."""
        state, sums = self._calculation.state, []
        if not self._adds_up:
            terms = self._calculation.evaluator.term_energies(state).values()
            sums = [state.energy, state.virial, *terms]
        for number, one in enumerate(self._divided()):
            one.settle_([] if number else sums)

    def _add_pulls_(self, pulls: Tensor) -> None:
        """Adds to forces, energies and virial what restraints and biases have added on rank 0.

        Of atoms of other ranks rank 0 has nothing else.
        """
        state, forces = self._calculation.state, self._calculation.evaluator.forces
        here = [state.forces]
        if forces(state) is not state.forces:
            here.append(forces(state))
        for value in here:
            if self._exchange.leads:
                pulls.copy_(value)
            self._region.share_rows_(pulls)
            if not self._exchange.leads:
                value.add_(pulls)
        energies = state.energies if self._exchange.leads else torch.empty_like(state.energies)
        self._region.share_rows_(energies)
        if not self._exchange.leads:
            state.energies.add_(energies)
        for value in (state.energy, state.virial):
            self._exchange.share_(value)()

    def _step_(self, number: int | None = None) -> None:
        calculation, evaluator = self._calculation, self._calculation.evaluator
        lists = calculation.lists
        large = partial(self._update_, calculation.update_, lists)
        with torch.no_grad():
            if isinstance(evaluator, MultipleTimeStepEvaluator):
                of_small = evaluator.lists_of(evaluator.small, lists)
                outer_step_(
                    evaluator,
                    calculation.state,
                    self._inner_step_,
                    large,
                    partial(self._update_, calculation.update_small_, of_small),
                    moves_cell=self._integrator.cell_varies,
                    number=number,
                )
            else:
                self._inner_step_(large, number)
            if interval := self._beginning.remove_momentum:
                self._integrator.remove_momentum_(self.own, self.own.step % interval == 0)
            if self._beginning.looks:
                self._collect_(self._of_whole(self._names))
            if self._online is not None:
                # Observables read the integrator of the whole system.
                own = self._integrator.tensors()
                for name, value in self._of_whole(own.keys() - set(self._names)).items():
                    value.copy_(own[name])
                self._online.record_(number)

    def _of_whole(self, names: Collection[str]) -> dict[str, Tensor]:
        """Buffers of the integrator of the whole system; on other ranks than 0 of their own."""
        tensors = (self._integrator if self._whole is None else self._whole).tensors()
        return {name: tensors[name] for name in names}

    def _inner_step_(self, update_: Callable[[], None], number: int | None) -> None:
        """See `StepDynamics._inner_step_`; biases are on rank 0."""
        biases = self._calculation.biases
        if biases is not None:
            biases.begin_step_()
        self._integrator.step_(self.own, update_)
        if biases is not None:
            biases.end_step_(number)

    def _collect_(self, into: Mapping[str, Tensor] | None = None) -> None:
        """Brings the state of all atoms to rank 0.

        Args:
            into: further buffers of rank 0, by name, of which each rank has rows of own atoms, or
                rows of its region, those of own atoms valid.
        """
        region, own, atoms = self._calculation.state, self.own, self.atoms
        names = ("positions", "velocities", "forces")
        here = {name: getattr(own, name) for name in names}
        there = {name: getattr(region, name) for name in names}
        there |= {str(place): value for place, value in enumerate(self._evaluator_tensors()[0])}
        there |= {"energies": region.energies, **({} if into is None else into)}
        here |= {name: self._integrator.tensors()[name] for name in there if name in self._names}
        for name in there.keys() - here.keys():
            here[name] = there[name].index_select(0, atoms.atoms)
        atoms.collect_(here, there)

    def _end_(self, whole: Integrator | None) -> None:
        """Brings all that a stretch has changed to rank 0."""
        lists, own = self._calculation.lists, self._integrator.tensors()
        references = {f"list {number}": one.reference_positions for number, one in enumerate(lists)}
        self._collect_(self._of_whole(self._names) | references)
        if whole is None:
            return
        whole.restore(own | self._of_whole(self._names))
        for item in lists:
            # From the places of all atoms; those far away were not those of the last build.
            item.rebuild_(item.reference_positions, item.reference_cell)
            item.rebuilds.sub_(1)

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Restores, at its end, all that steps change; does not sync."""
        lists, state = self._calculation.lists, self._calculation.state
        changed = [*self.own.tensors().values(), *self._integrator.tensors().values()]
        changed += [state.positions, *self._calculation.evaluator.tensors(state).values()]
        changed.append(self.atoms.start.needed)
        for recorder in (self._calculation.biases, self._online):
            changed += [] if recorder is None else recorder.tensors().values()
        before = [value.clone() for value in changed]
        references = [(*item.reference(), item.sticky().clone()) for item in lists]
        try:
            yield
        finally:
            for value, old in zip(changed, before, strict=True):
                value.copy_(old)
            for item, (positions, cell, sticky) in zip(lists, references, strict=True):
                item.rebuild_(positions, cell)
                item.sticky().copy_(sticky)


class OutgrownError(Exception):
    """Buffers are too small for steps from here on, so these will be repeated in larger ones."""


class _Bytes:
    """Tensors side by side, which travel in one message."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tensors
        self.bytes = torch.cat([value.reshape(-1).view(torch.uint8) for value in tensors])

    def values(self) -> list[Tensor]:
        """The tensors that came, in new memory."""
        parts = self.bytes.split([value.numel() * value.element_size() for value in self._tensors])
        return [
            part.clone().view(value.dtype).view(value.shape)
            for part, value in zip(parts, self._tensors, strict=True)
        ]


def own_steps(
    calculation: Calculation,
    template: Integrator,
    remove_momentum: int,
    online: OnlineObservables,
    known: OwnSteps | None,
) -> OwnSteps | None:
    """Steps that all ranks take together, those that are known where they serve.

    Syncs where buffers are made.

    Args:
        calculation: of the system.
        template: the integrator without buffers.
        remove_momentum: see StepsBeginning.
        online: observables.
        known: steps before.

    Returns:
        None where one rank has all atoms.

    Raises:
        OutgrownError: a list is incomplete.
    """
    evaluator, state, lists = calculation.evaluator, calculation.state, calculation.lists
    parts = parts_with_lists(evaluator, lists)
    if not parts or not all(part.shares(state) for part, _ in parts):
        return None
    divided: list[DividedSystem] = []
    while not divided or any(one.stale for one in divided):  # where the region has grown for others
        found = [part.divided(state, own) for part, own in parts]
        divided = [one for one in found if one is not None]
        if len(divided) < len(found):
            raise OutgrownError
    if known is not None and known.serve:
        return known
    for one in divided[1:]:  # whose planes atoms at other places have put, or a file
        if bool(one.take_planes_(divided[0].planes)):
            for item in one.lists:
                item.rebuild_(item.reference_positions, item.reference_cell)
    pulls = calculation.springs is not None or calculation.biases is not None
    looks = pulls or any(record.within_steps for record in online)
    beginning = StepsBeginning(
        new_number(),
        0 if known is None else known.number,
        template,
        remove_momentum,
        looks,
        pulls,
        EvaluatorRecipe.of(evaluator),
        tuple(one.number for one in divided),
        tuple(_place_of(item, divided) for item in lists),
    )
    exchange = divided[0].ranks
    exchange.call_(Call.BEGIN_STEPS, beginning.number, lambda: beginning)
    steps = OwnSteps(calculation, divided, beginning, known, online)
    exchange.finish_()
    finalize(steps, exchange.drop, Call.DROP_STEPS, beginning.number).atexit = False
    return steps


def _place_of(item: NeighborList, divided: Sequence[DividedSystem]) -> tuple[int, int]:
    """The number of a divided system that has a list, and the place of the list there."""
    for one in divided:
        for place, own in enumerate(one.lists):
            if own is item:
                return one.number, place
    raise AssertionError("each list is read by a part of the evaluator")
