"""Motion: what steps change, how they change it, and copies from which it goes on."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from mdgraph.arguments import checked
from mdgraph.engine.calculation import Calculation
from mdgraph.engine.changes import Change, write_
from mdgraph.engine.integrators import Integrator
from mdgraph.engine.kinetics import remove_momentum_
from mdgraph.engine.online import OnlineObservable, OnlineObservables
from mdgraph.engine.parameters import Schedule
from mdgraph.engine.snapshots import Contents
from mdgraph.engine.stepping import Stepping
from mdgraph.engine.velocities import Conserved, degrees_of_freedom
from mdgraph.fused.clusters import systems_of
from mdgraph.state import State
from mdgraph.system import System


class Motion:
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
        given = integrator.given
        self.timestep = given["timestep"].start[0] if "timestep" in given else 0.0
        self._since = (0, 0.0)
        self._conserved = conserved
        self.count_degrees_of_freedom()
        integrator.allocate(self.state)
        calculation.compute()
        self.online = OnlineObservables(observe, calculation, integrator)
        self._contents = Contents(calculation, integrator, self.online)
        self.stepping = Stepping(self._step_, integrator, self.unchanged, calculation.device)
        if integrator.by_kernels and calculation.device.type == "cuda":
            self._compile()

    def _compile(self) -> None:
        """Compiles the integrator's kernels side by side; they would come one after the other."""
        from mdgraph.neighbors.compilation import compiling_ahead

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
        step, time = self._since
        return time + (self.step - step) * self.timestep

    @property
    def clock(self) -> tuple[int, float, float]:
        """A step, the time in fs at that step, and the time step since."""
        return (*self._since, self.timestep)

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
        change, values = Change.split(values)
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
            self._since = (self.step, self.time)
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
        self._since = (clock[0], clock[1])
        self._contents.restore(snapshot)
