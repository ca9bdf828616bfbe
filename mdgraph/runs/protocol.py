"""A protocol: runs one after the other, each from where the one before ended."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from mdgraph.devices import device_named
from mdgraph.errors import CheckpointError, FileError, InputError, MDGraphError
from mdgraph.io.files import disk_failures, remove_abandoned, write_atomically
from mdgraph.io.trajectories import read_trajectory
from mdgraph.runs import directory, dynamics
from mdgraph.runs.advance import Outcome
from mdgraph.runs.configuration import RunConfig
from mdgraph.runs.directory import RunDirectory
from mdgraph.runs.handover import ends_of
from mdgraph.runs.potential import read_potential
from mdgraph.runs.preparation import prepared_simulation
from mdgraph.runs.rank_folders import refuse_ranks
from mdgraph.runs.stages import Stage
from mdgraph.runs.starts import prepared_structures, read_starts
from mdgraph.runs.uncertainty import uncertainty_of
from mdgraph.system import System

logger = logging.getLogger(__name__)

RECORD: Final = "protocol.json"
"""What the stages in a folder were begun with."""


def run_protocol(stages: Sequence[Stage], out: Path) -> Outcome | None:
    """Runs the stages that are not finished; one that was begun is resumed.

    Args:
        stages: in their order, with their folders in `out`.
        out: a new folder, or one that a shorter or interrupted protocol left.

    Returns:
        How the last stage that ran ended; None if all were finished.

    Raises:
        MDGraphError: see `dynamics.start`; or a stage that was begun has changed.
    """
    refuse_ranks("A protocol")
    record = out / RECORD
    if not record.exists():
        directory.refuse_used(out)
    outcome = None
    with directory.new_folder(out), RunDirectory(out).locked():
        _check_begun(stages, record)
        _check_unbegun(stages)
        plain = [_plain(stage) for stage in stages]
        text = json.dumps({"stages": plain}, indent=2) + "\n"
        remove_abandoned(out)
        write_atomically(record, lambda path: path.write_text(text, encoding="utf-8"))
        before: Stage | None = None
        for number, stage in enumerate(stages, 1):
            folder = _folder(stage)
            what = f"Stage {number} of {len(stages)}, {stage.name}"
            if folder.end.exists():
                logger.info("%s: finished.", what)
            else:
                logger.info("%s: in %s.", what, folder.path)
                outcome = _run(stage, before)
                if outcome.signal is not None:
                    return outcome
                if outcome.largest_force is not None and not outcome.converged:
                    logger.warning("%s: no minimum after %d steps.", what, outcome.steps)
            before = stage
    return outcome


def _run(stage: Stage, before: Stage | None) -> Outcome:
    folder = _folder(stage)
    if folder.holds_run():
        return dynamics.resume(folder.path)
    if before is None:
        return dynamics.start(stage.configuration)
    ended = _folder(before)
    configuration = stage.configuration.model_copy(update={"structure": (str(ended.end),)})
    return dynamics.start(configuration, ends_of(ended, before.configuration, configuration))


def _folder(stage: Stage) -> RunDirectory:
    return RunDirectory(Path(stage.configuration.out))


def _check_begun(stages: Sequence[Stage], record: Path) -> None:
    """Raises InputError where a stage that was begun is not what it was."""
    if not record.exists():
        return
    with disk_failures(record, "read"):
        text = record.read_text(encoding="utf-8")
    try:
        then = [dict(one, folder=str(one["folder"])) for one in json.loads(text)["stages"]]
    except (ValueError, KeyError, TypeError) as error:
        raise FileError(f"{record} is damaged; put back the original.") from error
    for number, was in enumerate(then):
        if not RunDirectory(record.parent / was["folder"]).holds_run():
            return
        now = _plain(stages[number]) if number < len(stages) else {}
        changed = [key for key in {**was, **now} if was.get(key) != now.get(key)]
        if changed:
            key = changed[0]
            raise InputError(
                f"Stage {number + 1} in {record.parent} was begun with {key} {was.get(key)}, now "
                f"it is {now.get(key)}; put that back, or give another folder with --out."
            )


def _check_unbegun(stages: Sequence[Stage]) -> None:
    """Builds every stage that is to follow another one, as if it began where the first one does.

    What cannot be is found so before hours of an earlier stage; positions and velocities that
    change on the way are no part of it.

    Raises:
        InputError, FileError, CheckpointError: see `dynamics.start`; names the stage.
    """
    unbegun = [one for one in enumerate(stages, 1) if not _folder(one[1]).holds_run()]
    if len(stages) == 1 or not unbegun:
        return
    first = _folder(stages[0])
    part = first if first.start.exists() else first.replica(0)
    if part.start.exists():
        with read_trajectory(part.start) as trajectory:
            starts = [trajectory.system(0)] if len(trajectory) else []
    else:
        starts = read_starts(stages[0].configuration)[:1]
    log = logging.getLogger("mdgraph")
    for number, stage in unbegun:
        level = log.level
        log.setLevel(logging.ERROR)  # all of it is said when the stage begins
        try:
            _build(stage.configuration, starts)
        except (InputError, FileError, CheckpointError) as error:
            what = f"Stage {number} of {len(stages)}, {stage.name}"
            raise type(error)(f"{what}: {error}") from error
        except MDGraphError:
            continue  # of the state at the start, which the stages before it change
        finally:
            log.setLevel(level)


def _build(configuration: RunConfig, starts: Sequence[System]) -> None:
    """Makes what a stage runs with, and lets go of it; without the self-check."""
    device = device_named(configuration.device)
    source = read_potential(configuration)
    systems = prepared_structures(configuration, source, starts)
    unchecked = configuration.model_copy(update={"check": None})
    simulation = prepared_simulation(unchecked, source, systems, device)
    uncertainty_of(configuration, source, simulation, systems)


def _plain(stage: Stage) -> dict[str, Any]:
    configuration = stage.configuration.model_dump(mode="json", exclude={"out"})
    return {"folder": Path(stage.configuration.out).name, **configuration}
