"""OwnSteps: steps of one system that all ranks take together, each of its own atoms.

Rank 0 has the whole state before and after a call for steps, so all that looks at it in between,
from checks of the run to restart files, is that of one process. Steps are taken in stretches,
before which each rank gets the atoms near its brick: at first from the whole, then from their
ranks. Within a stretch it has a state of its own atoms alone, with an integrator of its own, and
gets positions of the atoms near them; cell, thermostat and barostat are the same on all ranks,
which add up what these need.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass
from functools import partial
from weakref import finalize, ref

import numpy as np
import torch
from torch import Tensor

from mdgraph.decomposition.divided_system import DividedSystem
from mdgraph.decomposition.dividing import EvaluatorRecipe, parts_with_lists
from mdgraph.decomposition.exchange import Call
from mdgraph.decomposition.handover import HandOver
from mdgraph.decomposition.own_atoms import OwnAtoms
from mdgraph.decomposition.references import new_number
from mdgraph.decomposition.server import DividedPart, Follower
from mdgraph.engine.calculation import Calculation
from mdgraph.engine.integrators import Integrator
from mdgraph.engine.multiple_time_steps import outer_step_, steps_together
from mdgraph.engine.observables import OnlineObservables
from mdgraph.engine.step_graphs import StepGraphs
from mdgraph.evaluators import Evaluator, MultipleTimeStepEvaluator
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
        number: identifies the steps in calls of other ranks.
        before: number of the steps that these replace, or 0.
        integrator: the integrator, without buffers.
        remove_momentum: steps from one removal of momentum to the next, or 0.
        needs_all_atoms: whether restraints, biases or observables, which run on rank 0, need all
            atoms at each step.
        adds_forces: whether these add forces.
        recipe: of the evaluator of the system.
        parts: numbers of the divided systems.
        lists: number of the divided system, and place among its lists, of each list.
    """

    number: int
    before: int
    integrator: Integrator
    remove_momentum: int
    needs_all_atoms: bool
    adds_forces: bool
    recipe: EvaluatorRecipe
    parts: tuple[int, ...]
    lists: tuple[tuple[int, int], ...]

    def follower(self, part: Callable[[int], DividedPart], before: Follower | None) -> "OwnSteps":
        """See Beginning."""
        parts = [part(number) for number in self.parts]
        evaluator = self.recipe.make([one.evaluator for one in parts])
        divided = [one.divided for one in parts]
        return OwnSteps(
            self.calculation(evaluator, divided),
            divided,
            self,
            before if isinstance(before, OwnSteps) else None,
        )

    def calculation(self, evaluator: Evaluator, divided: Sequence[DividedSystem]) -> Calculation:
        """The calculation for the region of a rank."""
        numbered = {one.number: one for one in divided}
        lists = [numbered[number].lists[place] for number, place in self.lists]
        return Calculation.of_parts(evaluator, divided[0].region.state, lists)


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
        whole: Calculation | None = None,
        online: OnlineObservables | None = None,
    ) -> None:
        """Allocates; reads the device. All ranks call it together.

        Args:
            calculation: of the region of this rank, whose positions are valid for own atoms and
                those near them within a stretch.
            divided: what ranks have of it, for each divided evaluator.
            beginning: of the steps.
            before: steps that these replace.
            whole: of all atoms, valid before and after a stretch; on rank 0. The same where the
                region is the whole.
            online: observables that each step records; on rank 0.

        Raises:
            InputError: see `Integrator.allocate`.
        """
        self._calculation, self._beginning, self._online = calculation, beginning, online
        self._source = calculation if whole is None else whole
        self._has_part = whole is not calculation
        self.number = beginning.number
        # Not kept here, so that they make room for larger ones.
        self._parts = [(ref(one), one.cuts) for one in divided]
        region = calculation.state
        (exchange,) = {one.ranks for one in divided}
        self._exchange = exchange
        first, margin = divided[0], max(one.margin for one in divided)
        first.share_()
        self._region = first.region
        around = first.grid, first.planes, self._region, calculation.lists, margin
        self.atoms = OwnAtoms(exchange, *around, before=None if before is None else before.atoms)
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
        self._between: HandOver | None = None
        if not beginning.needs_all_atoms:
            reach = max(one.reach for one in divided)
            where = first.grid, first.planes, first.region, margin, reach
            self._between = HandOver(exchange, *where)
            places, cells = self._places(region.positions.index_select(0, self.atoms.atoms))
            previous = None if before is None else before._between
            self._between.allocate_(self.atoms.used, places, cells, previous)
        own = self._integrator.tensors()
        self._names = [name for name, value in own.items() if value.shape[:1] == (rows,)]
        self._whole: Integrator | None = None
        self._rank_0_forces = torch.zeros_like(region.forces) if beginning.adds_forces else None
        together = steps_together(calculation.evaluator)
        self.graphs = StepGraphs(
            self._step_, self._integrator, self._unchanged, region.device, together, exchange
        )

    @property
    def is_valid(self) -> bool:
        """Whether the buffers that these steps were made for still exist."""
        parts = [(reference(), cuts) for reference, cuts in self._parts]
        return all(one is not None and one.cuts == cuts for one, cuts in parts)

    def _divided(self) -> list[DividedSystem]:
        return [one for reference, _ in self._parts if (one := reference()) is not None]

    def lead(self, graphs: StepGraphs, integrator: Integrator, step: int, count: int) -> None:
        """Takes steps on all ranks; on rank 0.

        Args:
            graphs: of rank 0; its settings are used, and updated if a graph does not fit into
                memory.
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
        """Moves the planes between bricks where atoms have gathered.

        Before a chunk alone, so that one that is repeated has the planes that it had. Syncs where
        the state has left the device, on CUDA else not.
        """
        state, parts, lists = self._source.state, self._divided(), self._source.lists
        moved = torch.zeros((), dtype=torch.bool, device=state.device)
        for one in parts:
            assert one.whole is not None
            planes = one.whole.planes
            if one is parts[0]:
                new = one.grid.balanced(
                    state.positions, state.cell, state.pbc, planes, in_pieces=state.on_host
                )
            if one.region.is_whole:
                moved |= one.take_planes_(new)
            else:
                planes.copy_(new)  # regions follow when they get their atoms
        for item in lists:
            if self._has_part:
                item.rest_(leaves_device=state.on_host)
            else:
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
        with torch.no_grad():
            while step < end:
                count = min(end - step, block - step % block)
                from_whole = step == request.step or self._beginning.needs_all_atoms
                by_atom = self._share_(whole) if from_whole else self._hand_over_()
                self._stretch_(step, count, by_atom)
                step += count
                if step == end or self._beginning.needs_all_atoms:
                    self._end_(whole)

    def _stretch_(self, step: int, count: int, by_atom: Mapping[str, Tensor]) -> None:
        """Takes steps.

        Args:
            step: steps done before.
            count: to take.
            by_atom: buffers of the integrator by atom of the region, by name.
        """
        with torch.no_grad():
            self.atoms.assign_()
            with ExitStack() as stack:
                for one in self._divided():
                    stack.enter_context(
                        one.steps(
                            self.atoms, adds_up=self._adds_up, zeroes=self._beginning.adds_forces
                        )
                    )
                stack.enter_context(self.atoms.deciding())
                self._load_(by_atom)
                before = [item.rebuilds.clone() for item in self._calculation.lists]
                self.graphs.advance_(step, count)
                self._exchange.keep_pace_(self._calculation.device)
                self._settle_()
        if self._has_part and self._exchange.leads:
            lists = zip(self._calculation.lists, self._source.lists, before, strict=True)
            for item, of_whole, builds in lists:
                of_whole.rebuilds.add_(item.rebuilds - builds)

    def _share_(self, whole: Integrator | None) -> dict[str, Tensor]:
        """Brings what rank 0 has of the state, the lists and the integrator to all ranks.

        Returns:
            Buffers of the integrator by atom of the region, (M, ...), by name.
        """
        region, source = self._calculation, self._source
        state, own, parts = region.state, self._integrator, self._divided()
        replicated = self._replicated(source)
        tensors = (own if whole is None else whole).tensors()
        replicated_tensors = {
            name: value for name, value in tensors.items() if name not in self._names
        }
        planes = [one.planes if one.whole is None else one.whole.planes for one in parts]
        cells = [item.reference_cell for item in source.lists]
        shared = _Bytes([*replicated, *replicated_tensors.values(), *planes, *cells])
        self._exchange.share_(shared.bytes)()
        if self._has_part:
            values = iter(shared.values())
            for value in self._replicated(region):
                value.copy_(next(values))
            replicated_tensors = {name: next(values) for name in replicated_tensors}
            moved = torch.stack([one.take_planes_(next(values)) for one in parts]).any()
            cells = [*values]
        places = [source.state.positions, *(item.reference_positions for item in source.lists)]
        columns = [*self._columns(source), *(tensors[name] for name in self._names)]
        reach = max(one.reach for one in parts)
        bricks = [one.brick for one in parts if one.brick is not None]
        brick = max(bricks, key=lambda one: one.margin)
        region_columns = self._region.share_(
            source.state.numbers, places, [state.cell, *cells], columns, brick, reach
        )
        own.restore(own.tensors() | replicated_tensors)
        if not self._has_part:
            return {name: tensors[name] for name in self._names}
        return self._take_(region_columns, cells, moved)

    def _take_(
        self, region_columns: Sequence[Tensor], cells: Sequence[Tensor], moved: Tensor
    ) -> dict[str, Tensor]:
        """Takes into the region what came of its atoms.

        Args:
            region_columns: (M, ...), positions, what lists were built from, columns, and buffers
                of the integrator by atom.
            cells: (1, 3, 3) A, that lists were built from.
            moved: () bool, whether planes have.

        Returns:
            These buffers, by name.
        """
        region, end = self._calculation, 1 + len(cells)
        columns = self._columns(region)
        for value, new in zip(columns, region_columns[end:], strict=False):
            value.copy_(new)
        for one in self._divided():
            one.take_constant_()
        for item, place, vectors in zip(region.lists, region_columns[1:end], cells, strict=True):
            item.follow_(place, vectors, moved)
        return dict(zip(self._names, region_columns[end + len(columns) :], strict=True))

    def _places(self, positions: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Positions of own atoms (C, 3), and what lists were built from, with the cells of both."""
        state, lists, rows = self._calculation.state, self._calculation.lists, self.atoms.atoms
        references = [item.reference_positions.index_select(0, rows) for item in lists]
        cells = [state.cell, *(item.reference_cell for item in lists)]
        return [positions, *references], cells

    def _hand_over_(self) -> dict[str, Tensor]:
        """Brings own atoms to the ranks that have them near; see `_share_`."""
        region, own, atoms = self._calculation, self.own, self.atoms
        state, lists, buffers = region.state, region.lists, self._integrator.tensors()
        by_atom = [buffers[name] for name in self._names]
        references = [item.reference_positions for item in lists]
        before = [state.numbers, atoms.carried().to(state.dtype), *references]
        before += self._columns(region)
        before += [value.new_zeros(len(state.numbers), *value.shape[1:]) for value in by_atom]
        places, cells = self._places(own.positions)
        here = [state.numbers.index_select(0, atoms.atoms), *places]
        here += [getattr(own, name) for name in _BY_ATOM]
        of_evaluator, _ = self._evaluator_tensors(region)
        here += [*(value.index_select(0, atoms.atoms) for value in of_evaluator), *by_atom]
        table, earlier = (
            torch.cat([value.reshape(len(value), -1).double() for value in side], 1)
            for side in (here, before)
        )
        numbers = self._region.numbers_of(atoms.atoms)
        assert self._between is not None
        table = self._between(numbers, atoms.used, places, cells, table, earlier)
        unmoved = torch.zeros((), dtype=torch.bool, device=state.device)
        return self._take_(self._region.take_(table, here), cells[1:], unmoved)

    def _columns(self, calculation: Calculation) -> list[Tensor]:
        """What there is by atom beside positions, of a region or of the whole."""
        own = [getattr(calculation.state, name) for name in _BY_ATOM]
        return [*own, *self._evaluator_tensors(calculation)[0]]

    def _replicated(self, calculation: Calculation) -> list[Tensor]:
        """What is the same on all ranks, of a region or of the whole."""
        own = [getattr(calculation.state, name) for name in _REPLICATED]
        return [*own, *self._evaluator_tensors(calculation)[1]]

    def _evaluator_tensors(self, calculation: Calculation) -> tuple[list[Tensor], list[Tensor]]:
        """Those of the evaluator by atom, and others, which are the same on all ranks."""
        state = calculation.state
        atoms, tensors = len(state.numbers), calculation.evaluator.tensors(state).values()
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
        if self._beginning.needs_all_atoms:
            atoms.collect_({"positions": own.positions}, {"positions": region.positions})
        update_()
        if self._rank_0_forces is not None:
            self._add_rank_0_forces_(self._rank_0_forces)
        atoms.take_(region.forces, own.forces)

    @property
    def _adds_up(self) -> bool:
        """Whether a step needs energy or virial of the whole: a barostat, and what looks at all."""
        return self._integrator.cell_varies or self._beginning.needs_all_atoms

    def _settle_(self) -> None:
        """Adds up what a step has not, and says what has outgrown its buffers."""
        sums = [] if self._adds_up else self._sums(self._calculation)
        outgrown = self.atoms.outgrown()
        if self._between is not None:
            outgrown = outgrown | self._between.outgrown()
        for number, one in enumerate(self._divided()):
            one.settle_([] if number else sums, outgrown)

    @staticmethod
    def _sums(calculation: Calculation) -> list[Tensor]:
        """Energies and the virial, of a region or of the whole."""
        state = calculation.state
        terms = calculation.evaluator.term_energies(state).values()
        return [state.energy, state.virial, *terms]

    def _add_rank_0_forces_(self, buffer: Tensor) -> None:
        """Adds to forces, energies and virial what restraints and biases have added on rank 0.

        Of atoms of other ranks rank 0 has nothing else.
        """
        state, forces = self._calculation.state, self._calculation.evaluator.forces
        here = [state.forces]
        if forces(state) is not state.forces:
            here.append(forces(state))
        for value in here:
            if self._exchange.leads:
                buffer.copy_(value)
            self._region.share_rows_(buffer)
            if not self._exchange.leads:
                value.add_(buffer)
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
            if self._beginning.needs_all_atoms:
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

    def _collect_(self, into: Mapping[str, Tensor], *, lists: bool = False) -> None:
        """Brings the state of all atoms to rank 0.

        Args:
            into: buffers of the integrator by atom there, by name.
            lists: whether what lists were built from goes along.
        """
        own, atoms, names = self.own, self.atoms, ("positions", "velocities", "forces")
        here = {name: getattr(own, name) for name in names} | self._integrator.tensors()
        there = {name: getattr(self._source.state, name) for name in names} | dict(into)
        for name, value in self._by_atom(self._calculation, lists).items():
            here[name] = value.index_select(0, atoms.atoms)
        atoms.collect_(here, there | self._by_atom(self._source, lists))

    def _by_atom(self, calculation: Calculation, lists: bool) -> dict[str, Tensor]:
        """What else there is by atom, of a region or of the whole."""
        by_name = {"energies": calculation.state.energies}
        for number, value in enumerate(self._evaluator_tensors(calculation)[0]):
            by_name[f"evaluator {number}"] = value
        for number, item in enumerate(calculation.lists if lists else ()):
            by_name[f"list {number}"] = item.reference_positions
        return by_name

    def _end_(self, whole: Integrator | None) -> None:
        """Brings all that a stretch has changed to rank 0."""
        region, source, own = self._calculation, self._source, self._integrator.tensors()
        self._collect_(self._of_whole(self._names), lists=True)
        if whole is None:
            return
        whole.restore(own | self._of_whole(self._names))
        if self._has_part:
            here, there = ([*self._replicated(one), *self._sums(one)] for one in (region, source))
            for value, target in zip(here, there, strict=True):
                target.copy_(value)
            for item, of_whole in zip(region.lists, source.lists, strict=True):
                of_whole.reference_cell.copy_(item.reference_cell)
                # A plan that was too narrow is made anew for all.
                torch.maximum(of_whole.sticky()[2], item.sticky()[2], out=of_whole.sticky()[2])
            return
        for item in source.lists:
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
    previous: OwnSteps | None,
) -> OwnSteps | None:
    """Steps that all ranks take together; the previous ones if these are still valid.

    Syncs where buffers are made.

    Args:
        calculation: of the system.
        template: the integrator without buffers.
        remove_momentum: see StepsBeginning.
        online: observables.
        previous: steps that were taken before, or None.

    Returns:
        None if one rank has all atoms.

    Raises:
        OutgrownError: a list is incomplete.
    """
    evaluator, state, lists = calculation.evaluator, calculation.state, calculation.lists
    parts = parts_with_lists(evaluator, lists)
    if not parts or not all(part.shares(state) for part, _ in parts):
        return None
    adds_forces = calculation.springs is not None or calculation.biases is not None
    needs_all_atoms = adds_forces or any(record.within_steps for record in online)
    for part, _ in parts:
        part.keeps_all = needs_all_atoms
    divided: list[DividedSystem] = []
    while not divided or any(one.stale for one in divided):  # where the region has grown for others
        systems = [part.divided(state, own) for part, own in parts]
        divided = [one for one in systems if one is not None]
        if len(divided) < len(systems):
            raise OutgrownError
    if previous is not None and previous.is_valid:
        return previous
    wholes = [one.whole for one in divided if one.whole is not None]
    for one, whole in zip(divided[1:], wholes[1:], strict=True):
        # Whose planes atoms at other places have put, or a file.
        if not one.region.is_whole:
            whole.planes.copy_(wholes[0].planes)
        elif bool(one.take_planes_(wholes[0].planes)):
            for item in one.lists:
                item.rebuild_(item.reference_positions, item.reference_cell)
    beginning = StepsBeginning(
        new_number(),
        0 if previous is None else previous.number,
        template,
        remove_momentum,
        needs_all_atoms,
        adds_forces,
        EvaluatorRecipe.of(evaluator),
        tuple(one.number for one in divided),
        tuple(_place_of(item, divided) for item in lists),
    )
    exchange = divided[0].ranks
    exchange.call_(Call.BEGIN_STEPS, beginning.number, lambda: beginning)
    own = calculation if needs_all_atoms else beginning.calculation(evaluator, divided)
    steps = OwnSteps(own, divided, beginning, previous, calculation, online)
    exchange.finish_()
    finalize(steps, exchange.drop, Call.DROP_STEPS, beginning.number).atexit = False
    return steps


def _place_of(item: NeighborList, divided: Sequence[DividedSystem]) -> tuple[int, int]:
    """The number of a divided system that has a list, and the place of the list there."""
    for one in divided:
        assert one.whole is not None
        for place, own in enumerate(one.whole.lists):
            if own is item:
                return one.number, place
    raise AssertionError("each list is read by a part of the evaluator")
