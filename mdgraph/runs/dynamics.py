"""Dynamics and minimisations, from a configuration to a finished folder."""

import logging
import signal
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mdgraph.engine import FIRE, Reporter, Simulation
from mdgraph.engine.calculation import device_named
from mdgraph.engine.replica_exchange import ReplicaExchange
from mdgraph.engine.restart import save_restart
from mdgraph.errors import FileError, InputError, SimulationError
from mdgraph.io.files import disk_failures
from mdgraph.io.trajectories import read_trajectory
from mdgraph.memory import memory_failures
from mdgraph.runs import directory
from mdgraph.runs.announcements import say_differences, say_plans
from mdgraph.runs.configuration import MDConfig, MinimizeConfig, RunConfig
from mdgraph.runs.directory import RunDirectory
from mdgraph.runs.interruption import Interruption
from mdgraph.runs.picture import draw_picture
from mdgraph.runs.potential import Source, read_potential
from mdgraph.runs.preparation import (
    minimized,
    prepared_simulation,
    prepared_structure,
    resolved,
)
from mdgraph.runs.rank_folders import (
    JointInterruption,
    device_of,
    exchanges_over_ranks,
    folder_of,
    folder_to_resume,
    load_common_restart_,
    whole_folder,
)
from mdgraph.runs.record import description, environment
from mdgraph.runs.replicas import (
    create_files,
    exchange_text,
    mean_temperature,
    opened,
    ranks_of,
    replicas_of,
    write_ends,
    write_frame,
)
from mdgraph.runs.reporters import (
    Arrival,
    CheckpointReporter,
    LogReporter,
    ProgressBar,
    TrajectoryReporter,
    current_frames,
)
from mdgraph.system import System

logger = logging.getLogger(__name__)

RESUME_KEYS = frozenset({"out", "steps", "time_ps", "device", "potential", "check"})
"""What may be said again when a run is resumed: its length, where things are, and checks."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        directory: its folder.
        steps: done since the start of the trajectory.
        total_steps: asked for.
        time_ps: simulated since the start of the trajectory.
        ns_per_day: speed since the start or the last resume, 0 where no step was left to do.
        mean_temperature: K, over the rows of the log.
        signal: what interrupted it, or None.
        largest_force: eV/A on an atom that moves, at the end of a minimisation; else None.
        converged: whether a minimisation has arrived.
        replicas: that ran side by side, or None for one system.
    """

    directory: RunDirectory
    steps: int
    total_steps: int
    time_ps: float
    ns_per_day: float
    mean_temperature: float
    signal: signal.Signals | None
    largest_force: float | None = None
    converged: bool = False
    replicas: int | None = None


def start(configuration: RunConfig, system: System | None = None) -> Outcome:
    """Runs from the beginning.

    Args:
        configuration: of dynamics or a minimisation.
        system: where it begins, instead of the structure that the configuration names.

    Raises:
        MDGraphError: anything that cannot be; before the first step nothing is written.
        SimulationError: the run failed; the last good state is its checkpoint.
    """
    out = folder_of(Path(configuration.out), ranks_of(configuration))
    directory.refuse_used(out)
    device = device_of(device_named(configuration.device), configuration)
    source = read_potential(configuration)
    system = prepared_structure(configuration, source, system)
    with memory_failures(device):
        say_plans(configuration, source, system, device)
        if isinstance(configuration, MDConfig) and configuration.minimize:
            system = minimized(configuration, source, system, device)
        simulation = prepared_simulation(configuration, source, system, device)
        simulation.choose(configuration.total_steps)
    settled = resolved(configuration, source, simulation, system)
    record = {
        "configuration": settled.model_dump(),
        **description(simulation, system, source),
    }

    def fill(folder: RunDirectory) -> None:
        write_frame(folder.start, current_frames(simulation)[0], system)
        create_files(folder, settled, simulation, system)
        save_restart(simulation, folder.checkpoint)
        folder.write_record(record)

    folder = directory.create(out, fill)
    logger.info("Degrees of freedom: %s.", simulation.degrees_text)
    with folder.locked():
        return _advance(simulation, system, folder, settled, source)


def resume(
    path: Path, changes: Mapping[str, Any] | None = None, kind: type[RunConfig] = RunConfig
) -> Outcome:
    """Goes on with an interrupted run, to the bits of one that was not.

    Args:
        path: the folder of the run.
        changes: fields of the configuration among RESUME_KEYS to take instead of the recorded
            ones.
        kind: what it must be; either unless given.

    Raises:
        MDGraphError: see `start`; or the folder holds no run, or the potential changed.
    """
    folder = RunDirectory(folder_to_resume(path))
    record = folder.read_record()
    with folder.locked():
        configuration = _recorded(folder, record["configuration"], changes or {})
        if not isinstance(configuration, kind):
            command = "md" if isinstance(configuration, MDConfig) else "minimise"
            raise InputError(f"{path} is a run of another kind; resume it with mdgraph {command}.")
        device = device_of(device_named(configuration.device), configuration)
        source = read_potential(configuration)
        if source.sha256 != record["potential"]["sha256"]:
            raise InputError(
                f"The potential {source.reference} is not the one that the run in {path} began "
                "with; give that one with --potential."
            )
        with read_trajectory(folder.start) as trajectory:
            system = trajectory.system(0).replace(charge=configuration.charge)
        with memory_failures(device):
            simulation = prepared_simulation(configuration, source, system, device, record)
            load_common_restart_(simulation, folder, configuration)
        if configuration.total_steps < simulation.step:
            raise InputError(
                f"{path} has done {simulation.step} steps already, which is more than "
                f"{configuration.total_steps}; ask for a longer run."
            )
        say_differences(record["environment"], environment(device))
        logger.info("Going on from step %d of %d.", simulation.step, configuration.total_steps)
        settled = resolved(configuration, source, simulation, system)
        if settled.model_dump() != record["configuration"]:
            folder.write_record(record | {"configuration": settled.model_dump()})
        return _advance(simulation, system, folder, settled, source)


def _advance(
    simulation: Simulation,
    system: System,
    folder: RunDirectory,
    configuration: RunConfig,
    source: Source,
) -> Outcome:
    """From the checkpoint in the folder to the end, an interruption or a failure."""
    first = simulation.step
    arrival = Arrival(simulation)
    left = 0 if arrival.reached() else configuration.total_steps - first
    if left:
        with disk_failures(folder.end, "remove"):
            folder.end.unlink(missing_ok=True)
    began = time.perf_counter()
    with ExitStack() as stack:
        files = stack.enter_context(opened(folder, configuration, first, system))
        interruption = stack.enter_context(Interruption(simulation.chunk))
        bar = ProgressBar(simulation, configuration.total_steps)
        stack.callback(bar.close)
        interval = configuration.checkpoint_interval
        joint = exchanges_over_ranks(configuration)
        last = folder.checkpoint_before if joint else None
        ending: Reporter = interruption
        if isinstance(configuration, MDConfig) and configuration.exchange:
            ranks = ranks_of(configuration)
            exchange = ReplicaExchange(simulation, configuration.exchange, ranks, files.exchanges)
            simulation.reporters.append(exchange)
            if joint:
                interval = max(interval, configuration.exchange)
                ending = JointInterruption(interruption, exchange)
        checkpoint = CheckpointReporter(folder.checkpoint, interval, files.all(), last)
        simulation.reporters += [
            TrajectoryReporter(files.trajectories, configuration.trajectory_interval),
            LogReporter(files.logs, configuration.log_interval, simulation),
            checkpoint,
            bar,
            arrival,
            ending,
        ]
        try:
            with memory_failures(simulation.calculation.device):
                simulation.run(left)
        except SimulationError as error:
            checkpoint.report(simulation)
            raise SimulationError(
                f"{error} It is the checkpoint in {folder.path}, step {simulation.step}.",
                error.step,
                error.atoms,
            ) from error
        if simulation.step > first:
            bar.show(simulation)
            checkpoint.report(simulation)
    elapsed = time.perf_counter() - began
    steps = simulation.step - first
    fire = simulation.integrator if isinstance(simulation.integrator, FIRE) else None
    arrived = arrival.reached()
    complete = arrived or simulation.step == configuration.total_steps
    if complete:
        if isinstance(configuration, MDConfig):
            if configuration.exchange:
                logger.info(exchange_text(folder, configuration.exchange))
            if configuration.replicas is None:
                draw_picture(folder, configuration, system, source)
        write_ends(folder, configuration, simulation, system)
    return Outcome(
        directory=whole_folder(folder, configuration),
        steps=simulation.step,
        total_steps=configuration.total_steps,
        time_ps=1e-3 * simulation.time,
        ns_per_day=1e-6 * steps * simulation.timestep / elapsed * 86400.0,
        mean_temperature=mean_temperature(folder, configuration),
        signal=None if complete else interruption.signal,
        largest_force=None if fire is None else float(fire.largest_force()[0]),
        converged=arrived,
        replicas=replicas_of(configuration),
    )


def _recorded(
    folder: RunDirectory, recorded: Mapping[str, Any], changes: Mapping[str, Any]
) -> RunConfig:
    """The configuration in run.json with some fields changed."""
    kind = MDConfig if "ensemble" in recorded else MinimizeConfig
    if "time_ps" in recorded and ("steps" in changes or "time_ps" in changes):
        changes = {"steps": None, "time_ps": None, **changes}
    try:
        return kind(**{**recorded, **changes, "out": str(folder.path)})
    except ValidationError as error:
        raise FileError(
            f"{folder.record} holds a configuration that this mdgraph does not take "
            f"({error.errors()[0]['msg']}); put back the original."
        ) from error
