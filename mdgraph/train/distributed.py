"""Processes that share a training, one a GPU, as torchrun starts them."""

import torch
import torch.distributed as distributed
from torch import Tensor

from mdgraph.devices import ProcessRank
from mdgraph.errors import MDGraphError


class Processes(ProcessRank):
    """The place of this process among those that share a training."""

    @property
    def first(self) -> bool:
        """Whether it writes files and speaks."""
        return self.rank == 0

    def sum_(self, tensor: Tensor) -> None:
        """Sums a tensor over all processes, in place; does not sync on NCCL.

        Raises:
            MDGraphError: on a CPU one of them is gone. On GPUs the others wait within the step
                until torchrun ends them.
        """
        if self.count == 1:
            return
        try:
            distributed.all_reduce(tensor)
        except RuntimeError as error:
            if tensor.is_cuda:
                raise  # a step that cannot be captured looks the same
            raise MDGraphError(
                "Another process of the training is gone; go on from the last checkpoint with "
                "--resume, in as many processes or fewer."
            ) from error

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
        """Waits until all of several are here, and leaves the group: each goes on alone."""
        distributed.barrier()
        distributed.destroy_process_group()


def join_processes(device: torch.device) -> Processes:
    """Joins the group that torchrun's variables name; alone without them.

    Raises:
        InputError: see `ProcessRank.joined`.
    """
    return Processes.joined("nccl" if device.type == "cuda" else "gloo")
