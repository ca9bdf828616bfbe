"""RunLoop: runs stretches of steps; the host checks each one while the next is under way."""

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
from mdgraph.state import State


@dataclass(frozen=True)
class Status:
    """What one look found.

    Attributes:
        complete: whether every pair found its slot since the lists last grew.
        good: whether forces and cells are finite and no temperature ran away.
        sticky: of each list, the numbers that `NeighborList.status_of` takes.
        rebuilds: of each list, builds since it was made.
    """

    complete: bool
    good: bool
    sticky: tuple[tuple[int, int, int], ...]
    rebuilds: tuple[int, ...]


class HealthCheck:
    """One look: noted on the device, where the work at hand ends, and read whenever it suits.

    The copy lands in pinned memory, and reading waits for that copy alone, so what was
    launched after it goes on meanwhile.
    """

    def __init__(self, calculation: Calculation, maximum_temperature: float) -> None:
        """Allocates.

        Args:
            calculation: what is looked at.
            maximum_temperature: K, beyond which a state is no longer good.
        """
        self._calculation = calculation
        self._maximum = maximum_temperature
        device, lists = calculation.device, len(calculation.lists)
        self._there = torch.zeros(4 * lists + 1, dtype=torch.int64, device=device)
        on_gpu = device.type == "cuda"
        self._here = torch.zeros_like(self._there, device="cpu", pin_memory=on_gpu)
        self._arrived = torch.cuda.Event() if on_gpu else None

    def record_(self) -> None:
        """Looks at the state as it is once the work launched so far is done; does not sync."""
        state, lists = self._calculation.state, self._calculation.lists
        finite = torch.isfinite(state.forces).all() & torch.isfinite(state.cell).all()
        kelvin = temperature(kinetic_energy(state), state.degrees)
        good = finite & (kelvin <= self._maximum).all()
        numbers = [one.sticky() for one in lists] + [one.rebuilds[None] for one in lists]
        torch.cat([*numbers, good.to(torch.int64)[None]], out=self._there)
        self._here.copy_(self._there, non_blocking=True)
        if self._arrived is not None:
            self._arrived.record(torch.cuda.current_stream(self._calculation.device))

    def read(self) -> Status:
        """What `record_` saw; waits until it has seen it."""
        if self._arrived is not None:
            self._arrived.synchronize()
        *numbers, good = self._here.tolist()
        lists = self._calculation.lists
        end = 3 * len(lists)
        sticky = tuple((*numbers[start : start + 3],) for start in range(0, end, 3))
        return Status(hold_all(lists, sticky), bool(good), sticky, tuple(numbers[end:]))


def temperature_limit(given: float | None, bath: Schedule | None) -> float:
    """K beyond which a run stops: as given, else 10,000 K or twenty times the bath.

    Raises:
        InputError: a limit that is not above zero.
    """
    if given is None:
        return max(1e4, 20.0 * bath.largest if bath else 0.0)
    if given == math.inf:
        return math.inf
    return real_number(given, "The maximum temperature", "K", above=0.0)


def failure(state: State, step: int, maximum_temperature: float) -> SimulationError:
    """The error for a state that stopped being good at a step; reads the device."""
    atoms = (~torch.isfinite(state.forces)).any(-1).nonzero()[:, 0].tolist()
    if atoms:
        what = f"The forces on atoms {name_some(atoms)} are not finite"
    elif bool((~torch.isfinite(state.cell)).any()):
        what = "A cell is no longer finite"
    else:
        energy = state.masses * state.velocities.square().sum(-1)
        atoms = energy.argsort(descending=True)[:8].tolist()
        what = (
            f"The temperature ran beyond {maximum_temperature:g} K, led by atoms {name_some(atoms)}"
        )
    if step == 0:
        return SimulationError(f"{what} at the start; check the structure.", step, atoms)
    return SimulationError(
        f"{what} at step {step}; the state before it is kept. Take a shorter time step, "
        "minimise the start, or check that the potential knows such structures.",
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


logger = logging.getLogger(__name__)

DEPTH: Final = {"cpu": 1, "cuda": 2}
"""Chunks launched before the host reads what it found of the first of them."""

GROWTHS: Final = 4
"""Times that lists grow for a chunk before its steps are taken one by one, and for a step."""


@dataclass(frozen=True)
class _Chunk:
    """Steps that were launched up to `end`, from `start`, the look at them, and who is shown."""

    start: dict[str, Any]
    watch: HealthCheck
    end: int
    view: HostSnapshot | None
    show: Show | None

    def deliver(self) -> None:
        """Shows the view of a chunk that ended well."""
        if self.show is not None and self.view is not None:
            self.view.wait()
            self.show(self.view)


class RunLoop:
    """Launches steps in chunks and makes good what goes wrong in them.

    At the start of a chunk the state is copied on the device; at its end one small buffer is
    filled that the host reads. Where a list overflowed, the copy is restored, the list grown
    and everything since repeated, which gives the bits that an ample list would have given.
    Where forces stopped being finite or the temperature ran away, and where a chunk overflows
    however often its lists grow, as with a cell that collapses within it, the steps are
    repeated one by one, up to the last good one. Copies and buffers of as many chunks as run
    at a time alternate, and so do the views that are shown of their ends once these are good.
    """

    def __init__(
        self, motion: StepDynamics, maximum_temperature: float, depth: int | None = None
    ) -> None:
        """Allocates little; the copies come with the first chunks.

        Args:
            motion: what is advanced.
            maximum_temperature: K, beyond which a state is no longer good.
            depth: chunks launched before the first is read; None chooses by device.
        """
        calculation = motion.calculation
        self._motion = motion
        self._maximum = maximum_temperature
        self._depth = DEPTH[calculation.device.type] if depth is None else depth
        self._health_checks = [
            HealthCheck(calculation, maximum_temperature) for _ in range(self._depth)
        ]
        self._starts: list[dict[str, Any] | None] = [None] * self._depth
        self._views: list[HostSnapshot | None] = [None] * self._depth
        self._launched = 0
        self._growths = 0
        self._waiting: deque[_Chunk] = deque()
        self._under_way: dict[str, Any] | None = None

    def look(self) -> Status:
        """Looks at the state of the moment; reads the device."""
        self._health_checks[0].record_()
        return self._health_checks[0].read()

    def advance(self, end: int, show: Show | None = None) -> None:
        """Launches the steps up to `end`, and reads what it must so that no more wait.

        Args:
            end: of the chunk.
            show: is given the state there, once it was read and found good.

        Raises:
            SimulationError: the state is the last good one. After any other exception it is
                that of the last chunk that ended well and was shown, or whose showing failed.
        """
        try:
            self._launch(end, show)
            while len(self._waiting) >= self._depth:
                self._settle()
        except BaseException:
            self._retreat()
            raise

    def finish(self) -> None:
        """Reads what it found of all chunks; see `advance`."""
        try:
            while self._waiting:
                self._settle()
        except BaseException:
            self._retreat()
            raise

    def _launch(self, end: int, show: Show | None) -> None:
        now, place = self._motion, self._launched % self._depth
        start = self._starts[place] = now.snapshot(self._starts[place])
        self._launched += 1
        self._under_way = start
        now.stepping.advance_(now.step, end - now.step)
        before, now.step = now.step, end
        now.online.poll(before, end)
        self._health_checks[place].record_()
        view = None if show is None else self._viewed(place)
        self._waiting.append(_Chunk(start, self._health_checks[place], end, view, show))
        self._under_way = None

    def _viewed(self, place: int) -> HostSnapshot:
        view = self._views[place] = self._views[place] or HostSnapshot(self._motion)
        view.copy_()
        return view

    def _settle(self) -> None:
        """Reads the first chunk that waits; repairs it and all after it if it must."""
        chunk = self._waiting[0]
        verdict = chunk.watch.read()
        if verdict.complete and verdict.good:
            self._waiting.popleft()
            self._growths = 0
            chunk.deliver()
            return
        self._take_back(chunk, verdict)
        again = [*self._waiting]
        self._growths += 1
        if verdict.complete or self._growths > GROWTHS:
            self._waiting.clear()
            for one in again:
                self._take_one_by_one(one.end)
                if one.view is not None:
                    one.view.copy_()
                    one.deliver()
            assert not verdict.complete, "a repeated chunk must fail where it failed before"
            return
        self._grow(chunk.end)
        self._waiting.clear()
        for one in again:
            self._launch(one.end, one.show)

    def _grow(self, step: int) -> None:
        logger.info("A neighbor list overflowed before step %d; growing it.", step)
        self._motion.stepping.forget()
        self._motion.calculation.grow()

    def _take_back(self, chunk: _Chunk, verdict: Status) -> None:
        """To the start of a chunk; what later steps left in the lists' counters goes too."""
        self._motion.restore(chunk.start)
        lists = self._motion.calculation.lists
        for one, row in zip(lists, verdict.sticky, strict=True):
            one.sticky().copy_(torch.tensor(row))

    def _take_one_by_one(self, end: int) -> None:
        """Takes the steps up to `end`, or raises for the first bad one.

        The state before that one is restored on the way out.
        """
        now, self._growths = self._motion, 0
        while now.step < end:
            self._under_way = now.snapshot()
            now.stepping.advance_(now.step, 1)
            now.step += 1
            verdict = self.look()
            if verdict.complete and not verdict.good:
                raise failure(now.state, now.step, self._maximum)
            if verdict.complete:
                self._growths = 0
                now.online.poll(now.step - 1, now.step)
                continue
            if self._growths == GROWTHS:
                raise collapse(now.step)
            self._growths += 1
            now.restore(self._under_way)
            self._grow(now.step + 1)
        self._under_way = None

    def _retreat(self) -> None:
        """Back to the end of the last chunk that ended well and was shown."""
        for chunk in self._waiting:
            verdict = chunk.watch.read()
            if chunk.show is not None or not (verdict.complete and verdict.good):
                self._take_back(chunk, verdict)
                break
        else:
            if self._under_way is not None:
                self._motion.restore(self._under_way)
        self._waiting.clear()
        self._under_way = None
        self._growths = 0
