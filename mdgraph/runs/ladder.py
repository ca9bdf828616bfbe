"""The ladder: how long a step takes on each rung, and what each one gives."""

import gc
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from mdgraph.engine import LangevinMiddle, Simulation
from mdgraph.fused.evaluator import obstacle
from mdgraph.memory import Workload, available_memory, estimated_memory
from mdgraph.precision import precision_named
from mdgraph.runs.configuration import BenchConfig
from mdgraph.runs.record import evaluator_name
from mdgraph.runs.rungs import MissingError, Rung, rungs_of, threads
from mdgraph.runs.shares import PARTS, parts
from mdgraph.runs.subject import Subject
from mdgraph.runs.timing import begin_peak, milliseconds, peak_memory

_TEMPERATURE: Final = 300.0
_FRICTION: Final = 1.0
"""K and 1/ps of the steps that are timed."""

_SETTLING: Final = 100.0
_SETTLING_STEPS: Final = 200
"""1/ps, and steps at most, that take the heat out of a structure made on the spot."""

_SECONDS_PER_BYTE: Final = {"cpu": 1e-9, "cuda": 4e-12}
"""Time of the reference for each byte it keeps, at best."""


class Ladder:
    """Times the rungs of a device, from the fastest down.

    Every rung takes whole steps of Langevin dynamics from the same state, so their times
    compare. What compiles and captures is not timed.
    """

    def __init__(self, subject: Subject, configuration: BenchConfig) -> None:
        """Readies the fastest way to run; see `Simulation` for what it raises."""
        self._subject, self._configuration = subject, configuration
        self._rungs = rungs_of(subject.device)
        # One share for the parts of a step.
        self._seconds = configuration.seconds / (len(self._rungs) + 1)
        self._simulation: Simulation | None = None
        self._chosen = evaluator_name(self._turned_to(None).calculation.evaluator)
        if subject.made:
            self._settle(self._turned_to(None))

    def measured(self) -> dict[str, Any]:
        """All rungs, the slowest first, with how the last one runs and its parts; syncs.

        Raises:
            MDGraphError: the structure falls apart while stepping.
            torch.OutOfMemoryError: not even the last rung fits.
        """
        *lower, last = self._rungs
        simulation = self._turned_to(self._chosen)
        top, interval = self._timed(last, simulation)
        about = {
            "evaluator": self._chosen,
            "captured_as_cuda_graph": simulation.graphed,
            "steps_per_replay": simulation.stepping.longest if simulation.graphed else None,
            "skin_A": simulation.calculation.skin,
            "list_interval": interval,
            "parts": _shares(parts(simulation, interval or torch.inf, self._seconds), top),
        }
        del simulation
        rows = [*reversed([self._row(rung) for rung in reversed(lower)]), top]
        return top | about | {"ladder": _with_gains(rows)}

    def _row(self, rung: Rung) -> dict[str, Any]:
        """Times a rung, or says why not."""
        wanted = rung.evaluator or self._chosen
        reason = self._missing(wanted)
        if reason is None:
            try:
                return self._timed(rung, self._turned_to(wanted))[0]
            except MissingError as error:
                reason = str(error)
            except torch.OutOfMemoryError:
                reason = f"{self._subject.device} ran out of memory"
                self._simulation = None
        return {"name": rung.named(self._chosen), "reason": reason}

    def _timed(self, rung: Rung, simulation: Simulation) -> tuple[dict[str, Any], float | None]:
        """A row, and steps from one build of the list to the next, None where none was seen."""
        device, timestep = self._subject.device, self._configuration.timestep_fs
        begin_peak(device)
        with threads(rung.threads), simulation.unchanged():
            repeated = rung.prepared(simulation)
            first = simulation.step, self._builds(simulation)
            step = milliseconds(repeated, device, self._seconds, simulation.chunk)
            steps, builds = simulation.step - first[0], self._builds(simulation) - first[1]
        row = {
            "name": rung.named(self._chosen),
            "step_ms": step,
            "ns_per_day": timestep * 1e-6 * 86400e3 / step,
            "atom_steps_per_s": 1e3 * len(self._subject.system) / step,
            "peak_memory_bytes": peak_memory(device),
        }
        return row, steps / builds if builds else None

    @staticmethod
    def _builds(simulation: Simulation) -> int:
        lists = simulation.calculation.lists
        return int(lists[0].rebuilds) if lists else 0

    def _turned_to(self, evaluator: str | None) -> Simulation:
        """The simulation with an evaluator, which takes the place of the one before."""
        now = self._simulation
        if now is None or evaluator not in (None, evaluator_name(now.calculation.evaluator)):
            self._simulation = now = None
            gc.collect()
            begin_peak(self._subject.device)
            # Below the fastest way nothing is left open to measurement.
            lowest = evaluator is not None
            self._simulation = now = Simulation(
                self._subject.system,
                self._subject.source.potential,
                LangevinMiddle(self._configuration.timestep_fs, _TEMPERATURE, _FRICTION),
                device=self._subject.device,
                precision=self._configuration.precision,
                evaluator=evaluator or self._configuration.evaluator,
                check=False,
                skin=0.0 if lowest else None,
                steps_per_replay=1 if lowest else None,
            )
        return now

    def _settle(self, simulation: Simulation) -> None:
        """Cools what was made on the spot, in a tenth of the time; the others start there too."""
        fitting = int(100.0 * self._configuration.seconds / self._milliseconds_of(simulation))
        simulation.set(friction=_SETTLING)
        simulation.run(min(_SETTLING_STEPS, fitting))
        simulation.set(friction=_FRICTION)
        state = simulation.state
        self._subject = self._subject.moved(state.places(), state.velocities)

    def _milliseconds_of(self, simulation: Simulation) -> float:
        with simulation.unchanged():
            return milliseconds(simulation.run, self._subject.device, 0.0)

    def _missing(self, evaluator: str) -> str | None:
        """Why a rung with this evaluator is not there."""
        potential = self._subject.source.potential
        precision = precision_named(self._configuration.precision)
        if evaluator == "fused":
            if self._chosen == "fused":
                return None
            if self._configuration.evaluator == "reference":
                return "--evaluator reference leaves it out"
            if precision.name == "double":
                return "double evaluates the network itself"
            return obstacle(potential.config) or "no tables; the log says why"
        if self._chosen == "reference" or self._simulation is None:
            return None
        device, lists = self._subject.device, self._simulation.calculation.lists
        needed = estimated_memory(
            Workload(
                potential,
                len(self._subject.system),
                [one.capacity for one in lists],
                precision,
                device,
            )
        )
        free = available_memory(device)
        if needed > free:
            return f"it needs about {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
        seconds = _SECONDS_PER_BYTE[device.type] * needed
        if seconds > 0.25 * self._configuration.seconds:
            return f"a step takes {seconds:.0f} s or more; give more --seconds"
        return None


def _shares(taken: Mapping[str, float], row: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Time and share of each part of a step, and of what no part is: looks and gaps."""
    rest = max(0.0, row["step_ms"] - sum(taken.values()))
    every = {name: taken[name] for name in PARTS} | {"rest": rest}
    total = sum(every.values())
    return {name: {"ms": value, "share": value / total} for name, value in every.items()}


def _with_gains(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with their speed over the one before, and over the first, that were timed."""
    found: list[dict[str, Any]] = []
    timed = [row["step_ms"] for row in rows if "step_ms" in row]
    before = timed[0]
    for row in rows:
        more: dict[str, Any] = {}
        if "step_ms" in row:
            step = row["step_ms"]
            more = {"gain": before / step, "speedup": timed[0] / step, "reason": None}
            before = step
        found.append(row | more)
    return found
