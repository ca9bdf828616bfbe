"""Launching kernels: Triton or torch, device and stream, and which gradients are needed."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from typing import Any, Final

import torch
from torch import Tensor

from mdgraph.devices import shared_stream

PDL_MAX_ATOMS = 5000
"""From this many atoms on, programmatic dependent launch gains nothing."""

PROGRAMS: Final = 8192
"""Most programs of a kernel that returns at once where nothing is due, and loops over atoms else:
starting and ending 100,000 takes 60 us on an H200."""


def launching_on(device: torch.device) -> AbstractContextManager[object]:
    """Context in which `device` is the current CUDA device; no effect for a CPU."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def launching_ahead(device: torch.device, atoms: int) -> dict[str, bool]:
    """Launch options of a kernel that begins with `pdl_wait`: PDL for small systems, else none."""
    if device.type != "cuda" or atoms >= PDL_MAX_ATOMS:
        return {}
    if torch.cuda.get_device_capability(device)[0] < 9:
        return {}
    return {"USE_PDL": True, "launch_pdl": True}


HAS_TRITON: Final = find_spec("triton") is not None

_WILL_RUN: Final = getattr(torch._C, "_will_engine_execute_node", None)
"""Private in torch; without it, backward passes also compute gradients that nobody needs."""


def tracing() -> bool:
    """Whether `torch.jit.trace` records, which cannot record an autograd.Function."""
    return torch.jit.is_tracing()  # type: ignore[attr-defined]


def has_kernels(x: Tensor) -> bool:
    """Whether Triton kernels compute on this tensor; else torch does."""
    return x.is_cuda and HAS_TRITON and not tracing()


def step_kernels_on(device: torch.device) -> bool:
    """Whether Triton kernels take the steps on a device; else torch does."""
    return device.type == "cuda" and HAS_TRITON


def needs_gradient(ctx: Any, number: int) -> bool:
    """Whether the running backward pass needs the gradient of an input.

    `ctx.needs_input_grad` alone is also true of weights while only forces are computed.

    Args:
        ctx: context of the operation, as its `backward` gets it.
        number: position of the input; only tensors may come before it.
    """
    needed = bool(ctx.needs_input_grad[number])
    if not needed or _WILL_RUN is None:
        return needed
    try:
        return bool(_WILL_RUN(ctx.next_functions[number][0]))
    except RuntimeError:  # a leaf named in torch.autograd.grad
        return True


def needed_gradients(ctx: Any, *gradients: Callable[[], Tensor]) -> tuple[Tensor | None, ...]:
    """Computes the gradients that the running backward pass needs; None for the others.

    Args:
        ctx: context of the operation, as its `backward` gets it.
        gradients: functions that compute the gradients of the first inputs, in their order.
    """
    return tuple(
        gradient() if needs_gradient(ctx, number) else None
        for number, gradient in enumerate(gradients)
    )


class Branch:
    """A second stream beside the current one of a device; without CUDA work runs in order.

    All branches of a thread share one stream a role, so they wait for each other. A further stream
    for the neighbor list's branch gained nothing, and cost 6 % in graphs of several steps.
    """

    def __init__(self, device: torch.device, role: str = "branch", priority: int = 0) -> None:
        """A branch that is not forked yet.

        Args:
            device: where the kernels run.
            role: of the stream; branches of one role share one.
            priority: of the stream when it is made, lower numbers first.
        """
        self._device, self._role, self._priority = device, role, priority
        self._stream: torch.cuda.Stream | None = None

    @contextmanager
    def fork(self) -> Iterator[None]:
        """Kernels of the block start after all earlier ones and run beside later ones."""
        if self._device.type != "cuda":
            yield
            return
        self._stream = shared_stream(self._device, self._role, self._priority)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """Makes later kernels wait for the branch, if it was forked since the last join."""
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
            self._stream = None
