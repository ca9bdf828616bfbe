"""Tensors of a GPU in pinned memory of the host, which the GPU reads and writes by its link.

Kernels and operations work on them as on any other, as fast as that link, and they take nothing of
the GPU's memory.
"""

from collections import deque
from typing import Any, Final

import torch
from torch import Tensor

_TYPES: Final = {
    torch.float64: "<f8",
    torch.float32: "<f4",
    torch.int64: "<i8",
    torch.int32: "<i4",
    torch.bool: "|b1",
}


class _HostMemory:
    """Says to torch where the memory is, and keeps it for as long as the GPU may use it."""

    def __init__(self, host: Tensor) -> None:
        self._host = host
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": tuple(host.shape),
            "typestr": _TYPES[host.dtype],
            "data": (host.data_ptr(), False),
            "version": 3,
            "strides": None,
        }

    def __del__(self) -> None:
        """Leaves the memory to `_free`: torch would give it away before work that was launched."""
        _GONE.append(self._host)


_GONE: Final[list[Tensor]] = []
_WAITING: Final[deque[tuple[torch.cuda.Event, list[Tensor]]]] = deque()
"""Memory of tensors that are gone, without and with an event after the work that may use it."""


def _free() -> None:
    """Frees memory of tensors that are gone, once the GPU has done what was launched before."""
    if _GONE:
        event = torch.cuda.Event()
        event.record()
        _WAITING.append((event, [*_GONE]))
        _GONE.clear()
    while _WAITING and _WAITING[0][0].query():
        _WAITING.popleft()


def zeros_on_host(*shape: int, dtype: torch.dtype = torch.float64, device: torch.device) -> Tensor:
    """Zeros of a device in memory of the host; does not sync.

    Not within a CUDA graph, whose replays would not know of it.

    Args:
        shape: of it.
        dtype: float64, float32, int64, int32 or bool.
        device: CPU or CUDA.
    """
    if device.type != "cuda":
        return torch.zeros(shape, dtype=dtype)
    _free()
    host = torch.zeros(shape, dtype=dtype, pin_memory=True)
    return torch.as_tensor(_HostMemory(host), device=device)


def on_host(tensor: Tensor) -> Tensor:
    """A copy of a tensor, of the same device, in memory of the host; does not sync."""
    copy = zeros_on_host(*tensor.shape, dtype=tensor.dtype, device=tensor.device)
    return copy.copy_(tensor)
