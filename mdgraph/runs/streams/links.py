"""Links to what evaluates blocks for a stream: processes of devices here, and ranks elsewhere.

What drives a GPU takes nearly all of the time that Python has in a process, so the one that reads
and writes for several devices or ranks drives none. A device process gets blocks of frames on its
standard input and gives blocks of text on its standard output, in order. It ends with its standard
input, so it never outlives the process that started it, however that ends; signals are left to
that one.

Ranks are processes of one job: rank 0 reads and writes, the others evaluate blocks for it. Messages
are pickled, over gloo; what is large in them, the frames and texts of a block, goes as it lies in
memory.
"""

import logging
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from mdgraph.devices import ProcessRank
from mdgraph.errors import LostRankError, MDGraphError
from mdgraph.runs.streams.blocks import FrameBlock, TextBlock, with_plain_failure
from mdgraph.runs.streams.workers import Answers, StreamProcess, unexpected_error

_DONE: Final = "done"

_DEVICE_PATIENCE: Final = 3.0
"""s, in which a device ends what it computes; under NVIDIA's Multi-Process Service a process that
is killed with kernels in flight can end others."""

_RANK_PATIENCE: Final = 86_400.0
"""s that a rank is waited for: a stream may pause for long, and a lost rank is seen at once."""

_ADVICE: Final = "; what is written is whole, so continue with --resume."


class ServiceEnded(Exception):  # noqa: N818
    """The process that reads and writes has no use for what is under way."""


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
        self.close(_DEVICE_PATIENCE)


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
        self._give(unexpected_error(error, f"the process of {self.task.device}"))

    def _give(self, message: object) -> None:
        try:
            self._answers.give(message)
        except OSError as error:
            raise ServiceEnded from error


class StreamRanks(ProcessRank):
    """The rank of this process among those that share a stream."""

    @classmethod
    def join(cls) -> "StreamRanks":
        """Joins the job that torchrun names, of one rank without it; raises InputError."""
        return cls.joined("gloo", _RANK_PATIENCE)

    def agree(self, error: MDGraphError | None) -> None:
        """Ends all ranks if one of them cannot begin; blocks until all have called it.

        Args:
            error: why this rank cannot begin, or None.

        Raises:
            MDGraphError: on rank 0, the first error of all.
            SystemExit: on another rank, if any has an error.
        """
        errors: list[Any] = [None if error is None else str(error)]
        if self.count > 1:
            from torch import distributed

            errors *= self.count
            with self.naming_lost(_ADVICE):
                distributed.all_gather_object(errors, errors[0])
        if not any(errors):
            return
        if self.rank:
            raise SystemExit(0)  # rank 0 says it, and its status is that of the job
        if error is not None:
            raise error
        number, sentence = next((at, one) for at, one in enumerate(errors) if one)
        raise MDGraphError(f"Rank {number}: {sentence}")

    def send(self, message: object, other: int) -> None:
        """Gives another rank a message; blocks until that takes it.

        A message has several parts, so one thread at a time may send to a rank; several threads may
        send to a rank each.

        Args:
            message: anything that pickles; its buffers go as they are.
            other: number of the rank, which calls `receive`.

        Raises:
            LostRankError: that rank, or another one of the job, is gone.
        """
        from torch import distributed

        buffers: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(message, pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append)
        parts = [_writable(pickled), *(_writable(buffer.raw()) for buffer in buffers)]
        sizes = [len(part) for part in parts]
        with self.naming_lost(_ADVICE):
            distributed.send(torch.tensor([len(sizes)]), other)
            distributed.send(torch.tensor(sizes), other)
            for part in filter(len, parts):
                distributed.send(torch.from_numpy(part), other)

    def receive(self, other: int) -> Any:
        """Waits for the next message of another rank; raises LostRankError."""
        from torch import distributed

        def received(size: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
            content = torch.empty(size, dtype=dtype)
            if size:
                distributed.recv(content, other)
            return content

        with self.naming_lost(_ADVICE):
            sizes = received(int(received(1, torch.int64)), torch.int64)
            pickled, *buffers = [received(size).numpy().data for size in sizes.tolist()]
        return pickle.loads(pickled, buffers=buffers)

    def give(self, block: TextBlock) -> None:
        """Gives rank 0 a block that it asked for; raises LostRankError."""
        self.send(with_plain_failure(block), 0)

    def links(self, workers: int) -> list["LinkedRank"]:
        """The other ranks, as rank 0 sees them, each with so many workers; none on another one."""
        others = range(1, self.count) if self.rank == 0 else ()
        return [LinkedRank(self, other, workers) for other in others]

    def read_blocks(self, put: Callable[[FrameBlock], None]) -> None:
        """Takes the blocks that rank 0 sends; raises ServiceEnded, LostRankError."""
        while (message := self.receive(0)) != _DONE:
            if message == "failed":
                raise ServiceEnded
            put(message)


def _writable(content: bytes | memoryview) -> NDArray[np.uint8]:
    """Bytes as an array, copied where they are read-only, of which PyTorch makes no tensor."""
    array = np.frombuffer(content, dtype=np.uint8)
    return array if array.flags.writeable else array.copy()


class LinkedRank:
    """Another rank, as rank 0 sees it; see Link."""

    def __init__(self, ranks: StreamRanks, other: int, workers: int) -> None:
        self._ranks, self._other = ranks, other
        self.name, self.workers = f"rank {other}", workers

    def send(self, block: FrameBlock) -> None:
        """See Link."""
        self._ranks.send(block, self._other)

    def receive(self) -> TextBlock:
        """See Link."""
        block: TextBlock = self._ranks.receive(self._other)
        waiting, computing = (
            {f"{self.name} {name}": share for name, share in shares.items()}
            for shares in (block.waiting, block.computing)
        )
        return replace(block, waiting=waiting, computing=computing)

    def end(self, *, failed: bool) -> None:
        """See Link."""
        try:
            self._ranks.send("failed" if failed else _DONE, self._other)
        except LostRankError:
            if not failed:
                raise
