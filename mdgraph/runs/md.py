"""`mdgraph md` and `mdgraph minimise`: from a configuration to a finished folder."""

import logging
import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self

import torch
from pydantic import ValidationError

from mdgraph.decomposition import join_ranks
from mdgraph.devices import device_named, is_first_rank
from mdgraph.engine import Simulation
from mdgraph.engine.replicas import ExchangeRecord
from mdgraph.engine.replicas.ranks import ALONE, Ranks, RanksReporter, load_common_restart_
from mdgraph.engine.restart import load_restart_, restart_step, save_restart
from mdgraph.errors import FileError, InputError, SimulationError, printable
from mdgraph.io.files import disk_failures, remove_abandoned
from mdgraph.memory import memory_failures
from mdgraph.processes import launched_devices
from mdgraph.runs import folder as directory
from mdgraph.runs.config import MDConfig, MinimizeConfig, RunConfig
from mdgraph.runs.config_fields import MOST_STEPS
from mdgraph.runs.config_files import first_fault
from mdgraph.runs.folder import Run, RunDirectory, description, environment, finish_start
from mdgraph.runs.observe import DomainReporter, ObservedReporter
from mdgraph.runs.potential import Source, read_potential
from mdgraph.runs.reporters import (
    CheckpointReporter,
    ConvergenceReporter,
    LogRecorder,
    ProgressBar,
    TrajectoryRecorder,
    allow_open_files,
    create_files,
    exchange_of,
    mean_temperature,
    resume_files,
    write_ends,
)
from mdgraph.runs.setup import (
    log_frames,
    log_loose,
    make_simulation,
    make_structures,
    minimize_structures,
    options_for_record,
    read_initial_structures,
    read_starts,
    record_fields,
    resolve_configuration,
    selections_of,
    with_replica_count,
)
from mdgraph.runs.summary import (
    draw_picture,
    log_all_fixed,
    log_cooling,
    log_differences,
    log_isolated,
    log_plans,
    log_pressure,
    log_resonance,
    log_switching,
    log_without_forces,
    switching,
)
from mdgraph.runs.uncertainty import UncertaintyReporter
from mdgraph.signals import PATIENCE, HeldSignals, Interrupted, is_caught, settle
from mdgraph.system import System

logger = logging.getLogger(__name__)


class Interruption:
    """Context manager that stops the run after a signal, or just before its deadline.

    At the deadline a run stops as after SIGUSR1, which batch systems send for the same purpose.

    A second signal has its usual effect, except with several ranks, which stop together. In a
    command, a run that does not stop within some seconds, because its steps take long, ends as
    after a second signal. A terminal and torchrun may send the same signal twice; it then counts as
    a second one only some seconds later. Outside the main thread Python handles no signals, and
    none is caught. A signal just before the run begins takes effect at the first report.

    Attributes:
        signal: the first signal, or None.
        out_of_time: whether the deadline stopped the run, and no signal.
        interval: steps between reports.
    """

    def __init__(
        self,
        stop: Callable[[signal.Signals], None],
        interval: int,
        *,
        together: bool = False,
        repeated: bool = False,
        deadline: float = math.inf,
    ) -> None:
        """Catches nothing yet.

        Args:
            stop: called with the signal to end the run; safe in a signal handler.
            interval: see above.
            together: whether all ranks stop together.
            repeated: whether a signal may come twice at once.
            deadline: s on the monotonic clock; the run stops once the next report would be later.
        """
        self.interval = interval
        self.out_of_time = False
        self._deadline = deadline
        self._last_report = time.monotonic()
        self._stop = stop
        self._together = together
        self._repeated = repeated
        self._first_until = 0.0
        self.signal: signal.Signals | None = None
        self._signals = HeldSignals()

    def __enter__(self) -> Self:
        self._signals.take(self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.signal is None:
            self.signal = signal.Signals(number)
            if self._repeated:
                self._first_until = now + 0.9 * PATIENCE
                self._signals.deliver_later(number)
        if not self._together and now >= self._first_until:
            self._signals.give_back()
            if is_caught(number):
                self._signals.deliver_later(number, 0.0 if self._repeated else PATIENCE)
        self._stop(self.signal)

    def report(self, simulation: Simulation) -> None:
        """See Reporter."""
        now = time.monotonic()
        duration, self._last_report = now - self._last_report, now
        if self.signal is None and now + duration >= self._deadline:
            self.signal, self.out_of_time = signal.SIGUSR1, True
        if self.signal is not None:
            self._stop(self.signal)

    def __exit__(self, *exception: object) -> None:
        self._signals.cancel()
        self._signals.give_back()


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended.

    Attributes:
        directory: its folder.
        steps: done since the start of the trajectory.
        total_steps: requested.
        time_ps: simulated since the start of the trajectory.
        ns_per_day: speed since the start or the last resume; 0 if no step was left.
        mean_temperature: K, over the rows of the logs; None with different baths.
        signal: that interrupted it, or None; SIGUSR1 where max_hours did.
        largest_force: on an atom that moves, eV/A, at the end of a minimisation; else None.
        converged: whether a minimisation has converged.
        replicas: number of replicas, or None for one system.
        ranks: that shared them, or the domains.
        out_of_time: whether max_hours ended it.
    """

    directory: RunDirectory
    steps: int
    total_steps: int
    time_ps: float
    ns_per_day: float
    mean_temperature: float | None
    signal: signal.Signals | None
    largest_force: float | None = None
    converged: bool = False
    replicas: int | None = None
    ranks: int = 1
    out_of_time: bool = False


def advance(
    simulation: Simulation,
    systems: Sequence[System],
    run: Run,
    source: Source,
    uncertainty: UncertaintyReporter | None,
    deadline: float,
    begin: Callable[[], None] = lambda: None,
) -> RunOutcome:
    """Runs from the checkpoint in the folder to the end, an interruption or a failure.

    Args:
        simulation: at that checkpoint.
        systems: initial structures of this rank.
        run: with all options resolved.
        source: the potential.
        uncertainty: reporter of the committee and the last layer, or None.
        deadline: s on the monotonic clock, before which the run stops.
        begin: called after the checks of all files, before files change.

    Raises:
        SimulationError: the run failed; the last good state is its checkpoint.
        LostRankError: another rank is gone.
        FileError: the disk refused.
    """
    configuration, folder = run.configuration, run.folder
    first = simulation.step
    convergence = ConvergenceReporter(simulation)
    remaining_steps = 0 if convergence.converged() else configuration.total_steps - first
    places = [folder, *run.parts]
    unfinished = remaining_steps > 0 or not all(place.end.exists() for place in places)
    start_time = time.perf_counter()
    intervals = configuration.intervals
    interval = intervals.checkpoint
    joint = run.meeting_interval is not None
    count = process_count(configuration, run.ranks)
    meeting: RanksReporter | None = next(
        (one for one in simulation.hill_reporters if isinstance(one, RanksReporter)), None
    )

    def stop(number: signal.Signals) -> None:
        if joint and meeting is not None:
            meeting.stop(number)
        else:
            simulation.stop()

    with ExitStack() as stack:
        if uncertainty is not None:
            uncertainty.check(folder.uncertainty, first)
        bar = ProgressBar(simulation, configuration.total_steps, lines=run.ranks.rank == 0)
        stack.callback(bar.close)
        # Signals are held back before the first file changes.
        interruption = stack.enter_context(
            Interruption(
                stop,
                bar.interval,
                together=joint,
                repeated=configuration.domains is not None and count > 1,
                deadline=deadline,
            )
        )
        files = stack.enter_context(resume_files(run, simulation, systems, begin))
        for place in places:
            remove_abandoned(place.path)
            if remaining_steps:
                with disk_failures(place.end, "remove"):
                    place.end.unlink(missing_ok=True)
        last = folder.checkpoint_before if joint else None
        if run.exchange:
            meeting = exchange = exchange_of(run, simulation, files)
            simulation.reporters.append(exchange)
        if run.meeting_interval is not None:
            interval = max(interval, run.meeting_interval)
        writers = files.all()
        if uncertainty is not None:
            stack.enter_context(uncertainty.open_log(folder.uncertainty, first))
            writers.append(uncertainty.log)
        checkpoint = CheckpointReporter(folder.checkpoint, interval, writers, last)
        observables = ObservedReporter(run, simulation)
        simulation.recorders += [
            TrajectoryRecorder(files.trajectories, intervals.trajectory, run.frame_atoms),
            LogRecorder(files.logs, intervals.log, simulation),
            *files.biases,
        ]
        simulation.reporters += [
            *([] if uncertainty is None else [uncertainty]),
            checkpoint,
            observables,
            bar,
            interruption,
        ]
        if simulation.integrator.converged() is not None:
            simulation.reporters.append(convergence)
        stops = isinstance(configuration, MDConfig) and configuration.on_extrapolation == "stop"
        domain_reporter = DomainReporter(simulation, bar.interval, stops)
        simulation.reporters.append(domain_reporter)
        try:
            with memory_failures(simulation.calculation.device):
                domain_reporter.report(simulation)
                simulation.run(remaining_steps)
                domain_reporter.report(simulation)
        except SimulationError as error:
            checkpoint.report(simulation)
            domain_reporter.summarize()
            raise SimulationError(
                f"{error} It is the checkpoint in {folder.path}, step {simulation.step}.",
                error.step,
                error.atoms,
            ) from error
        except Interrupted:
            if meeting is not None:
                raise  # within a meeting, perhaps; the last checkpoint is whole
            settle()  # steps that take long: the state is that before the chunk
        if simulation.step > first:
            bar.show(simulation)
            if joint:
                run.meet()
            checkpoint.report(simulation)
            domain_reporter.summarize()
            observables.write()
            _record_work(simulation, folder)
    elapsed = time.perf_counter() - start_time
    steps = simulation.step - first
    converged = convergence.converged()
    complete = converged or simulation.step == configuration.total_steps
    cause = None if complete else interruption.signal
    if complete and interruption.signal is not None and not interruption.out_of_time:
        signal.raise_signal(interruption.signal)  # pictures are drawn when it is resumed
    if not complete and cause is None and meeting is not None and meeting.leaving:
        cause = signal.Signals(meeting.leaving)
        logger.info("Another rank was sent %s, and all stop together.", cause.name)
    if complete:
        observables.draw(overwrite=unfinished)
        if run.exchange:
            record = ExchangeRecord.read(folder.exchanges, run.exchange)
            logger.info(record.text())
        draws_picture = unfinished or not folder.picture.exists()
        if isinstance(configuration, MDConfig) and draws_picture:
            draw_picture(run, systems, source)
        if unfinished:
            write_ends(run, simulation, systems)
    if joint and cause is not None:
        run.meet()  # torchrun kills the others once the first is gone
    largest_force = simulation.integrator.largest_force()
    return RunOutcome(
        directory=run.whole_folder,
        steps=simulation.step,
        total_steps=configuration.total_steps,
        time_ps=1e-3 * simulation.time,
        ns_per_day=1e-6 * steps * simulation.timestep / elapsed * 86400.0,
        mean_temperature=mean_temperature(run),
        signal=cause,
        largest_force=None if largest_force is None else float(largest_force[0]),
        converged=converged,
        replicas=configuration.system_count if configuration.has_replicas else None,
        ranks=count,
        out_of_time=cause is not None and interruption.out_of_time,
    )


def process_count(configuration: RunConfig, ranks: Ranks) -> int:
    """Processes that share a run: those of its replicas, or of its domains."""
    others = None if configuration.domains is None else join_ranks()
    return ranks.count if others is None else others.rank.count


def _deadline(configuration: RunConfig, began: float) -> float:
    """Time on the monotonic clock before which a run that began at another stops, s."""
    return math.inf if configuration.max_hours is None else began + 3600.0 * configuration.max_hours


RESUME_KEYS = frozenset(
    {"out", "steps", "time_ps", "max_hours", "device", "check", "on_extrapolation"}
    | {"potential", "inner_potential", "domains"}
)
"""Options that a resumed run may change: its lengths, locations, checks and domains."""


def start(configuration: RunConfig, starts: Sequence[System] | None = None) -> RunOutcome:
    """Runs from the beginning; with domains, ranks other than 0 do not come back from here.

    Args:
        configuration: of dynamics or a minimisation.
        starts: initial structures, instead of those that the configuration names.

    Raises:
        MDGraphError: the run cannot start; nothing is written then.
        SimulationError: the run failed; the last good state is its checkpoint.
    """
    began, path = time.monotonic(), Path(configuration.out)
    if configuration.domains is not None:
        join_ranks()
    if starts is None:
        starts = read_starts(configuration)
        log_frames(configuration, starts)
        log_loose(configuration, starts)
    configuration = with_replica_count(configuration, starts)
    if configuration.has_replicas:
        ranks = Ranks.join()
    else:
        if configuration.domains is None:
            refuse_ranks("A run without replicas or domains")
        ranks = ALONE
    run = Run(configuration, RunDirectory(path).of_rank(ranks), ranks)
    if configuration.has_replicas:
        allow_open_files(len(run.numbers), configuration)
    directory.refuse_used(path)
    if ranks.count > 1:
        ranks.numbers(0)  # no rank writes before all have checked the folder
    device = _device(run)
    source = read_potential(configuration)
    systems = make_structures(configuration, source, starts)
    selections = selections_of(configuration, systems)
    with memory_failures(device):
        log_plans(configuration, source, run.own(systems), device)
        if isinstance(configuration, MDConfig) and configuration.minimize:
            systems = minimize_structures(configuration, source, systems, device, selections)
        log_resonance(configuration, source, systems, device, selections)
        simulation = make_simulation(
            configuration, source, systems, device, ranks=ranks, selections=selections
        )
        own = run.own(systems)
        uncertainty = uncertainty_of(configuration, source, simulation, own)
        simulation.choose(configuration.total_steps, _report_intervals(run, uncertainty))
    resolved_configuration = resolve_configuration(configuration, source, simulation, systems)
    record = {
        "configuration": resolved_configuration.model_dump(mode="json"),
        "given": options_for_record(configuration, resolved_configuration),
        **description(simulation, systems, source, resolved_configuration.has_replicas, selections),
    }
    if (about := switching(source)) is not None:
        record["switching"] = about
    run = _with_frame_atoms(replace(run, configuration=resolved_configuration), selections)

    def fill(folder: RunDirectory) -> None:
        create_files(replace(run, folder=folder), simulation, own)
        save_restart(simulation, folder.checkpoint)
        folder.write_record(record)
        run.meet()

    with directory.new_run(run.folder.path, fill):
        logger.info("Degrees of freedom: %s.", simulation.degrees_text)
        log_all_fixed(simulation)
        log_isolated(simulation)
        log_without_forces(simulation, source)
        log_switching(source)
        log_cooling(resolved_configuration, own, simulation)
        log_pressure(resolved_configuration, simulation)
        deadline = _deadline(configuration, began)
        return advance(simulation, own, run, source, uncertainty, deadline)


def _record_work(simulation: Simulation, folder: RunDirectory) -> None:
    """Writes the work of weights that change into run.json, if any do; raises FileError."""
    work = simulation.observables().switching.get("switching_work_eV")
    if work is not None:
        record = folder.read_record()
        done = {"step": simulation.step, "work_eV": work.tolist()}
        folder.write_record(record | {"switching": {**record["switching"], **done}})


def _with_frame_atoms(run: Run, selections: Mapping[str, Sequence[Sequence[int]]]) -> Run:
    """The run with the atoms that frames of the systems of this rank hold."""
    if "save_select" not in selections:
        return run
    return replace(run, frame_atoms=[selections["save_select"][number] for number in run.numbers])


def _device(run: Run) -> torch.device:
    """The device of this rank; raises InputError if it does not exist."""
    device = device_named(run.configuration.device)
    if device.type != "cuda" or run.ranks.count == 1:
        return device
    return device_named(f"cuda:{run.ranks.local}")


def uncertainty_of(
    configuration: RunConfig, source: Source, simulation: Simulation, systems: Sequence[System]
) -> UncertaintyReporter | None:
    """The UncertaintyReporter of a run, or None without committee and interval."""
    if isinstance(configuration, MDConfig) and (
        configuration.committee or configuration.uncertainty_interval
    ):
        return UncertaintyReporter(simulation, systems, configuration, source)
    return None


def _report_intervals(run: Run, uncertainty: UncertaintyReporter | None) -> list[int]:
    """Intervals of all reporters that may be shorter than a chunk."""
    intervals = [*run.configuration.intervals]
    if uncertainty is not None:
        intervals.append(uncertainty.interval)
    if run.exchange is not None:
        intervals.append(run.exchange)
    return intervals


def holds_run(path: Path) -> bool:
    """Whether a run began in a folder, shared by ranks or not."""
    return any(RunDirectory(folder).holds_run() for folder in (path, path / "rank-0"))


def checkpoint_step(path: Path) -> int | None:
    """The step of the checkpoint in the folder of a run; None without one, as ranks have."""
    checkpoint = RunDirectory(path).checkpoint
    return restart_step(checkpoint) if checkpoint.exists() else None


def resume_or_start(configuration: RunConfig, starts: Sequence[System] | None = None) -> RunOutcome:
    """Resumes the run in the folder of a configuration; starts it if there is none yet.

    Args:
        configuration: of the run; of one in the folder, only options of RESUME_KEYS may differ.
        starts: see `start`.

    Raises:
        MDGraphError: see `start` and `resume`; or another option differs.
    """
    path = Path(configuration.out)
    if not holds_run(path):
        return start(configuration, starts)
    values = {name: getattr(configuration, name) for name in configuration.model_fields_set}
    changes = {key: values[key] for key in RESUME_KEYS & values.keys() if values[key] is not None}
    return resume(path, changes, type(configuration), configuration)


def resume(
    path: Path,
    changes: Mapping[str, Any] | None = None,
    kind: type[RunConfig] = RunConfig,
    expected: RunConfig | None = None,
    extend_ps: float | None = None,
) -> RunOutcome:
    """Resumes an interrupted run, with the same bits as an uninterrupted one.

    Args:
        path: the folder of the run.
        changes: fields among RESUME_KEYS that replace those of the recorded configuration.
        kind: class that the configuration must have.
        expected: configuration whose options the run must have begun with, but for RESUME_KEYS
            and those at their defaults; None expects nothing.
        extend_ps: added to a run of dynamics that is finished.

    Raises:
        MDGraphError: see `start`; or the folder holds no run, or the potential changed, or an
            unfinished run should be extended.
    """
    began = time.monotonic()
    folder, ranks = _folder_to_resume(path)
    if not folder.holds_run():
        advice = "give the folder of a run with --out, or begin one without --resume"
        raise FileError(folder.without_run("run to resume", advice))
    with folder.lock():
        finish_start(folder)
        record = folder.read_record()
        if changes and changes.get("inner_potential"):
            _refuse_inner_potential(path, record)
        configuration = _configuration(folder, record["configuration"], changes or {})
        if not isinstance(configuration, kind):
            command = "md" if isinstance(configuration, MDConfig) else "minimise"
            raise InputError(f"{path} is a run of another kind; resume it with mdgraph {command}.")
        if configuration.domains is None and ranks.count == 1:
            refuse_ranks(f"The run in {path}")
        if expected is not None:
            _check_unchanged(path, configuration, expected)
        if extend_ps is not None:
            steps = _extended_steps(path, configuration, folder, ranks, extend_ps)
            changes = {**(changes or {}), "steps": steps}
            configuration = _configuration(folder, record["configuration"], changes)
        run = Run(configuration, folder, ranks)
        if configuration.has_replicas:
            allow_open_files(len(run.numbers), configuration)
        device = _device(run)
        source = read_potential(configuration)
        if (
            isinstance(configuration, MDConfig)
            and configuration.monitor_domain
            and source.domain is None
        ):
            raise InputError(
                f"The run in {path} monitors its domain, and domain.safetensors is not beside the "
                f"weights of {source.reference} any more; put it back."
            )
        if source.sha256 != record["potential"]["sha256"]:
            raise InputError(
                f"The potential {source.reference} is not the one that the run in {path} began "
                "with; give that one with --potential."
            )
        if source.term_sha256 != record["potential"].get("term_sha256", source.term_sha256):
            raise InputError(
                f"A potential among the terms is not the one that the run in {path} began with; "
                "put that one back."
            )
        if source.inner and source.inner.sha256 != record["potential"]["inner"]["sha256"]:
            raise InputError(
                f"The inner potential {source.inner.reference} is not the one that the run in "
                f"{path} began with; give that one with --inner-potential."
            )
        systems = read_initial_structures(run, record)
        selections = selections_of(configuration, systems, record)
        with memory_failures(device):
            simulation = make_simulation(
                configuration, source, systems, device, record, ranks, selections
            )
            load_restart_(simulation, folder.checkpoint)
            is_ahead = run.meeting_interval is not None and load_common_restart_(
                simulation, folder.checkpoint_before, ranks
            )
            own = run.own(systems)
            uncertainty = uncertainty_of(configuration, source, simulation, own)
        if configuration.total_steps < simulation.step:
            raise InputError(
                f"{path} has done {simulation.step} steps already, which is more than "
                f"{configuration.total_steps}; ask for at least as many in all, "
                f"{_longer(configuration, simulation.step)}."
            )
        log_differences(record["environment"], environment(device))
        if simulation.step < configuration.total_steps:
            logger.info(
                "Continuing from step %d of %d.", simulation.step, configuration.total_steps
            )
        else:
            logger.info("All %d steps are done.", simulation.step)
        resolved_configuration = resolve_configuration(configuration, source, simulation, systems)
        now = resolved_configuration.model_dump(mode="json")

        def begin() -> None:
            if now != record["configuration"]:
                folder.write_record(record | {"configuration": now})
            if is_ahead:
                folder.forget_checkpoint()

        run = _with_frame_atoms(replace(run, configuration=resolved_configuration), selections)
        deadline = _deadline(configuration, began)
        return advance(simulation, own, run, source, uncertainty, deadline, begin)


def _refuse_inner_potential(path: Path, record: Mapping[str, Any]) -> None:
    """Raises InputError if a run began without an inner potential."""
    if record["potential"].get("inner") is None:
        raise InputError(
            f"The run in {path} has no inner potential; leave --inner-potential out, or begin "
            "another run in a new folder."
        )


def _extended_steps(
    path: Path, configuration: RunConfig, folder: RunDirectory, ranks: Ranks, extend_ps: float
) -> int:
    """Steps of a finished run with an extension, in all; raises InputError if it is unfinished."""
    assert isinstance(configuration, MDConfig)
    timestep, total = configuration.timestep_fs, configuration.total_steps
    more = 1e3 * extend_ps / configuration.outer_step_fs
    if not more <= MOST_STEPS or round(more) < 1:
        which = "time" if configuration.inner_potential is None else "outer"
        raise InputError(
            f"--extend-ps is {extend_ps:g}, which is {more:.3g} {which} steps of "
            f"{configuration.outer_step_fs:g} fs; give from 1 to {MOST_STEPS:.0e} steps."
        )
    step = min(ranks.numbers(restart_step(folder.checkpoint)))
    if step < total:
        raise InputError(
            f"The run in {path} has {1e-3 * (total - step) * timestep:.6g} of "
            f"{1e-3 * total * timestep:.6g} ps left, and --extend-ps adds to a run that is "
            "finished; continue with --resume alone."
        )
    return step + configuration.steps_of_ps(extend_ps)


_CHOSEN: Final = {"evaluator": "auto", "monitor_domain": True}
"""Values of options for which run.json holds what the run chose."""


def _check_unchanged(path: Path, configuration: RunConfig, expected: RunConfig) -> None:
    """Raises InputError unless a run began with the options that are set in another configuration.

    Args:
        path: the folder of the run.
        configuration: of the run, as run.json has it.
        expected: the other one.
    """
    before = configuration.model_dump(mode="json")
    words = expected.model_copy(update=record_fields(expected)).model_dump(mode="json")
    for name in sorted(expected.model_fields_set - RESUME_KEYS):
        key = name.removesuffix("_ps") if name.endswith("_interval_ps") else name
        value = words[key]
        if value is not None and value != before[key] and value != _CHOSEN.get(key):
            raise InputError(
                f"The run in {path} was begun with {key} {before[key]}, now it is {value}; put "
                "that back, or give another folder with --out."
            )


def _folder_to_resume(path: Path) -> tuple[RunDirectory, Ranks]:
    """The folder of this process within a run, and its rank; other ranks serve domains.

    Raises:
        InputError: the run was shared by another number of ranks, or by none.
    """
    number = 0
    while (path / f"rank-{number}").exists():
        number += 1
    if not number:
        join_ranks()
        return RunDirectory(path), ALONE
    count = os.environ.get("WORLD_SIZE", "1")
    if count != str(number):
        raise InputError(
            f"The run in {path} was shared by {number} ranks, and there are {count} now; resume "
            f"it with torchrun --nproc-per-node {number}, or {number} --devices."
        )
    ranks = Ranks.join()
    return RunDirectory(path).of_rank(ranks), ranks


def refuse_ranks(what: str) -> None:
    """Ends all processes if torchrun started several for a task of one; rank 0 by InputError."""
    count = os.environ.get("WORLD_SIZE", "1")
    if count != "1":
        if not is_first_rank():
            raise SystemExit(0)
        starter = "torchrun" if launched_devices() is None else "--devices"
        raise InputError(
            f"{what} is of one process, and {starter} started {count}; start it without {starter}. "
            "Ranks share the replicas of one mdgraph md, or the domains of one system, such as "
            f"--domains {count}."
        )


def _longer(configuration: RunConfig, steps: int) -> str:
    """Advice on options that lengthen a run."""
    if not isinstance(configuration, MDConfig):
        return f"such as --steps {steps}"
    return f"such as --steps {steps} or --until-ps {1e-3 * steps * configuration.timestep_fs:g}"


def _configuration(
    folder: RunDirectory, record: Mapping[str, Any], changes: Mapping[str, Any]
) -> RunConfig:
    """The configuration in run.json with some fields changed."""
    kind = MDConfig if "ensemble" in record else MinimizeConfig
    # Runs of earlier versions had no monitor.
    before = {"monitor_domain": False} if kind is MDConfig else {}
    own = {**before, **kind.current_names(record), "out": str(folder.path)}
    try:
        kind(**own)
    except ValidationError as error:
        raise FileError(
            f"{folder.record} holds a configuration that this mdgraph does not take "
            f"({first_fault(error)}); put back the original."
        ) from error
    if "time_ps" in record and {"steps", "time_ps"} & changes.keys():
        own |= {"steps": None, "time_ps": None}
    try:
        return kind(**{**own, **changes})
    except ValidationError as error:
        message = first_fault(error)
        text = ", ".join(f"{name} {value}" for name, value in changes.items())
        raise InputError(
            f"A run cannot continue with {printable(text, 200)}: {message}; give what it takes."
        ) from error
