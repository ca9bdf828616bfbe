"""Times and peak memory of what repeats itself."""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
import torch

Repeated = Callable[[int], object]
"""Does something so many times."""

_BATCHES: Final = 5
_SELF: Final = Path("/proc/self")


def milliseconds(repeated: Repeated, device: torch.device, seconds: float, whole: int = 1) -> float:
    """Time of one of many, by the host's clock: the median of five batches; syncs.

    Args:
        repeated: compiles or captures when it is first called.
        device: what it runs on.
        seconds: to be spent once it is warm, roughly; at least one more is timed.
        whole: a batch longer than this is a multiple of it.
    """

    def timed(count: int) -> float:
        begin = time.perf_counter()
        repeated(count)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - begin) / count

    timed(1)
    one = timed(1)
    if 3.0 * one > seconds:
        return 1e3 * one
    count = max(1, math.floor(seconds / ((_BATCHES + 1) * one)))
    count -= count % whole if count > whole else 0
    timed(count)  # graphs of other lengths, and caches
    one = timed(count)
    rest = min(_BATCHES - 1, math.floor(seconds / (count * one)))
    return 1e3 * float(np.median([one, *(timed(count) for _ in range(rest))]))


def repeating(once: Callable[[], object]) -> Repeated:
    """What calls a function so many times."""

    def repeated(count: int) -> None:
        for _ in range(count):
            once()

    return repeated


def begin_peak(device: torch.device) -> None:
    """Begins to look for the highest use of memory."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    elif (_SELF / "clear_refs").exists():
        with suppress(OSError):  # some containers forbid it
            (_SELF / "clear_refs").write_text("5", encoding="ascii")


def peak_memory(device: torch.device) -> int | None:
    """Bytes in use at most since `begin_peak`; None where the system does not tell.

    On CUDA what torch held, on a CPU the whole process with its libraries.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = _SELF / "status"
    if not status.exists():
        return None
    lines = status.read_text(encoding="ascii").splitlines()
    (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return 1024 * int(peak)
