"""How an operation runs: kernel or torch, on which device, and on which of two streams."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from typing import Any, Final

import torch
from torch import Tensor

from mdgraph.devices import shared_stream

FEW = 5000
"""Atoms below which kernels are set up while the one before still runs; more gain nothing."""


def launching_on(device: torch.device) -> AbstractContextManager[object]:
    """Makes a CUDA device the current one; on a CPU, where kernels are interpreted, nothing."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def launching_ahead(device: torch.device, atoms: int) -> dict[str, bool]:
    """Options of launches for so many atoms, for kernels that begin with `pdl_wait`."""
    if device.type != "cuda" or atoms >= FEW:
        return {}
    if torch.cuda.get_device_capability(device)[0] < 9:
        return {}
    return {"USE_PDL": True, "launch_pdl": True}


HAS_TRITON: Final = find_spec("triton") is not None

_WILL_RUN: Final = getattr(torch._C, "_will_engine_execute_node", None)
"""No public name of torch; without it, gradients that nobody asked for are computed as well."""


def tracing() -> bool:
    """Whether a trace for other programs records, which knows no classes of gradients."""
    return torch.jit.is_tracing()  # type: ignore[attr-defined]


def has_kernels(x: Tensor) -> bool:
    """Whether Triton computes on this tensor."""
    return x.is_cuda and HAS_TRITON and not tracing()


def wanted(ctx: Any, number: int) -> bool:
    """Whether a backward pass that is under way leads to anyone who asked, by this input.

    `needs_input_grad` is also true of weights while forces are taken.

    Args:
        ctx: of the operation, as its `backward` has it.
        number: of the input, among those that are tensors and come first.
    """
    needed = bool(ctx.needs_input_grad[number])
    if not needed or _WILL_RUN is None:
        return needed
    try:
        return bool(_WILL_RUN(ctx.next_functions[number][0]))
    except RuntimeError:  # a leaf that was asked for
        return True


def asked(ctx: Any, *ways: Callable[[], Tensor]) -> tuple[Tensor | None, ...]:
    """Gradients by the first inputs, each computed only where it is `wanted`, and else None.

    Args:
        ctx: of the operation, as its `backward` has it.
        ways: to the gradient by each of these inputs.
    """
    return tuple(way() if wanted(ctx, number) else None for number, way in enumerate(ways))


class Branch:
    """A stream beside the current one of a device; without CUDA all stays in order.

    All branches of a thread are one stream, so they wait for each other. With a second one for
    the list's a step took as long, and 6 % longer once graphs of several steps were there.
    """

    def __init__(self, device: torch.device) -> None:
        """A closed branch.

        Args:
            device: of the kernels.
        """
        self._device = device
        self._open: torch.cuda.Stream | None = None

    @contextmanager
    def fork(self) -> Iterator[None]:
        """Runs the block's kernels after what was launched so far, beside what follows."""
        if self._device.type != "cuda":
            yield
            return
        self._open = shared_stream(self._device, "branch")
        self._open.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._open):
            yield

    def join(self) -> None:
        """Makes what follows wait for the branch, if it was forked since the last time."""
        if self._open is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._open)
            self._open = None
