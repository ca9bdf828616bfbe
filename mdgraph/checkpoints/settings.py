"""What a checkpoint says of its model: named values of plain types, checked one by one."""

import math
import reprlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from pydantic import ValidationError
from torch import Tensor

from mdgraph.errors import CheckpointError, printable
from mdgraph.models import TensorNetConfig

T = TypeVar("T")

_BEYOND: Final = 2**31
"""What no length or count of a network reaches."""


class Settings:
    """Read access to hyper-parameters, with a sentence for each that is missing or wrong."""

    def __init__(self, values: Mapping[Any, Any], where: Path) -> None:
        self._where = where
        self._values = {str(name): _plain(value) for name, value in values.items()}

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def get(self, name: str, default: Any = None) -> Any:
        """The value as it is, or the default where there is none; no array, which has no truth."""
        value = self._values.get(name, default)
        if isinstance(value, Tensor | np.ndarray):
            raise self._wrong(name, value)
        return value

    def is_none(self, name: str) -> bool:
        """Whether it is not there, or None."""
        return self._values.get(name) is None

    def integer(self, name: str) -> int:
        """A whole number."""
        value = self._required(name)
        number = math.nan if isinstance(value, bool | str) else float(value)
        if not number.is_integer() or abs(number) >= _BEYOND:
            raise self._wrong(name, value)
        return int(value)

    def number(self, name: str) -> float:
        """A number."""
        value = float(self._required(name))
        if not math.isfinite(value):
            raise self._wrong(name, value)
        return value

    def text(self, name: str) -> str:
        """A word."""
        value = self._required(name, lambda _: None)
        if not isinstance(value, str):
            raise self._wrong(name, value)
        return value

    def choice(self, name: str, choices: Mapping[str, T], advice: str) -> T:
        """What one of several words stands for.

        Args:
            name: of the setting.
            choices: meaning of each word that can be used.
            advice: what to do about any other, the end of a sentence.
        """
        word = self.text(name)
        if word not in choices:
            raise CheckpointError(
                f"{self._where} has {name} {shown(word)}, which cannot be used here; {advice}."
            )
        return choices[word]

    def _required(self, name: str, kind: Callable[[Any], Any] = float) -> Any:
        if self._values.get(name) is None:
            raise CheckpointError(
                f"{self._where} does not say its {name}; "
                "save it again with the program that trained it."
            )
        try:
            kind(self._values[name])
        except (TypeError, ValueError, OverflowError, RuntimeError):
            raise self._wrong(name, self._values[name]) from None
        return self._values[name]

    def _wrong(self, name: str, value: object) -> CheckpointError:
        return CheckpointError(
            f"{self._where} has a {name} of {shown(value)}, which cannot be; "
            "save it again with the program that trained it."
        )


def _plain(value: Any) -> Any:
    """Scalars of NumPy and torch as Python's own."""
    if isinstance(value, np.generic) or (isinstance(value, Tensor) and value.numel() == 1):
        return value.item()
    return value


def shown(value: object) -> str:
    """A value in a few characters, however deep or long it is."""
    if isinstance(value, Tensor | np.ndarray):
        return f"an array of shape {tuple(value.shape)}"
    try:
        return printable(reprlib.repr(value), 200)
    except (ValueError, RecursionError):  # an integer of thousands of digits
        return f"some {type(value).__name__}"


def checked_config(where: Path, **fields: Any) -> TensorNetConfig:
    """A configuration, or a CheckpointError naming the first field that cannot be."""
    try:
        return TensorNetConfig(**fields)
    except ValidationError as error:
        raise invalid_config(where, error) from error


def invalid_config(where: Path, error: ValidationError) -> CheckpointError:
    """One sentence for the first thing that a configuration got wrong."""
    first = error.errors()[0]
    field = printable(".".join(str(part) for part in first["loc"]), 200)
    subject = f"the setting {field}" if field else "its settings"
    reason = first["msg"].removeprefix("Value error, ")
    return CheckpointError(
        f"{where} describes no potential that can be built, by {subject}: {reason}; "
        "save it again with the program that trained it."
    )
