"""Where Triton launches: on the current device, which need not be the tensors'."""

from contextlib import AbstractContextManager, nullcontext

import torch


def launching_on(device: torch.device) -> AbstractContextManager[object]:
    """Makes a CUDA device the current one; on a CPU, where kernels are interpreted, nothing."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
