"""What is given as arguments from outside: checked before anything is computed with it."""

import functools
import inspect
import math
import os
import types
import typing
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, ParamSpec, TypeVar, Union

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationInfo, field_validator

from mdgraph.errors import InputError, MDGraphFutureWarning, old_name, printable

P = ParamSpec("P")
R = TypeVar("R")

_FARTHEST_WHOLE: Final = 2**63
"""Whole numbers beyond fit no counter on a device."""


_OWN_SENTENCES: Final = {"integrator", "structures", "atoms", "path_or_name", "source", "target"}
"""Arguments that are refused where they are used, with more to say of what to give."""


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Checks the arguments of a public function by their annotations, before it begins.

    Numbers, truth values, texts, paths, lists, classes and unions of these are checked, and
    numbers of NumPy handed on as Python's; what else an annotation says the function checks
    itself, what lists hold, and every range. A truth value is no number, and NaN is none.

    Raises:
        InputError: an argument of another type.
    """
    kinds: dict[str, tuple[Any, ...]] = {}
    signature = inspect.signature(function)

    @functools.wraps(function)
    def with_checks(*arguments: P.args, **named: P.kwargs) -> R:
        try:
            bound = signature.bind(*arguments, **named)
        except TypeError:
            return function(*arguments, **named)  # it says which are missing or too many
        if not kinds:  # annotations may name what is imported later
            hints = typing.get_type_hints(function)
            plain = {name: hint for name, hint in hints.items() if name not in _OWN_SENTENCES}
            kinds.update({name: _alternatives(hint) for name, hint in plain.items()})
        for name, value in bound.arguments.items():
            bound.arguments[name] = _fitting(name, value, kinds.get(name, ()))
        return function(*bound.args, **bound.kwargs)

    return with_checks


def renamed_keywords(**renamed: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Takes keywords of a function by their names of 0.1.0 too, with a FutureWarning.

    Args:
        renamed: the new names by the old ones.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def with_old_names(*arguments: P.args, **named: P.kwargs) -> R:
            if not renamed.keys().isdisjoint(named):
                current = current_keywords(named, renamed)
                return function(*arguments, **current)
            return function(*arguments, **named)

        return with_old_names

    return decorate


def current_keywords(named: Mapping[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    """Keyword arguments under the names of today, with a FutureWarning for each old one.

    The warning names the line that calls the caller.

    Args:
        named: keyword arguments.
        renamed: the new names by the old ones.

    Raises:
        InputError: one argument is given by both of its names.
    """
    current = {}
    for name, value in named.items():
        new = renamed.get(name, name)
        if new != name:
            if new in named:
                raise InputError(f"{name} is the old name of {new}; give {new} alone.")
            warnings.warn(old_name(name, new), MDGraphFutureWarning, stacklevel=3)
        current[new] = value
    return current


def check_fields(instance: Any) -> None:
    """Checks the fields of a dataclass as `checked` does arguments; raises InputError."""
    for name, hint in typing.get_type_hints(type(instance)).items():
        value = _fitting(name, getattr(instance, name), _alternatives(hint))
        object.__setattr__(instance, name, value)


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """The types that an annotation allows; none where it says more than types can."""
    several = typing.get_origin(hint) in (Union, types.UnionType)
    kinds = typing.get_args(hint) if several else (hint,)
    kinds = tuple(_PLAIN.get(typing.get_origin(item), item) for item in kinds)
    plain = all(
        inspect.isclass(item) and not typing.get_args(item) and not _is_protocol(item)
        for item in kinds
    )
    # What can only be None is refused with a reason by whoever says so.
    return kinds if plain and set(kinds) != {types.NoneType} else ()


def _is_protocol(kind: type) -> bool:
    return bool(getattr(kind, "_is_protocol", False)) or kind in (object, Any)


def _fitting(name: str, value: Any, kinds: tuple[Any, ...]) -> Any:
    """The value as one of the types has it; raises InputError where none fits."""
    if not kinds:
        return value
    for kind in kinds:
        fits, plain = _as(kind, value)
        if fits:
            return plain
    allowed = [_WORDS.get(kind, f"of type {kind.__name__}") for kind in kinds]
    *first, last = dict.fromkeys(allowed)
    words = f"{', '.join(first)} or {last}" if first else last
    raise InputError(f"{name} is {shown(value)}; it must be {words}.")


def _as(kind: type, value: Any) -> tuple[bool, Any]:
    """Whether a value is of a type, and how Python has it."""
    if kind is bool:
        fits = isinstance(value, bool | np.bool_)
        return fits, bool(value) if fits else value
    if kind in (int, float):
        if not isinstance(value, Real) or isinstance(value, bool | np.bool_) or value != value:
            return False, value
        if kind is int:
            if isinstance(value, Integral):
                return abs(int(value)) < _FARTHEST_WHOLE, int(value)
            whole = float(value).is_integer() and abs(float(value)) < _FARTHEST_WHOLE
            return whole, value
        try:
            return True, float(value)
        except OverflowError:
            return False, value
    if kind in (Sequence, Iterable):
        # A tensor without dimensions has __iter__, and a text is one thing.
        several = isinstance(value, Iterable) and getattr(value, "ndim", 1) > 0
        return several and not isinstance(value, str | bytes | Mapping), value
    return isinstance(value, os.PathLike if kind is Path else kind), value


_PLAIN: Final[dict[Any, Any]] = {
    Literal: str,
    Sequence: Sequence,
    Iterable: Iterable,
}
"""What annotations with parameters are checked as; the function checks these."""

_WORDS: Final[dict[Any, str]] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Path: "a path",
    Sequence: "a list",
    Iterable: "a list",
    types.NoneType: "None",
}


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
        f"{name} is {shown(value)}; it must be a whole number from {least} to {beyond - 1}."
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
    raise InputError(f"{name} is {shown(value)}; it must be a finite number of {unit}{bound}.")


def real_array(value: Any) -> NDArray[np.float64] | None:
    """Numbers (...) as float64; None where something else is among them, or too large a number."""
    try:
        given = np.asarray(value)
        return given.astype(np.float64) if given.dtype.kind in "iufO" or not given.size else None
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None


def whole_numbers(value: Any, name: str) -> list[int]:
    """Whole numbers (n) of a list or an array of one dimension.

    Args:
        value: as given.
        name: the subject of the sentence, such as `The fixed atoms`.

    Raises:
        InputError: something else.
    """
    array = real_array(value)
    if array is None or array.ndim != 1 or not (np.abs(array) < 2**53).all() or (array % 1).any():
        raise InputError(f"{name} are not indices of atoms; give whole numbers.")
    return [int(item) for item in array]


def shown(value: Any) -> str:
    """A value in a sentence: numbers and texts as they are, of others their type."""
    if isinstance(value, str | Real | types.NoneType):
        return printable(repr(value), 100)
    return f"of type {type(value).__name__}"


def _types_within(annotation: Any) -> set[Any]:
    """A type, or the alternatives of a union."""
    parts = typing.get_args(annotation)
    return {annotation}.union(*map(_types_within, parts)) if parts else {annotation}


class FrozenConfig(BaseModel):
    """Options that cannot change once they are made, and know their earlier names."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )

    renamed: ClassVar[Mapping[str, str]] = {}
    """Names of earlier releases and the fields they stand for: taken from a user's YAML and as
    hidden options with a warning, and from files of earlier runs and trainings without."""

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_truth_for_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Python counts True as 1, so `steps: yes` would be one step."""
        if isinstance(value, bool) and info.field_name is not None:
            types_of_field = _types_within(cls.model_fields[info.field_name].annotation)
            if bool not in types_of_field and {int, float} & types_of_field:
                raise ValueError("it should be a number, and yes, no, on and off are none")
        return value

    @classmethod
    def current_names(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Values of fields that a file of an earlier release holds, under the names of today."""
        return {cls.renamed.get(name, name): value for name, value in values.items()}


def one_or_many(value: Any) -> Any:
    """The name of a file as a tuple of one, for options that take one or several names.

    Raises:
        ValueError: it is neither a text nor a list, as pydantic wants to be told.
    """
    if not isinstance(value, str | list | tuple):
        raise ValueError("it should be the name of a file, or a list of such")
    return (value,) if isinstance(value, str) else value


Names: Final = BeforeValidator(one_or_many, json_schema_input_type=str | list[str])
"""For a field that holds the names of files as a tuple."""
