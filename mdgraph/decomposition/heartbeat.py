"""RankWatch: notices that another rank is gone, whatever the main thread waits for.

Between GPUs the main thread waits for messages within a CUDA graph, which never end once a rank is
lost, and nothing can be raised there. So a thread of each rank exchanges a byte a second with
another process: rank 0 with all others, these with rank 0. Where a connection closes, or stays
silent, it says so and ends the process, unless the main thread does so itself in time.
"""

import contextlib
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from mdgraph.devices import ProcessRank
from mdgraph.errors import LostRankError

logger = logging.getLogger(__name__)

PERIOD: Final = 1.0
"""s between two beats."""

SILENCE: Final = 30
"""Beats without an answer after which a rank counts as lost. Beats are counted, not seconds, so
that a job which was suspended as a whole goes on."""

GRACE: Final = 5
"""Beats in which the main thread of rank 0 may find out itself."""

CLOSING: Final = 10
"""Beats in which the main thread may end once it has found out, and in which other ranks do."""

_JOINING: Final = 30.0
"""s, in which ranks connect; they have met already."""

WAYS_ON: Final[list[Callable[[], str]]] = []
"""What the command at hand adds to the sentence about a lost rank."""

ADVICE: Final = "a run continues from its last checkpoint, on as many ranks or others."


@contextlib.contextmanager
def adding(way_on: Callable[[], str]) -> Iterator[None]:
    """Adds a sentence to that about a rank that is lost meanwhile, from another thread."""
    WAYS_ON.append(way_on)
    try:
        yield
    finally:
        WAYS_ON.remove(way_on)


class RankWatch:
    """Beats of this rank and the others.

    Attributes:
        noticed: set by the main thread once it knows itself that a rank is lost.
        closing: set by it once it leaves the others, and has said why.
    """

    def __init__(self, rank: ProcessRank, connections: dict[int, socket.socket]) -> None:
        """Starts the thread.

        Args:
            rank: of this process.
            connections: to others, by their ranks.
        """
        self.noticed = self.closing = False
        self._rank, self._connections = rank, connections
        self._stopped = threading.Event()
        for connection in connections.values():
            connection.setblocking(False)
        self._thread = threading.Thread(target=self._watch, name="heartbeat", daemon=True)
        self._thread.start()

    @classmethod
    def begun(cls, rank: ProcessRank, group: Any) -> "RankWatch | None":
        """Connects to the others; all ranks call it together.

        Args:
            rank: of this process.
            group: of torch.distributed, of gloo, by which they tell each other where.

        Returns:
            None where ranks cannot connect, on all of them.
        """
        import torch
        from torch import distributed

        server: socket.socket | None = None
        address: list[Any] = [None]
        if rank.rank == 0:
            with contextlib.suppress(OSError):
                server = _server(rank.count)
                address = [(socket.gethostname(), server.getsockname()[1], secrets.token_bytes(16))]
        distributed.broadcast_object_list(address, 0, group)
        connections: dict[int, socket.socket] = {}
        if address[0] is not None:
            host, port, token = address[0]
            with contextlib.suppress(OSError):
                if server is not None:
                    connections = _accepted(server, token, rank.count)
                else:
                    connections = {0: _connected(host, port, token, rank.rank)}
        connects = torch.tensor(int(bool(connections)))
        distributed.all_reduce(connects, distributed.ReduceOp.MIN, group)
        if bool(connects):
            return cls(rank, connections)
        for connection in connections.values():
            connection.close()
        if rank.rank == 0:
            logger.warning(
                "Ranks could not connect to watch each other, so one that is lost between GPUs "
                "ends the others only when torchrun ends them."
            )
        return None

    def stop(self) -> None:
        """Ends the thread and its connections."""
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(5.0 * PERIOD)
        for connection in self._connections.values():
            connection.close()

    def _watch(self) -> None:
        silent = dict.fromkeys(self._connections, 0)
        while not self._stopped.wait(PERIOD):
            for other, connection in self._connections.items():
                heard = _beat(connection)
                silent[other] = 0 if heard else silent[other] + 1
                lost = heard is None or silent[other] >= SILENCE
                if lost and (self.noticed or not self.closing):
                    self._end(other)
                    return

    def _end(self, other: int) -> None:
        """Ends the process, unless the main thread does."""
        leads = self._rank.rank == 0
        if self._stopped.wait(PERIOD * (GRACE if leads else CLOSING)):
            return
        if self.noticed and self._stopped.wait(PERIOD * CLOSING):
            return
        if not self.closing:  # else the main thread has said so
            error = LostRankError(f"{self._rank} lost rank {other}; {ADVICE}")
            way_on = ""
            with contextlib.suppress(Exception):
                way_on = "".join(f" {add()}" for add in WAYS_ON) if leads else ""
            with contextlib.suppress(OSError):
                os.write(2, f"mdgraph: error: {error}{way_on}\n".encode())
        os._exit(1)


def _server(count: int) -> socket.socket:
    """What rank 0 listens by, on any port; raises OSError."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(
            ("", 0), family=socket.AF_INET6, backlog=count, dualstack_ipv6=True
        )
    return socket.create_server(("", 0), backlog=count)


def _accepted(server: socket.socket, token: bytes, count: int) -> dict[int, socket.socket]:
    """Connections of the other ranks, which say the token; raises OSError."""
    connections: dict[int, socket.socket] = {}
    with server:
        server.settimeout(_JOINING)
        while len(connections) < count - 1:
            connection, _ = server.accept()
            connection.settimeout(_JOINING)
            said = connection.recv(len(token) + 4, socket.MSG_WAITALL)
            if said[: len(token)] == token:
                connections[int.from_bytes(said[len(token) :], "big")] = connection
            else:
                connection.close()
    return connections


def _connected(host: str, port: int, token: bytes, rank: int) -> socket.socket:
    """The connection of another rank to rank 0; raises OSError."""
    names = dict.fromkeys([os.environ.get("MASTER_ADDR", host), host])
    failure = OSError("no address")
    for name in names:
        try:
            connection = socket.create_connection((name, port), _JOINING / len(names))
            connection.sendall(token + rank.to_bytes(4, "big"))
            return connection
        except OSError as error:
            failure = error
    raise failure


def _beat(connection: socket.socket) -> bool | None:
    """Whether the other one was heard; None if it is gone."""
    try:
        with contextlib.suppress(BlockingIOError):
            connection.send(b".")
        heard = connection.recv(4096)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True if heard else None
