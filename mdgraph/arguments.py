"""Numbers given as arguments: checked before anything is computed with them."""

import math
from numbers import Integral, Real
from typing import Any

from mdgraph.errors import InputError, printable


def whole_number(value: Any, name: str, least: int = 0, beyond: int = 2**63) -> int:
    """A whole number, of Python or NumPy.

    Args:
        value: as given.
        name: the subject of the sentence, such as `The seed`.
        least: the smallest that is taken.
        beyond: the smallest above it that is not.

    Raises:
        InputError: another number, a truth value, or something else.
    """
    if isinstance(value, Integral) and not isinstance(value, bool):
        number = int(value)
        if least <= number < beyond:
            return number
    raise InputError(
        f"{name} is {_shown(value)}; it must be a whole number from {least} to {beyond - 1}."
    )


def real_number(value: Any, name: str, unit: str, above: float = -math.inf) -> float:
    """A finite number, of Python or NumPy.

    Args:
        value: as given.
        name: the subject of the sentence.
        unit: of the number.
        above: the bound from below, which it does not reach.

    Raises:
        InputError: another number, a truth value, or something else.
    """
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:  # an integer beyond all bounds
            number = math.nan
        if math.isfinite(number) and number > above:
            return number
    bound = "" if above == -math.inf else f" above {above:g}"
    raise InputError(f"{name} is {_shown(value)}; it must be a finite number of {unit}{bound}.")


def _shown(value: Any) -> str:
    return printable(repr(value), 100) if isinstance(value, str | Real) else type(value).__name__
