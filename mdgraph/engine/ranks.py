"""Ranks: processes that share the replicas of a batch, as torchrun starts them."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import torch
from torch import Tensor

from mdgraph.errors import InputError, MDGraphError
from mdgraph.torchrun import Place


class LostRankError(MDGraphError):
    """Another rank of a job is gone, or answers no more."""


class Ranks(Place):
    """The place of this process among those of a job that share replicas."""

    @classmethod
    def join(cls, timeout: float = 1800.0) -> "Ranks":
        """Joins the job that torchrun's variables name; alone without them.

        What ranks tell each other is a few numbers a replica, from which the host decides,
        so they do it by gloo, on GPUs too: it notices at once that a rank died, where a GPU
        would wait for it.

        Args:
            timeout: s, that a rank is waited for.

        Raises:
            InputError: see `Place.joined`.
        """
        return cls.joined("gloo", timeout)

    def shares(self, replicas: int) -> list[range]:
        """Replicas of every rank, one after the other and as even as can be.

        Raises:
            InputError: fewer replicas than ranks.
        """
        if replicas < self.count:
            raise InputError(
                f"There are {replicas} replicas for {self.count} ranks; start no more ranks "
                "than there are replicas."
            )
        ends = [replicas * rank // self.count for rank in range(self.count + 1)]
        return [range(*pair) for pair in pairwise(ends)]

    def share(self, replicas: int) -> range:
        """Replicas of this rank; raises InputError as `shares` does."""
        return self.shares(replicas)[self.rank]

    def gather(self, own: Tensor, counts: Sequence[int]) -> Tensor:
        """Joins the columns of all ranks; every rank waits here for all others.

        Args:
            own: (M, S) on the host, a column for each replica of this rank.
            counts: S of every rank.

        Returns:
            (M, R) on the host, in the order of ranks.

        Raises:
            LostRankError: a rank is gone.
        """
        if self.count == 1:
            return own
        from torch import distributed

        on_gpu = distributed.get_backend() == "nccl"
        device = torch.device("cuda", self.local) if on_gpu else own.device
        padded = own.new_zeros(len(own), max(counts), device=device)
        padded[:, : own.shape[1]] = own
        parts = [torch.empty_like(padded) for _ in counts]
        try:
            distributed.all_gather(parts, padded)
        except RuntimeError as error:
            raise LostRankError(
                f"Rank {self.rank} of {self.count} lost another one; the last checkpoints of "
                "all are whole, so start them again from there."
            ) from error
        return torch.cat(
            [part[:, :count].cpu() for part, count in zip(parts, counts, strict=True)], dim=1
        )


ALONE: Final = Ranks()
"""One process with all replicas."""
