"""The tensors of a checkpoint, handed out by name and checked against what is expected."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from mdgraph.errors import CheckpointError, name_some, printable

ANY = -1
"""A length that the checkpoint itself decides."""

_MANY: Final = 30
"""Tensors that do not fit, after which the others are no longer looked at."""


class Tensors:
    """Hands out tensors once each, and says at the end what was missing, left or misshapen."""

    def __init__(self, values: Mapping[str, object], where: Path) -> None:
        self._values = dict(values)
        self._where = where
        self._left = set(self._values)
        self._missing: list[str] = []
        self._misshapen: list[str] = []
        self._infinite: list[str] = []

    def __contains__(self, name: object) -> bool:
        return name in self._values

    @property
    def names(self) -> list[str]:
        """All names, in the file's order."""
        return list(self._values)

    def shape(self, name: str) -> tuple[int, ...]:
        """Lengths of a tensor that may or may not be there."""
        value = self._values.get(name)
        return tuple(value.shape) if isinstance(value, Tensor) else ()

    def take(self, name: str, *shape: int, unused: int = 0) -> Tensor:
        """A tensor in float64; zeros where it is wrong, which `finish` then reports.

        Args:
            name: what the checkpoint calls it.
            shape: its lengths.
            unused: rows at the start that may hold anything.
        """
        stand_in = torch.zeros((), dtype=torch.float64).expand([max(n, 1) for n in shape])
        self._left.discard(name)
        value = self._values.get(name)
        if not isinstance(value, Tensor):
            self._missing.append(name)
            self._stop_at_many()
            return stand_in
        lengths = zip(shape, value.shape, strict=False)
        if value.dim() != len(shape) or any(want not in (ANY, have) for want, have in lengths):
            self._misshapen.append(f"{name} ({_sizes(value.shape)} instead of {_sizes(shape)})")
            self._stop_at_many()
            return stand_in
        if not _is_stored(value):
            self._misshapen.append(f"{name} (no array of real numbers that are all stored)")
            return stand_in
        value = value.detach().to(torch.float64)
        if not bool(value[unused:].isfinite().all() if unused else value.isfinite().all()):
            self._infinite.append(name)
        return value

    def take_scalar(self, name: str) -> Tensor:
        """A single number () in float64, whatever its dimensions in the file."""
        value = self._values.get(name)
        if isinstance(value, Tensor) and value.numel() == 1 and _is_stored(value):
            self._values[name] = value.reshape(())
        return self.take(name)

    def other_version(self, used: str, other: str, values: object = None) -> list[str]:
        """A sentence where the checkpoint holds numbers a second time and they differ, or none.

        Args:
            used: name of the tensor that counts.
            other: what the second version is called, or the name of its tensor.
            values: the second version; None takes the tensor of that name.
        """
        first, second = self._values.get(used), self._values.get(other, values)
        try:
            second = torch.as_tensor(second, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError):
            return []
        if not isinstance(first, Tensor) or first.numel() != second.numel():
            return []
        if not (_is_stored(first) and _is_stored(second) and first.numel()):
            return []
        change = (first.to(torch.float64).flatten() - second.flatten()).abs().max().item()
        if change == 0.0:
            return []
        text = f"{used} is used as stored; {other} holds other values of the same"
        return [f"{text}, by up to {change:.3g}, and is not used"]

    def _stop_at_many(self) -> None:
        """A description may ask for more than there is memory for, of what is not there."""
        if len(self._missing) + len(self._misshapen) > _MANY:
            self.check()

    def ignore(self, *names: str) -> None:
        """Names that may be there and do not matter."""
        self._left.difference_update(names)

    def check(self) -> None:
        """Raises CheckpointError, one sentence for everything taken that did not fit."""
        self._report([])

    def finish(self) -> None:
        """Raises CheckpointError for what did not fit and for what nobody took."""
        self._report(sorted(self._left))

    def _report(self, left: list[str]) -> None:
        parts = [
            f"{what} {printable(name_some(names), 1000)}"
            for what, names in (
                ("lacks", self._missing),
                ("has wrong shapes in", self._misshapen),
                ("holds numbers that are not finite in", self._infinite),
                ("holds unknown", left),
            )
            if names
        ]
        if parts:
            raise CheckpointError(
                f"{self._where} does not hold the tensors that its own description asks for: "
                f"it {' and '.join(parts)}; save it again with the program that trained it."
            )


def _is_stored(value: Tensor) -> bool:
    """Whether it is an ordinary array of real numbers, and not a few of them many times over."""
    if value.layout != torch.strided or value.is_complex() or value.is_quantized:
        return False
    return value.numel() * value.element_size() <= value.untyped_storage().nbytes()


def _sizes(shape: Sequence[int]) -> str:
    sizes = ["any" if length == ANY else str(length) for length in shape]
    return " x ".join(sizes) or "one number"
