"""Processes that share a training, one a GPU, as torchrun starts them."""

import os
from dataclasses import dataclass

import torch
import torch.distributed as distributed
from torch import Tensor

from mdgraph.errors import InputError


@dataclass(frozen=True)
class Processes:
    """The place of this process among all.

    Attributes:
        rank: its number.
        count: how many there are.
        local: its number on its own machine, which is that of its GPU.
    """

    rank: int = 0
    count: int = 1
    local: int = 0

    @property
    def first(self) -> bool:
        """Whether it writes files and speaks."""
        return self.rank == 0

    def sum_(self, tensor: Tensor) -> None:
        """Sums a tensor over all processes, in place; does not sync on NCCL."""
        if self.count > 1:
            distributed.all_reduce(tensor)

    def all(self, own: bool, device: torch.device) -> bool:
        """Whether something holds in every process; syncs."""
        held = torch.tensor(float(own), device=device)
        self.sum_(held)
        return float(held) == self.count

    def of_first(self, own: float, device: torch.device) -> float:
        """A number of the first process, so that all decide alike; syncs."""
        held = torch.tensor(own if self.first else 0.0, dtype=torch.float64, device=device)
        self.sum_(held)
        return float(held)

    def part(self) -> None:
        """Waits until all processes are here, and leaves the group."""
        if self.count > 1:
            distributed.barrier()
            distributed.destroy_process_group()


def join_processes(device: torch.device) -> Processes:
    """Joins the group that torchrun's variables name; alone without them.

    Raises:
        InputError: the group cannot be formed.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        return Processes()
    found = Processes(int(os.environ["RANK"]), count, int(os.environ.get("LOCAL_RANK", "0")))
    if not distributed.is_initialized():
        try:
            distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
        except (RuntimeError, ValueError) as error:
            raise InputError(
                f"Process {found.rank} of {count} finds no others ({error}); start all of them "
                "with torchrun."
            ) from error
    return found
