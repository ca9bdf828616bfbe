"""Which form of an operation runs: its kernel, torch, or torch as a trace records it."""

from importlib.util import find_spec
from typing import Final

import torch
from torch import Tensor

HAS_TRITON: Final = find_spec("triton") is not None


def tracing() -> bool:
    """Whether a trace for other programs records, which knows no classes of gradients."""
    return torch.jit.is_tracing()  # type: ignore[attr-defined]


def has_kernels(x: Tensor) -> bool:
    """Whether Triton computes on this tensor."""
    return x.is_cuda and HAS_TRITON and not tracing()
