"""How processes that hold domains call each other and add up what they found.

Rank 0 drives: it holds the simulation, and calls the others for each evaluation. They hold a
domain each and wait for its calls (`evaluator.join_ranks`), so whatever drives on rank 0, a
command, a script, ASE or OpenMM, needs to know of no other rank. They get potential and positions
from it, and read no files.
"""

import atexit
import contextlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, Protocol
from weakref import WeakSet

import torch
from torch import Tensor

from mdgraph.decomposition.links import FeatureLink, LocalLink, MessageLink
from mdgraph.decomposition.subdomain import Subdomain
from mdgraph.devices import ProcessRank
from mdgraph.errors import LostRankError
from mdgraph.gpu.graphs import CapturedGraph

PATIENCE: Final = 60.0
"""s, that a rank waits for another one within an evaluation."""

_JOINING: Final = 1800.0
"""s, in which all ranks must have started."""

_IDLE: Final = timedelta(days=365)
"""That a rank waits for a call of rank 0; one that ends closes its connections."""

_END: Final = -1
"""Call that ends the others."""


class Exchange(Protocol):
    """Between all domains of a system.

    Attributes:
        numbers: of the domains of this process.
        added: evaluators that other ranks were sent.
    """

    numbers: Sequence[int]
    added: int

    def link(self, domains: Sequence[Subdomain]) -> FeatureLink:
        """What exchanges features of these domains; all processes call it together."""
        ...

    def sum_(self, values: Tensor) -> None:
        """Adds up values of all processes, on rank 0; those of others are undefined then."""
        ...

    def share_(self, tensors: Sequence[Tensor]) -> None:
        """Copies tensors of rank 0 to the other processes."""
        ...

    def any(self, condition: bool) -> bool:
        """Whether a condition holds in any process; waits for all."""
        ...

    def add_(self, make_part: Callable[[], Any], device_type: str) -> int:
        """Sends what the other ranks need to make another evaluator; returns its number.

        Args:
            make_part: makes what is sent, if there are others; see `evaluator.join_ranks`.
            device_type: of the devices where the evaluator runs.
        """
        ...

    def call_(self, number: int, cut: bool, make_message: Callable[[], Any] | None) -> None:
        """Begins an evaluation on the other ranks.

        Args:
            number: of the evaluator.
            cut: whether they cut their domains anew.
            make_message: makes what they need for their first cut, if there are others.
        """
        ...

    def finish_(self) -> None:
        """Ends an evaluation that went well."""
        ...

    def hold(self, graph: CapturedGraph) -> None:
        """Takes note of a graph of an evaluation, which is reset before the processes part."""
        ...


class LocalExchange:
    """All domains in one process, by copies."""

    added = 0

    def __init__(self, count: int) -> None:
        self.numbers: Sequence[int] = range(count)

    def link(self, domains: Sequence[Subdomain]) -> FeatureLink:
        """See Exchange."""
        return LocalLink(domains)

    def sum_(self, values: Tensor) -> None:
        """See Exchange; there is one process."""

    def share_(self, tensors: Sequence[Tensor]) -> None:
        """See Exchange; there is one process."""

    def any(self, condition: bool) -> bool:
        """See Exchange; there is one process."""
        return condition

    def add_(self, make_part: Callable[[], Any], device_type: str) -> int:
        """See Exchange; there is one process."""
        return 0

    def call_(self, number: int, cut: bool, make_message: Callable[[], Any] | None) -> None:
        """See Exchange; there is one process."""

    def finish_(self) -> None:
        """See Exchange; there is one process."""

    def hold(self, graph: CapturedGraph) -> None:
        """See Exchange; there is one process."""


class ProcessExchange:
    """A domain a rank, by torch.distributed's messages from one rank to another.

    Each rank sends and receives in the order of the others' numbers. Calls and what they carry go
    by gloo, and so do features between CPUs; between GPUs features go by NCCL.

    Attributes:
        rank: of this process.
        numbers, added: see Exchange.
    """

    def __init__(self, rank: ProcessRank) -> None:
        """Makes groups within the one that the rank has joined, as all ranks must.

        Rank 0 ends the others when it ends.
        """
        from torch import distributed

        self.rank = rank
        self.numbers: Sequence[int] = (rank.rank,)
        patience = timedelta(seconds=PATIENCE)
        waiting = _IDLE if rank.rank else patience
        self._calls: Any = distributed.new_group(timeout=waiting, backend="gloo")
        self._messages: Any = distributed.new_group(timeout=patience, backend="gloo")
        self._values: dict[str, Any] = {"cpu": self._messages}
        self.added = 0
        self._evaluating = False
        self._graphs: WeakSet[CapturedGraph] = WeakSet()
        atexit.register(self._end)

    @classmethod
    def joined(cls) -> "ProcessExchange | None":
        """That of this process, the same at each call; None without other ranks.

        Raises:
            InputError: see `ProcessRank.joined`.
        """
        if not _joined:
            rank = ProcessRank.joined("gloo", _JOINING)
            if rank.count == 1:
                return None
            _joined.append(cls(rank))
        return _joined[0]

    def link(self, domains: Sequence[Subdomain]) -> FeatureLink:
        """See Exchange."""
        (domain,) = domains
        return MessageLink(domain, self._values, self._naming_lost)

    def sum_(self, values: Tensor) -> None:
        """See Exchange; waits for the other ranks."""
        from torch import distributed

        with self._naming_lost():
            distributed.reduce(values, 0, group=self._values[values.device.type])

    def any(self, condition: bool) -> bool:
        """See Exchange."""
        from torch import distributed

        flag = torch.tensor(int(condition))
        with self._naming_lost():
            distributed.all_reduce(flag, distributed.ReduceOp.MAX, self._messages)
        return bool(flag)

    def open_(self, device_type: str) -> torch.device:
        """The device of this rank, whose values can travel then; all ranks call it together."""
        from torch import distributed

        if device_type != "cuda":
            return torch.device("cpu")
        device = torch.device("cuda", self.rank.local)
        if device_type not in self._values:
            torch.cuda.set_device(device)
            patience = timedelta(seconds=PATIENCE)
            group: Any = distributed.new_group(timeout=patience, backend="nccl")
            self._values[device_type] = group
        return device

    def add_(self, make_part: Callable[[], Any], device_type: str) -> int:
        """See Exchange."""
        self.call_(self.added, False, make_part)
        self.open_(device_type)
        self.finish_()
        self.added += 1
        return self.added - 1

    def finish_(self) -> None:
        """See Exchange."""
        self._evaluating = False

    def hold(self, graph: CapturedGraph) -> None:
        """See Exchange."""
        self._graphs.add(graph)

    def call_(self, number: int, cut: bool, make_message: Callable[[], Any] | None) -> None:
        """See Exchange."""
        from torch import distributed

        if self._evaluating:
            raise LostRankError(
                "The ranks cannot go on after an evaluation that was interrupted; start again."
            )
        self._evaluating = True
        call = torch.tensor([number, cut, make_message is not None])
        with self._naming_lost():
            distributed.broadcast(call, 0, self._calls)
            if make_message is not None:
                distributed.broadcast_object_list([make_message()], 0, self._messages)

    def called(self) -> tuple[int, bool, Any] | None:
        """Waits for a call of rank 0, see `call_`; None at the end.

        Returns:
            The evaluator, whether to cut, and the message or None.
        """
        from torch import distributed

        call = torch.zeros(3, dtype=torch.int64)
        with self._naming_lost():
            distributed.broadcast(call, 0, self._calls)
            number, cut, has_message = call.tolist()
            if number == _END:
                return None
            message = [None]
            if has_message:
                distributed.broadcast_object_list(message, 0, self._messages)
        return number, bool(cut), message[0]

    def share_(self, tensors: Sequence[Tensor]) -> None:
        """See Exchange; waits for the other ranks."""
        from torch import distributed

        with self._naming_lost():
            for tensor in tensors:
                distributed.broadcast(tensor, 0, self._values[tensor.device.type])

    def _end(self) -> None:
        """Ends the others, on rank 0, and leaves the groups; without a call connections end them.

        Where an evaluation failed, the others are in the middle of it and take no call.
        """
        from torch import distributed

        for graph in self._graphs:  # NCCL waits for those that hold its messages
            graph.reset()
        groups = (self._calls, *self._values.values())
        self._calls = self._messages = None
        self._values.clear()  # links have it too
        with contextlib.suppress(Exception):
            if self.rank.rank == 0 and not self._evaluating:
                distributed.broadcast(torch.tensor([_END, 0, 0]), 0, groups[0])
            for group in groups:
                distributed.destroy_process_group(group)

    def _naming_lost(self) -> contextlib.AbstractContextManager[None]:
        return self.rank.naming_lost(
            "; a run goes on from its last checkpoint, on as many ranks or others."
        )


_joined: Final[list[ProcessExchange]] = []
