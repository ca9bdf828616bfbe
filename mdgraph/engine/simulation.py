"""Simulation: runs dynamics in chunks, as replays of one captured step where it can."""

import logging
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any

import torch

from mdgraph.engine.calculation import Calculation
from mdgraph.engine.drift import warn_of_drift
from mdgraph.engine.failures import failure, look
from mdgraph.engine.integrators import Integrator
from mdgraph.engine.kinetics import remove_momentum_
from mdgraph.engine.observables import Observables, Reporter, observed
from mdgraph.engine.online import OnlineObservable, OnlineObservables
from mdgraph.engine.parameters import Schedule, Value, check_whole
from mdgraph.engine.restraints import PositionRestraints
from mdgraph.engine.velocities import (
    Conserved,
    degrees_of_freedom,
    draw_velocities_,
    fixed_atoms,
)
from mdgraph.errors import InputError, SimulationError
from mdgraph.evaluators import Evaluator
from mdgraph.fused.verification import say_unmeasured, self_check
from mdgraph.graphs import CapturedGraph, captured
from mdgraph.models import Potential
from mdgraph.precision import Precision
from mdgraph.state import State
from mdgraph.system import System

logger = logging.getLogger(__name__)

CHUNK = {"cpu": 10, "cuda": 100}
"""Steps between two looks of the host; an interrupt waits that long."""


class Simulation:
    """Molecular dynamics of one or several systems.

    The loop runs in chunks. At the start of a chunk the state is copied on the device; at
    its end the host reads one small buffer. If a neighbor list overflowed, the copy is
    restored, the list grown and the chunk repeated, which gives the bits that an ample
    list would have given. If forces stopped being finite or the temperature ran away, the
    run stops at the last good state and names the step and the atoms. Unless the integrator
    moves cells they stay what they were: writing into `state.cell` has no effect.

    Attributes:
        calculation: state, lists and evaluator.
        state: the buffers.
        integrator: what advances them.
        graphed: whether steps are replays of a captured graph.
        degrees_of_freedom: of each system; `degrees_text` says how they were counted.
        reporters: called while running; append to it.
        timestep: fs, that of the next step.
        remove_momentum: steps from one removal of momentum to the next, or 0.
        online: what is recorded within the step.
    """

    def __init__(
        self,
        system: System | Sequence[System],
        potential: str | Path | Potential | Evaluator,
        integrator: Integrator,
        *,
        device: str | torch.device = "auto",
        precision: str | Precision = "mixed",
        charge: float | None = None,
        seed: int = 0,
        temperature: float | Sequence[float] | None = None,
        exact_temperature: bool = False,
        skin: float | None = None,
        graph: str = "auto",
        chunk: int | None = None,
        maximum_temperature: float | None = None,
        evaluator: str = "auto",
        check: bool = True,
        fixed: Sequence[int] = (),
        restraints: PositionRestraints | None = None,
        remove_momentum: int = 0,
        observe: Sequence[OnlineObservable] = (),
    ) -> None:
        """Prepares everything and evaluates the start. Reads the device.

        Args:
            system: what to simulate; velocities it carries are kept.
            potential: path, name of a shipped potential, Potential or Evaluator.
            integrator: what advances the state; a copy of it.
            device: `auto`, `cpu`, `cuda` or `cuda:N`.
            precision: `mixed`, `single`, `double` or `fast`; see `PRECISIONS`.
            charge: total charge, e; overrides what the systems carry.
            seed: key of all random numbers.
            temperature: K of initial velocities, where a system carries none, or one for each
                system; the bath's unless given, and 0 K without a bath.
            exact_temperature: scale initial velocities to exactly that temperature.
            skin: A, of the neighbor lists; None chooses.
            graph: `auto` and `on` capture the step on CUDA, `off` runs eagerly; `on` refuses
                a device that cannot.
            chunk: steps between two looks of the host; None chooses.
            maximum_temperature: K beyond which the run stops; None takes 10,000 K, or
                twenty times the bath.
            evaluator: see Calculation.
            check: compare a fast evaluator with the reference at the start, in about 5 s.
            fixed: atoms that stay where they are, by their place among all systems' atoms.
            restraints: springs on atoms.
            remove_momentum: steps from one removal of the momentum of each system to the
                next; 0 never removes it.
            observe: what every step records on the device, each for one simulation.

        Raises:
            InputError: anything above that cannot be.
            SelfCheckError: the fast evaluator does not agree with the reference.
        """
        systems = [system] if isinstance(system, System) else list(system)
        if charge is not None:
            systems = [one.replace(charge=charge) for one in systems]
        if graph not in ("auto", "on", "off"):
            raise InputError(f"graph is '{graph}'; choose auto, on or off.")
        self.calculation = Calculation(
            systems,
            potential,
            device=device,
            precision=precision,
            skin=skin,
            cell_varies=integrator.cell_varies,
            seed=seed,
            evaluator=evaluator,
            restraints=restraints,
        )
        self.state: State = self.calculation.state
        self.state.fix_(fixed)
        self.integrator = copy(integrator)
        kind = self.calculation.device.type
        if graph == "on" and kind != "cuda":
            raise InputError("graph='on' needs a CUDA device; choose graph='auto'.")
        self.graphed = kind == "cuda" and graph != "off"
        self.chunk = CHUNK[kind] if chunk is None else chunk
        check_whole(self.chunk, 1, "The chunk")
        self.reporters: list[Reporter] = []
        self.step = 0
        self._stop = False
        self._graph: CapturedGraph | None = None
        given = integrator.given
        self.timestep = given["timestep"].start[0] if "timestep" in given else 0.0
        self._clock = (0, 0.0)
        check_whole(remove_momentum, 0, "The removal of momentum")
        self.remove_momentum = remove_momentum
        bath = given.get("temperature")
        if maximum_temperature is None:
            maximum_temperature = max(1e4, 20.0 * bath.largest if bath else 0.0)
        self.maximum_temperature = maximum_temperature
        if temperature is None:
            temperature = bath.start if bath else 0.0
        held = self.calculation.restrained()
        steady = integrator.conserves_momentum
        self._conserved = Conserved(steady or remove_momentum > 0, steady, held)
        if remove_momentum and not all(self._conserved.momenta(fixed_atoms(self.state))):
            raise InputError(
                "The momentum of systems with fixed or restrained atoms cannot be removed; "
                "leave them loose, or the momentum alone."
            )
        carry = [one.velocities is not None for one in systems]
        draw_velocities_(self.state, temperature, exact_temperature, self._conserved, carry)
        if remove_momentum:
            remove_momentum_(self.state)
        self.count_degrees_of_freedom()
        self.integrator.allocate(self.state)
        self.calculation.compute()
        if not look(self.calculation, self.maximum_temperature)[1]:
            raise failure(self.state, 0, self.maximum_temperature)
        now = self.calculation
        self.online = OnlineObservables(observe, now, self.integrator)
        warn_of_drift(now.precision, self.integrator)
        if check:
            self_check(now.evaluator, now.state, now.lists, now.precision)
        else:
            say_unmeasured(now.precision)

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
        step, time = self._clock
        return time + (self.step - step) * self.timestep

    @property
    def clock(self) -> tuple[int, float, float]:
        """A step, the time in fs at that step, and the time step since."""
        return (*self._clock, self.timestep)

    def set(self, **values: Value) -> None:
        """Changes parameters of the integrator from the next step on; nothing is captured again.

        Args:
            values: numbers, one number for each system, or ramps, by name: `timestep`,
                `temperature`, `pressure`, `friction` and whatever else the integrator has.

        Raises:
            InputError: no such parameter, or a value that cannot be.
        """
        self.online.check_change(values)
        self.integrator.set(values)
        if "timestep" in values:
            self._clock = (self.step, self.time)
            self.timestep = Schedule("timestep", values["timestep"]).start[0]

    def stop(self) -> None:
        """Asks a run to return after the chunk at hand; safe in a signal handler."""
        self._stop = True

    def observables(self) -> Observables:
        """Energies, temperature, pressure, volume of the moment; reads the device."""
        return observed(self.state, self.integrator, self.step, self.time)

    def run(self, steps: int) -> int:
        """Advances the simulation.

        Args:
            steps: number of steps.

        Returns:
            Steps done: fewer than asked for only after `stop`.

        Raises:
            InputError: a number of steps that is negative or not whole.
            SimulationError: non-finite forces or a runaway temperature; the state is the
                last good one.
        """
        check_whole(steps, 0, "The run")
        for reporter in self.reporters:
            check_whole(reporter.interval, 1, "The interval of a reporter")
        self._stop = False
        first, last = self.step, self.step + steps
        while self.step < last and not self._stop:
            end = min([last, self.step + self.chunk, *self._next_reports()])
            self._run_chunk(end - self.step)
            for reporter in self.reporters:
                if self.step % reporter.interval == 0:
                    reporter.report(self)
        return self.step - first

    def _next_reports(self) -> list[int]:
        return [(self.step // r.interval + 1) * r.interval for r in self.reporters]

    def _run_chunk(self, steps: int) -> None:
        start = self.snapshot()
        try:
            self._attempt_chunk(start, steps)
        except SimulationError:
            raise
        except BaseException:
            # An interrupt or an exception of the potential left half a step behind.
            self.restore(start)
            raise

    def _attempt_chunk(self, start: dict[str, Any], steps: int) -> None:
        while True:
            for _ in range(steps):
                self._advance()
            complete, good = look(self.calculation, self.maximum_temperature)
            if complete and good:
                return
            if complete:
                self._locate_failure(start, steps)
            logger.info("A neighbor list overflowed before step %d; growing it.", self.step)
            self.restore(start)
            self._graph = None
            self.calculation.grow()

    def _advance(self) -> None:
        self.integrator.prepare_(self.step)
        if self.graphed and self._graph is None:
            self._capture()
        if self._graph is None:
            self._step(self.step + 1)
        else:
            self._graph.replay()
        self.step += 1

    def _step(self, number: int | None = None) -> None:
        with torch.no_grad():
            self.integrator.step_(self.state, self.calculation.update_)
            if self.remove_momentum:
                remove_momentum_(self.state, self.state.step % self.remove_momentum == 0)
            self.online.record_(number)

    def _capture(self) -> None:
        start = self.snapshot()
        self._graph = captured(self._step, self.state.device)
        self.graphed = self._graph is not None
        self.restore(start)
        if self.graphed:
            logger.info("Captured one step as a CUDA graph.")

    def resume(self, snapshot: dict[str, Any], degrees_of_freedom: Sequence[int]) -> None:
        """Goes on from a snapshot of another simulation of the same system; reads the device."""
        self._graph = None
        self.restore(snapshot)
        if not self.calculation.complete():
            self.calculation.grow()
        self.set_degrees_of_freedom(degrees_of_freedom)

    def snapshot(self) -> dict[str, Any]:
        """Copies everything that a step changes, on the device; does not sync."""
        references = [one.reference() for one in self.calculation.lists]
        own = {name: tensor.clone() for name, tensor in self.integrator.tensors().items()}
        return {
            "step": self.step,
            "clock": self.clock,
            "state": self.state.snapshot(),
            "integrator": own,
            "online": {name: one.clone() for name, one in self.online.tensors().items()},
            "lists": references,
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Writes a snapshot back and builds the lists from their references."""
        self.step = snapshot["step"]
        *clock, self.timestep = snapshot["clock"]
        self._clock = (clock[0], clock[1])
        self.state.restore(snapshot["state"])
        self.integrator.restore(snapshot["integrator"])
        self.online.restore(snapshot["online"])
        for one, (positions, cell) in zip(self.calculation.lists, snapshot["lists"], strict=True):
            one.rebuild_(positions, cell)

    def _locate_failure(self, start: dict[str, Any], steps: int) -> None:
        """Repeats the chunk step by step, stops before the bad one and raises."""
        self.restore(start)
        for _ in range(steps):
            good = self.snapshot()
            self._advance()
            if look(self.calculation, self.maximum_temperature)[1]:
                continue
            error = failure(self.state, self.step, self.maximum_temperature)
            self.restore(good)
            raise error
        raise AssertionError("a repeated chunk must fail where it failed before")
