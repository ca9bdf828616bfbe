"""Runs whose replicas are shared by ranks: a folder for each, and one step to go on from."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mdgraph.devices import device_named
from mdgraph.engine import Simulation
from mdgraph.engine.ranks import Ranks
from mdgraph.engine.restart import load_restart_
from mdgraph.errors import FileError, InputError
from mdgraph.io.files import disk_failures
from mdgraph.io.trajectories import read_trajectory
from mdgraph.runs import directory
from mdgraph.runs.configuration import MDConfig, RunConfig
from mdgraph.runs.directory import RunDirectory
from mdgraph.runs.record import charge_of, formula
from mdgraph.runs.replicas import ranks_of, replicas_of
from mdgraph.system import System


def folder_of(path: Path, ranks: Ranks) -> Path:
    """The folder of this rank within that of a run."""
    return path if ranks.count == 1 else path / f"rank-{ranks.rank}"


def refuse_used(path: Path, ranks: Ranks) -> None:
    """Keeps a new run from touching what is in its folder; no rank writes before all looked.

    Raises:
        InputError, FileError: see `directory.refuse_used`.
        LostRankError: another rank refused.
    """
    directory.refuse_used(path)
    meet(ranks)


def meet(ranks: Ranks) -> None:
    """Waits until all ranks are here; raises LostRankError where one is gone."""
    _told(ranks, 0)


def whole_folder(folder: RunDirectory, configuration: RunConfig) -> RunDirectory:
    """The folder of a run from that of this rank."""
    alone = ranks_of(configuration).count == 1
    return folder if alone else RunDirectory(folder.path.parent)


def folder_to_resume(path: Path) -> Path:
    """The folder with the part of a run that this process goes on with.

    Raises:
        InputError: the run was shared by another number of ranks, or by none.
    """
    number = 0
    while (path / f"rank-{number}").exists():
        number += 1
    if not number:
        refuse_ranks(f"The run in {path}")
        return path
    now = os.environ.get("WORLD_SIZE", "1")
    if now != str(number):
        raise InputError(
            f"The run in {path} was shared by {number} ranks, and there are {now} now; resume "
            f"it with torchrun --nproc-per-node {number}."
        )
    return folder_of(path, Ranks.join())


def refuse_ranks(what: str) -> None:
    """Raises InputError where torchrun started several processes for what only one does."""
    count = os.environ.get("WORLD_SIZE", "1")
    if count != "1":
        raise InputError(
            f"{what} is of one process, and torchrun started {count}; start it without torchrun. "
            "Ranks share the replicas of one mdgraph md."
        )


def device_of(device: torch.device, configuration: RunConfig) -> torch.device:
    """The GPU of this rank, or what was asked for; raises InputError where there is none."""
    ranks = ranks_of(configuration)
    if device.type != "cuda" or ranks.count == 1:
        return device
    return device_named(f"cuda:{ranks.local}")


def parts_of_all(folder: RunDirectory, configuration: RunConfig) -> list[RunDirectory]:
    """Where the files of every system lie, those of other ranks too."""
    count = replicas_of(configuration)
    if count is None:
        return [folder]
    ranks, whole = ranks_of(configuration), whole_folder(folder, configuration)
    return [
        RunDirectory(folder_of(whole.path, replace(ranks, rank=rank))).replica(number)
        for rank, share in enumerate(ranks.shares(count))
        for number in share
    ]


def recorded_starts(
    folder: RunDirectory, configuration: RunConfig, record: Mapping[str, Any]
) -> list[System]:
    """What every system of a run, of all ranks, began from; raises FileError."""
    about = record["structure"]
    systems = about.get("replicas", [about])
    parts = parts_of_all(folder, configuration)
    if len(systems) != len(parts):
        raise FileError(f"{folder.record} is damaged; put back the original.")
    found = []
    for number, (part, one) in enumerate(zip(parts, systems, strict=True)):
        with read_trajectory(part.start) as trajectory:
            system = trajectory.system(0) if len(trajectory) == 1 else None
        if system is None or formula(system) != one["formula"]:
            raise FileError(
                f"{part.start} does not hold the one frame of {one['formula']} that the run began "
                "from; put back the original."
            )
        found.append(system.replace(charge=charge_of(record, number)))
    return found


def load_common_restart_(
    simulation: Simulation, folder: RunDirectory, configuration: RunConfig
) -> bool:
    """Loads the last restart file whose step all ranks have; waits for them where they exchange.

    Ranks are never an exchange apart, checkpoints no closer than that, and all ranks meet before
    the last one, so one of the last two is common to all.

    Returns:
        Whether there is a later one, which is to be forgotten.

    Raises:
        FileError: there is no such file; see `load_restart_`.
        LostRankError: see Ranks.gather.
    """
    load_restart_(simulation, folder.checkpoint)
    if not exchanges_over_ranks(configuration):
        return False
    ranks = ranks_of(configuration)
    ahead = simulation.step > min(_told(ranks, simulation.step))
    ahead = ahead and folder.checkpoint_before.exists()
    if ahead:
        load_restart_(simulation, folder.checkpoint_before)
    if len(set(_told(ranks, simulation.step))) > 1:
        raise FileError(
            f"{folder.path} and the folders beside it have no checkpoint of the same step; put "
            "back the files of one run."
        )
    return ahead


def forget_last_restart(folder: RunDirectory) -> None:
    """Puts the restart file before the last one in its place; raises FileError."""
    with disk_failures(folder.checkpoint, "write"):
        folder.checkpoint_before.replace(folder.checkpoint)


def exchanges_over_ranks(configuration: RunConfig) -> bool:
    """Whether a run waits for others."""
    wanted = isinstance(configuration, MDConfig) and configuration.exchange is not None
    return wanted and ranks_of(configuration).count > 1


def _told(ranks: Ranks, number: int) -> list[int]:
    """The numbers of all ranks."""
    numbers: list[int] = ranks.gather(torch.tensor([[number]]), [1] * ranks.count)[0].tolist()
    return numbers
