"""How features get from the domains that own atoms to those that have copies of them.

Two transports: copies within a process, and messages of torch.distributed. Both fill the same rows
with the same bits, have static shapes and do not sync on CUDA, so they are part of a CUDA graph. A
third, which wrote into the memory of the other GPU (torch's symmetric memory), gained nothing over
messages of NCCL in a graph; see docs/architecture.md.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor

from mdgraph.decomposition.subdomain import Subdomain
from mdgraph.gpu.launch import Branch


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
    """All domains in one process, by copies."""

    def __init__(self, domains: Sequence[Subdomain]) -> None:
        self._domains = domains

    def begin_(self, features: Sequence[Tensor]) -> None:
        """See FeatureLink; copies at once."""
        for domain, own in zip(self._domains, features, strict=True):
            for other, rows in domain.receive.items():
                sent = self._domains[other].send[domain.number]
                torch.index_select(features[other], 0, sent, out=own[rows])

    def end_(self) -> None:
        """See FeatureLink."""


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

    def begin_(self, features: Sequence[Tensor]) -> None:
        """See FeatureLink; waits for the other processes, without CUDA."""
        with self._branch.fork():
            self._exchange_(*features)

    def end_(self) -> None:
        """See FeatureLink."""
        self._branch.join()

    def _exchange_(self, own: Tensor) -> None:
        from torch import distributed

        group, messages = self._groups[own.device.type], []
        send, receive = self._domain.send, self._domain.receive
        for other in sorted({*send, *receive}):
            if other in send:
                sent = own.index_select(0, send[other])
                messages.append(distributed.P2POp(distributed.isend, sent, other, group))
            if other in receive:
                found = own[receive[other]]
                messages.append(distributed.P2POp(distributed.irecv, found, other, group))
        with self._naming_lost():
            for request in distributed.batch_isend_irecv(messages) if messages else ():
                request.wait()
