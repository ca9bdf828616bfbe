"""Processes that torchrun starts: which of them this is, and the group that they form."""

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from mdgraph.errors import InputError


@dataclass(frozen=True)
class Place:
    """The place of this process among those of a job.

    Attributes:
        rank: its number.
        count: how many there are.
        local: its number on its own machine, which is that of its GPU.
    """

    rank: int = 0
    count: int = 1
    local: int = 0

    @classmethod
    def joined(cls, backend: str, timeout: float | None = None) -> Self:
        """Joins the job that torchrun's variables name; alone without them.

        A group that exists already is taken as it is.

        Args:
            backend: of torch.distributed.
            timeout: s, that a rank is waited for; None leaves it to the backend.

        Raises:
            InputError: variables that no torchrun has set, or ranks that do not find each other.
        """
        names = {"RANK": None, "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
        given = {name: os.environ.get(name, usual) for name, usual in names.items()}
        if given["WORLD_SIZE"] == "1":
            return cls()
        from torch import distributed

        try:
            found = cls(*(int(number or "") for number in given.values()))
        except ValueError:
            raise InputError(
                f"The environment says {given}, which are no ranks; start them with torchrun, or "
                "unset WORLD_SIZE."
            ) from None
        if not distributed.is_initialized():
            limit = None if timeout is None else timedelta(seconds=timeout)
            try:
                distributed.init_process_group(backend, timeout=limit)
            except (RuntimeError, ValueError) as error:
                raise InputError(
                    f"Rank {found.rank} of {found.count} finds no others ({error}); start all of "
                    "them with torchrun."
                ) from error
        return found
