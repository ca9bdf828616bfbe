"""Arguments of classes that hand on to those of ASE what they do not name themselves."""

import inspect
from collections.abc import Collection, Iterator
from pathlib import PurePath
from typing import Any, ClassVar, Self

from ase import units
from ase.md.md import process_temperature

from mdgraph.arguments import real_number, shown
from mdgraph.drivers.arguments import check_known
from mdgraph.errors import InputError


class KnownArguments:
    """Base of classes that refuse unknown arguments by name, before anything is made.

    Attributes:
        also_known: arguments that no signature names.
    """

    also_known: ClassVar[Collection[str]] = ()

    def __new__(cls, *arguments: Any, **named: Any) -> Self:
        """Raises InputError for an argument that no constructor of the class and its bases has."""
        check_known(cls.__name__, named, {*cls.also_known, *_in_signatures(cls)})
        return super().__new__(cls)


def _in_signatures(cls: type) -> Iterator[str]:
    own = [vars(one)["__init__"] for one in cls.__mro__[:-1] if "__init__" in vars(one)]
    for function in own:
        _, *parameters = inspect.signature(function).parameters.values()
        for one in parameters:
            if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
                yield one.name


def kelvin(temperature: float | None, temperature_K: float | None, unit: str) -> float:
    """The temperature in K, of ASE's two arguments; raises InputError for both or neither.

    Args:
        temperature: in `unit`, K or eV; ASE has deprecated it.
        temperature_K: K.
        unit: of the former.
    """
    if (temperature is None) == (temperature_K is None):
        times = "nowhere" if temperature is None else "twice"
        raise InputError(f"The temperature is given {times}; give temperature_K alone.")
    return float(process_temperature(temperature, temperature_K, unit))


def check_outputs(**outputs: Any) -> None:
    """Raises InputError for a log or trajectory that is neither a name nor open to write."""
    for name, value in outputs.items():
        named = isinstance(value, str | PurePath) and str(value) not in ("", ".")
        if value is not None and not named and not callable(getattr(value, "write", None)):
            raise InputError(
                f"The {name} is {shown(value)}; give the name of a file, or one that is open."
            )


def in_fs(time: float, name: str) -> float:
    """A time in ASE's unit as fs; raises InputError for one that is no number."""
    return real_number(time, f"The {name}", "ASE's unit of time") / units.fs
