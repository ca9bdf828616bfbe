"""Reporters of a run: frames, rows, checkpoints and a progress bar.

A simulation calls its reporters in their order, so the trajectory and the log are never
behind a checkpoint of the same step.
"""

import math
import time
from pathlib import Path

from tqdm import tqdm

from mdgraph.engine import Simulation
from mdgraph.engine.restart import save_restart
from mdgraph.io.frames import Frame, TrajectoryWriter
from mdgraph.io.log import LogWriter

_DAY = 86400.0
_FEMTOSECONDS = 1e6
"""In a nanosecond."""


class Stopwatch:
    """Wall-clock time of the steps of a run from one look to the next."""

    def __init__(self, simulation: Simulation) -> None:
        self._last = (simulation.time, time.perf_counter())

    def nanoseconds_per_day(self, simulation: Simulation) -> float:
        """Simulated ns in a day at the speed since this watch was made; NaN without a step."""
        simulated = simulation.time - self._last[0]
        elapsed = time.perf_counter() - self._last[1]
        return simulated / _FEMTOSECONDS / elapsed * _DAY if simulated > 0.0 else math.nan


def current_frame(simulation: Simulation) -> Frame:
    """The state of the only system of a simulation, on the host; reads the device."""
    state, seen = simulation.state, simulation.observables()
    cell = state.cell[0].double().cpu()
    volume = float(cell.det().abs())
    stress = -state.virial[0].cpu().numpy() / volume if volume > 0.0 else None
    return Frame(
        step=seen.step,
        time_fs=seen.time,
        positions=state.positions.double().cpu().numpy(),
        velocities=state.velocities.double().cpu().numpy(),
        forces=state.forces.double().cpu().numpy(),
        energy=float(seen.potential_energy[0]),
        kinetic_energy=float(seen.kinetic_energy[0]),
        temperature=float(seen.temperature[0]),
        cell=cell.numpy(),
        stress=stress,
    )


class TrajectoryReporter:
    """Appends a frame to a trajectory."""

    def __init__(self, writer: TrajectoryWriter, interval: int) -> None:
        self.interval = interval
        self._writer = writer

    def report(self, simulation: Simulation) -> None:
        """See Reporter."""
        self._writer.append(current_frame(simulation))


class LogReporter:
    """Appends a row to a log, with the speed since the row before."""

    def __init__(self, writer: LogWriter, interval: int, simulation: Simulation) -> None:
        self.interval = interval
        self._writer = writer
        self._watch = Stopwatch(simulation)

    def report(self, simulation: Simulation) -> None:
        """See Reporter."""
        seen = simulation.observables()
        potential, kinetic = float(seen.potential_energy[0]), float(seen.kinetic_energy[0])
        speed = self._watch.nanoseconds_per_day(simulation)
        self._watch = Stopwatch(simulation)
        self._writer.append(
            {
                "step": seen.step,
                "time_ps": 1e-3 * seen.time,
                "potential_energy_eV": potential,
                "kinetic_energy_eV": kinetic,
                "total_energy_eV": potential + kinetic,
                "temperature_K": float(seen.temperature[0]),
                "ns_per_day": speed,
            }
        )


class CheckpointReporter:
    """Writes a checkpoint once everything before it is on the disk."""

    def __init__(
        self, path: Path, interval: int, trajectory: TrajectoryWriter, log: LogWriter
    ) -> None:
        self.interval = interval
        self._path = path
        self._before = (trajectory, log)

    def report(self, simulation: Simulation) -> None:
        """See Reporter."""
        for writer in self._before:
            writer.sync()
        save_restart(simulation, self._path)


class ProgressBar:
    """Steps done, speed and time left; shows nothing where there is no terminal."""

    def __init__(self, simulation: Simulation, steps: int) -> None:
        self.interval = simulation.chunk
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
