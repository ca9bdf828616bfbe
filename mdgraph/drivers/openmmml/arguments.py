"""What openmm-ml hands on: names that nobody takes, numbers with and without a unit."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Final

from openmm import unit
from openmmml.mlpotential import MLPotential

from mdgraph.arguments import real_number
from mdgraph.drivers.arguments import check_known
from mdgraph.errors import InputError

OF_EMBEDDINGS: Final = ("linkAtomDistances", "mlLongRange")
"""Arguments of openmm-ml's own embedding, which hands them on to the potential as well."""


def check_names(others: Iterable[str], taking: Callable[..., Any], mixed: bool) -> None:
    """Refuses names that neither the potential nor openmm-ml takes.

    Args:
        others: names of arguments that nobody has taken yet.
        taking: the function whose optional arguments are those of the potential.
        mixed: whether `createMixedSystem` was called, not `createSystem`.

    Raises:
        InputError: such a name, with the nearest that is known.
    """
    method = MLPotential.createMixedSystem if mixed else MLPotential.createSystem
    known = [*_optional(taking), *_optional(method), *(OF_EMBEDDINGS if mixed else ())]
    check_known(f"{method.__name__} of mdgraph", others, known)


def plain_number(name: str, value: Any, wanted: Any) -> float:
    """A number in a unit of OpenMM, in which plain numbers are taken to be.

    Raises:
        InputError: no number, or one with a unit of another kind.
    """
    try:
        number = value.value_in_unit(wanted) if isinstance(value, unit.Quantity) else value
        return real_number(number, name, f"{wanted.get_name()}s")
    except TypeError:
        raise InputError(
            f"{name}={value} is no number of {wanted.get_name()}s; give a plain number or one "
            "with its unit."
        ) from None


def _optional(function: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [one.name for one in parameters if one.default is not one.empty]
