"""Processes that parse and format the frames of a stream, which Python does on one core alone.

A worker gets calls on its standard input and answers on its standard output, both pickled, and
imports no torch. Calls and answers are blocks, whose frames lie side by side. It ends with its
standard input, so it never outlives the process that started it, however that ends; signals are
left to that one.
"""

import fcntl
import logging
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from typing import IO, Any, Final, TypeVar

import numpy as np

from mdgraph.errors import InputError, MDGraphError, name_some, prefix_errors
from mdgraph.io.log import Evaluation
from mdgraph.io.structures import from_plain_frames, from_xyz
from mdgraph.io.xyz import PlainFrame, parse_plain_frame
from mdgraph.processes import SAME_MODULES, module_path
from mdgraph.runs.streams.blocks import (
    FrameBlock,
    ResultArrays,
    ResultBlock,
    SystemBlock,
    TextBlock,
    with_plain_failure,
)
from mdgraph.signals import SIGNALS
from mdgraph.system import System, SystemArrays, total_charge

Input = TypeVar("Input")
Output = TypeVar("Output")

_SERVE: Final = "from mdgraph.runs.streams.workers import serve; serve()"


def parse_block(block: FrameBlock, charge: float | None = None) -> SystemBlock:
    """The frames before the first that is broken, side by side.

    Args:
        block: as it was read.
        charge: e, of each; None leaves it to the frame, and else takes 0.
    """
    names = [frame.name for frame in block.frames]
    contents = [frame.content for frame in block.frames]
    plain = [None if isinstance(one, System) else parse_plain_frame(one) for one in contents]
    arrays = _parse_together(plain, charge)
    if arrays is not None:
        charges = np.nan_to_num(arrays.charges) if charge is None else np.zeros(len(arrays))
        uncharged = bool(np.isnan(arrays.charges).any())
        systems = arrays.with_charges(charges)
        return SystemBlock(block.number, block.first, names, systems, block.failure, uncharged)
    parsed: list[System] = []
    failure, uncharged = block.failure, False
    try:
        for name, content, frame in zip(names, contents, plain, strict=True):
            with prefix_errors(name):
                system = content if isinstance(content, System) else from_xyz(content, frame)
                uncharged |= system.charge is None
                parsed.append(system.replace(charge=total_charge(system, charge)))
    except MDGraphError as error:
        failure = error
    own = SystemArrays.of(parsed) if parsed else parsed
    return SystemBlock(block.number, block.first, names[: len(parsed)], own, failure, uncharged)


def _parse_together(
    plain: Sequence[PlainFrame | None], charge: float | None
) -> SystemArrays | None:
    """Systems with their own charges; None where each must be made and checked by itself."""
    usual = [frame for frame in plain if frame is not None]
    if not usual or len(usual) < len(plain) or charge:
        return None
    return from_plain_frames(usual)


def format_block(block: ResultBlock) -> TextBlock:
    """The frames before the first that cannot be written, as extended XYZ."""
    texts: list[bytes] = []
    failure, results = block.failure, block.results
    try:
        if results is not None:
            systems = SystemArrays.of(block.systems)
            are_finite = bool(np.isfinite(results.forces).all())
            for place, name in enumerate(block.names):
                with prefix_errors(name):
                    evaluation = _evaluation(systems, results, place, are_finite=are_finite)
                    texts.append(evaluation.extended_xyz())
    except MDGraphError as error:
        failure = error
    ends = [*accumulate(map(len, texts))]
    return TextBlock(block.number, block.first, b"".join(texts), ends, failure=failure)


def _evaluation(
    systems: SystemArrays, results: ResultArrays, place: int, *, are_finite: bool
) -> Evaluation:
    """The record that is written for a frame; raises InputError if forces are not finite."""
    end = results.ends[place]
    atoms = slice(end - int(systems.sizes[place]), end)
    forces = results.forces[atoms]
    if not are_finite and not np.isfinite(forces).all():
        bad = np.flatnonzero(~np.isfinite(forces).all(axis=1))
        raise InputError(
            f"The forces on atoms {name_some(bad.tolist())} are not finite; check the structure."
        )
    volume = float(systems.volumes[place])
    return Evaluation(
        system=systems[place],
        energy=float(results.energy[place]),
        energies=results.energies[atoms],
        forces=forces,
        stress=-results.virial[place] / volume if volume > 0.0 else None,
        info=results.info[place] if results.info else {},
        arrays=results.arrays[place] if results.arrays else {},
    )


def run_here(convert: Callable[[Input], Output], block: Input) -> Output:
    """Converts a block in this process, as `Worker.convert` does in another one."""
    return convert(block)


class StreamProcess:
    """A process that gets and gives pickled messages; see `Answers` for its side.

    Attributes:
        called: for people, how its end is told.
        advice: what to do where it is gone.
    """

    called: str
    advice: str

    def __init__(self) -> None:
        """Starts nothing yet."""
        self._process: subprocess.Popen[bytes] | None = None
        self._calls: IO[bytes] | None = None

    def _start(self, *words: str, threads: str = "1", **options: Any) -> None:
        """Runs Python on some words, with a pipe for answers; its standard input, if one, is it."""
        self._process = subprocess.Popen(
            [sys.executable, *SAME_MODULES, *words],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": module_path(), "OMP_NUM_THREADS": threads},
            **options,
        )
        widen(self._process.stdin, self._process.stdout)
        self._calls = self._process.stdin

    def _send(self, message: object) -> None:
        """Gives it a message; raises MDGraphError where it is gone."""
        assert self._calls is not None
        with self._naming_end():
            send(self._calls, message)

    def _receive(self) -> Any:
        """Waits for its next message, and logs what it has logged.

        Raises:
            MDGraphError: the process is gone.
            Exception: anything that it gave as one.
        """
        assert self._process is not None
        assert self._process.stdout is not None
        with self._naming_end():
            message, logged = pickle.load(self._process.stdout)
        for text in logged:
            log_once(*text)
        if isinstance(message, BaseException):
            raise message
        return message

    @contextmanager
    def _naming_end(self) -> Iterator[None]:
        """Raises MDGraphError where a message fails in the block, as the process is gone."""
        try:
            yield
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            assert self._process is not None
            raise MDGraphError(
                f"{self.called} ended (status {self._process.wait()}), as it does where memory is "
                f"short; what is written is whole, so continue with {self.advice}."
            ) from error

    def close(self, patience: float = 0.0) -> None:
        """Ends the process; of no effect on one that is gone, or not begun.

        Args:
            patience: s, in which it may end by itself, as its standard input does; then at once.
        """
        if self._process is None:
            return
        if patience and self._calls is not None:
            with suppress(OSError):
                self._calls.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(patience)
        self._process.kill()
        self._process.wait()
        for pipe in (self._calls, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # of a message that it did not take any more
                    pipe.close()


class Worker(StreamProcess):
    """A process that converts frames; it starts with its first call, or before by `start`."""

    called = "A process that reads and formats frames"
    advice = "--resume, and fewer --workers"

    def start(self) -> None:
        """Starts it where it is not, so that it imports modules before it is needed."""
        if self._process is None:
            # In a session of its own, so that Ctrl-C comes to the process that started it alone.
            self._start("-c", _SERVE, stdin=subprocess.PIPE, start_new_session=True)

    def convert(self, convert: Callable[[Input], Output], block: Input) -> Output:
        """Calls a function of this module, with arguments bound or without, in the process.

        Raises:
            MDGraphError: the process is gone.
            Exception: anything else that the function raised.
        """
        self.start()
        self._send((convert, block))
        output: Output = self._receive()
        return output


def default_workers(devices: Sequence[str]) -> int:
    """How many workers feed some devices, by their types: none of CPUs, which are slower."""
    gpus = sum(device == "cuda" for device in devices)
    cores = len(os.sched_getaffinity(0)) // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    return max(0, min(_WORKERS_OF_A_GPU * gpus, cores - 1 - gpus))


_WORKERS_OF_A_GPU: Final = 6
"""A core parses and formats 100 atoms some 3,000 times a second, and a GPU with the thread that
drives it evaluates them 14,000 times. Each worker has a thread beside that one, so with 16 an H200
gets fewer frames."""


def send(pipe: IO[bytes], message: object) -> None:
    """Writes a message; raises OSError where nobody reads it."""
    pickle.dump(message, pipe, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.flush()


def widen(*pipes: IO[bytes] | None) -> None:
    """Lets pipes hold more at a time where the system allows it: Python then waits less often."""
    for pipe in filter(None, pipes):
        with suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE)


_PIPE: Final = 1 << 20
"""Bytes, as many as a user without privileges may ask for."""


_logged_texts: Final[set[str]] = set()


def log_once(name: str, level: int, text: str) -> None:
    """Logs what a worker logged, which others may log too."""
    if text not in _logged_texts:
        _logged_texts.add(text)
        logging.getLogger(name).log(level, "%s", text)


class MessageBuffer(logging.Handler):
    """Keeps what is logged for the process that asked."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[tuple[str, int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        self.texts.append((record.name, record.levelno, record.getMessage()))


class Answers:
    """The side of a process that `StreamProcess` starts: where its messages go.

    Signals are left to the process that started it.
    """

    def __init__(self) -> None:
        """Takes standard output for messages, to be called once; what is printed goes to errors."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        self._pipe = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)  # what any library prints is no message
        self._logged = MessageBuffer()
        logging.getLogger().addHandler(self._logged)

    def give(self, message: Any) -> None:
        """Sends a message with all that was logged since the last; raises OSError if none reads."""
        logged, self._logged.texts = self._logged.texts, []
        send(self._pipe, (message, logged))


def unexpected_error(error: Exception, process: str) -> RuntimeError:
    """An error that no input is to blame for, as one that can be pickled, with its process."""
    return RuntimeError(f"{type(error).__name__} in {process}: {error}")


def serve() -> None:
    """Converts frames for the process that started this one, until that ends."""
    answers = Answers()
    try:
        while True:
            convert, block = pickle.load(sys.stdin.buffer)
            answer: Any
            try:
                answer = with_plain_failure(convert(block))
            except Exception as error:  # noqa: BLE001  # raised again where it was called
                answer = unexpected_error(error, "a process that converts frames")
            answers.give(answer)
    except (EOFError, OSError, pickle.UnpicklingError):
        os._exit(0)  # the other one ended, and buffers have nobody to go to
