"""Runs of many replicas: temperatures, output files, and their distribution over ranks."""

import math
import os
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from mdgraph.devices import device_named
from mdgraph.engine import Simulation
from mdgraph.engine.replicas import ALONE, ExchangeRecord, Ranks
from mdgraph.engine.restart import load_restart_
from mdgraph.errors import FileError, InputError
from mdgraph.io.extxyz import ExtendedXYZWriter
from mdgraph.io.files import AppendedFile, check_steps, disk_failures, write_atomically
from mdgraph.io.formats import create_trajectory, read_trajectory, resuming_trajectory
from mdgraph.io.log import LogWriter, read_log
from mdgraph.io.trajectories import Frame, TrajectoryWriter
from mdgraph.runs import folder as directory
from mdgraph.runs.config import MDConfig, RunConfig
from mdgraph.runs.folder import RunDirectory
from mdgraph.runs.record import charge_of, formula
from mdgraph.runs.reporters import LogRecorder, frames_of, log_columns
from mdgraph.system import System

_MOST_OPEN: Final = 256
"""Trajectories that stay open between frames; of more, each is opened for its frame."""

_OPEN_OF_REPLICA: Final = 2
"""Files that a replica has open at once at most: its log and, as a run goes on, a trajectory."""

_OPEN_OTHERWISE: Final = 100
"""Files that everything else has open, libraries with theirs."""


@dataclass(frozen=True)
class Writers:
    """What a run appends to.

    Attributes:
        trajectories: one for each system.
        logs: one for each system.
        exchanges: places of replicas on their ladder, or None.
    """

    trajectories: Sequence[TrajectoryWriter]
    logs: Sequence[LogWriter]
    exchanges: LogWriter | None = None

    def all(self) -> list[TrajectoryWriter | LogWriter]:
        """Every one of them."""
        last = [] if self.exchanges is None else [self.exchanges]
        return [*self.trajectories, *self.logs, *last]


def replicas_of(configuration: RunConfig) -> int | None:
    """How many replicas a run has; None for one system in the folder itself."""
    return configuration.replicas if isinstance(configuration, MDConfig) else None


def ranks_of(configuration: RunConfig) -> Ranks:
    """The ranks that share the replicas of a run; alone where it has none."""
    return ALONE if replicas_of(configuration) is None else Ranks.join()


def allow_open_files(configuration: RunConfig) -> None:
    """Lets this process have the files of all its replicas open at once.

    Raises:
        InputError: the system does not allow as many.
    """
    count = replicas_of(configuration)
    if count is None:
        return
    share = len(ranks_of(configuration).share(count))
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


def parts(folder: RunDirectory, configuration: RunConfig) -> list[RunDirectory]:
    """Where each system's files lie: in the folder of the run, or in one for each replica."""
    count = replicas_of(configuration)
    if count is None:
        return [folder]
    return [folder.replica(number) for number in ranks_of(configuration).share(count)]


def own_systems(configuration: RunConfig, systems: Sequence[System]) -> list[System]:
    """Those of this rank."""
    return [systems[number] for number in ranks_of(configuration).share(len(systems))]


def distinct(systems: Sequence[System]) -> list[System]:
    """Systems without the copies of one object."""
    return list({id(one): one for one in systems}.values())


def create_files(
    folder: RunDirectory,
    configuration: RunConfig,
    simulation: Simulation,
    systems: Sequence[System],
) -> None:
    """Makes the files of every system: its start, and trajectory and log with the start in them."""
    view = simulation.view()
    seen = view.observables
    places = zip(parts(folder, configuration), systems, frames_of(view), strict=True)
    logs = []
    with ExitStack() as stack:
        for number, (part, system, frame) in enumerate(places):
            part.path.mkdir(exist_ok=True)
            write_frame(part.start, frame, system)
            with create_trajectory(part.trajectory(configuration.trajectory), system) as writer:
                writer.append(frame)
                writer.sync()
            logs.append(LogWriter.create(part.log, log_columns(simulation, seen, number)))
            stack.enter_context(logs[-1])
        LogRecorder(logs, 1, simulation).record(view)
        for log in logs:
            log.sync()
    if isinstance(configuration, MDConfig) and configuration.exchange:
        places = np.argsort(np.argsort(temperatures(configuration) or [])).tolist()
        row = {"step": 0} | {f"replica_{number}": place for number, place in enumerate(places)}
        with LogWriter.create(folder.exchanges, list(row)) as log:
            log.append(row)
            log.sync()


@contextmanager
def opened(
    folder: RunDirectory,
    configuration: RunConfig,
    simulation: Simulation,
    systems: Sequence[System],
    begin: Callable[[], None],
) -> Iterator[Writers]:
    """The files of a run, to go on from a checkpoint.

    All of them are checked before the first one changes.

    Args:
        folder: of this rank.
        configuration: with nothing left to choose.
        simulation: at the checkpoint.
        systems: that the run began from, on this rank.
        begin: is called once all files are found good.

    Raises:
        FileError: a file is missing or damaged, belongs to another run, or the disk refuses;
            the folder is as it was.
    """
    step, intervals = simulation.step, configuration.intervals
    now = frames_of(simulation.view())
    with ExitStack() as stack, ExitStack() as checks:
        trajectories: list[Callable[[], TrajectoryWriter]] = []
        logs: list[Callable[[], LogWriter]] = []
        for part, system, frame in zip(parts(folder, configuration), systems, now, strict=True):
            path = part.trajectory(configuration.trajectory)
            open_trajectory, reader = checks.enter_context(
                resuming_trajectory(path, step, system, keeps_open=len(systems) <= _MOST_OPEN)
            )
            trajectories.append(open_trajectory)
            kept = reader.steps[reader.steps <= step].tolist()
            check_steps(path, kept, step, intervals.trajectory)
            open_log, rows = checks.enter_context(LogWriter.resuming(part.log, step))
            logs.append(open_log)
            check_steps(part.log, rows["step"].tolist(), step, intervals.log)
            with read_trajectory(part.start) as start:
                _check_belongs(path, reader[0], start[0].positions)
            if kept[-1] == step:
                _check_belongs(path, reader[len(kept) - 1], frame.positions)
            first = reader[0]
            energies = {
                "potential_energy_eV": first.energy,
                "kinetic_energy_eV": first.kinetic_energy,
            }
            for name, value in energies.items():
                logged = rows.get(name, [math.nan])[0]
                if not math.isclose(logged, value, rel_tol=1e-9, abs_tol=1e-9):
                    raise FileError(
                        f"{part.log} is the log of another run: its first {name} is not that in "
                        f"{path.name}; put back the file that belongs to this run."
                    )
            check_replaceable(part.end, part.picture)
            reader.close()
        exchanges: Callable[[], LogWriter] | None = None
        if isinstance(configuration, MDConfig) and configuration.exchange:
            path = folder.exchanges
            exchanges, rows = checks.enter_context(LogWriter.resuming(path, step))
            check_steps(path, rows.pop("step").tolist(), step, configuration.exchange)
            places = np.sort(np.array([*rows.values()]), axis=0)
            if (places != np.arange(len(places))[:, None]).any() or not len(places):
                raise FileError(f"{path} is damaged; put back the original.")
        check_replaceable(folder.checkpoint, folder.record, folder.end)
        begin()
        yield Writers(
            [stack.enter_context(open_trajectory()) for open_trajectory in trajectories],
            [stack.enter_context(open_log()) for open_log in logs],
            None if exchanges is None else stack.enter_context(exchanges()),
        )


def _check_belongs(path: Path, frame: Frame, positions: NDArray[np.float64]) -> None:
    """Raises FileError unless a frame has the positions that the run had then."""
    # Loose, for what float32 loses: those of another run are far off.
    if not np.allclose(frame.positions, positions, rtol=1e-6, atol=1e-4):
        raise FileError(
            f"{path} is the trajectory of another run: its frame of step {frame.step} differs; "
            "put back the file that belongs to this run."
        )


def check_replaceable(*paths: Path) -> None:
    """Raises FileError where one of the paths is there and no file."""
    for path in paths:
        if path.exists() and not path.is_file():
            raise FileError(f"{path} is in the way of a file of that name; move it away.")


def write_ends(
    folder: RunDirectory,
    configuration: RunConfig,
    simulation: Simulation,
    systems: Sequence[System],
) -> None:
    """Writes where every system ended; that of the first into the folder of the run, last."""
    frames = frames_of(simulation.view())
    places = parts(folder, configuration)
    rows = [*zip(places, systems, frames, strict=True)]
    last = (folder, systems[0], frames[0])
    for part, system, frame in [*(rows if replicas_of(configuration) else []), last]:
        write_atomically(part.end, partial(write_frame, frame=frame, system=system))


def write_frame(path: Path, frame: Frame, system: System) -> None:
    """Writes a file of one frame."""
    with ExtendedXYZWriter(AppendedFile(path, 0), system, None) as writer:
        writer.append(frame)


def mean_temperature(folder: RunDirectory, configuration: RunConfig) -> float:
    """K, over the rows of all logs."""
    logs = [read_log(part.log)["temperature_K"] for part in parts(folder, configuration)]
    return float(np.concatenate(logs).mean())


def temperatures(configuration: MDConfig) -> list[float] | None:
    """K, of each replica; None where there is one temperature, or one system."""
    given, count = configuration.temperatures_K, configuration.replicas
    if given is None or count is None:
        return None
    if ":" in given:
        low, high = map(float, given.split(":"))
        return [float(kelvin) for kelvin in np.geomspace(low, high, count)]
    return [float(kelvin) for kelvin in given.split(",")]


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
