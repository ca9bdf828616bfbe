"""Triton kernels of a step: motion of atoms, thermostats, barostats and sums over systems."""

import torch

from mdgraph.gpu.launch import HAS_TRITON


def run_on(device: torch.device) -> bool:
    """Whether these kernels run on a device; else torch does the work."""
    return device.type == "cuda" and HAS_TRITON
