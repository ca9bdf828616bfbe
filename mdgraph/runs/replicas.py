"""Runs of many replicas: their temperatures, and what they write."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from mdgraph.engine import Simulation
from mdgraph.engine.exchange_record import ExchangeRecord
from mdgraph.engine.ranks import ALONE, Ranks
from mdgraph.io.files import write_atomically
from mdgraph.io.frames import Frame, TrajectoryWriter
from mdgraph.io.log import LogWriter, read_log
from mdgraph.io.trajectories import create_trajectory, resume_trajectory
from mdgraph.runs.configuration import MDConfig, RunConfig
from mdgraph.runs.directory import RunDirectory
from mdgraph.runs.reporters import LogRecorder, frames_of, log_columns
from mdgraph.system import System


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
    folder: RunDirectory, configuration: RunConfig, step: int, systems: Sequence[System]
) -> Iterator[Writers]:
    """The files of a run, to go on after a step."""
    with ExitStack() as stack:
        trajectories, logs = [], []
        for part, system in zip(parts(folder, configuration), systems, strict=True):
            path = part.trajectory(configuration.trajectory)
            trajectories.append(stack.enter_context(resume_trajectory(path, step, system)))
            logs.append(stack.enter_context(LogWriter.resume(part.log, step)))
        exchanges = None
        if isinstance(configuration, MDConfig) and configuration.exchange:
            exchanges = stack.enter_context(LogWriter.resume(folder.exchanges, step))
        yield Writers(trajectories, logs, exchanges)


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
    with create_trajectory(path, system) as writer:
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
