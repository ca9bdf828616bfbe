"""Processes that parse and format the frames of a stream, which Python does on one core alone.

A worker gets calls on its standard input and answers on its standard output, both pickled, and
imports no torch. It ends with its standard input, so it never outlives the process that started it,
however that ends; signals are left to that one.
"""

import logging
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import IO, Any, Final

from mdgraph.errors import MDGraphError, prefix_errors
from mdgraph.io.log import Evaluation
from mdgraph.io.structures import from_xyz
from mdgraph.io.xyz import FrameText
from mdgraph.processes import SAME_MODULES, module_path
from mdgraph.signals import SIGNALS
from mdgraph.system import System

_SERVE: Final = "from mdgraph.runs.streams.workers import serve; serve()"


@dataclass(frozen=True, eq=False)
class Conversion:
    """What became of some frames.

    Attributes:
        done: of those before the first that failed, in order.
        failure: of that one; None where all are done.
    """

    done: Sequence[Any]
    failure: MDGraphError | None = None


def parse_frames(frames: Sequence[tuple[str, FrameText | System]]) -> Conversion:
    """Systems of frames, by the names that errors have for them."""
    return _each(lambda text: text if isinstance(text, System) else from_xyz(text), frames)


def format_frames(frames: Sequence[tuple[str, Evaluation]]) -> Conversion:
    """Evaluations as bytes of extended XYZ, by the names that errors have for them."""
    return _each(Evaluation.extended_xyz, frames)


def _each(convert: Callable[[Any], Any], frames: Sequence[tuple[str, Any]]) -> Conversion:
    done = []
    try:
        for name, frame in frames:
            with prefix_errors(name):
                done.append(convert(frame))
    except MDGraphError as failure:
        return Conversion(done, failure)
    return Conversion(done)


def run_here(conversion: Callable[[Any], Conversion], frames: Sequence[Any]) -> Conversion:
    """Converts frames in this process, as `Worker.convert` does in another one."""
    return conversion(frames)


class Worker:
    """A process that converts frames; it starts with its first call."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def convert(self, conversion: Callable[[Any], Conversion], frames: Sequence[Any]) -> Conversion:
        """Calls a function of this module in the process.

        Raises:
            MDGraphError: the process is gone.
            Exception: anything else that the function raised.
        """
        if self._process is None:
            self._process = _started()
        try:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            send(self._process.stdin, (conversion.__name__, frames))
            answer, messages = pickle.load(self._process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise MDGraphError(
                f"A process that reads and formats frames ended (status {self._process.wait()}), "
                "as it does where memory is short; what is written is whole, so go on with "
                "--resume, and fewer --workers."
            ) from error
        for name, level, text in messages:
            _say_once(name, level, text)
        if isinstance(answer, BaseException):
            raise answer
        assert isinstance(answer, Conversion)
        return answer

    def close(self) -> None:
        """Ends the process at once; of no effect on one that is gone."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # of a call that it did not take any more
                    pipe.close()


def default_workers(devices: Sequence[str]) -> int:
    """How many workers feed some devices, by their types: none of CPUs, which are slower."""
    gpus = sum(device == "cuda" for device in devices)
    cores = len(os.sched_getaffinity(0)) // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    return max(0, min(_WORKERS_OF_A_GPU * gpus, cores - 1 - gpus))


_WORKERS_OF_A_GPU: Final = 4
"""A GPU evaluates 100 atoms in about the time in which a core parses and formats them."""


def send(pipe: IO[bytes], message: object) -> None:
    """Writes a message; raises OSError where nobody reads it."""
    pickle.dump(message, pipe, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.flush()


def _started() -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, *SAME_MODULES, "-c", _SERVE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": module_path(), "OMP_NUM_THREADS": "1"},
        start_new_session=True,  # so that Ctrl-C comes to this process alone
    )


_said: Final[set[str]] = set()


def _say_once(name: str, level: int, text: str) -> None:
    """Logs what a worker logged, which others may log too."""
    if text not in _said:
        _said.add(text)
        logging.getLogger(name).log(level, "%s", text)


class _KeptMessages(logging.Handler):
    """Keeps what is logged for the process that asked."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[tuple[str, int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        self.texts.append((record.name, record.levelno, record.getMessage()))


def serve() -> None:
    """Converts frames for the process that started this one, until that ends."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    calls, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what any library prints is no answer
    messages = _KeptMessages()
    logging.getLogger().addHandler(messages)
    conversions = {one.__name__: one for one in (parse_frames, format_frames)}
    try:
        while True:
            name, frames = pickle.load(calls)
            answer: Conversion | Exception
            try:
                answer = conversions[name](frames)
            except Exception as error:  # noqa: BLE001  # raised again where it was called
                answer = error
            send(answers, (_picklable(answer), messages.texts))
            messages.texts = []
    except (EOFError, OSError, pickle.UnpicklingError):
        os._exit(0)  # the other one ended, and buffers have nobody to go to


def _picklable(answer: Conversion | Exception) -> Conversion | Exception:
    """The same, with errors of which nothing but the sentence is known at the other end."""
    if isinstance(answer, Conversion):
        failure = answer.failure
        return answer if failure is None else replace(answer, failure=MDGraphError(str(failure)))
    return RuntimeError(f"{type(answer).__name__} in a process that converts frames: {answer}")
