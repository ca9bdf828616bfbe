"""How domains exchange features and add up what they found: in one process, or between ranks.

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

import torch
from torch import Tensor

from mdgraph.decomposition.subdomain import Subdomain
from mdgraph.devices import ProcessRank
from mdgraph.errors import LostRankError

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

    def fill_(self, domains: Sequence[Subdomain], features: Sequence[Tensor]) -> None:
        """Copies features (n, W) of atoms that others own from their domains.

        Args:
            domains: of this process.
            features: of each of them, in which rows of own atoms are written.
        """
        ...

    def sum_(self, values: Tensor) -> None:
        """Adds up values of all processes, on rank 0; those of others are undefined then."""
        ...

    def add_(self, make_part: Callable[[], Any], device_type: str) -> int:
        """Sends what the other ranks need to make another evaluator; returns its number.

        Args:
            make_part: makes what is sent, if there are others; see `evaluator.join_ranks`.
            device_type: of the devices where the evaluator runs.
        """
        ...

    def call_(self, number: int, tensors: Sequence[Tensor], message: Any = None) -> None:
        """Begins an evaluation on the other ranks.

        Args:
            number: of the evaluator.
            tensors: what the step changes.
            message: what a new cut needs; None keeps the last one.
        """
        ...


class LocalExchange:
    """All domains in one process, by copies."""

    added = 0

    def __init__(self, count: int) -> None:
        self.numbers: Sequence[int] = range(count)

    def fill_(self, domains: Sequence[Subdomain], features: Sequence[Tensor]) -> None:
        """See Exchange."""
        for number, domain in enumerate(domains):
            for other, rows in domain.receive.items():
                features[number][rows] = features[other][domains[other].send[number]]

    def sum_(self, values: Tensor) -> None:
        """See Exchange; there is one process."""

    def add_(self, make_part: Callable[[], Any], device_type: str) -> int:
        """See Exchange; there is one process."""
        return 0

    def call_(self, number: int, tensors: Sequence[Tensor], message: Any = None) -> None:
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

    def fill_(self, domains: Sequence[Subdomain], features: Sequence[Tensor]) -> None:
        """See Exchange; waits for the other ranks."""
        from torch import distributed

        (domain,), (own,) = domains, features
        messages = []
        for other, rows in domain.receive.items():
            sent = own.index_select(0, domain.send[other])
            for act, values in ((distributed.isend, sent), (distributed.irecv, own[rows])):
                group = self._values[own.device.type]
                messages.append(distributed.P2POp(act, values, other, group))
        with self._naming_lost():
            for request in distributed.batch_isend_irecv(messages) if messages else ():
                request.wait()

    def sum_(self, values: Tensor) -> None:
        """See Exchange; waits for the other ranks."""
        from torch import distributed

        with self._naming_lost():
            distributed.reduce(values, 0, group=self._values[values.device.type])
        self._evaluating = False

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
        self._tell(self.added, make_part())
        self.open_(device_type)
        self._evaluating = False
        self.added += 1
        return self.added - 1

    def call_(self, number: int, tensors: Sequence[Tensor], message: Any = None) -> None:
        """See Exchange."""
        self._tell(number, message)
        self.share_(tensors)

    def _tell(self, number: int, message: Any) -> None:
        from torch import distributed

        if self._evaluating:
            raise LostRankError(
                "The ranks cannot go on after an evaluation that was interrupted; start again."
            )
        self._evaluating = True
        call = torch.tensor([number, message is not None])
        with self._naming_lost():
            distributed.broadcast(call, 0, self._calls)
            if message is not None:
                distributed.broadcast_object_list([message], 0, self._messages)

    def called(self) -> tuple[int, Any] | None:
        """Waits for a call of rank 0: the evaluator and a message or None; None at the end."""
        from torch import distributed

        call = torch.zeros(2, dtype=torch.int64)
        with self._naming_lost():
            distributed.broadcast(call, 0, self._calls)
            number, has_message = call.tolist()
            if number == _END:
                return None
            message = [None]
            if has_message:
                distributed.broadcast_object_list(message, 0, self._messages)
        return number, message[0]

    def share_(self, tensors: Sequence[Tensor]) -> None:
        """Copies what the step changed from rank 0 to the others."""
        from torch import distributed

        with self._naming_lost():
            for tensor in tensors:
                distributed.broadcast(tensor, 0, self._values[tensor.device.type])

    def _end(self) -> None:
        """Ends the others, on rank 0, and leaves the groups; without a call connections end them.

        Where an evaluation failed, the others are in the middle of it and take no call.
        """
        from torch import distributed

        groups = (self._calls, *self._values.values())
        self._calls, self._messages, self._values = None, None, {}
        with contextlib.suppress(Exception):
            if self.rank.rank == 0 and not self._evaluating:
                distributed.broadcast(torch.tensor([_END, 0]), 0, groups[0])
            for group in groups:
                distributed.destroy_process_group(group)

    def _naming_lost(self) -> contextlib.AbstractContextManager[None]:
        return self.rank.naming_lost(
            "; a run goes on from its last checkpoint, on as many ranks or others."
        )


_joined: Final[list[ProcessExchange]] = []
