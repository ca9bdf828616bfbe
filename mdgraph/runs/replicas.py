"""Runs of many replicas: open files, temperatures, exchanges, and ranks that share them."""

import math
import resource
from typing import Final

import numpy as np

from mdgraph.engine import Simulation
from mdgraph.engine.replicas import ExchangeRecord, Ranks
from mdgraph.engine.restart import load_restart_
from mdgraph.errors import FileError, InputError
from mdgraph.io.files import disk_failures
from mdgraph.runs.config import MDConfig
from mdgraph.runs.folder import RunDirectory

_OPEN_OF_REPLICA: Final = 2
"""Files that a replica has open at once at most: its log and, as a run goes on, a trajectory."""

_OPEN_OTHERWISE: Final = 100
"""Files that everything else has open, libraries with theirs."""


def allow_open_files(share: int) -> None:
    """Lets this process have the files of so many replicas open at once.

    Raises:
        InputError: the system does not allow as many.
    """
    needed = _OPEN_OF_REPLICA * share + _OPEN_OTHERWISE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = math.inf if hard == resource.RLIM_INFINITY else hard
    if needed > most:
        largest = max(1, (int(most) - _OPEN_OTHERWISE) // _OPEN_OF_REPLICA)
        raise InputError(
            f"{share} replicas in one process need up to {needed} open files, and this system "
            f"allows {hard}; give at most {largest} --replicas, or raise that limit (ulimit -n)."
        )
    if soft != resource.RLIM_INFINITY and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def temperatures(configuration: MDConfig) -> list[float]:
    """Of each replica of a configuration with temperatures_K, K."""
    text = configuration.temperatures_K or ""
    if ":" in text:
        low, high = map(float, text.split(":"))
        kelvins = np.geomspace(low, high, configuration.system_count)
        return [float(kelvin) for kelvin in kelvins]
    return [float(kelvin) for kelvin in text.split(",")]


def exchange_text(folder: RunDirectory, interval: int) -> str:
    """How often neighbors on the ladder were exchanged, in one sentence."""
    record = ExchangeRecord.read(folder.exchanges, interval)
    rates = [rate for rate in record.rates() if rate == rate]
    if not rates:
        return "No exchange was tried."
    trips = sum(record.round_trips)
    return (
        f"Of {sum(record.attempted)} exchanges {sum(record.accepted)} were accepted, "
        f"{min(rates):.0%} to {max(rates):.0%} of each pair; "
        f"{trips} round trip{'s' * (trips != 1)}."
    )


def load_common_restart_(simulation: Simulation, folder: RunDirectory, ranks: Ranks) -> bool:
    """Loads the last restart file whose step all ranks have; waits for them.

    The last restart file of this rank is loaded already.

    Ranks are never an exchange apart, checkpoints no closer than that, and all ranks meet before
    the last one, so one of the last two is common to all.

    Returns:
        Whether there is a later one, which is to be forgotten.

    Raises:
        FileError: there is no such file; see `load_restart_`.
        LostRankError: see Ranks.gather.
    """
    ahead = simulation.step > min(ranks.numbers(simulation.step))
    ahead = ahead and folder.checkpoint_before.exists()
    if ahead:
        load_restart_(simulation, folder.checkpoint_before)
    if len(set(ranks.numbers(simulation.step))) > 1:
        raise FileError(
            f"{folder.path} and the folders beside it have no checkpoint of the same step; put "
            "back the files of one run."
        )
    return ahead


def forget_last_restart(folder: RunDirectory) -> None:
    """Puts the restart file before the last one in its place; raises FileError."""
    with disk_failures(folder.checkpoint, "write"):
        folder.checkpoint_before.replace(folder.checkpoint)
