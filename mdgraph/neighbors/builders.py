"""Builders: what fills a list, by torch operations or by kernels."""

from typing import ClassVar, Protocol

import torch
from torch import Tensor

from mdgraph.neighbors.dispatch import HAS_TRITON
from mdgraph.neighbors.rows import Task
from mdgraph.neighbors.torch_builder import TorchBuilder


class Builder(Protocol):
    """Fills the rows of a task.

    Attributes:
        bin_cost: what a candidate of the cell list costs, in candidates of every pair.
        mechanism: how builds are left out that are not due, for the log.
    """

    bin_cost: ClassVar[int]
    mechanism: ClassVar[str]

    def __init__(self, task: Task) -> None: ...

    def build_(self, positions: Tensor, cell: Tensor) -> None:
        """Builds, whatever the rows hold; static shapes, does not sync."""
        ...

    def update_(self, positions: Tensor, cell: Tensor) -> None:
        """Builds where the rows may have become incomplete.

        Static shapes; capturable and without sync on CUDA.
        """
        ...

    def join(self) -> None:
        """Makes what follows wait for the reverse slots, which may be filled beside it."""
        ...


def builder_class(device: torch.device) -> type[Builder]:
    """Kernels on CUDA, where Triton is installed; torch operations elsewhere."""
    if device.type == "cuda" and HAS_TRITON:
        from mdgraph.neighbors.kernel_builder import KernelBuilder

        return KernelBuilder
    return TorchBuilder
