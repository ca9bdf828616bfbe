"""`mdgraph eval` and `mdgraph relax`: energies, forces and minima of a stream of frames."""

import logging
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import torch

from mdgraph.devices import device_named, device_names
from mdgraph.engine import Calculation
from mdgraph.engine.batches import Batches
from mdgraph.engine.calculation import EvaluationResult, as_evaluator
from mdgraph.engine.relaxation import relax
from mdgraph.errors import InputError, MDGraphError, name_some, prefix_errors, printable
from mdgraph.fused.verification import say_unmeasured, self_check
from mdgraph.io.files import AppendedFile, refuse_existing, write_atomically
from mdgraph.io.formats import FORMATS
from mdgraph.io.log import WrittenFrames, written_energy, written_frames
from mdgraph.io.structures import from_xyz
from mdgraph.memory import memory_failures
from mdgraph.precision import precision_named
from mdgraph.runs.config import EvalConfig, FramesConfig, RelaxConfig
from mdgraph.runs.potential import Source, read_potential, say_neutral, with_charge
from mdgraph.runs.setup import descent
from mdgraph.runs.streams.blocks import (
    FrameBlock,
    ResultArrays,
    ResultBlock,
    SystemBlock,
    TextBlock,
    with_plain_failure,
)
from mdgraph.runs.streams.pipeline import Convert, Pipeline, StreamProgress
from mdgraph.runs.streams.ranks import LinkedRank, ServiceEnded, StreamRanks
from mdgraph.runs.streams.reading import open_reader
from mdgraph.runs.streams.sources import StreamSource
from mdgraph.runs.streams.workers import Worker, default_workers, format_block, parse_block
from mdgraph.runs.uncertainty import FrameUncertainty, LeastCertain
from mdgraph.signals import Interrupted, unfinished_status
from mdgraph.system import System, SystemArrays

logger = logging.getLogger(__name__)

_BLOCK: Final = {"cpu": 4096, "cuda": 32768}
"""Atoms of a block, eight full batches. It must not depend on the machine: the batches of a block
decide the last bits."""

_SAME_ENERGY: Final = 1e-4
"""eV an atom; the same potential gives the energy of a structure anew within this, in `mixed`."""

_SAME_MINIMUM: Final = 1e-2
"""eV an atom; ways to a minimum end apart by less, also on other hardware."""


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
                return _evaluated(block, systems, results, notes, block.failure)
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
        return _evaluated(block, systems, results, notes, failure)

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
    held: int = 0


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
    return RelaxationCounts(counts.frames, counts.held, counts.frames - count)


_NAMED: Final = 8
"""Frames without a minimum that are named."""

Config = TypeVar("Config", bound=FramesConfig)


def run_stream(
    configuration: Config,
    title: str,
    work_on: Callable[[Config, Source, torch.device], FrameWork],
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
    error, setup = None, None
    try:
        results = ResultsFile.opened(configuration) if ranks.rank == 0 else None
        if ranks.rank == 0:
            StreamSource(configuration.structures).check_files()
        source = read_potential(configuration)
        if not configuration.check:
            say_unmeasured(precision_named(configuration.precision))
        works = {
            name: work_on(configuration, source, device)
            for name, device in _devices(configuration, ranks).items()
        }
        setup = _Stream(configuration, source, works, ranks)
    except MDGraphError as failure:
        error = failure
    ranks.agree(error)
    assert setup is not None
    if results is None:
        setup.serve()
    assert results is not None
    return setup.write(results, title, note)


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
    """A stream on this rank.

    Attributes:
        configuration: of the command.
        source: the potential.
        works: what evaluates, by the name of the device.
        ranks: that share the stream.
        notices: what was logged once.
    """

    configuration: FramesConfig
    source: Source
    works: dict[str, FrameWork]
    ranks: StreamRanks
    notices: list[str] = field(default_factory=list)

    def _pipeline(self, write: Callable[[TextBlock], None], **options: Any) -> Pipeline:
        def evaluator(work: FrameWork) -> Callable[[SystemBlock], ResultBlock]:
            return lambda block: work.evaluate(block, pipeline.check)

        evaluators = {name: evaluator(work) for name, work in self.works.items()}
        count = self.configuration.workers
        if count is None:
            count = default_workers([work.device.type for work in self.works.values()])
        pipeline = Pipeline(
            parse=self._parsed,
            evaluators=evaluators,
            text=text_of,
            write=write,
            workers=[Worker() for _ in range(count)],
            **options,
        )
        return pipeline

    def _parsed(self, block: FrameBlock, convert: Convert) -> SystemBlock:
        """The frames before the first that is broken, or that the potential cannot take."""
        parse = partial(parse_block, charge=self.configuration.charge)
        parsed: SystemBlock = convert(parse, block)
        if parsed.uncharged and not self.notices:
            say_neutral(True, self.configuration, self.source)
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

    def _computing(self, pipeline: Pipeline) -> dict[str, float]:
        """Share of the time that each GPU replays graphs, by name."""
        own = {
            name: work.device_seconds / pipeline.clocks[name].seconds
            for name, work in self.works.items()
            if work.device_seconds
        }
        return own | pipeline.computing

    def write(self, results: "ResultsFile", title: str, note: Callable[[Any], None]) -> FrameCounts:
        """Runs the pipeline of rank 0."""
        files = StreamSource(self.configuration.structures, self.configuration.wait_s)
        device = next(iter(self.works.values())).device
        links = [LinkedRank(self.ranks, other) for other in range(1, self.ranks.count)]
        progress = StreamProgress(title, results.held.count)

        def write(block: TextBlock) -> None:
            written = results.append(block)
            for mark in block.notes[len(block) - written : len(block)]:
                note(mark)
            progress.update(written, pipeline.waiting(), self._computing(pipeline))
            if block.failure is not None:
                raise block.failure

        pipeline = self._pipeline(write, links=links)
        reader = open_reader(
            files,
            _BLOCK[device.type],
            results.held.count,
            pipeline.check,
            has_workers=pipeline.has_workers,
        )
        try:
            pipeline.run(reader.read, reader.close)
        except Interrupted as error:
            if results.is_written:
                error.add_note("go on with the same command and --resume, without --overwrite")
                error.status = unfinished_status(error.signal)
            raise
        finally:
            progress.close()
            results.close()
        if progress.frames > 1:
            logger.info("%s.", progress.sentence(pipeline.waiting(), self._computing(pipeline)))
        return FrameCounts(progress.frames, results.held.count)

    def serve(self) -> None:
        """Evaluates for rank 0 until that ends; raises SystemExit, or LostRankError."""

        def send(block: TextBlock) -> None:
            waiting = {name: pipeline.clocks[name].share for name in self.works}
            computing = self._computing(pipeline)
            reply = replace(block, waiting=waiting, computing=computing)
            self.ranks.send(with_plain_failure(reply), 0)

        pipeline = self._pipeline(send)
        try:
            pipeline.run(self.ranks.read_blocks)
        except ServiceEnded:
            pass
        except Interrupted as error:
            raise SystemExit(error.status) from error  # rank 0 says it
        raise SystemExit(0)


def text_of(block: ResultBlock, convert: Convert) -> TextBlock:
    """Formats results; a frame that cannot be is the failure after those before it."""
    frames = replace(block, notes=(), failure=None)  # what other processes need, and can get
    text: TextBlock = convert(format_block, frames)
    failure = block.failure if text.failure is None else text.failure
    return replace(text, notes=block.notes, failure=failure)


def _evaluated(
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


class ResultsFile:
    """The file that a stream writes: complete frames alone, whenever it is killed.

    Attributes:
        held: frames that are in it before the stream goes on.
    """

    def __init__(self, path: Path, held: WrittenFrames, *, overwrite: bool, moves: bool) -> None:
        """Opens nothing yet; see `opened`."""
        self._path, self.held = path, held
        self._overwrite, self._moves = overwrite, moves
        self._file: AppendedFile | None = None
        self._frames = held.count
        self._is_checked = held.count == 0

    @classmethod
    def opened(cls, configuration: FramesConfig) -> "ResultsFile":
        """The file that a configuration names; nothing is written.

        Raises:
            InputError: its name is that of another format.
            FileError: it exists and may not be replaced, or holds other things than results.
        """
        path = Path(configuration.out)
        suffixes = FORMATS["extxyz"].suffixes
        if path.suffix and path.suffix.lower() not in suffixes:
            raise InputError(
                f"--out is {printable(path, 200)}, and extended XYZ is written; end the name in "
                f"{' or '.join(suffixes)}."
            )
        held = WrittenFrames()
        if configuration.resume:
            held = written_frames(path)
        else:
            refuse_existing(path, overwrite=configuration.overwrite, option=True)
        own = path.resolve()
        if any(Path(name).resolve() == own for name in configuration.structures):
            raise InputError(f"--out is {printable(path, 200)}, which is read; give another name.")
        return cls(
            path,
            held,
            overwrite=configuration.overwrite or configuration.resume,
            moves=isinstance(configuration, RelaxConfig),
        )

    @property
    def is_written(self) -> bool:
        """Whether there is something to go on from."""
        return self._frames > 0

    def append(self, block: TextBlock) -> int:
        """Writes the frames that are not there yet; returns how many.

        Raises:
            InputError: the last frame that was there is not one of this stream.
            FileError: the disk refused; complete frames are kept.
        """
        start = max(0, self._frames - block.first)
        last = self.held.count - 1 - block.first
        if not self._is_checked and last < len(block):
            self._check_last(bytes(block.text(last, last + 1)))
            self._is_checked = True
        if start >= len(block):
            return 0
        content = block.text(start)
        if self._file is not None:
            self._file.append(content)
        elif self.held.count:
            self._file = AppendedFile(self._path, self.held.size)
            self._file.append(content)
        else:
            # At once, so that a file is replaced by results alone, and none is left empty.
            write_atomically(
                self._path, lambda path: path.write_bytes(content), new=not self._overwrite
            )
            self._file = AppendedFile(self._path, len(content))
        self._frames += len(block) - start
        return len(block) - start

    def _check_last(self, text: bytes) -> None:
        """Raises InputError if a frame of this stream is not the last one that was there."""
        last = self.held.last
        assert last is not None
        new = replace(last, content=text, atoms=int(text.split(b"\n", 1)[0]))
        before, now = from_xyz(last), from_xyz(new)
        fault = None
        if not np.array_equal(before.numbers, now.numbers):
            fault = "has other atoms"
        elif not np.array_equal(before.pbc, now.pbc):
            fault = "has other periodic directions"
        elif not self._moves and not (
            np.array_equal(before.positions, now.positions)
            and np.array_equal(before.cell, now.cell)
        ):
            fault = "has other positions or another cell"
        else:
            energies = written_energy(last), written_energy(new)
            limit = _SAME_MINIMUM if self._moves else _SAME_ENERGY
            if not abs(energies[0] - energies[1]) <= limit * len(now):
                fault = f"has an energy of {energies[0]:.6g} eV, and {energies[1]:.6g} eV now"
        if fault is not None:
            raise InputError(
                f"{self._path} holds {self.held.count:,} frames, and the last of them {fault} than "
                "that of this input; resume with the input and the options that it began with, "
                "or give another --out."
            )

    def close(self) -> None:
        """Closes the file; closing twice is harmless."""
        if self._file is not None:
            self._file.close()
