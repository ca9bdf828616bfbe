"""Processes that share a training, one for each GPU, started by torchrun."""

import torch
import torch.distributed as distributed
from torch import Tensor

from mdgraph.devices import ProcessRank
from mdgraph.errors import MDGraphError


class Processes(ProcessRank):
    """The place of this process among those that share a training."""

    @property
    def first(self) -> bool:
        """Whether this process writes files and logs."""
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
                "Another process of the training is gone; continue from the last checkpoint with "
                "--resume, in as many processes or fewer."
            ) from error

    def all_true(self, own: bool, device: torch.device) -> bool:
        """Whether something holds in every process; syncs."""
        total = torch.tensor(float(own), device=device)
        self.sum_(total)
        return float(total) == self.count

    def broadcast_first(self, own: float, device: torch.device) -> float:
        """The number of the first process, so that all decide alike; syncs."""
        value = torch.tensor(own if self.first else 0.0, dtype=torch.float64, device=device)
        self.sum_(value)
        return float(value)

    def leave_group(self) -> None:
        """Waits for all processes and leaves their group; each goes on alone."""
        distributed.barrier()
        distributed.destroy_process_group()


def join_processes(device: torch.device) -> Processes:
    """Joins the group that torchrun's environment variables name; without them a group of one.

    Raises:
        InputError: see `ProcessRank.joined`.
    """
    return Processes.joined("nccl" if device.type == "cuda" else "gloo")
