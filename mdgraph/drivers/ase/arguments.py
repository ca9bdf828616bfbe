"""Arguments of classes that hand on to those of ASE what they do not name themselves."""

import inspect
from collections.abc import Collection, Iterator
from typing import Any, ClassVar, Self

from ase import units

from mdgraph.arguments import real_number
from mdgraph.drivers.arguments import check_known


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


def in_fs(time: float, name: str) -> float:
    """A time in ASE's unit as fs; raises InputError for one that is no number."""
    return real_number(time, f"The {name}", "ASE's unit of time") / units.fs
