"""Checks of arguments that several drivers share.

openmm-ml imports this with every program that uses it, so nothing heavy is imported here.
"""

import functools
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, ParamSpec, TypeVar

from mdgraph.errors import InputError, name_some, similar_names

P = ParamSpec("P")
R = TypeVar("R")

FROM_CHECKPOINT: Final = "from checkpoint"
"""The Coulomb cutoff that keeps the one of the potential."""


def with_coulomb_cutoff(potential: Any, cutoff: float | str | None) -> Any:
    """The potential with another Coulomb cutoff.

    Args:
        potential: a loaded Potential or Evaluator.
        cutoff: A, of a reaction field; None sums all pairs; FROM_CHECKPOINT keeps the
            potential's own.

    Raises:
        InputError: a cutoff outside the range, or a potential that sets its own.
    """
    if isinstance(cutoff, str):
        if cutoff == FROM_CHECKPOINT:
            return potential
        raise InputError(
            f"Unknown coulomb_cutoff '{cutoff}'; give a number of A, None for all "
            f"pairs, or '{FROM_CHECKPOINT}'."
        )
    if not hasattr(potential, "with_coulomb_cutoff"):
        raise InputError(
            f"A Coulomb cutoff is given, but {type(potential).__name__} sets its own; "
            "leave the cutoff out."
        )
    return potential.with_coulomb_cutoff(cutoff)


def without_domains(function: Callable[P, R]) -> Callable[P, R]:
    """Refuses `domains`, which a Simulation of the engine takes, by InputError."""

    @functools.wraps(function)
    def refusing(*arguments: P.args, **named: P.kwargs) -> R:
        _refuse_domains(named)
        return function(*arguments, **named)

    return refusing


def _refuse_domains(names: Collection[str]) -> None:
    if "domains" in names:
        raise InputError(
            "The drivers for ASE, OpenMM and openmm-ml evaluate a system whole; divide it among "
            "domains by mdgraph.engine.Simulation, which takes ASE's Atoms, or by mdgraph md."
        )


def check_known(function: str, names: Iterable[str], known: Collection[str]) -> None:
    """Refuses unknown arguments, and proposes the nearest known ones.

    Args:
        function: its name, for the sentence.
        names: the arguments of the call.
        known: the arguments that the function takes.

    Raises:
        InputError: an argument that the function does not take.
    """
    if unknown := sorted(set(names) - set(known)):
        _refuse_domains(unknown)
        near = [match for name in unknown for match in similar_names(name, known)[:1]]
        some = name_some(sorted(known), 30)
        advice = f"did you mean {name_some(near)}?" if near else f"it takes {some}."
        raise InputError(f"{function} does not take {name_some(unknown)}; {advice}")
