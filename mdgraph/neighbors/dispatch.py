"""Which form of an operation runs: its kernel, torch, or torch as a trace records it; or none."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Final

import torch
from torch import Tensor

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
