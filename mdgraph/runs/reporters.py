"""The files of a run, and the reporters and recorders that write them.

A simulation calls its recorders before its reporters, so the trajectory and the log are never
behind a checkpoint of the same step.
"""

import logging
import math
import re
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from mdgraph.engine import Simulation, Thermo
from mdgraph.engine.relaxation import check_cells
from mdgraph.engine.replicas import ReplicaExchange, StateExchange, UmbrellaExchange
from mdgraph.engine.reporting import HostSnapshot
from mdgraph.engine.restart import save_restart
from mdgraph.errors import FileError, InputError
from mdgraph.io.extxyz import ExtendedXYZWriter
from mdgraph.io.files import AppendedFile, check_steps, disk_failures, write_atomically
from mdgraph.io.formats import create_trajectory, read_trajectory, resuming_trajectory
from mdgraph.io.log import LOG_COLUMNS, LogWriter, read_log
from mdgraph.io.topology import write_pdb
from mdgraph.io.trajectories import WHOLE, Frame, FrameContents, TrajectoryWriter
from mdgraph.runs.biased.files import (
    BiasFile,
    ColvarFile,
    check_bias_files,
    create_bias_files,
    open_bias_files,
)
from mdgraph.runs.config import MDConfig, RunConfig
from mdgraph.runs.folder import Run
from mdgraph.system import System
from mdgraph.units import BAR, DENSITY, duration_text

logger = logging.getLogger(__name__)

_DAY = 86400.0
_FEMTOSECONDS = 1e6
"""Femtoseconds in a nanosecond."""
_MOST_OPEN: Final = 256
"""Most trajectories that stay open; if a run has more, each is reopened for every frame."""

_CHUNKS = {"cpu": 1, "cuda": 8}
"""Chunks between updates of the progress bar; at each update the GPU waits for the host."""

_OPEN_OF_REPLICA: Final = 2
"""Most files that a replica has open at once: its log and, on resuming, its trajectory."""

_OPEN_OF_BIASES: Final = 2
"""Those of variables beside: COLVAR and HILLS."""

_OPEN_OTHERWISE: Final = 100
"""Open files of everything else, libraries included."""


class Stopwatch:
    """Measures the speed of a run since it was made."""

    def __init__(self, now: Simulation | HostSnapshot) -> None:
        self._last = (now.time, time.perf_counter())

    def nanoseconds_per_day(self, now: Simulation | HostSnapshot) -> float:
        """Speed since the watch was made, simulated ns a day; NaN without a step."""
        simulated = now.time - self._last[0]
        elapsed = time.perf_counter() - self._last[1]
        return simulated / _FEMTOSECONDS / elapsed * _DAY if simulated > 0.0 else math.nan


def frames_of(view: HostSnapshot) -> list[Frame]:
    """Copies the snapshot of every system into a frame of its own."""
    thermo = view.observables
    cells, virials = view.cell.to(torch.float64, copy=True), view.virial
    rows = [
        array.to(torch.float64, copy=True).split(view.sizes)
        for array in (view.positions, view.velocities, view.forces)
    ]
    frames = []
    for number, (positions, velocities, forces) in enumerate(zip(*rows, strict=True)):
        volume = float(cells[number].det().abs())
        stress = -virials[number].numpy() / volume if volume > 0.0 else None
        frames.append(
            Frame(
                step=thermo.step,
                time_fs=thermo.time,
                positions=positions.numpy(),
                velocities=velocities.numpy(),
                forces=forces.numpy(),
                energy=float(thermo.potential_energy[number]),
                kinetic_energy=float(thermo.kinetic_energy[number]),
                temperature=float(thermo.temperature[number]),
                cell=cells[number].numpy(),
                stress=stress,
            )
        )
    return frames


class TrajectoryRecorder:
    """Appends a frame of each system to its trajectory."""

    def __init__(
        self,
        writers: Sequence[TrajectoryWriter],
        interval: int,
        atoms: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Writes nothing yet.

        Args:
            writers: of each system.
            interval: steps between frames.
            atoms: of each system that its frames hold; None for all.
        """
        self.interval = interval
        self._writers = writers
        self._atoms = atoms

    def record(self, view: HostSnapshot) -> None:
        """See Recorder."""
        for number, (writer, frame) in enumerate(zip(self._writers, frames_of(view), strict=True)):
            writer.append(frame if self._atoms is None else frame.select(self._atoms[number]))


def contents_of(configuration: RunConfig) -> FrameContents:
    """What the frames of the trajectories hold of each atom."""
    fields = WHOLE.fields if configuration.save is None else tuple(configuration.save.split(","))
    return FrameContents(fields, single=configuration.save_precision == "single")


def log_columns(simulation: Simulation, thermo: Thermo, system: int) -> tuple[str, ...]:
    """Columns of the log of a system.

    Some need a cell, a conserved energy, two potentials, terms of a sum, weights that change or
    biases.
    """
    columns = list(LOG_COLUMNS)
    state = simulation.state
    if bool(state.pbc[system].any()) and float(thermo.volume[system]) > 0.0:
        columns += ["pressure_bar", "volume_A3", "density_g_per_cm3"]
    if simulation.integrator.conserved_energy() is not None:
        columns.append("conserved_energy_eV")
    if simulation.together > 1:
        columns.append("outer_step_fs")
    columns += [*map(_term_column, thermo.term_energies), *map(_plain, thermo.switching)]
    return (*columns, *_bias_energies(thermo))


def _bias_energies(thermo: Thermo) -> dict[str, torch.Tensor]:
    """Energies (S,) of the biases by their columns."""
    return {
        f"{name.removesuffix('.bias')}_bias_eV": energies
        for name, energies in thermo.biases.items()
        if name.endswith(".bias")
    }


def _term_column(name: str) -> str:
    """The column of the energy of a term of a sum."""
    return f"{_plain(name)}_energy_eV"


def _plain(name: str) -> str:
    """A name without what would be odd in a column."""
    return re.sub("[^A-Za-z0-9_.+-]+", "_", name)


class LogRecorder:
    """Appends a row of each system to its log, with the speed since the previous row."""

    def __init__(self, writers: Sequence[LogWriter], interval: int, simulation: Simulation) -> None:
        self.interval = interval
        self._writers = writers
        self._watch = Stopwatch(simulation)
        self._outer_step = simulation.together * simulation.timestep
        sizes = simulation.state.grouping.sizes
        parts = simulation.state.masses.double().split(sizes)
        self._masses = [float(part.sum()) for part in parts]

    def record(self, view: HostSnapshot) -> None:
        """See Recorder."""
        thermo = view.observables
        speed = self._watch.nanoseconds_per_day(view)
        self._watch = Stopwatch(view)
        for number, writer in enumerate(self._writers):
            row = self._row(thermo, number) | {"ns_per_day": speed}
            writer.append({column: row[column] for column in writer.columns})

    def _row(self, thermo: Thermo, number: int) -> dict[str, float]:
        potential = float(thermo.potential_energy[number])
        kinetic = float(thermo.kinetic_energy[number])
        volume, mass = float(thermo.volume[number]), self._masses[number]
        return {
            "step": thermo.step,
            "time_ps": 1e-3 * thermo.time,
            "potential_energy_eV": potential,
            "kinetic_energy_eV": kinetic,
            "total_energy_eV": potential + kinetic,
            "temperature_K": float(thermo.temperature[number]),
            "pressure_bar": float(thermo.pressure[number]) / BAR,
            "volume_A3": volume,
            "density_g_per_cm3": DENSITY * mass / volume if volume > 0.0 else math.nan,
            "conserved_energy_eV": float(thermo.conserved_energy[number]),
            "outer_step_fs": self._outer_step,
            **{
                _term_column(name): float(energies[number])
                for name, energies in thermo.term_energies.items()
            },
            **{_plain(name): float(values[number]) for name, values in thermo.switching.items()},
            **{name: float(values[number]) for name, values in _bias_energies(thermo).items()},
        }


class CheckpointReporter:
    """Writes a checkpoint after syncing trajectories and logs; may keep the previous one."""

    def __init__(
        self,
        path: Path,
        interval: int,
        before: Sequence[TrajectoryWriter | LogWriter | BiasFile],
        last: Path | None = None,
    ) -> None:
        self.interval = interval
        self._path = path
        self._before = before
        self._last = last
        self._written = -1

    def report(self, simulation: Simulation) -> None:
        """See Reporter; does nothing if this step has been written already."""
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


FIRST_LINE: Final = 2.0
"""s that a run is timed before the line with its expected length."""

LINES_APART: Final = 60.0
"""s between two lines of progress."""


class ProgressLines:
    """Logs how long a run will take, then one line of progress a minute; does not sync."""

    def __init__(self, simulation: Simulation, steps: int) -> None:
        self._steps = steps
        self._first = simulation.step
        self._minimizes = simulation.integrator.converged() is not None
        self._watch = Stopwatch(simulation)
        self._start = time.perf_counter()
        self._next = self._start + FIRST_LINE
        self._length_is_known = False

    def report(self, simulation: Simulation) -> None:
        """See Reporter."""
        now, left = time.perf_counter(), self._steps - simulation.step
        if now < self._next or left <= 0 or simulation.step == self._first:
            return
        step_time = (now - self._start) / (simulation.step - self._first)
        remaining = duration_text(step_time * left)
        speed = f"{self._watch.nanoseconds_per_day(simulation):.3g} ns/day"
        picosecond = 1e-3 * simulation.timestep
        if self._minimizes:
            logger.info(
                "%d of at most %d steps, %.3g s each, at most %s left",
                *(simulation.step, self._steps, step_time, remaining),
            )
        elif not self._length_is_known:
            length = self._steps - self._first
            logger.info(
                "%.4g ps will take about %s, at %s.",
                *(picosecond * length, duration_text(step_time * length), speed),
            )
            self._length_is_known = True
        else:
            logger.info(
                "%.4g of %.4g ps (%d %%), %s, %s left",
                *(1e-3 * simulation.time, picosecond * self._steps),
                *(100 * simulation.step // self._steps, speed, remaining),
            )
        self._next = now + LINES_APART


class ProgressBar:
    """Shows steps, speed and remaining time: in a bar on a terminal, else by `ProgressLines`."""

    def __init__(self, simulation: Simulation, steps: int, *, lines: bool = True) -> None:
        """Shows the empty bar.

        Args:
            simulation: at its start, or where it goes on.
            steps: in all.
            lines: whether to log lines where there is no terminal.
        """
        self.interval = _CHUNKS[simulation.state.device.type] * simulation.chunk
        self._watch = Stopwatch(simulation)
        self._bar = tqdm(
            total=steps,
            initial=simulation.step,
            desc="md" if simulation.integrator.converged() is None else "minimise",
            disable=None,
            dynamic_ncols=True,
            bar_format="{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} steps "
            "[{elapsed}, {remaining} left{postfix}]",
        )
        self._lines = ProgressLines(simulation, steps) if lines and self._bar.disable else None

    def report(self, simulation: Simulation) -> None:
        """See Reporter."""
        self.show(simulation)
        if self._lines is not None:
            self._lines.report(simulation)

    def show(self, simulation: Simulation) -> None:
        """Moves the bar to the current step; syncs the GPU."""
        if self._bar.disable:
            return
        speed = self._watch.nanoseconds_per_day(simulation)
        kelvin = float(simulation.observables().temperature[0])
        self._bar.set_postfix_str(f"{speed:.3g} ns/day, {kelvin:.0f} K", refresh=False)
        self._bar.update(simulation.step - self._bar.n)

    def close(self) -> None:
        """Closes the bar, which stays on the terminal."""
        self._bar.close()


class ConvergenceReporter:
    """Stops a minimisation that converged; checks after whole chunks, as a resumed run does."""

    def __init__(self, simulation: Simulation) -> None:
        self.interval = simulation.chunk
        self._simulation = simulation

    def converged(self) -> bool:
        """Whether the simulation is a minimisation that converged; syncs the GPU."""
        if self._simulation.step % self.interval:
            return False
        converged = self._simulation.integrator.converged()
        return converged is not None and bool(converged.all())

    def report(self, simulation: Simulation) -> None:
        """See Reporter; raises SimulationError as `check_cells` does."""
        check_cells(simulation)
        if self.converged():
            simulation.stop()


@dataclass(frozen=True)
class Writers:
    """The open files of a run.

    Attributes:
        trajectories: one for each system.
        logs: one for each system.
        biases: COLVAR and HILLS, if the run has variables.
        exchanges: places of replicas on the ladder of temperatures or windows, or None.
    """

    trajectories: Sequence[TrajectoryWriter]
    logs: Sequence[LogWriter]
    biases: Sequence[BiasFile] = ()
    exchanges: LogWriter | None = None

    def all(self) -> list[TrajectoryWriter | LogWriter | BiasFile]:
        """Writers of all files."""
        last = [] if self.exchanges is None else [self.exchanges]
        return [*self.trajectories, *self.logs, *self.biases, *last]


def allow_open_files(share: int, configuration: RunConfig) -> None:
    """Raises the limit of open files for this number of replicas of a run.

    Raises:
        InputError: the system does not allow as many.
    """
    biased = isinstance(configuration, MDConfig) and configuration.variables is not None
    each = _OPEN_OF_REPLICA + _OPEN_OF_BIASES * biased
    needed = each * share + _OPEN_OTHERWISE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = math.inf if hard == resource.RLIM_INFINITY else hard
    if needed > most:
        largest = max(1, (int(most) - _OPEN_OTHERWISE) // each)
        raise InputError(
            f"{share} replicas in one process need up to {needed} open files, and this system "
            f"allows {hard}; give at most {largest} --replicas, or raise that limit (ulimit -n)."
        )
    if soft != resource.RLIM_INFINITY and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def create_files(run: Run, simulation: Simulation, systems: Sequence[System]) -> None:
    """Writes the start of every system, and a trajectory and a log with it as the first entry."""
    view = simulation.view()
    thermo = view.observables
    contents, word = contents_of(run.configuration), run.configuration.trajectory
    rows = zip(run.parts, systems, run.frame_systems(systems), frames_of(view), strict=True)
    logs = []
    with ExitStack() as stack:
        for number, (part, system, frame_system, frame) in enumerate(rows):
            part.path.mkdir(exist_ok=True)
            write_frame(part.start, frame, system)
            write_pdb(part.topology, frame_system)
            with create_trajectory(part.trajectory(word), frame_system, contents) as writer:
                if run.frame_atoms is None:
                    writer.append(frame)
                else:
                    write_pdb(part.all_atoms, system)
                    writer.append(frame.select(run.frame_atoms[number]))
                writer.sync()
            columns = log_columns(simulation, thermo, number)
            logs.append(LogWriter.create(part.log, columns, units=run.configuration.log_units))
            stack.enter_context(logs[-1])
        LogRecorder(logs, 1, simulation).record(view)
        for log in logs:
            log.sync()
    if simulation.calculation.biases is not None:
        create_bias_files(run, simulation)
    if isinstance(run.configuration, MDConfig) and run.exchange:
        places = [*range(run.configuration.system_count)]
        if not run.configuration.exchanges_umbrellas:
            places = np.argsort(np.argsort(run.configuration.replica_temperatures)).tolist()
        row = {"step": 0} | {f"replica_{number}": place for number, place in enumerate(places)}
        with LogWriter.create(run.folder.exchanges, list(row)) as log:
            log.append(row)
            log.sync()


@contextmanager
def resume_files(
    run: Run,
    simulation: Simulation,
    systems: Sequence[System],
    begin: Callable[[], None],
) -> Iterator[Writers]:
    """Opens the files of a run at a checkpoint and drops later entries.

    All files are checked before the first one changes.

    Args:
        run: with all options resolved.
        simulation: at the checkpoint.
        systems: initial structures of this rank.
        begin: called after the checks, before files change.

    Raises:
        FileError: a file is missing or damaged, belongs to another run, or the disk refuses;
            the folder is unchanged then.
    """
    step, intervals = simulation.step, run.configuration.intervals
    contents = contents_of(run.configuration)
    frames = frames_of(simulation.view())
    with ExitStack() as stack, ExitStack() as checks:
        trajectories: list[Callable[[], TrajectoryWriter]] = []
        logs: list[Callable[[], LogWriter]] = []
        rows = zip(run.parts, run.frame_systems(systems), frames, strict=True)
        for number, (part, system, frame) in enumerate(rows):
            path = part.trajectory(run.configuration.trajectory)
            open_trajectory, reader = checks.enter_context(
                resuming_trajectory(
                    path,
                    step,
                    system,
                    keeps_open=len(systems) <= _MOST_OPEN,
                    contents=contents,
                )
            )
            atoms = slice(None) if run.frame_atoms is None else run.frame_atoms[number]
            trajectories.append(open_trajectory)
            steps = reader.steps[reader.steps <= step].tolist()
            check_steps(path, steps, step, intervals.trajectory)
            open_log, log = checks.enter_context(LogWriter.resuming(part.log, step))
            logs.append(open_log)
            check_steps(part.log, log["step"].tolist(), step, intervals.log)
            with read_trajectory(part.start) as start:
                _check_belongs(path, reader[0], start[0].positions[atoms])
            if steps[-1] == step:
                _check_belongs(path, reader[len(steps) - 1], frame.positions[atoms])
            first = reader[0]
            energies = {
                "potential_energy_eV": first.energy,
                "kinetic_energy_eV": first.kinetic_energy,
            }
            for name, value in energies.items():
                logged = log.get(name, [math.nan])[0]
                if not math.isclose(logged, value, rel_tol=1e-9, abs_tol=1e-9):
                    raise FileError(
                        f"{part.log} is the log of another run: its first {name} is not that in "
                        f"{path.name}; put back the file that belongs to this run."
                    )
            check_replaceable(part.end, part.picture)
            reader.close()
        exchanges: Callable[[], LogWriter] | None = None
        if run.exchange:
            path = run.folder.exchanges
            exchanges, log = checks.enter_context(LogWriter.resuming(path, step))
            check_steps(path, log.pop("step").tolist(), step, run.exchange)
            places = np.sort(np.array([*log.values()]), axis=0)
            if (places != np.arange(len(places))[:, None]).any() or not len(places):
                raise FileError(f"{path} is damaged; put back the original.")
        biased = simulation.calculation.biases is not None
        if biased:
            check_bias_files(run, simulation)
        folder = run.folder
        check_replaceable(folder.checkpoint, folder.record, folder.end, folder.picture)
        begin()
        yield Writers(
            [stack.enter_context(open_trajectory()) for open_trajectory in trajectories],
            [stack.enter_context(open_log()) for open_log in logs],
            open_bias_files(run, simulation, stack) if biased else (),
            None if exchanges is None else stack.enter_context(exchanges()),
        )


def _check_belongs(path: Path, frame: Frame, positions: NDArray[np.float64]) -> None:
    """Raises FileError unless a frame has the positions of the run at that step."""
    # The tolerance covers rounding to float32; positions of another run differ by far more.
    if not np.allclose(frame.positions, positions, rtol=1e-6, atol=1e-4):
        raise FileError(
            f"{path} is the trajectory of another run: its frame of step {frame.step} differs; "
            "put back the file that belongs to this run."
        )


def check_replaceable(*paths: Path) -> None:
    """Raises FileError if a path exists and is no file."""
    for path in paths:
        if path.exists() and not path.is_file():
            raise FileError(f"{path} is in the way of a file of that name; move it away.")


def exchange_of(run: Run, simulation: Simulation, files: Writers) -> StateExchange:
    """The exchange of a run, which leaves each window its own COLVAR; see StateExchange.

    Raises:
        InputError: replicas that cannot exchange.
        LostRankError: see Ranks.gather.
    """
    configuration = run.configuration
    assert run.exchange is not None
    assert isinstance(configuration, MDConfig)
    if not configuration.exchanges_umbrellas:
        return ReplicaExchange(simulation, run.exchange, run.ranks, files.exchanges)
    exchange = UmbrellaExchange(simulation, run.exchange, run.ranks, files.exchanges)
    for file in files.biases:
        if isinstance(file, ColvarFile):
            file.sort_by(exchange.by_window)
    return exchange


def write_ends(run: Run, simulation: Simulation, systems: Sequence[System]) -> None:
    """Writes the last frame of every system, and at the end that of the first into the folder."""
    frames = frames_of(simulation.view())
    rows = [*zip(run.parts, systems, frames, strict=True)]
    last = (run.folder, systems[0], frames[0])
    for part, system, frame in [*(rows if run.configuration.has_replicas else []), last]:
        write_atomically(part.end, partial(write_frame, frame=frame, system=system))


def write_frame(path: Path, frame: Frame, system: System) -> None:
    """Writes a file of one frame."""
    with ExtendedXYZWriter(AppendedFile(path, 0), system, None) as writer:
        writer.append(frame)


def mean_temperature(run: Run) -> float | None:
    """Mean temperature over the rows of all logs, K; None with baths of different temperatures."""
    configuration = run.configuration
    if (
        isinstance(configuration, MDConfig)
        and configuration.temperatures_K is not None
        and len(set(configuration.replica_temperatures)) > 1
    ):
        return None
    logs = [read_log(part.log)["temperature_K"] for part in run.parts]
    return float(np.concatenate(logs).mean())
