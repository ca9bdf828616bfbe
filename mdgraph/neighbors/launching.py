"""How Triton launches: on which device, and whether ahead of the kernel before."""

from contextlib import AbstractContextManager, nullcontext

import torch

FEW = 5000
"""Atoms below which kernels are set up while the one before still runs; more gain nothing."""


def launching_on(device: torch.device) -> AbstractContextManager[object]:
    """Makes a CUDA device the current one; on a CPU, where kernels are interpreted, nothing."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def launching_ahead(device: torch.device, atoms: int) -> dict[str, bool]:
    """Options of launches for so many atoms, for kernels that begin with `wait_for_previous`."""
    if device.type != "cuda" or atoms >= FEW:
        return {}
    if torch.cuda.get_device_capability(device)[0] < 9:
        return {}
    return {"EARLY": True, "launch_pdl": True}
