"""StepDynamics: what a step changes, its execution as CUDA graphs, and its checkpoint state."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from typing import Any, Final

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
from mdgraph.engine.calculation import Calculation
from mdgraph.engine.checks import completed
from mdgraph.engine.integrators import Integrator
from mdgraph.engine.integrators.base import BLOCK
from mdgraph.engine.kinetics import remove_momentum_
from mdgraph.engine.observables import MeanSquaredDisplacement, OnlineObservable, OnlineObservables
from mdgraph.engine.schedules import RENAMED, Schedule
from mdgraph.engine.velocities import Conserved, degrees_of_freedom
from mdgraph.errors import InputError
from mdgraph.fused.clusters import systems_of
from mdgraph.gpu.graphs import CapturedGraph, GraphMemoryError, captured, say_eager
from mdgraph.state import State
from mdgraph.system import System


@dataclass(frozen=True)
class SystemUpdate:
    """What is to be another one; None leaves it.

    Attributes:
        seed: key of random numbers.
        charge: e, of all systems, or one for each.
        cell: (3, 3) A, of all systems, or (S, 3, 3), one for each.
        move_atoms: whether scaled positions along periodic directions stay, or positions.
    """

    seed: int | None = None
    charge: float | Sequence[float] | None = None
    cell: ArrayLike | None = None
    move_atoms: bool = True

    def __post_init__(self) -> None:
        """Raises InputError for a seed that is none."""
        check_fields(self)
        if self.seed is not None:
            whole_number(self.seed, "The seed")

    @classmethod
    def split(cls, values: Mapping[str, Any]) -> tuple["SystemUpdate", dict[str, Any]]:
        """What is named here, and the rest."""
        own = {one.name for one in fields(cls)}
        rest = {name: value for name, value in values.items() if name not in own}
        return cls(**{name: value for name, value in values.items() if name in own}), rest

    def check_records(self, records: Iterable[OnlineObservable]) -> None:
        """Raises InputError where a cell that carries its atoms along would spoil a record."""
        moves = self.cell is not None and self.move_atoms
        for one in records:
            if moves and isinstance(one, MeanSquaredDisplacement):
                raise InputError(
                    f"A new cell would carry its atoms along, which the {one.kind} takes for "
                    "diffusion; keep all positions by move_atoms=False, or make a new simulation."
                )

    def systems(self, calculation: Calculation) -> list[System] | None:
        """Changed systems, or None where only the seed is; reads the device.

        Raises:
            InputError: numbers that cannot be, a charge the potential cannot take, a cell that
                does not fit the atoms, that spans a volume where the old one did not or the
                reverse, or that would move fixed atoms.
        """
        if self.charge is None and self.cell is None:
            return None
        systems = systems_of(calculation.state)
        if self.charge is not None:
            charges = _of_each("charge", self.charge, (), len(systems)).tolist()
            systems = [one.replace(charge=own) for one, own in zip(systems, charges, strict=True)]
        if self.cell is not None:
            if self.move_atoms and bool(calculation.state.fixed.any()):
                raise InputError(
                    "Fixed atoms would move with the cell; keep all positions by move_atoms=False."
                )
            cells = _of_each("cell", self.cell, (3, 3), len(systems))
            pairs = zip(systems, cells, strict=True)
            systems = [_in_cell(one, own, self.move_atoms) for one, own in pairs]
        calculation.check(systems)
        return systems


def write_(state: State, systems: Sequence[System]) -> None:
    """Writes charges, cells and positions into the buffers that graphs read."""
    charges = [one.charge for one in systems]
    state.charge.copy_(torch.tensor(charges, dtype=torch.float64))
    state.cell.copy_(torch.tensor(np.stack([one.cell for one in systems])))
    state.positions.copy_(torch.tensor(np.concatenate([one.positions for one in systems])))


def _of_each(
    name: str, value: ArrayLike, shape: tuple[int, ...], count: int
) -> NDArray[np.float64]:
    """(S, *shape) from one value for all systems, or one for each."""
    array = real_array(value)
    if array is None or array.shape not in (shape, (count, *shape)) or not np.isfinite(array).all():
        one = f"{shape} of them" if shape else "one"
        raise InputError(
            f"The {name} is {shown(value)}; give finite numbers, {one} for all "
            f"systems or for each of the {count}."
        )
    return np.broadcast_to(array, (count, *shape))


def _in_cell(system: System, cell: NDArray[np.float64], move_atoms: bool) -> System:
    found = system.replace(cell=cell)
    rank, before = (int(np.linalg.matrix_rank(one.cell)) for one in (found, system))
    if rank != before:
        raise InputError(
            f"The cell has {rank} independent vectors and had {before}; make a new simulation."
        )
    if not move_atoms:
        return found
    old, new = (completed(one.cell, one.pbc) for one in (system, found))
    return found.replace(positions=system.positions @ np.linalg.inv(old) @ new)


logger = logging.getLogger(__name__)

LONGEST: Final = BLOCK
"""Most steps in a graph: what an integrator prepares together."""

POWERS: Final = tuple(1 << power for power in range(LONGEST.bit_length()))
"""Steps that graphs may hold."""


class StepGraphs:
    """Advances a simulation by some steps, launching as little as it can.

    A graph of several steps follows its predecessor at once, where between two replays the
    GPU waits some microseconds. Graphs of 1, 2, 4 ... steps are captured when they are first
    needed, so that any number of steps takes few replays; none goes on over the end of a
    block that the integrator prepares. They share their memory, in which nothing outlives a
    replay. Where there is none for a graph they are shorter, and where there is none for any,
    steps run eagerly, until the buffers are replaced.
    """

    def __init__(
        self,
        step_: Callable[[int | None], None],
        integrator: Integrator,
        unchanged: Callable[[], AbstractContextManager[None]],
        device: torch.device,
    ) -> None:
        """Captures nothing yet.

        Args:
            step_: takes one step; its argument is the number of steps done after it, where
                that is known, which is not so in a graph.
            integrator: prepares blocks of steps.
            unchanged: takes back what happens within it.
            device: of all this.
        """
        self._step_ = step_
        self._integrator = integrator
        self._unchanged = unchanged
        self._device = device
        self._graphs: dict[int, CapturedGraph] = {}
        self._graphed = False
        self._longest = LONGEST
        self._fitting = LONGEST
        self._said = False

    @property
    def graphed(self) -> bool:
        """Whether steps are replays: where that was set, and there is memory for a graph."""
        return self._graphed and self._fitting > 0

    @graphed.setter
    def graphed(self, wanted: bool) -> None:
        self._graphed = wanted

    @property
    def longest(self) -> int:
        """Most steps in one graph, one of `POWERS`: what was set, or what there is memory for."""
        return min(self._longest, max(self._fitting, 1))

    @longest.setter
    def longest(self, wanted: int) -> None:
        self._longest = wanted

    def advance_(self, step: int, count: int) -> None:
        """Takes steps; does not sync, but where a graph is captured first.

        Args:
            step: how many were done before.
            count: how many to take.
        """
        end = step + count
        while step < end:
            self._integrator.prepare_(step)
            length = self._replay_(end - step, BLOCK - step % BLOCK)
            if not length:
                self._step_(step + 1)
            step += length or 1

    def forget(self) -> None:
        """Drops the graphs, as when buffers that they hold are replaced."""
        self._graphs.clear()
        self._fitting = LONGEST

    def _replay_(self, *bounds: int) -> int:
        """Replays the longest graph that fits and returns its steps; 0 where none can be made."""
        while self.graphed:
            length = 1 << (min(self.longest, *bounds).bit_length() - 1)
            graph = self._graphs.get(length) or self._captured(length)
            if graph is not None:
                graph.replay()
                return length
        return 0

    def _captured(self, length: int) -> CapturedGraph | None:
        options: dict[str, Any] = {"calls": length} if length > 1 else {}
        if self._graphs:
            options["pool"] = next(iter(self._graphs.values())).pool
        try:
            with self._unchanged():
                graph = captured(lambda: self._step_(None), self._device, **options)
        except GraphMemoryError as error:
            self._make_do_with(length // 2, error)
            return None
        self.graphed = graph is not None
        if graph is not None:
            self._graphs[length] = graph
            logger.debug("Captured %d steps as a CUDA graph.", length)
        return graph

    def _make_do_with(self, length: int, error: GraphMemoryError) -> None:
        """Takes graphs of so many steps at most, or none for 0."""
        self._fitting = length
        if length:
            logger.info("CUDA graphs hold %d steps at most: %s", length, error)
            return
        self._graphs.clear()  # eager steps may need their memory
        if not self._said:
            say_eager(error)
        self._said = True


class CheckpointState:
    """The tensors of a simulation that a step changes, and from which it goes on."""

    def __init__(
        self, calculation: Calculation, integrator: Integrator, online: OnlineObservables
    ) -> None:
        self._calculation = calculation
        self._integrator = integrator
        self._online = online

    def tensors(self) -> dict[str, Any]:
        """The buffers themselves, as they lie in a snapshot; not copies."""
        lists = self._calculation.lists
        return {
            "state": self._calculation.state.tensors(),
            "integrator": self._integrator.tensors(),
            "online": self._online.tensors(),
            "lists": [(one.reference_positions, one.reference_cell) for one in lists],
        }

    def copy(self, into: dict[str, Any] | None = None) -> dict[str, Any]:
        """A copy, in new tensors or in those of an older copy; on the device, does not sync."""
        own = self.tensors()
        into = _like(own) if into is None else into
        tensors = {name: into[name] for name in own}
        sources: dict[torch.dtype, list[Tensor]] = {}
        targets: dict[torch.dtype, list[Tensor]] = {}
        for source, target in zip(_leaves(own), _leaves(tensors), strict=True):
            sources.setdefault(source.dtype, []).append(source)
            targets.setdefault(source.dtype, []).append(target)
        with torch.no_grad():
            for kind, several in targets.items():
                # One kernel for all tensors of a type.
                torch._foreach_copy_(several, sources[kind], non_blocking=True)
        return into

    def restore(self, copy: Mapping[str, Any]) -> None:
        """Writes a copy back and builds the lists from their references; does not sync."""
        self._calculation.state.restore(copy["state"])
        self._integrator.restore(copy["integrator"])
        self._online.restore(copy["online"])
        for one, (positions, cell) in zip(self._calculation.lists, copy["lists"], strict=True):
            one.rebuild_(positions, cell)


def _like(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return torch.empty_like(tree)
    if isinstance(tree, dict):
        return {name: _like(part) for name, part in tree.items()}
    return type(tree)(_like(part) for part in tree)


def _leaves(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    else:
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from _leaves(part)


class StepDynamics:
    """A calculation with an integrator that moves it, at a step of its trajectory.

    Attributes:
        calculation: state, lists and evaluator.
        state: the buffers.
        integrator: what advances them.
        stepping: how steps are taken.
        step: steps done since the start of the trajectory.
        timestep: fs, that of the next step.
        degrees_of_freedom: of each system; `degrees_text` says how they were counted.
        remove_momentum: steps from one removal of momentum to the next, or 0.
        online: what is recorded within the step.
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
            calculation: with the velocities it starts from.
            integrator: of this motion alone.
            conserved: what stays as it is.
            remove_momentum: see above.
            observe: what every step records.
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
        self.count_degrees_of_freedom()
        integrator.allocate(self.state)
        calculation.compute()
        self.online = OnlineObservables(observe, calculation, integrator)
        self._contents = CheckpointState(calculation, integrator, self.online)
        self.stepping = StepGraphs(self._step_, integrator, self.unchanged, calculation.device)
        if integrator.by_kernels and calculation.device.type == "cuda":
            self._compile()

    def _compile(self) -> None:
        """Compiles the integrator's kernels side by side; they would come one after the other."""
        from mdgraph.gpu.triton_jit import compiling_ahead

        with self.unchanged(), compiling_ahead():
            self.integrator.step_(self.state, lambda: None)

    def count_degrees_of_freedom(self) -> None:
        """Counts again; call it after writing velocities into the state."""
        degrees = degrees_of_freedom(self.state, self._conserved)
        self.degrees_text = degrees.text
        self.set_degrees_of_freedom(degrees.count)

    def set_degrees_of_freedom(self, count: Sequence[int]) -> None:
        """Takes counts known already, as when a run is resumed."""
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
        """A step, the time in fs at that step, and the time step since."""
        return (*self._time_origin, self.timestep)

    def set(self, **values: Any) -> None:
        """Changes what steps depend on, from the next one on, all of it or nothing.

        Graphs stay good, as they read the same buffers, unless a cell is given that the
        integrator keeps or that asks for longer lists: those are made anew, and steps captured
        again. A charge or a cell has forces evaluated, which reads the device.

        Args:
            values: by name, numbers, one number for each system, or ramps of `timestep`,
                `temperature`, `pressure`, `friction` and whatever else the integrator has;
                `seed`, of all random numbers to come; `charge`, e, and `cell`, (3, 3) A, or
                one for each system. Scaled positions stay with a new cell, as the ends of
                restraints always do; with `move_atoms=False` positions do.

        Raises:
            InputError: no such parameter, or a value that cannot be.
        """
        change, values = SystemUpdate.split(current_keywords(values, RENAMED))
        self.online.check_change(values)
        self.integrator.schedules(values)
        change.check_records(self.online)
        systems = change.systems(self.calculation)
        if systems is not None:
            self._take(systems, change.cell is not None)
        if change.seed is not None:
            self.state.seed.fill_(change.seed)
        self.integrator.set(values)
        if "timestep" in values:
            self._time_origin = (self.step, self.time)
            self.timestep = Schedule("timestep", values["timestep"]).start[0]

    def _take(self, systems: Sequence[System], cells: bool) -> None:
        """Evaluates other charges, cells and positions, or again those of before if it cannot."""
        before = systems_of(self.state)
        try:
            self._evaluate(systems, cells)
            self.calculation.check_coincident()
        except BaseException:
            self._evaluate(before, cells)
            raise

    def _evaluate(self, systems: Sequence[System], cells: bool) -> None:
        calculation = self.calculation
        write_(self.state, systems)
        if cells and not self.integrator.cell_varies:
            self.stepping.forget()
            calculation.plan_anew()
        calculation.update_()
        if not calculation.complete():
            self.stepping.forget()
            calculation.compute()

    def _step_(self, number: int | None = None) -> None:
        with torch.no_grad():
            self.integrator.step_(self.state, self.calculation.update_)
            if self.remove_momentum:
                remove_momentum_(self.state, self.state.step % self.remove_momentum == 0)
            self.online.record_(number)

    @checked
    def set_skin(self, skin: float) -> None:
        """Gives the neighbor lists a skin, A; reads the device."""
        self.stepping.forget()
        self.calculation.set_skin(skin)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Takes back what happens within it; does not sync."""
        start, lists = self.snapshot(), self.calculation.lists
        sticky = [one.sticky().clone() for one in lists]
        try:
            yield
        finally:
            self.restore(start)
            for one, before in zip(lists, sticky, strict=True):
                one.sticky().copy_(before)

    def resume(self, snapshot: dict[str, Any], degrees_of_freedom: Sequence[int]) -> None:
        """Goes on from a snapshot of another simulation of the same system; reads the device."""
        self.stepping.forget()
        self.restore(snapshot)
        if not self.calculation.complete():
            self.calculation.grow()
        self.set_degrees_of_freedom(degrees_of_freedom)

    def snapshot(self, into: dict[str, Any] | None = None) -> dict[str, Any]:
        """Copies everything that a step changes, on the device; does not sync.

        Args:
            into: an older copy, whose tensors are written again.
        """
        copied = self._contents.copy(into)
        copied["step"], copied["clock"] = self.step, self.clock
        return copied

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Writes a snapshot back and builds the lists from their references."""
        self.step = snapshot["step"]
        *clock, self.timestep = snapshot["clock"]
        self._time_origin = (clock[0], clock[1])
        self._contents.restore(snapshot)
