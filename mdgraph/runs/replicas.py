"""Runs of many replicas: open files, temperatures, exchanges, and ranks that share them."""

import math
import resource
from typing import Any, Final

import numpy as np

from mdgraph.engine import Simulation
from mdgraph.engine.replicas import ExchangeRecord
from mdgraph.engine.replicas.ranks import Ranks
from mdgraph.engine.restart import load_restart_
from mdgraph.errors import FileError, InputError
from mdgraph.io.files import disk_failures
from mdgraph.runs.config import MDConfig, RunConfig
from mdgraph.runs.folder import RunDirectory

_OPEN_OF_REPLICA: Final = 2
"""Most files that a replica has open at once: its log and, on resuming, its trajectory."""

_OPEN_OF_BIASES: Final = 2
"""Those of variables beside: COLVAR and HILLS."""

_OPEN_OTHERWISE: Final = 100
"""Open files of everything else, libraries included."""


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


def temperatures(configuration: MDConfig) -> list[float]:
    """Temperature of each replica of a configuration with temperatures_K, K."""
    return ladder_temperatures(configuration.temperatures_K or "", configuration.system_count)


def ladder_temperatures(text: str, count: int) -> list[float]:
    """Temperatures that temperatures_K gives this number of replicas, K."""
    if ":" in text:
        low, high = map(float, text.split(":"))
        kelvins = np.geomspace(low, high, count)
        return [float(kelvin) for kelvin in kelvins]
    return [float(kelvin) for kelvin in text.split(",")]


def exchange_text(folder: RunDirectory, interval: int) -> str:
    """A sentence with the rates of exchanges between neighbors on the ladder."""
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


def exchange_numbers(folder: RunDirectory, interval: int) -> dict[str, Any]:
    """Attempts, acceptances and rates of each pair of neighbors, and round trips of each replica.

    Raises:
        FileError: the log of exchanges cannot be read.
    """
    record = ExchangeRecord.read(folder.exchanges, interval)
    return {
        "run": str(folder.path),
        "attempted": record.attempted,
        "accepted": record.accepted,
        "rates": record.rates(),
        "round_trips": record.round_trips,
    }


def load_common_restart_(simulation: Simulation, folder: RunDirectory, ranks: Ranks) -> bool:
    """Loads the last restart file whose step all ranks have; blocks until all ranks are here.

    The last restart file of this rank is loaded already. Ranks are never more than a meeting (an
    exchange, or hills that they share) apart, checkpoints are at least as far apart, and all ranks
    meet before the last one, so all ranks have one of the last two steps in common.

    Returns:
        Whether a later file exists, which the caller drops by `forget_last_restart`.

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
    """Replaces the last restart file by the previous one; raises FileError."""
    with disk_failures(folder.checkpoint, "write"):
        folder.checkpoint_before.replace(folder.checkpoint)
