"""Simulation: runs dynamics in chunks, as replays of one captured step where it can."""

import logging
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from mdgraph.engine.calculation import Calculation
from mdgraph.engine.failures import failure
from mdgraph.engine.integrators import Integrator
from mdgraph.engine.kinetics import (
    degrees_of_freedom,
    draw_velocities_,
    kinetic_energy,
    temperature,
)
from mdgraph.errors import InputError, SimulationError
from mdgraph.evaluators import Evaluator
from mdgraph.fused.verification import self_check
from mdgraph.graphs import CapturedGraph, captured
from mdgraph.models import Potential
from mdgraph.precision import Precision
from mdgraph.state import State
from mdgraph.system import System

logger = logging.getLogger(__name__)

CHUNK = {"cpu": 10, "cuda": 100}
"""Steps between two looks of the host; an interrupt waits that long."""


@dataclass(frozen=True)
class Observables:
    """What one look of the host brings, one row a system.

    Attributes:
        step: steps done.
        time: fs.
        potential_energy: (S,) float64, eV.
        kinetic_energy: (S,) float64, eV.
        temperature: (S,) float64, K.
    """

    step: int
    time: float
    potential_energy: Tensor
    kinetic_energy: Tensor
    temperature: Tensor


class Reporter(Protocol):
    """Called every `interval` steps, counted from the start of the trajectory."""

    interval: int

    def report(self, simulation: "Simulation") -> None:
        """Looks at the simulation; may read the device."""
        ...


class Simulation:
    """Molecular dynamics of one or several systems.

    The loop runs in chunks. At the start of a chunk the state is copied on the device; at
    its end the host reads one small buffer. If a neighbor list overflowed, the copy is
    restored, the list grown and the chunk repeated, which gives the bits that an ample
    list would have given. If forces stopped being finite or the temperature ran away, the
    run stops at the last good state and names the step and the atoms. Cells stay
    what they were: writing into `state.cell` has no effect.

    Attributes:
        calculation: state, lists and evaluator.
        state: the buffers.
        integrator: what advances them.
        graphed: whether steps are replays of a captured graph.
        degrees_of_freedom: of each system; `degrees_text` says how they were counted.
        reporters: called while running; append to it.
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
        temperature: float | None = None,
        exact_temperature: bool = False,
        skin: float | None = None,
        graph: str = "auto",
        chunk: int | None = None,
        maximum_temperature: float | None = None,
        evaluator: str = "auto",
        check: bool = True,
    ) -> None:
        """Prepares everything and evaluates the start. Reads the device.

        Args:
            system: what to simulate; velocities it carries are kept.
            potential: path, name of a shipped potential, Potential or Evaluator.
            integrator: VelocityVerlet, LangevinMiddle or your own.
            device: `auto`, `cpu`, `cuda` or `cuda:N`.
            precision: `mixed`, `single` or `double`.
            charge: total charge, e; overrides what the systems carry.
            seed: key of all random numbers.
            temperature: K of initial velocities, where a system carries none; the bath's
                unless given, and 0 K without a bath.
            exact_temperature: scale initial velocities to exactly that temperature.
            skin: A, of the neighbor lists; None chooses.
            graph: `auto` and `on` capture the step on CUDA, `off` runs eagerly; `on` refuses
                a device that cannot.
            chunk: steps between two looks of the host; None chooses.
            maximum_temperature: K beyond which the run stops; None takes 10,000 K, or
                twenty times the bath.
            evaluator: see Calculation.
            check: compare a fast evaluator with the reference at the start, in about 5 s.

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
            cell_varies=False,
            seed=seed,
            evaluator=evaluator,
        )
        self.state: State = self.calculation.state
        self.integrator = copy(integrator)
        kind = self.calculation.device.type
        if graph == "on" and kind != "cuda":
            raise InputError("graph='on' needs a CUDA device; choose graph='auto'.")
        self.graphed = kind == "cuda" and graph != "off"
        self.chunk = CHUNK[kind] if chunk is None else chunk
        _check_whole(self.chunk, 1, "The chunk")
        self.reporters: list[Reporter] = []
        self.step = 0
        self._stop = False
        self._graph: CapturedGraph | None = None
        bath = integrator.temperature
        if maximum_temperature is None:
            maximum_temperature = max(1e4, 20.0 * (bath or 0.0))
        self.maximum_temperature = maximum_temperature
        start = temperature if temperature is not None else (bath or 0.0)
        given = [one.velocities is not None for one in systems]
        keep = self.state.grouping.spread(torch.tensor(given, device=self.state.device))
        kept = self.state.velocities.clone()
        draw_velocities_(self.state, start, exact_temperature, integrator.conserves_momentum)
        self.state.velocities.copy_(torch.where(keep[:, None], kept, self.state.velocities))
        self.integrator.allocate(self.state)
        self.count_degrees_of_freedom()
        self.calculation.compute()
        if not self._look()[1]:
            raise failure(self.state, 0, self.maximum_temperature)
        if check:
            now = self.calculation
            self_check(now.evaluator, now.state, now.lists, now.precision)

    def count_degrees_of_freedom(self) -> None:
        """Counts again; call it after writing velocities into the state."""
        degrees = degrees_of_freedom(self.state, self.integrator.conserves_momentum)
        self.degrees_text = degrees.text
        self.set_degrees_of_freedom(degrees.count)

    def set_degrees_of_freedom(self, count: Sequence[int]) -> None:
        """Takes counts known already, as when a run is resumed."""
        self.degrees_of_freedom = tuple(count)
        self._degrees = torch.tensor(
            self.degrees_of_freedom, dtype=torch.float64, device=self.state.device
        )

    @property
    def time(self) -> float:
        """Simulated time, fs."""
        return self.step * self.integrator.timestep

    def stop(self) -> None:
        """Asks a run to return after the chunk at hand; safe in a signal handler."""
        self._stop = True

    def observables(self) -> Observables:
        """Energies and temperature of the moment; reads the device."""
        kinetic = kinetic_energy(self.state)
        kelvin = temperature(kinetic, self._degrees)
        values = torch.stack([self.state.energy, kinetic, kelvin]).cpu()
        return Observables(self.step, self.time, values[0], values[1], values[2])

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
        _check_whole(steps, 0, "The run")
        for reporter in self.reporters:
            _check_whole(reporter.interval, 1, "The interval of a reporter")
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
            complete, good = self._look()
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
            self._step()
        else:
            self._graph.replay()
        self.step += 1

    def _step(self) -> None:
        with torch.no_grad():
            self.integrator.step_(self.state, self.calculation.update_)

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
        self.integrator.allocate(self.state)
        self.restore(snapshot)
        if not self.calculation.complete():
            self.calculation.grow()
        self.set_degrees_of_freedom(degrees_of_freedom)

    def snapshot(self) -> dict[str, Any]:
        """Copies everything that a step changes, on the device; does not sync."""
        references = [one.reference() for one in self.calculation.lists]
        return {"step": self.step, "state": self.state.snapshot(), "lists": references}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Writes a snapshot back and builds the lists from their references."""
        self.step = snapshot["step"]
        self.state.restore(snapshot["state"])
        for one, (positions, cell) in zip(self.calculation.lists, snapshot["lists"], strict=True):
            one.rebuild_(positions, cell)

    def _look(self) -> tuple[bool, bool]:
        """The one host read of a chunk: are the lists complete, is the state good."""
        finite = torch.isfinite(self.state.forces).all()
        kelvin = temperature(kinetic_energy(self.state), self._degrees)
        good = finite & (kelvin <= self.maximum_temperature).all()
        sticky = self.calculation.sticky()
        *numbers, fine = torch.cat([sticky.flatten(), good.to(torch.int64)[None]]).tolist()
        rows = [numbers[start : start + 3] for start in range(0, len(numbers), 3)]
        lists = zip(self.calculation.lists, rows, strict=True)
        return all(one.status_of(*row).complete for one, row in lists), bool(fine)

    def _locate_failure(self, start: dict[str, Any], steps: int) -> None:
        """Repeats the chunk step by step, stops before the bad one and raises."""
        self.restore(start)
        for _ in range(steps):
            good = self.snapshot()
            self._advance()
            if self._look()[1]:
                continue
            error = failure(self.state, self.step, self.maximum_temperature)
            self.restore(good)
            raise error
        raise AssertionError("a repeated chunk must fail where it failed before")


def _check_whole(number: int, least: int, name: str) -> None:
    if int(number) != number or number < least:
        raise InputError(f"{name} is {number} steps; it must be a whole number from {least} on.")
