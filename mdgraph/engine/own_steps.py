"""OwnSteps: steps of one system that all ranks take together, each of its own atoms.

Rank 0 has the whole state before and after a stretch of steps, so all that looks at it in between,
from checks of the run to restart files, is that of one process. Within the stretch each rank has a
state of its own atoms alone, with an integrator of its own, and gets positions of the atoms near
them; cell, thermostat and barostat are the same on all ranks, which add up what these need.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from weakref import ref

import numpy as np
import torch
from torch import Tensor

from mdgraph.decomposition.evaluator import DecomposedEvaluator, DividedSystem
from mdgraph.decomposition.exchange import Call
from mdgraph.engine.calculation import Calculation
from mdgraph.engine.integrators import Integrator
from mdgraph.engine.kinetics import remove_momentum_
from mdgraph.engine.step_graphs import StepGraphs
from mdgraph.state import State
from mdgraph.system import System

_BY_ATOM = ("positions", "velocities", "forces", "masses", "inverse_masses")
"""Of the state, which rank 0 shares before a stretch."""

_REPLICATED = ("cell", "energy", "virial", "charge", "degrees", "step", "seed")
"""The same on all ranks at each step."""


@dataclass(frozen=True)
class Request:
    """A stretch of steps, as rank 0 asks for it.

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
        integrator: without buffers.
        remove_momentum: steps from one removal of momentum to the next, or 0.
    """

    integrator: Integrator
    remove_momentum: int

    def follower(
        self, evaluator: DecomposedEvaluator, state: State, divided: DividedSystem
    ) -> "OwnSteps":
        """See Beginning."""
        return OwnSteps(Calculation.of_parts(evaluator, state, divided.lists), divided, self)


class OwnSteps:
    """Steps of the own atoms of this rank, and its part of what all ranks do with them.

    Attributes:
        own: the atoms, in rows with room for more; those without an atom have no mass.
        graphs: of these steps.
        atoms: which ones they are.
    """

    def __init__(
        self, calculation: Calculation, divided: DividedSystem, beginning: StepsBeginning
    ) -> None:
        """Allocates; reads the device.

        Args:
            calculation: of the whole system, whose positions are valid for own atoms and those
                near them.
            divided: what ranks have of it.
            beginning: of the steps.

        Raises:
            InputError: see `Integrator.allocate`.
        """
        assert divided.own is not None
        self._calculation, self._beginning = calculation, beginning
        self._number, self._reference = divided.number, ref(divided)
        self.atoms, self._exchange = divided.own, divided.own.exchange
        region = calculation.state
        rows, first = len(self.atoms.atoms), int(region.numbers[0])
        system = System(
            numbers=np.full(rows, first),
            positions=np.zeros((rows, 3)),
            cell=region.cell[0].double().cpu().numpy(),
            pbc=region.pbc[0].cpu().numpy(),
        )
        self.own = State([system], region.device, region.dtype)
        self.own.ranks = self.atoms
        self.own.positions.copy_(region.positions[self.atoms.atoms])
        self._integrator = copy(beginning.integrator)
        self._integrator.allocate(self.own)
        self.graphs = StepGraphs(
            self._step_, self._integrator, self._unchanged, region.device, ranks=self._exchange
        )

    def lead(
        self, graphs: StepGraphs, integrator: Integrator, step: int, count: int, *, begun: bool
    ) -> None:
        """Takes steps on all ranks; on rank 0.

        Args:
            graphs: whose settings count, and get what is found of memory.
            integrator: of the whole system.
            step: steps done before.
            count: to take.
            begun: whether other ranks know of these steps.
        """
        request = Request(step, count, graphs.settings)
        content = (None if begun else self._beginning, request)
        self._exchange.call_(Call.STEPS, self._number, lambda: content)
        self._advance_(request, integrator)
        graphs.settings = self.graphs.settings
        self._exchange.finish_()

    def follow(self, request: Request) -> None:
        """Takes steps that rank 0 asks for; on other ranks."""
        self._advance_(request, None)

    def forget(self) -> None:
        """Drops the graphs, on rank 0 of all ranks."""
        self.graphs.forget()
        if self._exchange.leads:
            self._exchange.drop(Call.FORGET, self._number)

    @property
    def _divided(self) -> DividedSystem:
        """What ranks have; not kept here, so that it makes room for a larger one."""
        divided = self._reference()
        assert divided is not None
        return divided

    def _advance_(self, request: Request, whole: Integrator | None) -> None:
        self.graphs.settings = request.graphs
        with torch.no_grad():
            self._share_(whole)
            with self._divided.steps():
                self._load_()
                self.graphs.advance_(request.step, request.count)
                self._collect_(whole)

    def _share_(self, whole: Integrator | None) -> None:
        """Brings what rank 0 has of the state, the lists and the integrator to all ranks."""
        region, own = self._calculation.state, self._integrator
        waits = [self._exchange.share_(getattr(region, name)) for name in _BY_ATOM]
        replicated = {name: getattr(region, name) for name in _REPLICATED}
        given = (own if whole is None else whole).tensors()
        shared = _Bytes([*replicated.values(), *given.values()])
        waits.append(self._exchange.share_(shared.bytes))
        references = []
        for item in self._calculation.lists:
            places, vectors = item.reference_positions, item.reference_cell
            if whole is None:
                places, vectors = torch.empty_like(places), torch.empty_like(vectors)
            waits += [self._exchange.share_(value) for value in (places, vectors)]
            references.append((places, vectors))
        for wait in waits:
            wait()
        if whole is None:
            changed = torch.zeros((), dtype=torch.bool, device=region.device)
            for item, reference in zip(self._calculation.lists, references, strict=True):
                item.follow_(*reference, changed)
        values = shared.values()
        for name, value in zip(replicated, values, strict=False):
            getattr(self.own, name).copy_(value)
            if whole is None:
                getattr(region, name).copy_(value)
        own.restore(dict(zip(given, values[len(replicated) :], strict=True)))

    def _load_(self) -> None:
        """Fills the rows with own atoms."""
        region, own, atoms = self._calculation.state, self.own, self.atoms
        own.atom.copy_(atoms.atoms)
        for name in _BY_ATOM:
            torch.index_select(getattr(region, name), 0, atoms.atoms, out=getattr(own, name))
        for value in (own.velocities.T, own.masses, own.inverse_masses):
            value.masked_fill_(~atoms.used, 0.0)
        atoms.begin_(own.positions, own.cell)

    def _update_(self) -> None:
        """Brings the forces on own atoms up to date; static shapes, does not sync on CUDA."""
        region, own, atoms = self._calculation.state, self.own, self.atoms
        region.positions.index_copy_(0, atoms.atoms, own.positions[atoms.kept])
        region.cell.copy_(own.cell)
        atoms.exchange_(region.positions)
        atoms.measure_(own.positions, own.cell)
        self._calculation.update_()
        torch.index_select(region.forces, 0, atoms.atoms, out=own.forces)
        own.energy.copy_(region.energy)
        own.virial.copy_(region.virial)

    def _step_(self, number: int | None = None) -> None:
        with torch.no_grad():
            self._integrator.step_(self.own, self._update_)
            if interval := self._beginning.remove_momentum:
                remove_momentum_(self.own, self.own.step % interval == 0)

    def _collect_(self, whole: Integrator | None) -> None:
        """Brings all atoms to rank 0, and what is the same on all ranks into its state."""
        region, own, lists = self._calculation.state, self.own, self._calculation.lists
        into = [region.positions, region.velocities, region.forces, region.energies[:, None]]
        into += [item.reference_positions for item in lists]
        atoms = self.atoms.atoms
        others = [value.index_select(0, atoms) for value in into[3:]]
        values = torch.cat([own.positions, own.velocities, own.forces, *others], 1)
        ends = torch.tensor([value.shape[1] for value in into]).cumsum(0).tolist()
        parts = [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]
        self.atoms.collect_(values, list(zip(into, parts, strict=True)))
        if whole is None:
            return
        for name in _REPLICATED:
            getattr(region, name).copy_(getattr(own, name))
        whole.restore(self._integrator.tensors())
        for item in lists:
            # From the places of all atoms; those far away were not those of the last build.
            item.rebuild_(item.reference_positions, item.reference_cell)
            item.rebuilds.sub_(1)

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Restores, at its end, all that steps change; does not sync."""
        lists, divided = self._calculation.lists, self._divided
        changed = [*self.own.tensors().values(), *self._integrator.tensors().values()]
        changed += [self._calculation.state.positions, self._calculation.state.cell]
        changed += [divided.outgrown, divided.needed]
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
    integrator: Integrator,
    beginning: StepsBeginning,
    known: OwnSteps | None,
) -> OwnSteps | None:
    """Steps that all ranks take together, those that are known where they serve; else None.

    Rank 0 takes the steps alone where it has all atoms, or something in a step looks at all of
    them. Syncs where buffers are made.
    """
    evaluator = calculation.evaluator
    if not isinstance(evaluator, DecomposedEvaluator):
        return None
    if calculation.springs is not None or calculation.biases is not None:
        return None
    atoms = len(calculation.state.numbers)
    by_atom = any(atoms in tensor.shape for tensor in integrator.tensors().values())
    if by_atom or calculation.state.dtype != torch.float64:
        return None
    divided = evaluator.divided(calculation.state, calculation.lists)
    if divided is None:
        return None
    if known is not None and known.atoms is divided.own:
        return known
    return OwnSteps(calculation, divided, beginning)
