"""Triton kernels of the engine: motion of atoms, thermostats, and sums over systems."""

import torch

from mdgraph.gpu.launch import HAS_TRITON


def run_on(device: torch.device) -> bool:
    """Whether these kernels do the work on a device; elsewhere torch's operations do."""
    return device.type == "cuda" and HAS_TRITON
