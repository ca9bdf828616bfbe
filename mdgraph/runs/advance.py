"""The steps of a run, with all that is written and said on the way."""

import logging
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from mdgraph.engine import FIRE, Simulation
from mdgraph.engine.replica_exchange import ReplicaExchange
from mdgraph.errors import SimulationError
from mdgraph.io.files import disk_failures, remove_abandoned
from mdgraph.memory import memory_failures
from mdgraph.runs.configuration import MDConfig, RunConfig
from mdgraph.runs.directory import RunDirectory
from mdgraph.runs.interruption import Interruption
from mdgraph.runs.observing import ObservedReporter
from mdgraph.runs.picture import draw_picture
from mdgraph.runs.potential import Source
from mdgraph.runs.rank_folders import exchanges_over_ranks, meet, whole_folder
from mdgraph.runs.replicas import (
    exchange_text,
    mean_temperature,
    opened,
    parts,
    ranks_of,
    replicas_of,
    write_ends,
)
from mdgraph.runs.reporters import (
    Arrival,
    CheckpointReporter,
    LogRecorder,
    ProgressBar,
    TrajectoryRecorder,
)
from mdgraph.runs.uncertainty import UncertaintyReporter
from mdgraph.runs.watching import DepartureReporter
from mdgraph.signals import Interrupted, settle
from mdgraph.system import System

logger = logging.getLogger(__name__)


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
        largest_force: eV/A on an atom that moves, at the end of a minimisation; else None.
        converged: whether a minimisation has arrived.
        replicas: that ran side by side, or None for one system.
        ranks: that shared them.
    """

    directory: RunDirectory
    steps: int
    total_steps: int
    time_ps: float
    ns_per_day: float
    mean_temperature: float
    signal: signal.Signals | None
    largest_force: float | None = None
    converged: bool = False
    replicas: int | None = None
    ranks: int = 1


def advance(
    simulation: Simulation,
    systems: Sequence[System],
    folder: RunDirectory,
    configuration: RunConfig,
    source: Source,
    uncertainty: UncertaintyReporter | None,
    begin: Callable[[], None] = lambda: None,
) -> Outcome:
    """Runs from the checkpoint in the folder to the end, an interruption or a failure.

    Args:
        simulation: at that checkpoint.
        systems: that the run began from, on this rank.
        folder: of this rank.
        configuration: with nothing left to choose.
        source: the potential.
        uncertainty: what looks at a committee and the last layer, or None.
        begin: is called once all files of the folder are found good, before the first changes.

    Raises:
        SimulationError: the run failed; the last good state is its checkpoint.
        LostRankError: another rank is gone.
        FileError: the disk refused.
    """
    first = simulation.step
    fire = simulation.integrator if isinstance(simulation.integrator, FIRE) else None
    arrival = Arrival(simulation)
    left = 0 if arrival.reached() else configuration.total_steps - first
    places = [folder, *parts(folder, configuration)]
    unfinished = left > 0 or not all(one.end.exists() for one in places)
    began = time.perf_counter()
    intervals = configuration.intervals
    interval = intervals.checkpoint
    joint = exchanges_over_ranks(configuration)
    exchange: ReplicaExchange | None = None

    def stop(number: signal.Signals) -> None:
        if joint and exchange is not None:
            exchange.stop(number)
        else:
            simulation.stop()

    with ExitStack() as stack:
        if uncertainty is not None:
            uncertainty.check(folder.uncertainty, first)
        bar = ProgressBar(simulation, configuration.total_steps)
        stack.callback(bar.close)
        # Held back from before the first file changes.
        interruption = stack.enter_context(Interruption(stop, bar.interval, together=joint))
        files = stack.enter_context(opened(folder, configuration, simulation, systems, begin))
        for one in places:
            remove_abandoned(one.path)
            if left:
                with disk_failures(one.end, "remove"):
                    one.end.unlink(missing_ok=True)
        last = folder.checkpoint_before if joint else None
        if isinstance(configuration, MDConfig) and configuration.exchange:
            ranks = ranks_of(configuration)
            exchange = ReplicaExchange(simulation, configuration.exchange, ranks, files.exchanges)
            simulation.reporters.append(exchange)
            interval = max(interval, configuration.exchange) if joint else interval
        written = files.all()
        if uncertainty is not None:
            stack.enter_context(uncertainty.writing(folder.uncertainty, first))
            written.append(uncertainty.log)
        checkpoint = CheckpointReporter(folder.checkpoint, interval, written, last)
        observed = ObservedReporter(configuration, parts(folder, configuration), simulation)
        simulation.recorders += [
            TrajectoryRecorder(files.trajectories, intervals.trajectory),
            LogRecorder(files.logs, intervals.log, simulation),
        ]
        simulation.reporters += [
            *([] if uncertainty is None else [uncertainty]),
            checkpoint,
            observed,
            bar,
            interruption,
        ]
        if fire is not None:
            simulation.reporters.append(arrival)
        stops = isinstance(configuration, MDConfig) and configuration.on_leaving == "stop"
        departures = DepartureReporter(simulation, bar.interval, stops)
        simulation.reporters.append(departures)
        try:
            with memory_failures(simulation.calculation.device):
                departures.report(simulation)
                simulation.run(left)
                departures.report(simulation)
        except SimulationError as error:
            checkpoint.report(simulation)
            departures.summarize()
            raise SimulationError(
                f"{error} It is the checkpoint in {folder.path}, step {simulation.step}.",
                error.step,
                error.atoms,
            ) from error
        except Interrupted:
            if exchange is not None:
                raise  # within an exchange, perhaps; the last checkpoint is whole
            settle()  # steps that take long: the state is that before the chunk
        if simulation.step > first:
            bar.show(simulation)
            if joint:
                meet(ranks_of(configuration))
            checkpoint.report(simulation)
            departures.summarize()
            observed.write()
    elapsed = time.perf_counter() - began
    steps = simulation.step - first
    arrived = arrival.reached()
    complete = arrived or simulation.step == configuration.total_steps
    interrupted = None if complete else interruption.signal
    if complete and interruption.signal is not None:
        signal.raise_signal(interruption.signal)  # pictures are drawn when it is resumed
    if not complete and interrupted is None and exchange is not None and exchange.leaving:
        interrupted = signal.Signals(exchange.leaving)
        logger.info("Another rank was sent %s, and all stop together.", interrupted.name)
    if complete:
        observed.draw(anew=unfinished)
        if isinstance(configuration, MDConfig):
            if configuration.exchange:
                logger.info(exchange_text(folder, configuration.exchange))
            if configuration.replicas is None and (unfinished or not folder.picture.exists()):
                draw_picture(folder, configuration, systems[0], source)
        if unfinished:
            write_ends(folder, configuration, simulation, systems)
    if joint and interrupted is not None:
        meet(ranks_of(configuration))  # torchrun kills the others once the first is gone
    return Outcome(
        directory=whole_folder(folder, configuration),
        steps=simulation.step,
        total_steps=configuration.total_steps,
        time_ps=1e-3 * simulation.time,
        ns_per_day=1e-6 * steps * simulation.timestep / elapsed * 86400.0,
        mean_temperature=mean_temperature(folder, configuration),
        signal=interrupted,
        largest_force=None if fire is None else float(fire.largest_force()[0]),
        converged=arrived,
        replicas=replicas_of(configuration),
        ranks=ranks_of(configuration).count,
    )
