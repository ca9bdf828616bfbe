"""Which operations on the own atoms of a rank a device has: torch's, or Triton's kernels."""

from typing import Protocol

import torch
from torch import Tensor

from mdgraph.decomposition.own_rows import MarginStart, TorchRows
from mdgraph.fused.backend import NetworkResult
from mdgraph.gpu.launch import step_kernels_on
from mdgraph.state import State


class RowOperations(Protocol):
    """Static shapes; none syncs on CUDA. `TorchRows` says what they do."""

    def programs(self, rows: int) -> int:
        """See TorchRows."""
        ...

    def gather_(self, source: Tensor, rows: Tensor, target: Tensor) -> None:
        """See TorchRows."""
        ...

    def put_(
        self, own: Tensor, atoms: Tensor, used: Tensor, state: State, start: MarginStart
    ) -> None:
        """See TorchRows."""
        ...

    def pack_(self, source: Tensor, entries: Tensor, flags: Tensor, message: Tensor) -> None:
        """See TorchRows."""
        ...

    def unpack_(self, message: Tensor, entries: Tensor, target: Tensor, flags: Tensor) -> None:
        """See TorchRows."""
        ...

    def take_(
        self,
        atoms: Tensor,
        used: Tensor,
        place: Tensor,
        result: NetworkResult,
        constant: Tensor,
        state: State,
    ) -> None:
        """See TorchRows."""
        ...


def operations(device: torch.device) -> RowOperations:
    """Those of a device."""
    if step_kernels_on(device):
        from mdgraph.decomposition.own_kernels import KernelRows

        return KernelRows()
    return TorchRows()
