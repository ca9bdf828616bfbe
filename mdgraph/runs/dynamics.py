"""Dynamics and minimisations, from a configuration to a finished folder."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mdgraph.devices import device_named
from mdgraph.engine.restart import save_restart
from mdgraph.errors import FileError, InputError, printable
from mdgraph.memory import memory_failures
from mdgraph.runs import directory
from mdgraph.runs.advance import Outcome, advance
from mdgraph.runs.announcements import say_differences, say_plans
from mdgraph.runs.configuration import MDConfig, MinimizeConfig, RunConfig
from mdgraph.runs.directory import RunDirectory, finish_start
from mdgraph.runs.potential import read_potential
from mdgraph.runs.preparation import minimized, prepared_simulation, resolved
from mdgraph.runs.rank_folders import (
    device_of,
    folder_of,
    folder_to_resume,
    forget_last_restart,
    load_common_restart_,
    meet,
    recorded_starts,
    refuse_ranks,
    refuse_used,
)
from mdgraph.runs.record import description, environment
from mdgraph.runs.replicas import (
    allow_open_files,
    create_files,
    own_systems,
    ranks_of,
    replicas_of,
)
from mdgraph.runs.starts import counted, prepared_structures, read_starts
from mdgraph.runs.uncertainty import UncertaintyReporter, uncertainty_of
from mdgraph.system import System

logger = logging.getLogger(__name__)

RESUME_KEYS = frozenset({"out", "steps", "time_ps", "device", "potential", "check", "on_leaving"})
"""What may be said again when a run is resumed: its length, where things are, and checks."""


def start(configuration: RunConfig, starts: Sequence[System] | None = None) -> Outcome:
    """Runs from the beginning.

    Args:
        configuration: of dynamics or a minimisation.
        starts: where it begins, instead of the structures that the configuration names.

    Raises:
        MDGraphError: anything that cannot be; before the first step nothing is written.
        SimulationError: the run failed; the last good state is its checkpoint.
    """
    path = Path(configuration.out)
    starts = read_starts(configuration) if starts is None else starts
    configuration = counted(configuration, starts)
    if replicas_of(configuration) is None:
        refuse_ranks("A run without replicas")
    ranks = ranks_of(configuration)
    allow_open_files(configuration)
    refuse_used(path, ranks)
    out = folder_of(path, ranks)
    device = device_of(device_named(configuration.device), configuration)
    source = read_potential(configuration)
    systems = prepared_structures(configuration, source, starts)
    with memory_failures(device):
        say_plans(configuration, source, own_systems(configuration, systems), device)
        if isinstance(configuration, MDConfig) and configuration.minimize:
            systems = minimized(configuration, source, systems, device)
        simulation = prepared_simulation(configuration, source, systems, device)
        own = own_systems(configuration, systems)
        uncertainty = uncertainty_of(configuration, source, simulation, own)
        simulation.choose(configuration.total_steps, _report_intervals(configuration, uncertainty))
    settled = resolved(configuration, source, simulation, systems)
    record = {
        "configuration": settled.model_dump(mode="json"),
        **description(simulation, systems, source, replicas_of(settled) is not None),
    }

    def fill(folder: RunDirectory) -> None:
        create_files(folder, settled, simulation, own)
        save_restart(simulation, folder.checkpoint)
        folder.write_record(record)
        meet(ranks)

    with directory.new_run(out, fill) as folder:
        logger.info("Degrees of freedom: %s.", simulation.degrees_text)
        return advance(simulation, own, folder, settled, source, uncertainty)


def _report_intervals(
    configuration: RunConfig, uncertainty: UncertaintyReporter | None
) -> list[int]:
    """Steps between reports, of all that may be due more often than once a chunk."""
    found = [*configuration.intervals]
    if uncertainty is not None:
        found.append(uncertainty.interval)
    if isinstance(configuration, MDConfig) and configuration.exchange is not None:
        found.append(configuration.exchange)
    return found


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
    if not folder.holds_run():
        raise FileError(
            f"{path} holds no run to resume: there is no run.json in it; give the folder of a run "
            "with --out, or begin one without --resume."
        )
    with folder.locked():
        finish_start(folder)
        record = folder.read_record()
        configuration = _recorded(folder, record["configuration"], changes or {})
        if not isinstance(configuration, kind):
            command = "md" if isinstance(configuration, MDConfig) else "minimise"
            raise InputError(f"{path} is a run of another kind; resume it with mdgraph {command}.")
        allow_open_files(configuration)
        device = device_of(device_named(configuration.device), configuration)
        source = read_potential(configuration)
        if isinstance(configuration, MDConfig) and configuration.watch and source.domain is None:
            raise InputError(
                f"The run in {path} is watched, and domain.safetensors is not beside the weights "
                f"of {source.reference} any more; put it back."
            )
        if source.sha256 != record["potential"]["sha256"]:
            raise InputError(
                f"The potential {source.reference} is not the one that the run in {path} began "
                "with; give that one with --potential."
            )
        systems = recorded_starts(folder, configuration, record)
        with memory_failures(device):
            simulation = prepared_simulation(configuration, source, systems, device, record)
            is_ahead = load_common_restart_(simulation, folder, configuration)
            own = own_systems(configuration, systems)
            uncertainty = uncertainty_of(configuration, source, simulation, own)
        if configuration.total_steps < simulation.step:
            raise InputError(
                f"{path} has done {simulation.step} steps already, which is more than "
                f"{configuration.total_steps}; ask for at least as many in all, "
                f"{_longer(configuration, simulation.step)}."
            )
        say_differences(record["environment"], environment(device))
        if simulation.step < configuration.total_steps:
            logger.info("Going on from step %d of %d.", simulation.step, configuration.total_steps)
        else:
            logger.info(
                "All %d steps are done; ask for more in all to go on, %s.",
                simulation.step,
                _longer(configuration, 2 * simulation.step),
            )
        settled = resolved(configuration, source, simulation, systems)
        now = settled.model_dump(mode="json")

        def begin() -> None:
            if now != record["configuration"]:
                folder.write_record(record | {"configuration": now})
            if is_ahead:
                forget_last_restart(folder)

        return advance(simulation, own, folder, settled, source, uncertainty, begin)


def _longer(configuration: RunConfig, steps: int) -> str:
    """How a run is given another length."""
    if not isinstance(configuration, MDConfig):
        return f"such as --steps {steps}"
    return f"such as --steps {steps} or --time-ps {1e-3 * steps * configuration.timestep_fs:g}"


def _recorded(
    folder: RunDirectory, recorded: Mapping[str, Any], changes: Mapping[str, Any]
) -> RunConfig:
    """The configuration in run.json with some fields changed."""
    kind = MDConfig if "ensemble" in recorded else MinimizeConfig
    # Runs of earlier versions were not watched.
    before = {"watch": False} if kind is MDConfig else {}
    own = {**before, **recorded, "out": str(folder.path)}
    try:
        kind(**own)
    except ValidationError as error:
        raise FileError(
            f"{folder.record} holds a configuration that this mdgraph does not take "
            f"({error.errors()[0]['msg']}); put back the original."
        ) from error
    if "time_ps" in recorded and {"steps", "time_ps"} & changes.keys():
        own |= {"steps": None, "time_ps": None}
    try:
        return kind(**{**own, **changes})
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        given = ", ".join(f"{name} {value}" for name, value in changes.items())
        raise InputError(
            f"A run cannot go on with {printable(given, 200)}: {message}; give what it takes."
        ) from error
