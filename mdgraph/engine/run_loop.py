"""RunLoop: runs steps in chunks; the host checks each chunk while the device runs the next.

It also handles overflows of lists, bad forces and collapsing cells.
"""

import logging
import math
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

import torch

from mdgraph.arguments import real_number
from mdgraph.engine.calculation import Calculation
from mdgraph.engine.dynamics import StepDynamics
from mdgraph.engine.kinetics import kinetic_energy, temperature
from mdgraph.engine.reporting import HostSnapshot, Show
from mdgraph.engine.schedules import Schedule
from mdgraph.errors import SimulationError, name_some
from mdgraph.neighbors.list import hold_all

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Status:
    """Result of a health check.

    Attributes:
        complete: whether no list, and no buffer of the evaluator, overflowed since the last growth.
        good: whether forces and cells are finite, temperatures are below the limit, and all
            variables are on the grids of their biases.
        sticky: counters of each list, see `NeighborList.status_of`.
        rebuilds: number of builds of each list.
    """

    complete: bool
    good: bool
    sticky: tuple[tuple[int, int, int, int], ...]
    rebuilds: tuple[int, ...]


class HealthCheck:
    """Neighbor counts, finite forces and cells, and temperatures, gathered on the device.

    `record_` fills a small buffer after the work launched so far and copies it to pinned
    memory. `read` waits for that copy alone, so the device goes on with later work.
    """

    def __init__(self, calculation: Calculation, maximum_temperature: float) -> None:
        """Allocates.

        Args:
            calculation: to check.
            maximum_temperature: K, beyond which a state is not good.
        """
        self._calculation = calculation
        self._maximum = maximum_temperature
        device, lists = calculation.device, len(calculation.lists)
        self._numbers = torch.zeros(5 * lists + 2, dtype=torch.int64, device=device)
        on_gpu = device.type == "cuda"
        self._host_numbers = torch.zeros_like(self._numbers, device="cpu", pin_memory=on_gpu)
        self._event = torch.cuda.Event() if on_gpu else None

    def record_(self) -> None:
        """Checks the state that the work launched so far leaves; does not sync."""
        state, lists = self._calculation.state, self._calculation.lists
        finite = torch.isfinite(state.forces).all() & torch.isfinite(state.cell).all()
        kelvin = temperature(kinetic_energy(state), state.degrees)
        good = finite & (kelvin <= self._maximum).all()
        outside = None if self._calculation.biases is None else self._calculation.biases.outside()
        if outside is not None:
            good &= ~outside
        numbers = [item.sticky() for item in lists] + [item.rebuilds[None] for item in lists]
        outgrown = self._calculation.evaluator.outgrown(state)
        flags = torch.stack([good, torch.zeros_like(good) if outgrown is None else outgrown])
        torch.cat([*numbers, flags.to(torch.int64)], out=self._numbers)
        self._host_numbers.copy_(self._numbers, non_blocking=True)
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(self._calculation.device))

    def read(self) -> Status:
        """The status that the last `record_` found; waits for its copy."""
        if self._event is not None:
            self._event.synchronize()
        *numbers, good, outgrown = self._host_numbers.tolist()
        lists = self._calculation.lists
        end = 4 * len(lists)
        sticky = tuple((*numbers[start : start + 4],) for start in range(0, end, 4))
        complete = hold_all(lists, sticky) and not outgrown
        return Status(complete, bool(good), sticky, tuple(numbers[end:]))


def temperature_limit(limit: float | None, bath: Schedule | None) -> float:
    """Temperature (K) beyond which a run stops; by default 10,000 K or twenty times the bath's.

    Raises:
        InputError: a limit that is not above zero.
    """
    if limit is None:
        return max(1e4, 20.0 * bath.largest if bath else 0.0)
    if limit == math.inf:
        return math.inf
    return real_number(limit, "The maximum temperature", "K", above=0.0)


def failure(calculation: Calculation, step: int, maximum_temperature: float) -> SimulationError:
    """The error for a state that stopped being good at a step; reads the device."""
    state, biases = calculation.state, calculation.biases
    atoms = (~torch.isfinite(state.forces)).any(-1).nonzero()[:, 0].tolist()
    if atoms:
        what = f"The forces on atoms {name_some(atoms)} are not finite"
    elif bool((~torch.isfinite(state.cell)).any()):
        what = "A cell is no longer finite"
    elif biases is not None and (left := biases.left()) is not None:
        return SimulationError(
            f"{left}, at step {step}; the state before it is kept. Make the grid larger, or keep "
            "the variable on it by walls.",
            step,
            [],
        )
    else:
        energy = state.masses * state.velocities.square().sum(-1)
        atoms = energy.argsort(descending=True)[:8].tolist()
        what = (
            f"The temperature ran beyond {maximum_temperature:g} K, led by atoms {name_some(atoms)}"
        )
    if step == 0:
        return SimulationError(f"{what} at the start; check the structure.", step, atoms)
    weaker = "" if biases is None or not biases.bound else "weaken the biases, "
    return SimulationError(
        f"{what} at step {step}; the state before it is kept. Take a shorter time step, "
        f"{weaker}minimise the start, or check that the potential knows such structures.",
        step,
        atoms,
    )


def collapse(step: int) -> SimulationError:
    """The error for a step in which a cell shrinks further than lists can be planned for."""
    return SimulationError(
        f"A cell shrank to less than half its width at step {step}; the state before it is "
        "kept. Take a shorter time step, or slow the barostat down.",
        step,
        [],
    )


def overflow(calculation: Calculation, status: Status, step: int) -> SimulationError:
    """The error for a step whose lists or domains overflow however often they are enlarged.

    Args:
        calculation: of the step.
        status: at its end.
        step: its number.
    """
    lists = zip(calculation.lists, status.sticky, strict=True)
    if any(item.status_of(*row).insufficient for item, row in lists):
        return collapse(step)
    if hold_all(calculation.lists, status.sticky):
        what = "Atoms gather faster than buffers of domains or edges can be enlarged"
        advice = "Take a shorter time step, or fewer domains."
    else:
        what = "Atoms come together faster than neighbor lists can be enlarged"
        advice = "Take a shorter time step, or check that the potential knows such structures."
    return SimulationError(
        f"{what}, at step {step}; the state before it is kept. {advice}", step, []
    )


DEPTH: Final = {"cpu": 1, "cuda": 2}
"""Chunks in flight: launched before the host reads the health check of the first."""

GROWTHS: Final = 4
"""Times that lists grow for a chunk before it runs step by step, and for a single step."""


@dataclass(frozen=True)
class _Chunk:
    """Steps launched from the state `start` to step `end`, and who gets the snapshot there."""

    start: dict[str, Any]
    health_check: HealthCheck
    end: int
    snapshot: HostSnapshot | None
    show: Show | None

    def deliver(self) -> None:
        """Passes the snapshot at the end of a good chunk to the recorders."""
        if self.show is not None and self.snapshot is not None:
            self.snapshot.wait()
            self.show(self.snapshot)


class RunLoop:
    """Launches steps in chunks and repairs the chunks that go wrong.

    The state is copied on the device at the start of a chunk, and a `HealthCheck` is recorded
    at its end. After an overflow of a neighbor list the copy is restored, the list grown and
    the chunk repeated: the trajectory is the one that an ample list would have given. After
    bad forces, a temperature beyond the limit, or an overflow that growing does not cure (a
    collapsing cell), the chunk is repeated step by step and the last good state is kept.
    Chunks in flight have copies, health checks and snapshots of their own, which take turns.
    """

    def __init__(
        self, dynamics: StepDynamics, maximum_temperature: float, depth: int | None = None
    ) -> None:
        """Allocates the health checks; the first chunks allocate the copies.

        Args:
            dynamics: to advance.
            maximum_temperature: K, beyond which a state is bad.
            depth: chunks in flight; None chooses by device.
        """
        calculation = dynamics.calculation
        self._dynamics = dynamics
        self._maximum = maximum_temperature
        self._depth = DEPTH[calculation.device.type] if depth is None else depth
        self._health_checks = [
            HealthCheck(calculation, maximum_temperature) for _ in range(self._depth)
        ]
        self._starts: list[dict[str, Any] | None] = [None] * self._depth
        self._snapshots: list[HostSnapshot | None] = [None] * self._depth
        self._launch_count = 0
        self._growths = 0
        self._launched_chunks: deque[_Chunk] = deque()
        self._unfinished: dict[str, Any] | None = None

    def check(self) -> Status:
        """Checks the present state; syncs."""
        self._health_checks[0].record_()
        return self._health_checks[0].read()

    def advance(self, end: int, show: Show | None = None) -> None:
        """Launches the steps up to `end`; waits only for the oldest chunk in flight.

        Args:
            end: step at the end of the chunk.
            show: gets the state there, once its health check is read and good.

        Raises:
            SimulationError: the dynamics went wrong; the state is the last good one. After any
                other exception it is the end of the last good chunk that recorders have seen.
        """
        try:
            self._launch(end, show)
            while len(self._launched_chunks) >= self._depth:
                self._finish_first()
        except BaseException:
            self._restore_last_good()
            raise

    def finish(self) -> None:
        """Waits for all chunks in flight; see `advance`."""
        try:
            while self._launched_chunks:
                self._finish_first()
        except BaseException:
            self._restore_last_good()
            raise

    def _launch(self, end: int, show: Show | None) -> None:
        dynamics, place = self._dynamics, self._launch_count % self._depth
        start = self._starts[place] = dynamics.snapshot(self._starts[place])
        self._launch_count += 1
        self._unfinished = start
        dynamics.advance_(end - dynamics.step)
        before, dynamics.step = dynamics.step, end
        dynamics.online.poll(before, end)
        self._health_checks[place].record_()
        snapshot = None if show is None else self._copy_snapshot(place)
        self._launched_chunks.append(_Chunk(start, self._health_checks[place], end, snapshot, show))
        self._unfinished = None

    def _copy_snapshot(self, place: int) -> HostSnapshot:
        snapshot = self._snapshots[place] = self._snapshots[place] or HostSnapshot(self._dynamics)
        snapshot.copy_()
        return snapshot

    def _finish_first(self) -> None:
        """Reads the oldest chunk in flight; if it is bad, repairs it and repeats all after it."""
        chunk = self._launched_chunks[0]
        status = chunk.health_check.read()
        if status.complete and status.good:
            self._launched_chunks.popleft()
            self._growths = 0
            chunk.deliver()
            return
        self._restore_start(chunk, status)
        chunks = [*self._launched_chunks]
        self._growths += 1
        if status.complete or self._growths > GROWTHS:
            self._launched_chunks.clear()
            for chunk in chunks:
                self._step_one_by_one(chunk.end)
                if chunk.snapshot is not None:
                    chunk.snapshot.copy_()
                    chunk.deliver()
            assert not status.complete, "a repeated chunk must fail where it failed before"
            return
        self._grow(chunk.end)
        self._launched_chunks.clear()
        for chunk in chunks:
            self._launch(chunk.end, chunk.show)

    def _grow(self, step: int) -> None:
        calculation = self._dynamics.calculation
        if hold_all(calculation.lists, calculation.sticky().tolist()):
            logger.info("Atoms outgrew buffers of domains or edges before step %d; growing.", step)
        else:
            logger.info("A neighbor list overflowed before step %d; growing it.", step)
        self._dynamics.step_graphs.forget()
        calculation.grow()

    def _restore_start(self, chunk: _Chunk, status: Status) -> None:
        """Restores the start of a chunk, and the counters of the lists as they were at its end."""
        self._dynamics.restore(chunk.start)
        lists = self._dynamics.calculation.lists
        for neighbors, numbers in zip(lists, status.sticky, strict=True):
            neighbors.sticky().copy_(torch.tensor(numbers))

    def _step_one_by_one(self, end: int) -> None:
        """Runs the steps up to `end` one at a time, or as few as are taken together.

        Raises SimulationError for the first bad step and restores the state before it.
        """
        dynamics, self._growths = self._dynamics, 0
        while dynamics.step < end:
            self._unfinished = dynamics.snapshot()
            dynamics.advance_(dynamics.together)
            dynamics.step += dynamics.together
            status = self.check()
            if status.complete and not status.good:
                raise failure(dynamics.calculation, dynamics.step, self._maximum)
            if status.complete:
                self._growths = 0
                dynamics.online.poll(dynamics.step - dynamics.together, dynamics.step)
                continue
            if self._growths == GROWTHS:
                raise overflow(dynamics.calculation, status, dynamics.step)
            self._growths += 1
            dynamics.restore(self._unfinished)
            self._grow(dynamics.step + dynamics.together)
        self._unfinished = None

    def _restore_last_good(self) -> None:
        """Restores the end of the last good chunk that recorders have seen."""
        for chunk in self._launched_chunks:
            status = chunk.health_check.read()
            if chunk.show is not None or not (status.complete and status.good):
                self._restore_start(chunk, status)
                break
        else:
            if self._unfinished is not None:
                self._dynamics.restore(self._unfinished)
        self._launched_chunks.clear()
        self._unfinished = None
        self._growths = 0
