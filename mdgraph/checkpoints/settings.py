"""What a checkpoint says of its model: named values of plain types, checked one by one."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import ValidationError

from mdgraph.errors import CheckpointError
from mdgraph.models import TensorNetConfig

T = TypeVar("T")


class Settings:
    """Read access to hyper-parameters, with a sentence for each that is missing or wrong."""

    def __init__(self, values: Mapping[Any, Any], where: Path) -> None:
        self._where = where
        self._values = {
            str(name): value.item() if isinstance(value, np.generic) else value
            for name, value in values.items()
        }

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def get(self, name: str, default: Any = None) -> Any:
        """The value as it is, or the default where there is none."""
        return self._values.get(name, default)

    def integer(self, name: str) -> int:
        """A whole number."""
        value = self._required(name)
        if isinstance(value, bool | str) or not float(value).is_integer():
            raise self._wrong(name, value)
        return int(value)

    def number(self, name: str) -> float:
        """A number."""
        return float(self._required(name))

    def text(self, name: str) -> str:
        """A word."""
        value = self._required(name, str)
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
                f"{self._where} has {name} '{word}', which cannot be used here; {advice}."
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
        except (TypeError, ValueError):
            raise self._wrong(name, self._values[name]) from None
        return self._values[name]

    def _wrong(self, name: str, value: object) -> CheckpointError:
        return CheckpointError(
            f"{self._where} has a {name} of {value!r}, which cannot be; "
            "save it again with the program that trained it."
        )


def checked_config(where: Path, **fields: Any) -> TensorNetConfig:
    """A configuration, or a CheckpointError naming the first field that cannot be."""
    try:
        return TensorNetConfig(**fields)
    except ValidationError as error:
        raise invalid_config(where, error) from error


def invalid_config(where: Path, error: ValidationError) -> CheckpointError:
    """One sentence for the first thing that a configuration got wrong."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    subject = f"the setting {field}" if field else "its settings"
    reason = first["msg"].removeprefix("Value error, ")
    return CheckpointError(
        f"{where} describes no potential that can be built, by {subject}: {reason}; "
        "save it again with the program that trained it."
    )
