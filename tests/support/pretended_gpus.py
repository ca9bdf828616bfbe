"""GPUs that are none, for what a process does with all of them when it ends."""

from collections.abc import Callable, Collection

import pytest
import torch


def pretend_gpus(
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    used: Collection[int],
    synchronize: Callable[[int], object],
) -> None:
    """So many GPUs, of which this process used some; waiting for one calls a function."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda one: one in used, False)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
