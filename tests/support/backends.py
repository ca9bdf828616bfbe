"""Devices on which the backends of the fused form are tested."""

from importlib.util import find_spec

import pytest
import torch

CUDA = torch.cuda.is_available()


def device_of(backend: str) -> str:
    if backend == "triton" and find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    return "cuda" if backend == "triton" and CUDA else "cpu"
