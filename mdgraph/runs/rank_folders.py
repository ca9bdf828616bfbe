"""Runs whose replicas are shared by ranks: a folder for each, and one step to go on from."""

import os
from pathlib import Path

import torch

from mdgraph.engine import Simulation
from mdgraph.engine.ranks import Ranks
from mdgraph.engine.replica_exchange import ReplicaExchange
from mdgraph.engine.restart import load_restart_
from mdgraph.errors import FileError, InputError
from mdgraph.runs.configuration import MDConfig, RunConfig
from mdgraph.runs.directory import RunDirectory
from mdgraph.runs.interruption import Interruption
from mdgraph.runs.replicas import ranks_of


def folder_of(path: Path, ranks: Ranks) -> Path:
    """The folder of this rank within that of a run."""
    return path if ranks.count == 1 else path / f"rank-{ranks.rank}"


def whole_folder(folder: RunDirectory, configuration: RunConfig) -> RunDirectory:
    """The folder of a run from that of this rank."""
    alone = ranks_of(configuration).count == 1
    return folder if alone else RunDirectory(folder.path.parent)


def folder_to_resume(path: Path) -> Path:
    """The folder with the part of a run that this process goes on with.

    Raises:
        InputError: the run was shared by another number of ranks.
    """
    number = 0
    while (path / f"rank-{number}").exists():
        number += 1
    now = int(os.environ.get("WORLD_SIZE", "1")) if number else 1
    if number and number != now:
        raise InputError(
            f"The run in {path} was shared by {number} ranks, and there are {now} now; resume "
            f"it with torchrun --nproc-per-node {number}."
        )
    return folder_of(path, Ranks.join()) if number else path


def device_of(device: torch.device, configuration: RunConfig) -> torch.device:
    """The GPU of this rank, or what was asked for."""
    ranks = ranks_of(configuration)
    if device.type != "cuda" or ranks.count == 1:
        return device
    return torch.device("cuda", ranks.local)


def load_common_restart_(
    simulation: Simulation, folder: RunDirectory, configuration: RunConfig
) -> None:
    """Loads the last restart file whose step all ranks have; waits for them where they exchange.

    Ranks are never an exchange apart, and checkpoints no closer than that, so one of the last
    two is common to all.

    Raises:
        FileError: there is no such file; see `load_restart_`.
        LostRankError: see Ranks.gather.
    """
    load_restart_(simulation, folder.checkpoint)
    if not exchanges_over_ranks(configuration):
        return
    ranks = ranks_of(configuration)
    last = _steps(ranks, simulation)
    if simulation.step > min(last) and folder.checkpoint_before.exists():
        load_restart_(simulation, folder.checkpoint_before)
    if len(set(_steps(ranks, simulation))) > 1:
        raise FileError(
            f"{folder.path} and the folders beside it have no checkpoint of the same step; put "
            "back the files of one run."
        )


def exchanges_over_ranks(configuration: RunConfig) -> bool:
    """Whether a run waits for others."""
    wanted = isinstance(configuration, MDConfig) and configuration.exchange is not None
    return wanted and ranks_of(configuration).count > 1


def _steps(ranks: Ranks, simulation: Simulation) -> list[int]:
    own = torch.tensor([[simulation.step]])
    steps: list[int] = ranks.gather(own, [1] * ranks.count)[0].tolist()
    return steps


class JointInterruption:
    """A reporter that ends the runs of all ranks at an exchange, after a signal to one."""

    def __init__(self, interruption: Interruption, exchange: ReplicaExchange) -> None:
        self.interval = interruption.interval
        self._interruption = interruption
        self._exchange = exchange

    def report(self, simulation: Simulation) -> None:
        """See Reporter."""
        if self._interruption.signal is not None:
            self._exchange.stop()
