"""Devices that share a stream, each driven by a process of its own.

What drives a GPU takes nearly all of the time that Python has in a process, so the one that reads
and writes for several devices or ranks drives none. A device process gets blocks of frames on its
standard input and gives blocks of text on its standard output, in order. It ends with its standard
input, so it never outlives the process that started it, however that ends; signals are left to
that one.
"""

import logging
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from mdgraph.errors import MDGraphError
from mdgraph.runs.streams.blocks import FrameBlock, TextBlock, with_plain_failure
from mdgraph.runs.streams.ranks import ServiceEnded
from mdgraph.runs.streams.workers import Answers, StreamProcess, unexpected

_DONE: Final = "done"

_PATIENCE: Final = 3.0
"""s, in which a device ends what it computes; under NVIDIA's Multi-Process Service a process that
is killed with kernels in flight can end others."""


@dataclass(frozen=True)
class DeviceTask:
    """What a device process is started for; pickled.

    Attributes:
        device: its name.
        workers: processes that it has to parse and format.
        ahead: whether these start at once, as there are many frames.
        arguments: whatever makes its stages.
    """

    device: str
    workers: int
    ahead: bool
    arguments: tuple[Any, ...]


class DeviceProcess(StreamProcess):
    """A process that evaluates blocks on one device; see Link."""

    advice = "--resume"

    def __init__(self, serve: str, task: DeviceTask, threads: str) -> None:
        """Starts it; `begin` waits until it can evaluate.

        Args:
            serve: words of Python that end in `DeviceService.run`.
            task: of the process.
            threads: of torch in it, on the host, as OMP_NUM_THREADS has them.
        """
        super().__init__()
        self.name, self.workers = task.device, task.workers
        self.called = f"The process that evaluates on {task.device}"
        self._start("-c", serve, threads=threads, stdin=subprocess.PIPE, start_new_session=True)
        self._send((task, logging.getLogger("mdgraph").level))

    def begin(self) -> None:
        """Waits until it has its potential; raises MDGraphError where it cannot begin."""
        self._receive()

    def send(self, block: FrameBlock) -> None:
        """See Link."""
        self._send(block)

    def receive(self) -> TextBlock:
        """See Link."""
        block: TextBlock = self._receive()
        return block

    def end(self, *, failed: bool) -> None:
        """See Link."""
        if not failed:
            self._send(_DONE)
        self.close(_PATIENCE)


class DeviceService:
    """The side of a device process: what it is for, and where its blocks come from and go."""

    def __init__(self) -> None:
        """Takes standard input and output, to be called once."""
        self._answers = Answers()
        self.task: DeviceTask
        self.task, level = pickle.load(sys.stdin.buffer)
        logging.getLogger("mdgraph").setLevel(level)

    def begin(self, error: MDGraphError | None) -> None:
        """Says that it can begin, or why it cannot."""
        self._answers.give(error if error is None else MDGraphError(str(error)))

    def read(self, put: Callable[[FrameBlock], None]) -> None:
        """Takes the blocks that come; raises ServiceEnded."""
        try:
            while (message := pickle.load(sys.stdin.buffer)) != _DONE:
                put(message)
        except (EOFError, pickle.UnpicklingError) as error:
            raise ServiceEnded from error

    def give(self, block: TextBlock) -> None:
        """Gives a block back; raises ServiceEnded where nobody takes it."""
        self._give(with_plain_failure(block))

    def fail(self, error: Exception) -> None:
        """Says what no input is to blame for."""
        self._give(unexpected(error, f"the process of {self.task.device}"))

    def _give(self, message: object) -> None:
        try:
            self._answers.give(message)
        except OSError as error:
            raise ServiceEnded from error
