"""How processes that hold domains call each other and add up what they found.

Rank 0 drives: it holds the simulation, and calls the others for the steps of each chunk, and for
each evaluation beside. They hold a domain each and wait for its calls
(`server.join_ranks`), so whatever drives on rank 0, a command or a script, needs to know of no
other rank. They get potential and positions from it, and read no files.

Features get from the domains that own atoms to those that have copies of them by two transports,
or links: copies within a process, and messages of torch.distributed. Both fill the same rows with
the same bits, have static shapes and do not sync on CUDA, so they are part of a CUDA graph. A
third, which wrote into the memory of the other GPU (torch's symmetric memory), gained nothing over
messages of NCCL in a graph; see docs/architecture.md.
"""

import atexit
import contextlib
import enum
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Protocol
from weakref import WeakSet

import torch
from torch import Tensor

from mdgraph.decomposition.heartbeat import ADVICE, RankWatch
from mdgraph.decomposition.subdomain import Subdomain
from mdgraph.devices import ProcessRank
from mdgraph.errors import InputError, LostRankError
from mdgraph.gpu.graphs import CapturedGraph
from mdgraph.gpu.launch import Branch

PATIENCE: Final = 60.0
"""s, that a rank waits for another one within an evaluation."""

_LINGERING: Final = timedelta(minutes=10)
"""That a message between GPUs may wait, from when the host launches it, for all that was launched
before and for the other rank. One that is lost is noticed by its beats."""

_JOINING: Final = 1800.0
"""s, in which all ranks must have started."""

_IDLE: Final = timedelta(days=365)
"""That a rank waits for a call of rank 0; one that ends closes its connections."""


class Call(enum.IntEnum):
    """What rank 0 tells the others to do, in the order in which it does it itself."""

    ADD = enum.auto()
    """Make another evaluator of what is sent."""

    BEGIN = enum.auto()
    """Make the lists of a system of what is sent, and its domains."""

    GROW = enum.auto()
    """Enlarge the buffers of its domains."""

    EVALUATE = enum.auto()
    """Evaluate the domain."""

    BEGIN_STEPS = enum.auto()
    """Make what takes steps of a system, each rank of its own atoms."""

    STEPS = enum.auto()
    """Take such steps."""

    FORGET = enum.auto()
    """Drop the graphs of such steps."""

    DROP_STEPS = enum.auto()
    """Take no such steps any more."""

    DROP = enum.auto()
    """Drop the domains of a system."""

    DROP_EVALUATOR = enum.auto()
    """Drop an evaluator, whose systems are dropped too."""

    END = enum.auto()
    """End."""


@dataclass(frozen=True)
class CallMessage:
    """A call as another rank gets it.

    Attributes:
        call: what to do.
        number: of the evaluator, system or graph.
        content: what came along, or None.
    """

    call: Call
    number: int
    content: Any


class FeatureLink(Protocol):
    """Between the domains of this process and all others, for the buffers that they have now."""

    def begin_(self, features: Sequence[Tensor]) -> None:
        """Begins to copy features (R, W) of atoms that others own from their domains.

        Args:
            features: of each domain of this process, in which rows of own atoms are written.
        """
        ...

    def end_(self) -> None:
        """Makes what follows wait for the copies."""
        ...


class LocalLink:
    """All domains in one process, by copies; on a GPU on a stream of their own, as messages go."""

    def __init__(self, domains: Sequence[Subdomain]) -> None:
        self._domains = domains
        self._branch = Branch(domains[0].source.device, "exchange", -1)

    def begin_(self, features: Sequence[Tensor]) -> None:
        """See FeatureLink."""
        with self._branch.fork():
            for domain, own in zip(self._domains, features, strict=True):
                for other, rows in domain.receive.items():
                    sent = self._domains[other].send[domain.number]
                    torch.index_select(features[other], 0, sent, out=own[rows])

    def end_(self) -> None:
        """See FeatureLink."""
        self._branch.join()


class MessageLink:
    """A domain a process, by messages: of gloo between CPUs, of NCCL between GPUs.

    Between GPUs they go on a stream of their own, of higher priority: a message has few programs,
    which would wait for the thousands of a kernel that was launched before.
    """

    def __init__(
        self,
        domain: Subdomain,
        groups: Mapping[str, Any],
        naming_lost: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Sends nothing yet.

        Args:
            domain: of this process.
            groups: of torch.distributed by the type of device; looked up at each exchange, so that
                whoever ends them ends them.
            naming_lost: a context that says which rank was lost.
        """
        self._domain, self._groups, self._naming_lost = domain, groups, naming_lost
        self._branch = Branch(domain.source.device, "exchange", -1)

    def give_back_(self, forces: Tensor) -> None:
        """Adds forces (R, 3) on copies of atoms to those that their owners have.

        They are added in the order of the ranks. Static shapes; does not sync on CUDA.
        """
        send, receive = self._domain.send, self._domain.receive
        found = {other: forces.new_empty(len(rows), 3) for other, rows in send.items()}
        sent = {other: forces[rows] for other, rows in receive.items()}
        swap(sent, found, self._groups[forces.device.type], self._naming_lost)
        for other, values in found.items():
            # Places without an atom bring zeros.
            forces.index_add_(0, send[other], values)

    def begin_(self, features: Sequence[Tensor]) -> None:
        """See FeatureLink; waits for the other processes, without CUDA."""
        with self._branch.fork():
            self._exchange_(*features)

    def end_(self) -> None:
        """See FeatureLink."""
        self._branch.join()

    def _exchange_(self, own: Tensor) -> None:
        send, receive = self._domain.send, self._domain.receive
        sent = {other: own.index_select(0, rows) for other, rows in send.items()}
        found = {other: own[rows] for other, rows in receive.items()}
        swap(sent, found, self._groups[own.device.type], self._naming_lost)


def swap(
    sent: Mapping[int, Tensor],
    found: Mapping[int, Tensor],
    group: Any,
    naming_lost: Callable[[], AbstractContextManager[None]],
) -> None:
    """Sends values to other ranks, and receives theirs; static shapes, waits without CUDA alone.

    Args:
        sent: by rank; those are sent from here.
        found: by rank; written.
        group: of torch.distributed.
        naming_lost: a context that says which rank was lost.
    """
    from torch import distributed

    messages = []
    for other in sorted({*sent, *found}):
        if other in sent:
            messages.append(distributed.P2POp(distributed.isend, sent[other], other, group))
        if other in found:
            messages.append(distributed.P2POp(distributed.irecv, found[other], other, group))
    with naming_lost():
        for request in distributed.batch_isend_irecv(messages) if messages else ():
            request.wait()


class Exchange(Protocol):
    """Between all domains of a system.

    Attributes:
        numbers: of the domains of this process.
        count: of all domains.
        leads: whether the system itself is in this process.
        alone: whether there is no other process.
    """

    numbers: Sequence[int]
    count: int
    leads: bool
    alone: bool

    def link(self, domains: Sequence[Subdomain]) -> FeatureLink:
        """What exchanges features of these domains."""
        ...

    def collect(self, values: Tensor, lengths: Sequence[int]) -> list[Tensor]:
        """Values of the other processes, on rank 0 in their order; others send theirs.

        Args:
            values: (n, ...) of this process.
            lengths: n of each.
        """
        ...

    def share_(self, values: Tensor) -> Callable[[], None]:
        """Begins to copy values of rank 0 to the other processes; the result ends that."""
        ...

    def agree_(self, values: Tensor) -> None:
        """Writes the largest of all processes into values on the host; all ranks call it."""
        ...

    def call_(self, call: Call, number: int, make_content: Callable[[], Any] | None = None) -> None:
        """Tells the other ranks, if there are any, what rank 0 does next.

        Args:
            call: what that is.
            number: of the evaluator, system or graph.
            make_content: makes what they need for it.
        """
        ...

    def finish_(self) -> None:
        """Ends what a call began, if that went well."""
        ...

    def open_(self, device_type: str) -> torch.device:
        """The device of this rank, whose values can travel then; all ranks call it together."""
        ...

    def drop(self, call: Call, number: int) -> None:
        """Lets the others drop what a call says, at the next one."""
        ...


class LocalExchange:
    """All domains in one process, by copies; see Exchange."""

    leads = alone = True

    def __init__(self, count: int) -> None:
        self.numbers: Sequence[int] = range(count)
        self.count = count

    def link(self, domains: Sequence[Subdomain]) -> FeatureLink:
        """See Exchange."""
        return LocalLink(domains)

    def collect(self, values: Tensor, lengths: Sequence[int]) -> list[Tensor]:
        """See Exchange; there is one process."""
        return []

    def share_(self, values: Tensor) -> Callable[[], None]:
        """See Exchange; there is one process."""
        return lambda: None

    def agree_(self, values: Tensor) -> None:
        """See Exchange; there is one process."""

    def call_(self, call: Call, number: int, make_content: Callable[[], Any] | None = None) -> None:
        """See Exchange; there is one process."""

    def finish_(self) -> None:
        """See Exchange; there is one process."""

    def open_(self, device_type: str) -> torch.device:
        """See Exchange; there is one process."""
        return torch.device(device_type)

    def drop(self, call: Call, number: int) -> None:
        """See Exchange; there is one process."""


class ProcessExchange:
    """A domain a rank, by torch.distributed's messages from one rank to another.

    Each rank sends and receives in the order of the others' numbers. Calls and what they carry go
    by gloo, and so do features between CPUs; between GPUs features go by NCCL.

    Attributes:
        rank: of this process.
        numbers, count, leads, alone: see Exchange.
    """

    alone = False

    def __init__(self, rank: ProcessRank) -> None:
        """Makes groups within the one that the rank has joined, as all ranks must.

        Rank 0 ends the others when it ends.
        """
        from torch import distributed

        self.rank, self.leads = rank, rank.rank == 0
        self.numbers: Sequence[int] = (rank.rank,)
        self.count = rank.count
        patience = timedelta(seconds=PATIENCE)
        waiting = patience if self.leads else _IDLE
        self._calls: Any = distributed.new_group(timeout=waiting, backend="gloo")
        self._messages: Any = distributed.new_group(timeout=patience, backend="gloo")
        self._values: dict[str, Any] = {"cpu": self._messages}
        self._busy = False
        self._held: WeakSet[CapturedGraph] = WeakSet()
        self._dropped: deque[tuple[Call, int]] = deque()
        self._paced: torch.cuda.Event | None = None
        self._watch = RankWatch.begun(rank, self._messages)
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

    def collect(self, values: Tensor, lengths: Sequence[int]) -> list[Tensor]:
        """See Exchange; waits for the other ranks, without CUDA."""
        if not self.leads:
            self.swap({0: values}, {})
            return []
        found = {
            other: values.new_empty(lengths[other], *values.shape[1:])
            for other in range(1, self.count)
        }
        self.swap({}, found)
        return [*found.values()]

    def share_(self, values: Tensor) -> Callable[[], None]:
        """See Exchange; its end waits for the other ranks, without CUDA."""
        from torch import distributed

        with self._naming_lost():
            group = self._values[values.device.type]
            request: Any = distributed.broadcast(values, 0, group, async_op=True)

        def wait() -> None:
            with self._naming_lost():
                request.wait()

        return wait

    def agree_(self, values: Tensor) -> None:
        """See Exchange."""
        from torch import distributed

        with self._naming_lost():
            distributed.all_reduce(values, distributed.ReduceOp.MAX, self._messages)

    def swap(self, sent: Mapping[int, Tensor], found: Mapping[int, Tensor]) -> None:
        """Sends values by rank, and writes what others send, see `swap`."""
        values = next(iter([*sent.values(), *found.values()]), None)
        if values is not None:
            swap(sent, found, self._values[values.device.type], self._naming_lost)

    def gather(self, values: Tensor) -> Tensor:
        """(P, ...) values of all ranks; static shapes, does not sync on CUDA."""
        from torch import distributed

        found = values.new_empty(self.rank.count, *values.shape)
        with self._naming_lost():
            group = self._values[values.device.type]
            distributed.all_gather(list(found), values.contiguous(), group)
        return found

    def raise_(self, values: Tensor) -> None:
        """Writes the largest of all ranks into values on the device; does not sync on CUDA."""
        from torch import distributed

        with self._naming_lost():
            group = self._values[values.device.type]
            distributed.all_reduce(values, distributed.ReduceOp.MAX, group)

    def keep_pace_(self, device: torch.device) -> None:
        """Waits on CUDA until what was launched before the last such call has been done.

        So a message that is launched next, outside of graphs, waits for what was launched since,
        such as a stretch of steps, and not for all that the host is ahead.
        """
        if device.type != "cuda":
            return
        if self._paced is not None:
            self._paced.synchronize()
        self._paced = torch.cuda.Event()
        self._paced.record(torch.cuda.current_stream(device))

    def any(self, condition: bool) -> bool:
        """Whether a condition holds on any rank; all ranks call it together."""
        flag = torch.tensor(int(condition))
        self.agree_(flag)
        return bool(flag)

    def open_(self, device_type: str) -> torch.device:
        """See Exchange.

        Raises:
            InputError: on rank 0, a rank has no GPU of its own, or GPUs are unlike.
            SystemExit: on other ranks then.
        """
        from torch import distributed

        if device_type != "cuda":
            return torch.device("cpu")
        device = torch.device("cuda", self.rank.local)
        if device_type not in self._values:
            self._check_cards(device)
            torch.cuda.set_device(device)
            patience = timedelta(seconds=PATIENCE) if self._watch is None else _LINGERING
            options = distributed.ProcessGroupNCCL.Options(is_high_priority_stream=True)
            group: Any = distributed.new_group(timeout=patience, backend="nccl", pg_options=options)
            self._values[device_type] = group
        return device

    def _check_cards(self, device: torch.device) -> None:
        """Raises what `open_` does; all ranks call it together."""
        from torch import distributed

        cards: list[Any] = [None] * self.rank.count
        with self._naming_lost():
            distributed.all_gather_object(cards, card_name(device), self._messages)
        try:
            check_alike(cards)
        except InputError as error:
            if self.leads:
                raise
            raise SystemExit(2) from error  # rank 0 says it

    def call_(self, call: Call, number: int, make_content: Callable[[], Any] | None = None) -> None:
        """See Exchange.

        Raises:
            LostRankError: a rank was lost, now or before.
        """
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("ranks take no calls within a CUDA graph; steps alone are captured")
        while self._dropped:
            self._send(*self._dropped.popleft())
        self._send(call, number, make_content)
        self._busy = True

    def finish_(self) -> None:
        """See Exchange."""
        self._busy = False

    def drop(self, call: Call, number: int) -> None:
        """See Exchange."""
        self._dropped.append((call, number))

    def hold(self, graph: CapturedGraph) -> None:
        """Takes note of a graph with messages, which is reset before the processes part."""
        self._held.add(graph)

    def _send(self, call: Call, number: int, make_content: Callable[[], Any] | None = None) -> None:
        from torch import distributed

        if self._busy:
            raise LostRankError(
                "The ranks cannot continue after an evaluation that was interrupted; start again."
            )
        message = torch.tensor([call, number, make_content is not None])
        self._busy = True
        with self._naming_lost():
            distributed.broadcast(message, 0, self._calls)
            if make_content is not None:
                distributed.broadcast_object_list([make_content()], 0, self._messages)
        self._busy = False

    def receive(self) -> CallMessage:
        """Waits for a call of rank 0, see `call_`."""
        from torch import distributed

        message = torch.zeros(3, dtype=torch.int64)
        with self._naming_lost():
            distributed.broadcast(message, 0, self._calls)
            call, number, has_content = message.tolist()
            content = [None]
            if has_content:
                distributed.broadcast_object_list(content, 0, self._messages)
        return CallMessage(Call(call), number, content[0])

    def _end(self) -> None:
        """Ends the others, on rank 0, and leaves the groups; without a call connections end them.

        Where an evaluation failed, the others are in the middle of it and take no call.
        """
        from torch import distributed

        if self._watch is not None:
            self._watch.closing = True
        for graph in self._held:  # NCCL waits for those that hold its messages
            graph.reset()
        groups = (self._calls, *self._values.values())
        with contextlib.suppress(Exception):
            if self.leads and not self._busy:
                self._send(Call.END, 0)
        self._calls = self._messages = None
        self._values.clear()  # links have it too
        with contextlib.suppress(Exception):
            for group in groups:
                distributed.destroy_process_group(group)
        if self._watch is not None:
            self._watch.stop()

    @contextlib.contextmanager
    def _naming_lost(self) -> Iterator[None]:
        try:
            with self.rank.naming_lost(f"; {ADVICE}"):
                yield
        except LostRankError:
            if self._watch is not None:
                self._watch.noticed = True
            raise


def card_name(device: torch.device) -> str | None:
    """Name of a GPU; None if there is no such."""
    if not torch.cuda.is_available() or device.index >= torch.cuda.device_count():
        return None
    return torch.cuda.get_device_name(device)


def check_alike(cards: Sequence[str | None]) -> None:
    """Raises InputError for ranks without a GPU, by the names of all ranks' GPUs, and unlike ones.

    The slowest GPU would set the pace of all, and bits depend on which rank has which.
    """
    if None in cards:
        raise InputError(
            f"Rank {cards.index(None)} of {len(cards)} has no GPU of its own on its machine; start "
            "no more ranks on a machine than it has GPUs."
        )
    other = next((number for number, card in enumerate(cards) if card != cards[0]), 0)
    if other:
        raise InputError(
            f"The ranks have different GPUs, {cards[0]} on rank 0 and {cards[other]} on rank "
            f"{other}; choose GPUs of one model, by CUDA_VISIBLE_DEVICES or --devices."
        )


_joined: Final[list[ProcessExchange]] = []
