"""Molecular dynamics from a configuration to a finished folder."""

import logging
import signal
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from mdgraph.drivers.minimization import minimized
from mdgraph.engine import (
    Integrator,
    LangevinMiddle,
    Simulation,
    VelocityVerlet,
)
from mdgraph.engine.calculation import device_named
from mdgraph.engine.restart import load_restart_, save_restart
from mdgraph.errors import FileError, InputError, SimulationError
from mdgraph.io.log import LogWriter, read_log
from mdgraph.io.structures import read_system
from mdgraph.io.trajectories import create_trajectory, read_trajectory, resume_trajectory
from mdgraph.memory import memory_failures
from mdgraph.runs import directory
from mdgraph.runs.announcements import say_differences, say_plans
from mdgraph.runs.configuration import MDConfig
from mdgraph.runs.directory import RunDirectory
from mdgraph.runs.interruption import Interruption
from mdgraph.runs.picture import draw_picture
from mdgraph.runs.potential import Source, read_potential, say_neutral, with_charge
from mdgraph.runs.record import description, environment, evaluator_name
from mdgraph.runs.reporters import (
    CheckpointReporter,
    LogReporter,
    ProgressBar,
    TrajectoryReporter,
    current_frame,
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
    """

    directory: RunDirectory
    steps: int
    total_steps: int
    time_ps: float
    ns_per_day: float
    mean_temperature: float
    signal: signal.Signals | None


def start(configuration: MDConfig) -> Outcome:
    """Runs from the beginning.

    Raises:
        MDGraphError: anything that cannot be; before the first step nothing is written.
        SimulationError: the run failed; the last good state is its checkpoint.
    """
    out = Path(configuration.out)
    directory.refuse_used(out)
    device = device_named(configuration.device)
    source = read_potential(configuration)
    system = _structure(configuration, source)
    with memory_failures(device):
        say_plans(configuration, source, system, device)
        if configuration.minimize:
            # The simulation checks the evaluator, where forces are no longer those of a clash.
            system = minimized(
                system,
                source.potential,
                device,
                configuration.precision,
                evaluator=configuration.evaluator,
                check=False,
            )
        simulation = _simulation(configuration, source, system, device)
    resolved = _resolved(configuration, source, simulation, system)
    record = {
        "configuration": resolved.model_dump(),
        **description(simulation, system, source),
    }

    def fill(folder: RunDirectory) -> None:
        frame = current_frame(simulation)
        with create_trajectory(folder.start, system) as writer:
            writer.append(frame)
        with create_trajectory(folder.trajectory(resolved.trajectory), system) as writer:
            writer.append(frame)
            writer.sync()
        with LogWriter.create(folder.log) as log:
            LogReporter(log, 1, simulation).report(simulation)
            log.sync()
        save_restart(simulation, folder.checkpoint)
        folder.write_record(record)

    folder = directory.create(out, fill)
    logger.info("Degrees of freedom: %s.", simulation.degrees_text)
    with folder.locked():
        return _advance(simulation, system, folder, resolved, source)


def resume(path: Path, changes: Mapping[str, Any] | None = None) -> Outcome:
    """Goes on with an interrupted run, to the bits of one that was not.

    Args:
        path: the folder of the run.
        changes: fields of MDConfig among RESUME_KEYS to take instead of the recorded ones.

    Raises:
        MDGraphError: see `start`; or the folder holds no run, or the potential changed.
    """
    folder = RunDirectory(path)
    record = folder.read_record()
    with folder.locked():
        configuration = _recorded(folder, record["configuration"], changes or {})
        device = device_named(configuration.device)
        source = read_potential(configuration)
        if source.sha256 != record["potential"]["sha256"]:
            raise InputError(
                f"The potential {source.reference} is not the one that the run in {path} began "
                "with; give that one with --potential."
            )
        with read_trajectory(folder.start) as trajectory:
            system = trajectory.system(0).replace(charge=configuration.charge)
        with memory_failures(device):
            simulation = _simulation(configuration, source, system, device)
            load_restart_(simulation, folder.checkpoint)
        if configuration.total_steps < simulation.step:
            raise InputError(
                f"{path} has done {simulation.step} steps already, which is more than "
                f"{configuration.total_steps}; ask for a longer run."
            )
        say_differences(record["environment"], environment(device))
        logger.info("Going on from step %d of %d.", simulation.step, configuration.total_steps)
        resolved = configuration.model_copy(
            update={
                "device": str(device),
                "potential": source.reference,
                "steps": configuration.total_steps,
                "time_ps": None,
            }
        )
        if resolved.model_dump() != record["configuration"]:
            folder.write_record(record | {"configuration": resolved.model_dump()})
        return _advance(simulation, system, folder, resolved, source)


def _advance(
    simulation: Simulation,
    system: System,
    folder: RunDirectory,
    configuration: MDConfig,
    source: Source,
) -> Outcome:
    """From the checkpoint in the folder to the end, an interruption or a failure."""
    first = simulation.step
    trajectory_path = folder.trajectory(configuration.trajectory)
    began = time.perf_counter()
    with ExitStack() as stack:
        trajectory = stack.enter_context(resume_trajectory(trajectory_path, first, system))
        log = stack.enter_context(LogWriter.resume(folder.log, first))
        interruption = stack.enter_context(Interruption(simulation.chunk))
        bar = ProgressBar(simulation, configuration.total_steps)
        stack.callback(bar.close)
        checkpoint = CheckpointReporter(
            folder.checkpoint, configuration.checkpoint_interval, trajectory, log
        )
        simulation.reporters += [
            TrajectoryReporter(trajectory, configuration.trajectory_interval),
            LogReporter(log, configuration.log_interval, simulation),
            checkpoint,
            bar,
            interruption,
        ]
        try:
            with memory_failures(simulation.calculation.device):
                simulation.run(configuration.total_steps - first)
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
    complete = simulation.step == configuration.total_steps
    if complete:
        draw_picture(folder, configuration, system, source)
    return Outcome(
        directory=folder,
        steps=simulation.step,
        total_steps=configuration.total_steps,
        time_ps=1e-3 * simulation.time,
        ns_per_day=1e-6 * steps * configuration.timestep_fs / elapsed * 86400.0,
        mean_temperature=float(read_log(folder.log)["temperature_K"].mean()),
        signal=None if complete else interruption.signal,
    )


def _recorded(
    folder: RunDirectory, recorded: Mapping[str, Any], changes: Mapping[str, Any]
) -> MDConfig:
    """The configuration in run.json with some fields changed."""
    if "steps" in changes or "time_ps" in changes:
        changes = {"steps": None, "time_ps": None, **changes}
    try:
        return MDConfig(**{**recorded, **changes, "out": str(folder.path)})
    except ValidationError as error:
        raise FileError(
            f"{folder.record} holds a configuration that this mdgraph does not take "
            f"({error.errors()[0]['msg']}); put back the original."
        ) from error


def _structure(configuration: MDConfig, source: Source) -> System:
    if configuration.structure is None:
        system = source.start()
    else:
        system = read_system(configuration.structure)
    if configuration.new_velocities:
        system = system.replace(velocities=None)
    say_neutral([system], configuration, source)
    return with_charge(system, configuration, source)


def _integrator(configuration: MDConfig) -> Integrator:
    if configuration.ensemble == "nve":
        return VelocityVerlet(configuration.timestep_fs)
    return LangevinMiddle(
        configuration.timestep_fs, configuration.temperature_K, configuration.friction_per_ps
    )


def _simulation(
    configuration: MDConfig, source: Source, system: System, device: torch.device
) -> Simulation:
    return Simulation(
        system,
        source.potential,
        _integrator(configuration),
        device=device,
        precision=configuration.precision,
        seed=configuration.seed,
        temperature=configuration.temperature_K,
        exact_temperature=configuration.exact_temperature,
        skin=configuration.skin_A,
        graph="off" if configuration.eager else "auto",
        chunk=configuration.chunk,
        maximum_temperature=configuration.maximum_temperature_K,
        evaluator=configuration.evaluator,
        check=configuration.check,
    )


def _resolved(
    configuration: MDConfig, source: Source, simulation: Simulation, system: System
) -> MDConfig:
    """The configuration with nothing left to choose, from which a run is resumed."""
    structure = configuration.structure
    return configuration.model_copy(
        update={
            "structure": None if structure is None else str(Path(structure).resolve()),
            "potential": source.reference,
            "charge": system.charge,
            "steps": configuration.total_steps,
            "time_ps": None,
            "device": str(simulation.calculation.device),
            "evaluator": evaluator_name(simulation.calculation.evaluator),
            "skin_A": simulation.calculation.skin,
            "chunk": simulation.chunk,
            "maximum_temperature_K": simulation.maximum_temperature,
        }
    )
