"""Reporters and recorders of a run: frames, log rows, checkpoints and a progress bar.

A simulation shows a step to its recorders before it calls its reporters, so the trajectory and
the log are never behind a checkpoint of the same step.
"""

import math
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from tqdm import tqdm

from mdgraph.engine import Simulation, Thermo
from mdgraph.engine.relaxation import check_cells
from mdgraph.engine.reporting import HostSnapshot
from mdgraph.engine.restart import save_restart
from mdgraph.io.files import disk_failures
from mdgraph.io.log import LOG_COLUMNS, LogWriter
from mdgraph.io.trajectories import Frame, TrajectoryWriter
from mdgraph.units import ATOMIC_MASS_UNIT, BAR

_DAY = 86400.0
_FEMTOSECONDS = 1e6
"""In a nanosecond."""
_DENSITY = 1e27 * ATOMIC_MASS_UNIT
"""g/cm^3 in one amu/A^3: 1e3 g/kg times 1e24 A^3/cm^3."""

_CHUNKS = {"cpu": 1, "cuda": 8}
"""From one look at the progress to the next: before each the GPU waits for the host."""


class Stopwatch:
    """Wall-clock time of the steps of a run from one look to the next."""

    def __init__(self, now: Simulation | HostSnapshot) -> None:
        self._last = (now.time, time.perf_counter())

    def nanoseconds_per_day(self, now: Simulation | HostSnapshot) -> float:
        """Simulated ns in a day at the speed since this watch was made; NaN without a step."""
        simulated = now.time - self._last[0]
        elapsed = time.perf_counter() - self._last[1]
        return simulated / _FEMTOSECONDS / elapsed * _DAY if simulated > 0.0 else math.nan


def frames_of(view: HostSnapshot) -> list[Frame]:
    """What is viewed of every system, in arrays of their own."""
    seen = view.observables
    cells, virials = view.cell.to(torch.float64, copy=True), view.virial
    rows = [
        one.to(torch.float64, copy=True).split(view.sizes)
        for one in (view.positions, view.velocities, view.forces)
    ]
    frames = []
    for number, (positions, velocities, forces) in enumerate(zip(*rows, strict=True)):
        volume = float(cells[number].det().abs())
        stress = -virials[number].numpy() / volume if volume > 0.0 else None
        frames.append(
            Frame(
                step=seen.step,
                time_fs=seen.time,
                positions=positions.numpy(),
                velocities=velocities.numpy(),
                forces=forces.numpy(),
                energy=float(seen.potential_energy[number]),
                kinetic_energy=float(seen.kinetic_energy[number]),
                temperature=float(seen.temperature[number]),
                cell=cells[number].numpy(),
                stress=stress,
            )
        )
    return frames


class TrajectoryRecorder:
    """Appends a frame of each system to its trajectory."""

    def __init__(self, writers: Sequence[TrajectoryWriter], interval: int) -> None:
        self.interval = interval
        self._writers = writers

    def record(self, view: HostSnapshot) -> None:
        """See Recorder."""
        for writer, frame in zip(self._writers, frames_of(view), strict=True):
            writer.append(frame)


def log_columns(simulation: Simulation, seen: Thermo, system: int) -> tuple[str, ...]:
    """Columns of the log of one system: more of a periodic cell, and of what keeps a sum."""
    columns = list(LOG_COLUMNS)
    state = simulation.state
    if bool(state.pbc[system].any()) and float(seen.volume[system]) > 0.0:
        columns += ["pressure_bar", "volume_A3", "density_g_per_cm3"]
    if simulation.integrator.conserved_energy() is not None:
        columns.append("conserved_energy_eV")
    return tuple(columns)


class LogRecorder:
    """Appends a row of each system to its log, with the speed since the row before."""

    def __init__(self, writers: Sequence[LogWriter], interval: int, simulation: Simulation) -> None:
        self.interval = interval
        self._writers = writers
        self._watch = Stopwatch(simulation)
        sizes = simulation.state.grouping.sizes
        parts = simulation.state.masses.double().split(sizes)
        self._masses = [float(part.sum()) for part in parts]

    def record(self, view: HostSnapshot) -> None:
        """See Recorder."""
        seen = view.observables
        speed = self._watch.nanoseconds_per_day(view)
        self._watch = Stopwatch(view)
        for number, writer in enumerate(self._writers):
            row = self._row(seen, number) | {"ns_per_day": speed}
            writer.append({column: row[column] for column in writer.columns})

    def _row(self, seen: Thermo, number: int) -> dict[str, float]:
        potential = float(seen.potential_energy[number])
        kinetic = float(seen.kinetic_energy[number])
        space, mass = float(seen.volume[number]), self._masses[number]
        return {
            "step": seen.step,
            "time_ps": 1e-3 * seen.time,
            "potential_energy_eV": potential,
            "kinetic_energy_eV": kinetic,
            "total_energy_eV": potential + kinetic,
            "temperature_K": float(seen.temperature[number]),
            "pressure_bar": float(seen.pressure[number]) / BAR,
            "volume_A3": space,
            "density_g_per_cm3": _DENSITY * mass / space if space > 0.0 else math.nan,
            "conserved_energy_eV": float(seen.conserved_energy[number]),
        }


class CheckpointReporter:
    """Writes a checkpoint once everything before it is on the disk; may keep the last one."""

    def __init__(
        self,
        path: Path,
        interval: int,
        before: Sequence[TrajectoryWriter | LogWriter],
        last: Path | None = None,
    ) -> None:
        self.interval = interval
        self._path = path
        self._before = before
        self._last = last
        self._written = -1

    def report(self, simulation: Simulation) -> None:
        """See Reporter; does nothing where the step has been written."""
        if simulation.step == self._written:
            return
        for writer in self._before:
            writer.sync()
        if self._last is not None:
            with disk_failures(self._last, "write"):
                self._last.unlink(missing_ok=True)
                self._last.hardlink_to(self._path)
        save_restart(simulation, self._path)
        self._written = simulation.step


class ProgressBar:
    """Steps done, speed and time left; shows nothing where there is no terminal."""

    def __init__(self, simulation: Simulation, steps: int) -> None:
        self.interval = _CHUNKS[simulation.state.device.type] * simulation.chunk
        self._watch = Stopwatch(simulation)
        self._bar = tqdm(
            total=steps,
            initial=simulation.step,
            desc="md",
            disable=None,
            dynamic_ncols=True,
            bar_format="{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} steps "
            "[{elapsed}, {remaining} left{postfix}]",
        )

    def report(self, simulation: Simulation) -> None:
        """See Reporter."""
        self.show(simulation)

    def show(self, simulation: Simulation) -> None:
        """Brings the bar up to the step of the moment."""
        if self._bar.disable:
            return
        speed = self._watch.nanoseconds_per_day(simulation)
        kelvin = float(simulation.observables().temperature[0])
        self._bar.set_postfix_str(f"{speed:.3g} ns/day, {kelvin:.0f} K", refresh=False)
        self._bar.update(simulation.step - self._bar.n)

    def close(self) -> None:
        """Leaves the bar as it is."""
        self._bar.close()


class Arrival:
    """Ends a minimisation once it has arrived, at whole chunks so that resuming ends it alike."""

    def __init__(self, simulation: Simulation) -> None:
        self.interval = simulation.chunk
        self._simulation = simulation

    def reached(self) -> bool:
        """Whether the simulation is a minimisation with nowhere left to go; reads the device."""
        if self._simulation.step % self.interval:
            return False
        converged = self._simulation.integrator.converged()
        return converged is not None and bool(converged.all())

    def report(self, simulation: Simulation) -> None:
        """See Reporter; raises SimulationError as `check_cells` does."""
        check_cells(simulation)
        if self.reached():
            simulation.stop()
