"""Ranks that share a stream: rank 0 reads and writes, the others evaluate blocks for it.

Messages are pickled, over gloo, between processes of one job; what is large in them, the frames and
texts of a block, goes as it lies in memory.
"""

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from mdgraph.devices import ProcessRank
from mdgraph.errors import LostRankError, MDGraphError
from mdgraph.runs.streams.blocks import FrameBlock, TextBlock, with_plain_failure

_PATIENCE: Final = 86_400.0
"""s that a rank is waited for: a stream may pause for long, and a lost rank is seen at once."""

_ADVICE: Final = "; what is written is whole, so go on with --resume."


class ServiceEnded(Exception):  # noqa: N818
    """Rank 0 has no use for what is under way."""


class StreamRanks(ProcessRank):
    """The rank of this process among those that share a stream."""

    @classmethod
    def join(cls) -> "StreamRanks":
        """Joins the job that torchrun names, of one rank without it; raises InputError."""
        return cls.joined("gloo", _PATIENCE)

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
        while (message := self.receive(0)) != "done":
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
            self._ranks.send("failed" if failed else "done", self._other)
        except LostRankError:
            if not failed:
                raise
