"""StepDynamics: state and integrator, their steps and snapshots.

A step begins in `StepDynamics._step_`: the integrator moves atoms and calls
`Calculation.update_`, which brings neighbor lists, energy, forces and virial up to date.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from mdgraph.arguments import (
    check_fields,
    checked,
    current_keywords,
    real_array,
    shown,
    whole_number,
)
from mdgraph.decomposition import divided_parts
from mdgraph.engine.calculation import Calculation
from mdgraph.engine.integrators import Integrator
from mdgraph.engine.multiple_time_steps import outer_step_, steps_together
from mdgraph.engine.observables import MeanSquaredDisplacement, OnlineObservable, OnlineObservables
from mdgraph.engine.own_steps import OutgrownError, OwnSteps, own_steps
from mdgraph.engine.schedules import RENAMED, Schedule
from mdgraph.engine.step_graphs import StepGraphs
from mdgraph.engine.velocities import Conserved, degrees_of_freedom
from mdgraph.errors import InputError
from mdgraph.evaluators import MultipleTimeStepEvaluator
from mdgraph.state import State, systems_of
from mdgraph.system import System, completed_cell

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SystemUpdate:
    """New seed, charge or cell; None keeps the current value.

    Attributes:
        seed: key of random numbers.
        charge: e, for all systems, or one for each.
        cell: (3, 3) A, for all systems, or (S, 3, 3), one for each.
        move_atoms: keep scaled positions along periodic directions; else keep positions.
    """

    seed: int | None = None
    charge: float | Sequence[float] | None = None
    cell: ArrayLike | None = None
    move_atoms: bool = True

    def __post_init__(self) -> None:
        """Raises InputError for a seed that is not a whole number."""
        check_fields(self)
        if self.seed is not None:
            whole_number(self.seed, "The seed")

    @classmethod
    def split(cls, values: Mapping[str, Any]) -> tuple["SystemUpdate", dict[str, Any]]:
        """The update among keyword arguments, and the other arguments."""
        own = {field.name for field in fields(cls)}
        rest = {name: value for name, value in values.items() if name not in own}
        return cls(**{name: value for name, value in values.items() if name in own}), rest

    def check_records(self, records: Iterable[OnlineObservable]) -> None:
        """Raises InputError if atoms that move with a new cell would spoil an observable."""
        moves = self.cell is not None and self.move_atoms
        for record in records:
            if moves and isinstance(record, MeanSquaredDisplacement):
                raise InputError(
                    f"A new cell would carry its atoms along, which the {record.kind} takes for "
                    "diffusion; keep all positions by move_atoms=False, or make a new simulation."
                )

    def systems(self, calculation: Calculation) -> list[System] | None:
        """Changed systems, or None if only the seed changes; syncs.

        Raises:
            InputError: invalid numbers, a charge the potential cannot take, or a cell that does
                not fit the atoms, has another number of independent vectors than the old one,
                or would move fixed atoms.
        """
        if self.charge is None and self.cell is None:
            return None
        systems = systems_of(calculation.state)
        if self.charge is not None:
            charges = _per_system("charge", self.charge, (), len(systems)).tolist()
            systems = [
                system.replace(charge=charge)
                for system, charge in zip(systems, charges, strict=True)
            ]
        if self.cell is not None:
            if self.move_atoms and bool(calculation.state.fixed.any()):
                raise InputError(
                    "Fixed atoms would move with the cell; keep all positions by move_atoms=False."
                )
            cells = _per_system("cell", self.cell, (3, 3), len(systems))
            systems = [
                _in_cell(system, cell, self.move_atoms)
                for system, cell in zip(systems, cells, strict=True)
            ]
        calculation.check(systems)
        return systems


def write_systems_(state: State, systems: Sequence[System]) -> None:
    """Writes charges, cells and positions into the buffers that graphs read."""
    charges = [system.charge for system in systems]
    state.charge.copy_(torch.tensor(charges, dtype=torch.float64))
    state.cell.copy_(torch.tensor(np.stack([system.cell for system in systems])))
    state.positions.copy_(torch.tensor(np.concatenate([system.positions for system in systems])))


def _per_system(
    name: str, value: ArrayLike, shape: tuple[int, ...], count: int
) -> NDArray[np.float64]:
    """(S, *shape) from one value for all systems, or one for each."""
    array = real_array(value)
    if array is None or array.shape not in (shape, (count, *shape)) or not np.isfinite(array).all():
        example = f"{shape} of them" if shape else "one"
        raise InputError(
            f"The {name} is {shown(value)}; give finite numbers, {example} for all "
            f"systems or for each of the {count}."
        )
    return np.broadcast_to(array, (count, *shape))


def _in_cell(system: System, cell: NDArray[np.float64], move_atoms: bool) -> System:
    deformed = system.replace(cell=cell)
    rank, old_rank = (int(np.linalg.matrix_rank(each.cell)) for each in (deformed, system))
    if rank != old_rank:
        raise InputError(
            f"The cell has {rank} independent vectors and had {old_rank}; make a new simulation."
        )
    if not move_atoms:
        return deformed
    old, new = (completed_cell(each.cell, each.pbc) for each in (system, deformed))
    return deformed.replace(positions=system.positions @ np.linalg.inv(old) @ new)


class CheckpointState:
    """The tensors that a step changes: state, integrator, observables, references of lists.

    Copies are on the device; those of a system on several ranks, whose GPUs are full, on the host.
    """

    def __init__(
        self, calculation: Calculation, integrator: Integrator, online: OnlineObservables
    ) -> None:
        self._calculation = calculation
        self._integrator = integrator
        self._online = online
        self._biases = calculation.biases

    def tensors(self) -> dict[str, Any]:
        """The buffers themselves, not copies, in the layout of a snapshot."""
        lists = self._calculation.lists
        return {
            "state": self._calculation.state.tensors(),
            "evaluator": self._evaluator_tensors(),
            "integrator": self._integrator.tensors(),
            "online": self._online.tensors(),
            "biases": {} if self._biases is None else self._biases.tensors(),
            "lists": [(item.reference_positions, item.reference_cell) for item in lists],
        }

    def _evaluator_tensors(self) -> dict[str, Tensor]:
        return self._calculation.evaluator.tensors(self._calculation.state)

    def copy(self, into: dict[str, Any] | None = None) -> dict[str, Any]:
        """A copy in new tensors, or in those of an older copy; does not sync."""
        own = self.tensors()
        if into is None:
            parts = divided_parts(self._calculation.evaluator)
            into = _like(own, any(part.shares(self._calculation.state) for part in parts))
        tensors = {name: into[name] for name in own}
        sources: dict[torch.dtype, list[Tensor]] = {}
        targets: dict[torch.dtype, list[Tensor]] = {}
        for source, target in zip(_leaves(own), _leaves(tensors), strict=True):
            sources.setdefault(source.dtype, []).append(source)
            targets.setdefault(source.dtype, []).append(target)
        with torch.no_grad():
            for dtype, copies in targets.items():
                # One kernel for all tensors of a type, on a device.
                torch._foreach_copy_(copies, sources[dtype], non_blocking=True)
        return into

    def restore(self, copy: Mapping[str, Any]) -> None:
        """Writes a copy back and builds the lists from their references; does not sync."""
        self._calculation.state.restore(copy["state"])
        for name, tensor in self._evaluator_tensors().items():
            tensor.copy_(copy["evaluator"][name])
        self._integrator.restore(copy["integrator"])
        self._online.restore(copy["online"])
        if self._biases is not None:
            self._biases.restore(copy["biases"])
        references = zip(self._calculation.lists, copy["lists"], strict=True)
        for neighbor_list, (positions, cell) in references:
            device = neighbor_list.reference_cell.device
            neighbor_list.rebuild_(positions.to(device), cell.to(device))


def _like(tree: Any, on_host: bool) -> Any:
    if isinstance(tree, Tensor):
        if on_host and tree.device.type == "cuda":
            return torch.empty_like(tree, device="cpu", pin_memory=True)
        return torch.empty_like(tree)
    if isinstance(tree, dict):
        return {name: _like(part, on_host) for name, part in tree.items()}
    return type(tree)(_like(part, on_host) for part in tree)


def _leaves(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    else:
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from _leaves(part)


class StepDynamics:
    """State, neighbor lists, evaluator and integrator, at a step of a trajectory.

    Attributes:
        calculation: state, lists and evaluator.
        state: the buffers.
        integrator: advances positions, velocities and cells.
        step_graphs: runs steps, as CUDA graphs or eagerly.
        step: steps done since the start of the trajectory.
        timestep: fs, that of the next step.
        degrees_of_freedom: of each system; `degrees_text` says how they were counted.
        remove_momentum: steps from one removal of momentum to the next, or 0.
        online: observables that steps record on the device.
    """

    def __init__(
        self,
        calculation: Calculation,
        integrator: Integrator,
        conserved: Conserved,
        remove_momentum: int,
        observe: Sequence[OnlineObservable],
    ) -> None:
        """Counts degrees of freedom and evaluates the start; reads the device.

        Args:
            calculation: with the initial velocities.
            integrator: of these dynamics alone, not shared.
            conserved: momenta that the dynamics conserve.
            remove_momentum: see above.
            observe: observables that every step records.

        Raises:
            InputError: atoms are fixed in a cell that varies, or see `Integrator.allocate`.
        """
        self.calculation = calculation
        self.state: State = calculation.state
        self.integrator = integrator
        self.remove_momentum = remove_momentum
        self.step = 0
        parameters = integrator.parameters
        self.timestep = parameters["timestep"].start[0] if "timestep" in parameters else 0.0
        self._time_origin = (0, 0.0)
        self._conserved = conserved
        self._template = copy(integrator)
        self._own_steps: OwnSteps | None = None
        self.count_degrees_of_freedom()
        if integrator.cell_varies and bool(self.state.fixed.any()):
            raise InputError(
                "Fixed atoms would not follow a cell that varies; restrain them instead, keep the "
                "cell, as nve and nvt do, or remove FixAtoms from the structure."
            )
        integrator.allocate(self.state)
        calculation.compute()
        if calculation.biases is not None:
            calculation.biases.check_start()
            if calculation.biases.moving and integrator.converged() is not None:
                raise InputError(
                    f"The bias {calculation.biases.moving[0]} changes with the steps, so there is "
                    "no minimum to find; leave it out."
                )
        if calculation.evaluator.switching(self.state) and integrator.converged() is not None:
            raise InputError(
                "Weights of terms change with the steps, so there is no minimum to find; give "
                "constant weights."
            )
        self.online = OnlineObservables(observe, calculation, integrator)
        self._checkpoint_state = CheckpointState(calculation, integrator, self.online)
        self.step_graphs = StepGraphs(
            self._step_, integrator, self.unchanged, calculation.device, self.together
        )
        if integrator.by_kernels and calculation.device.type == "cuda":
            self._compile()

    def _compile(self) -> None:
        """Compiles the integrator's kernels in parallel; the first step would do so in turn."""
        from mdgraph.gpu.triton_jit import compiling_ahead

        with self.unchanged(), compiling_ahead():
            self.integrator.step_(self.state, lambda: None)

    def count_degrees_of_freedom(self) -> None:
        """Counts again; call it after new velocities are written into the state."""
        degrees = degrees_of_freedom(self.state, self._conserved)
        self.degrees_text = degrees.text
        self.set_degrees_of_freedom(degrees.count)

    def set_degrees_of_freedom(self, count: Sequence[int]) -> None:
        """Sets known counts, such as those of a restart file."""
        self.degrees_of_freedom = tuple(count)
        self.state.degrees.copy_(torch.tensor(self.degrees_of_freedom))
        self.integrator.refresh()

    @property
    def time(self) -> float:
        """Simulated time, fs."""
        step, time = self._time_origin
        return time + (self.step - step) * self.timestep

    @property
    def clock(self) -> tuple[int, float, float]:
        """A step, the time at that step in fs, and the time step since then in fs."""
        return (*self._time_origin, self.timestep)

    def set(self, **values: Any) -> None:
        """Changes parameters, seed, charge or cell from the next step on, all or none.

        Captured graphs stay valid, since they read the same buffers. Only a cell that the
        integrator does not move, or that needs longer neighbor lists, makes new lists, and steps
        are captured again. A charge or a cell evaluates forces and syncs.

        Args:
            values: by name, parameters of the integrator (`timestep`, `temperature`, `pressure`,
                `friction` and so on): a number, one for each system, or a `Ramp`. `seed`: of all
                random numbers to come. `charge`: e. `cell`: (3, 3) A, or (S, 3, 3). With a new
                cell scaled positions stay, as ends of restraints always do; with
                `move_atoms=False` positions stay.

        Raises:
            InputError: no such parameter, or a value that cannot be.
        """
        update, values = SystemUpdate.split(current_keywords(values, RENAMED))
        self.online.check_change(values)
        self.integrator.schedules(values)
        update.check_records(self.online)
        systems = update.systems(self.calculation)
        if systems is not None:
            self._apply(systems, update.cell is not None)
        if update.seed is not None:
            self.state.seed.fill_(update.seed)
        self.integrator.set(values)
        if "timestep" in values:
            self._time_origin = (self.step, self.time)
            self.timestep = Schedule("timestep", values["timestep"]).start[0]

    def _apply(self, systems: Sequence[System], cells: bool) -> None:
        """Evaluates new charges, cells and positions; the old ones again if that fails."""
        before = systems_of(self.state)
        try:
            self._evaluate(systems, cells)
            self.calculation.check_coincident()
        except BaseException:
            self._evaluate(before, cells)
            raise

    def _evaluate(self, systems: Sequence[System], cells: bool) -> None:
        write_systems_(self.state, systems)
        if cells and not self.integrator.cell_varies:
            self.step_graphs.forget()
            self.calculation.plan_anew()
        self.evaluate_again()

    def evaluate_again(self) -> None:
        """Evaluates the present state, after numbers of biases or the state changed; syncs."""
        self.calculation.update_()
        if not self.calculation.complete():
            self.step_graphs.forget()
            self.calculation.compute()

    @property
    def together(self) -> int:
        """Steps from one evaluation of the potential to the next; see `steps_together`."""
        return steps_together(self.calculation.evaluator)

    def advance_(self, count: int) -> None:
        """Takes steps from the present one on, on all ranks; leaves `step` as it is.

        Syncs only to capture a graph, or where buffers are made.
        """
        try:
            own = own_steps(
                self.calculation, self._template, self.remove_momentum, self.online, self._own_steps
            )
        except OutgrownError:
            return
        if own is None:
            self._own_steps, self.step_graphs.beside = None, []
            self.step_graphs.advance_(self.step, count)
            return
        if own is not self._own_steps:
            self._own_steps, self.step_graphs.beside = own, [own]
        own.lead(self.step_graphs, self.integrator, self.step, count)

    def _step_(self, number: int | None = None) -> None:
        with torch.no_grad():
            evaluator, calculation = self.calculation.evaluator, self.calculation
            if isinstance(evaluator, MultipleTimeStepEvaluator):
                outer_step_(
                    evaluator,
                    self.state,
                    self._inner_step_,
                    calculation.update_,
                    calculation.update_small_,
                    moves_cell=self.integrator.cell_varies,
                    number=number,
                )
            else:
                self._inner_step_(calculation.update_, number)
            if self.remove_momentum:
                due = self.state.step % self.remove_momentum == 0
                self.integrator.remove_momentum_(self.state, due)
            self.online.record_(number)

    def _inner_step_(self, update_: Callable[[], None], number: int | None) -> None:
        """A step of the integrator with what evaluator and biases do before and after it.

        Args:
            update_: brings the forces up to date.
            number: steps done after it; None within a captured step.
        """
        biases, evaluator = self.calculation.biases, self.calculation.evaluator
        evaluator.begin_step_(self.state)
        if biases is not None:
            biases.begin_step_()
        self.integrator.step_(self.state, update_)
        evaluator.end_step_(self.state)
        if biases is not None:
            biases.end_step_(number)

    @checked
    def set_skin(self, skin: float) -> None:
        """Sets the skin of the neighbor lists, A; syncs."""
        self.step_graphs.forget()
        self.calculation.set_skin(skin)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Restores, at its end, the state and the lists' counters; does not sync."""
        start, lists = self.snapshot(), self.calculation.lists
        counters = [item.sticky().clone() for item in lists]
        try:
            yield
        finally:
            self.restore(start)
            for item, before in zip(lists, counters, strict=True):
                item.sticky().copy_(before)

    def resume(self, snapshot: dict[str, Any], degrees_of_freedom: Sequence[int]) -> None:
        """Continues from a snapshot of another simulation of the same system; syncs."""
        self.step_graphs.forget()
        self.restore(snapshot)
        if not self.calculation.complete():
            self.calculation.grow()
        self.set_degrees_of_freedom(degrees_of_freedom)

    def snapshot(self, into: dict[str, Any] | None = None) -> dict[str, Any]:
        """Copies everything that a step changes, see CheckpointState; does not sync.

        Args:
            into: an older copy, whose tensors are overwritten.
        """
        snapshot = self._checkpoint_state.copy(into)
        snapshot["step"], snapshot["clock"] = self.step, self.clock
        snapshot["division"] = {name: value.clone() for name, value in self._division().items()}
        return snapshot

    def _division(self) -> dict[str, Tensor]:
        return self.calculation.evaluator.division(self.state)

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Writes a snapshot back and builds the lists from their references."""
        self.step = snapshot["step"]
        *clock, self.timestep = snapshot["clock"]
        self._time_origin = (clock[0], clock[1])
        own, known = self._division(), snapshot.get("division", {})
        for name in own.keys() & known.keys():
            own[name].copy_(known[name])
        self._checkpoint_state.restore(snapshot)
