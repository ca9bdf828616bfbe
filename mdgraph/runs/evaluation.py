"""`mdgraph eval` and `mdgraph relax`: energies, forces and minima of a stream of frames."""

import logging
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

import numpy as np
import torch

from mdgraph.devices import device_named, device_names, finish_gpu_work
from mdgraph.engine import Calculation
from mdgraph.engine.batches import Batches
from mdgraph.engine.calculation import EvaluationResult, as_evaluator
from mdgraph.engine.relaxation import relax
from mdgraph.errors import (
    InputError,
    MDGraphError,
    errors_logged_alone,
    name_some,
    prefix_errors,
)
from mdgraph.fused.verification import log_unmeasured, self_check
from mdgraph.memory import memory_failures
from mdgraph.precision import precision_named
from mdgraph.runs.config import EvalConfig, FramesConfig, RelaxConfig
from mdgraph.runs.potential import Source, log_neutral, read_potential, with_charge
from mdgraph.runs.setup import descent
from mdgraph.runs.streams.blocks import (
    FrameBlock,
    ResultArrays,
    ResultBlock,
    SystemBlock,
    TextBlock,
)
from mdgraph.runs.streams.links import (
    DeviceProcess,
    DeviceService,
    DeviceTask,
    LinkedRank,
    ServiceEnded,
    StreamRanks,
)
from mdgraph.runs.streams.pipeline import (
    Convert,
    DeviceStages,
    Link,
    Pipeline,
    StreamProgress,
)
from mdgraph.runs.streams.results import ResultsFile
from mdgraph.runs.streams.sources import StreamSource, open_reader
from mdgraph.runs.streams.workers import Worker, default_workers, format_block, parse_block
from mdgraph.runs.uncertainty import FrameUncertainty, LeastCertain
from mdgraph.signals import Interrupted, unfinished_status
from mdgraph.system import System, SystemArrays

logger = logging.getLogger(__name__)

_BLOCK: Final = {"cpu": 4096, "cuda": 32768}
"""Atoms of a block, eight full batches. It must not depend on the machine: the batches of a block
decide the last bits."""


class FrameWork(ABC):
    """What a command does to frames on one device.

    Attributes:
        device: where.
    """

    def __init__(self, configuration: FramesConfig, source: Source, device: torch.device) -> None:
        """Makes the evaluator; raises MDGraphError."""
        self.device = device
        self._precision = precision_named(configuration.precision)
        with memory_failures(device):
            self._evaluator = as_evaluator(
                source.potential, self._precision, device, configuration.evaluator
            )
        self._check_is_due = configuration.check

    def evaluate(self, block: SystemBlock, check: Callable[[], None]) -> ResultBlock:
        """Evaluates a block; an MDGraphError is the failure of the result, after what is sound.

        Args:
            block: its systems.
            check: called between batches; an exception of it ends the work.
        """
        empty = ResultBlock(block.number, block.first, [], [], None, failure=block.failure)
        if not block.systems:
            return empty
        with ExitStack() as stack:
            if self.device.type == "cuda":
                stack.enter_context(torch.cuda.device(self.device))
            try:
                with memory_failures(self.device):
                    self._self_check(block)
            except MDGraphError as error:
                return replace(empty, failure=error)
            try:
                with memory_failures(self.device):
                    systems, results, notes = self.results(block.systems, block.names, check)
                return _result_block(block, systems, results, notes, block.failure)
            except MDGraphError:
                return self._one_by_one(block, check)

    def _one_by_one(self, block: SystemBlock, check: Callable[[], None]) -> ResultBlock:
        """The frames before the first, in order, that cannot be evaluated."""
        systems: list[System] = []
        results: list[EvaluationResult] = []
        notes: list[Any] = []
        failure = block.failure
        for system, name in zip(block.systems, block.names, strict=True):
            try:
                with memory_failures(self.device):
                    own, result, note = self.results([system], [name], check)
            except MDGraphError as error:
                failure = error
                break
            systems += own
            results += result
            notes += note
        if not results:
            return ResultBlock(block.number, block.first, [], [], None, failure=failure)
        return _result_block(block, systems, results, notes, failure)

    def _self_check(self, block: SystemBlock) -> None:
        """Runs the self-check on the first frame of the device, once."""
        if not self._check_is_due:
            return
        with prefix_errors(block.names[0]):
            calculation = Calculation(
                block.systems[:1],
                self._evaluator,
                device=self.device,
                precision=self._precision,
                skin=0.0,
            )
            calculation.compute()
            self_check(self._evaluator, calculation.state, calculation.lists, self._precision)
        self._check_is_due = False

    @property
    def device_seconds(self) -> float:
        """Time in which a GPU computed, s, by its own clock; 0 where nobody looks."""
        return 0.0

    @abstractmethod
    def results(
        self, systems: Sequence[System], names: Sequence[str], check: Callable[[], None]
    ) -> tuple[Sequence[System], list[EvaluationResult], list[Any]]:
        """Structures as they are written with their results and notes, in order.

        Raises:
            MDGraphError: a frame cannot be evaluated; the message names it.
        """


class _Evaluations(FrameWork):
    def __init__(self, configuration: EvalConfig, source: Source, device: torch.device) -> None:
        super().__init__(configuration, source, device)
        self._batches = Batches(self._evaluator, device, self._precision)
        self._uncertainty = FrameUncertainty(configuration, source, device)

    @property
    def device_seconds(self) -> float:
        """See FrameWork; without a committee and sigma."""
        return self._batches.device_seconds

    def results(
        self, systems: Sequence[System], names: Sequence[str], check: Callable[[], None]
    ) -> tuple[Sequence[System], list[EvaluationResult], list[Any]]:
        evaluations = {}
        for number, result in self._batches.evaluate(systems, names):
            check()
            evaluations[number] = result
        ordered = [evaluations[number] for number in range(len(systems))]
        if not self._uncertainty.measured:
            return systems, ordered, []
        results, unlike = self._uncertainty.combine(systems, names, ordered)
        notes = []
        for name, system, result, is_unlike in zip(names, systems, results, unlike, strict=True):
            least = LeastCertain()
            least.take(name, system, result)
            notes.append((least, is_unlike))
        return systems, list(results), notes


class _Relaxations(FrameWork):
    def __init__(self, configuration: RelaxConfig, source: Source, device: torch.device) -> None:
        super().__init__(configuration, source, device)
        self._fire = descent(configuration)
        self._steps = configuration.steps

    def results(
        self, systems: Sequence[System], names: Sequence[str], check: Callable[[], None]
    ) -> tuple[Sequence[System], list[EvaluationResult], list[Any]]:
        minima = {}
        relaxations = relax(
            systems,
            names,
            self._evaluator,
            self._fire,
            self._steps,
            device=self.device,
            precision=self._precision,
        )
        # Each batch would log its outcome, and the stream tells that of all at its end.
        with errors_logged_alone("mdgraph.engine.relaxation"):
            for number, relaxation in relaxations:
                check()
                minima[number] = relaxation
        ordered = [minima[number] for number in range(len(systems))]
        moving = [None if one.converged else name for name, one in zip(names, ordered, strict=True)]
        return [one.system for one in ordered], [one.result for one in ordered], moving


@dataclass(frozen=True)
class FrameCounts:
    """Number of frames that were written, and of those that were there before."""

    frames: int
    previous: int = 0


def evaluate(configuration: EvalConfig) -> FrameCounts:
    """Evaluates all frames of a stream and writes them to one file, in order.

    Under torchrun, ranks other than 0 do not come back from here.

    Raises:
        MDGraphError: a frame cannot be read, evaluated or written; the message names file and
            frame, and the frames before it are written.
    """
    least, unlike = LeastCertain(), 0

    def note(frame: tuple[LeastCertain, bool]) -> None:
        nonlocal unlike
        least.merge(frame[0])
        unlike += frame[1]

    counts = run_stream(configuration, "eval", _Evaluations, note)
    if configuration.sigma:
        logger.info(
            "%d of %d frames hold atoms in surroundings unlike those of training.",
            unlike,
            counts.frames,
        )
    least.say()
    return counts


@dataclass(frozen=True)
class RelaxationCounts(FrameCounts):
    """Of the frames that were written, those that reached a minimum too."""

    converged: int = 0


def relax_frames(configuration: RelaxConfig) -> RelaxationCounts:
    """Relaxes all frames of a stream and writes them to one file, in order; see `evaluate`."""
    moving: list[str] = []
    count = 0

    def note(name: str | None) -> None:
        nonlocal count
        if name is not None:
            count += 1
            moving.extend([name] * (len(moving) < _NAMED))

    counts = run_stream(configuration, "relax", _Relaxations, note)
    if moving:
        logger.warning(
            "No minimum within the tolerances after %d steps: %s.",
            configuration.steps,
            name_some([*moving, *[""] * (count - len(moving))], _NAMED),
        )
    return RelaxationCounts(counts.frames, counts.previous, counts.frames - count)


_NAMED: Final = 8
"""Frames without a minimum that are named."""

Config = TypeVar("Config", bound=FramesConfig)

WorkOn = Callable[[Any, Source, torch.device], FrameWork]


def run_stream(
    configuration: Config,
    title: str,
    work_on: WorkOn,
    note: Callable[[Any], None],
) -> FrameCounts:
    """Evaluates a stream of frames on all devices and ranks and writes the results in order.

    Args:
        configuration: names the files.
        title: of the progress bar.
        work_on: makes what evaluates on a device.
        note: takes the note of each frame that is written, in order.

    Raises:
        MDGraphError: see `evaluate`.
        SystemExit: on ranks other than 0, at their end.
    """
    ranks = StreamRanks.join()
    if ranks.rank:
        logging.getLogger("mdgraph").setLevel(logging.ERROR)  # rank 0 says what is the same
    error, results, stream = None, None, None
    try:
        results = ResultsFile.opened(configuration) if ranks.rank == 0 else None
        if ranks.rank == 0:
            StreamSource(configuration.structures).check_files()
        stream = _stream_of(configuration, work_on, ranks)
    except MDGraphError as failure:
        error = failure
    with ExitStack() as stack:
        if stream is not None:
            stack.callback(stream.close)
        ranks.agree(error)
        assert stream is not None
        if results is None:
            _serve(stream, ranks.read_blocks, ranks.give)
        return _write(stream, results, title, note)


def _devices(configuration: FramesConfig, ranks: StreamRanks) -> dict[str, torch.device]:
    """The devices of this rank by their names, in the order in which they are named.

    Raises:
        InputError: there is no such device, or ranks of one machine would share all.
    """
    if configuration.devices is None:
        device = device_named(configuration.device)
        if device.type == "cuda" and ranks.count > 1:
            device = device_named(f"cuda:{ranks.local}")
        return {str(device): device}
    if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1:
        raise InputError(
            "--devices are those of a machine, and torchrun started several ranks on this one, "
            "each with a device of its own; leave out --devices, or start one rank a machine."
        )
    names = device_names(configuration.devices)
    devices = [device_named(name) for name in names]
    repeated = {name for name in names if names.count(name) > 1}
    return {
        f"{name} ({number})" if name in repeated else name: device
        for number, (name, device) in enumerate(zip(names, devices, strict=True))
    }


@dataclass(frozen=True, eq=False)
class _Stream:
    """What evaluates the blocks of this process: a device here, or other processes.

    Attributes:
        configuration: of the command.
        block: atoms of a block.
        stages: of the device here.
        processes: of devices.
        ranks: others, where this one is rank 0.
    """

    configuration: FramesConfig
    block: int
    stages: DeviceStages | None = None
    processes: Sequence[DeviceProcess] = ()
    ranks: Sequence[LinkedRank] = ()

    def pipeline(self, write: Callable[[TextBlock], None]) -> Pipeline:
        return Pipeline(write, self.stages, self._links)

    @property
    def _links(self) -> list[Link]:
        return [*self.processes, *self.ranks]

    @property
    def has_workers(self) -> bool:
        """Whether other processes parse and format."""
        own = 0 if self.stages is None else len(self.stages.workers)
        return own + sum(link.workers for link in self._links) > 0

    def close(self) -> None:
        """Ends all processes; of no effect on those that have ended."""
        for process in self.processes:
            process.close()
        for worker in () if self.stages is None else self.stages.workers:
            worker.close()


def _stream_of(configuration: FramesConfig, work_on: WorkOn, ranks: StreamRanks) -> _Stream:
    """Makes what evaluates, here where one device and no other rank gets frames from here.

    Raises:
        MDGraphError: there is no such device, or it cannot evaluate by this potential.
    """
    devices = _devices(configuration, ranks)
    types = [device.type for device in devices.values()]
    workers = default_workers(types) if configuration.workers is None else configuration.workers
    ahead = not StreamSource(configuration.structures, configuration.wait_s).is_small()
    if len(devices) == 1 and (ranks.rank or ranks.count == 1):
        (name,) = devices
        task = DeviceTask(name, workers, ahead, (configuration, work_on, devices[name]))
        return _stream_here(task)
    cores = len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, cores // len(devices))))
    shares = [len(range(place, workers, len(devices))) for place in range(len(devices))]
    with ExitStack() as stack:
        processes = []
        for (name, device), share in zip(devices.items(), shares, strict=True):
            task = DeviceTask(name, share, ahead, (configuration, work_on, device))
            process = DeviceProcess(_SERVE, task, threads)
            stack.callback(process.close)
            processes.append(process)
        for process in processes:
            process.begin()
        stack.pop_all()
    return _Stream(
        configuration,
        _BLOCK[types[0]],
        processes=processes,
        ranks=ranks.links(workers),
    )


def _stream_here(task: DeviceTask) -> _Stream:
    """What evaluates on a device in this process; raises MDGraphError."""
    configuration, work_on, device = task.arguments
    with ExitStack() as stack:
        workers = [Worker() for _ in range(task.workers)]
        for worker in workers:
            stack.callback(worker.close)
            if task.ahead:  # they import modules while the potential is loaded
                worker.start()
        source = read_potential(configuration)
        if not configuration.check:
            log_unmeasured(precision_named(configuration.precision))
        work: FrameWork = work_on(configuration, source, device)
        stack.pop_all()
    stages = DeviceStages(
        name=task.device,
        parse=_Parsing(configuration, source).parse,
        evaluate=work.evaluate,
        text=text_of,
        workers=workers,
        seconds=lambda: work.device_seconds,
    )
    return _Stream(configuration, _BLOCK[device.type], stages)


@dataclass(frozen=True, eq=False)
class _Parsing:
    """How blocks are parsed.

    Attributes:
        configuration: of the command.
        source: the potential.
        notices: what was logged once.
    """

    configuration: FramesConfig
    source: Source
    notices: list[str] = field(default_factory=list)

    def parse(self, block: FrameBlock, convert: Convert) -> SystemBlock:
        """The frames before the first that is broken, or that the potential cannot take."""
        parse = partial(parse_block, charge=self.configuration.charge)
        parsed: SystemBlock = convert(parse, block)
        if parsed.uncharged and not self.notices:
            log_neutral(True, self.configuration, self.source)
            self.notices.append("neutral")
        if math.inf in self.source.potential.cutoffs:  # which no periodic frame can have
            for place, (name, system) in enumerate(zip(parsed.names, parsed.systems, strict=True)):
                try:
                    with prefix_errors(name):
                        with_charge(system, self.configuration, self.source)
                except MDGraphError as error:
                    names, systems = parsed.names[:place], parsed.systems[:place]
                    return replace(parsed, names=names, systems=systems, failure=error)
        return parsed


def _write(
    stream: _Stream, results: ResultsFile, title: str, note: Callable[[Any], None]
) -> FrameCounts:
    """Reads, and writes what is evaluated."""
    configuration = stream.configuration
    files = StreamSource(configuration.structures, configuration.wait_s)
    progress = StreamProgress(title, results.previous.count)

    def write(block: TextBlock) -> None:
        written = results.append(block)
        for mark in block.notes[len(block) - written : len(block)]:
            note(mark)
        progress.update(written, pipeline.waiting(), pipeline.computing())
        if block.failure is not None:
            raise block.failure

    pipeline = stream.pipeline(write)
    reader = open_reader(
        files,
        stream.block,
        results.previous.count,
        pipeline.check,
        has_workers=stream.has_workers,
    )
    try:
        pipeline.run(reader.read, reader.close)
    except Interrupted as error:
        if results.is_written:
            error.add_note("continue with the same command and --resume, without --overwrite")
            error.status = unfinished_status(error.signal)
        raise
    finally:
        progress.close()
        results.close()
    if progress.frames > 1:
        logger.info("%s.", progress.sentence(pipeline.waiting(), pipeline.computing()))
    return FrameCounts(progress.frames, results.previous.count)


def _serve(
    stream: _Stream,
    read: Callable[[Callable[[FrameBlock], None]], None],
    give: Callable[[TextBlock], None],
) -> NoReturn:
    """Evaluates for another process until that ends; raises SystemExit, or LostRankError."""

    def write(block: TextBlock) -> None:
        waiting, computing = pipeline.waiting_devices(), pipeline.computing()
        give(replace(block, waiting=waiting, computing=computing))

    pipeline = stream.pipeline(write)
    try:
        pipeline.run(read)
    except ServiceEnded:
        pass
    except Interrupted as error:
        raise SystemExit(error.status) from error  # rank 0 says it
    raise SystemExit(0)


_SERVE: Final = "from mdgraph.runs.evaluation import serve_device; serve_device()"


def serve_device() -> NoReturn:
    """Evaluates on one device for the process that started this one, until that ends."""
    service = DeviceService()
    stream, failure = None, None
    try:
        stream = _stream_here(service.task)
    except MDGraphError as error:
        failure = error
    service.begin(failure)
    if stream is None:
        raise SystemExit(0)
    try:
        _serve(stream, service.read, service.give)
    except Exception as error:  # raised again where it was started
        service.fail(error)
        raise SystemExit(1) from error
    finally:
        finish_gpu_work()


def text_of(block: ResultBlock, convert: Convert) -> TextBlock:
    """Formats results; a frame that cannot be is the failure after those before it."""
    frames = replace(block, notes=(), failure=None)  # what other processes need, and can get
    text: TextBlock = convert(format_block, frames)
    failure = block.failure if text.failure is None else text.failure
    return replace(text, notes=block.notes, failure=failure)


def _result_block(
    block: SystemBlock,
    systems: Sequence[System],
    results: Sequence[EvaluationResult],
    notes: Sequence[Any],
    failure: MDGraphError | None,
) -> ResultBlock:
    """The first frames of a block, at least one, with their results side by side."""
    arrays = SystemArrays.of(systems)
    has_more = any(result.info or result.arrays for result in results)
    together = ResultArrays(
        ends=arrays.ends.tolist(),
        energy=np.array([result.energy for result in results]),
        energies=np.concatenate([result.energies for result in results]),
        forces=np.concatenate([result.forces for result in results]),
        virial=np.stack([result.virial for result in results]),
        info=[result.info for result in results] if has_more else (),
        arrays=[result.arrays for result in results] if has_more else (),
    )
    names = block.names[: len(arrays)]
    return ResultBlock(block.number, block.first, names, arrays, together, notes, failure)
