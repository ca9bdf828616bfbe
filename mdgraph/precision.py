"""Precision: one word for the types of state, pair differences, network and sums."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

import torch

from mdgraph.errors import InputError


@dataclass(frozen=True)
class Precision:
    """What is computed in which type.

    Attributes:
        name: the word by which users choose it.
        state: type of positions, velocities, forces, pair differences and sums.
        network: type of weights and features.
        reduced: whether fast kernels may round products and what messages read to half as
            many digits or fewer.
    """

    name: str
    state: torch.dtype
    network: torch.dtype
    reduced: bool = False


PRECISIONS: Final = {
    "mixed": Precision("mixed", torch.float64, torch.float32),
    "single": Precision("single", torch.float32, torch.float32),
    "double": Precision("double", torch.float64, torch.float64),
    "fast": Precision("fast", torch.float64, torch.float32, reduced=True),
}
"""`mixed` is the default. `single` rounds positions too. `double` evaluates the network itself.
`fast` is `mixed` with products of float16 numbers and half as many bytes of features and
tables, which Triton kernels alone do: on a CPU, and by the reference, it computes as `mixed`."""


def precision_named(name: str | Precision) -> Precision:
    """Looks a precision up; raises InputError for any other word."""
    if isinstance(name, Precision):
        return name
    if not isinstance(name, str) or name not in PRECISIONS:
        raise InputError(f"Unknown precision '{name}'; choose one of {', '.join(PRECISIONS)}.")
    return PRECISIONS[name]


@contextmanager
def full_float32() -> Iterator[None]:
    """Pins float32 products to full float32 and restores the caller's setting afterwards."""
    with float32_products("ieee"):
        yield


@contextmanager
def float32_products(cublas: Literal["ieee", "tf32"]) -> Iterator[None]:
    """Pins how float32 products are taken and restores the caller's setting afterwards.

    Torch keeps the TF32 choice in a process-wide flag; a host program that set it must not
    change energies here, nor see its flag changed.

    Args:
        cublas: "tf32" lets products on CUDA round their factors to TF32; a CPU never does.
    """
    flags = (
        torch.backends.cuda.matmul,
        torch.backends.mkldnn.matmul,  # type: ignore[attr-defined]
    )
    parents = (torch.backends.cudnn, torch.backends.mkldnn)
    before = [flag.fp32_precision for flag in flags]
    for flag, value in zip(flags, (cublas, "ieee"), strict=True):
        flag.fp32_precision = value
    try:
        yield
    finally:
        for flag, parent, value in zip(flags, parents, before, strict=True):
            # An unset flag reads as its parent's value and must follow it again: "none".
            flag.fp32_precision = "none" if value == parent.fp32_precision else value
