"""Dynamics and minimisations, from a configuration to a finished folder."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mdgraph.engine.calculation import device_named
from mdgraph.engine.restart import save_restart
from mdgraph.errors import FileError, InputError
from mdgraph.io.trajectories import read_trajectory
from mdgraph.memory import memory_failures
from mdgraph.runs import directory
from mdgraph.runs.advance import Outcome, advance
from mdgraph.runs.announcements import say_differences, say_plans
from mdgraph.runs.configuration import MDConfig, MinimizeConfig, RunConfig
from mdgraph.runs.directory import RunDirectory
from mdgraph.runs.potential import read_potential
from mdgraph.runs.preparation import (
    minimized,
    prepared_simulation,
    prepared_structure,
    resolved,
)
from mdgraph.runs.rank_folders import (
    device_of,
    folder_of,
    folder_to_resume,
    load_common_restart_,
    refuse_used,
)
from mdgraph.runs.record import description, environment
from mdgraph.runs.replicas import create_files, ranks_of, write_frame
from mdgraph.runs.reporters import current_frames
from mdgraph.system import System

logger = logging.getLogger(__name__)

RESUME_KEYS = frozenset({"out", "steps", "time_ps", "device", "potential", "check"})
"""What may be said again when a run is resumed: its length, where things are, and checks."""


def start(configuration: RunConfig, system: System | None = None) -> Outcome:
    """Runs from the beginning.

    Args:
        configuration: of dynamics or a minimisation.
        system: where it begins, instead of the structure that the configuration names.

    Raises:
        MDGraphError: anything that cannot be; before the first step nothing is written.
        SimulationError: the run failed; the last good state is its checkpoint.
    """
    path, ranks = Path(configuration.out), ranks_of(configuration)
    refuse_used(path, ranks)
    out = folder_of(path, ranks)
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
        return advance(simulation, system, folder, settled, source)


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
        return advance(simulation, system, folder, settled, source)


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
