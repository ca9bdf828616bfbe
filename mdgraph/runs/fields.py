"""Types of the fields of a configuration, with what they refuse."""

from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field

from mdgraph.runs.ensembles import checked_word, ends, ways_and_axes

MOST_STEPS: Final = 10**15
"""Beyond any run; float64 still counts single steps."""

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


def _number_or_ramp(value: Any) -> Any:
    start, end = ends(value)
    return start if start == end else str(value).replace(" ", "")


def _not_negative(value: float | str) -> float | str:
    if min(ends(value)) < 0.0:
        raise ValueError("it should be greater than or equal to 0")
    return value


def _ladder(value: Any) -> Any:
    """Temperatures as one text: `first:last`, or all of them with commas."""
    if isinstance(value, list | tuple):
        value = ",".join(map(str, value))
    text = str(value).replace(" ", "")
    numbers = [ends(part)[0] for part in text.replace(":", ",").split(",")]
    if min(numbers) <= 0.0:
        raise ValueError("it should be greater than 0")
    if ":" in text and ("," in text or len(numbers) != 2):
        raise ValueError("it should be first:last, or a list of numbers")
    return text


def _known_ways(couple: str) -> str:
    ways_and_axes(couple)
    return couple.replace(" ", "")


def _joined(value: Any) -> Any:
    """A list of atoms, or one of them, as one text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else value


Ramped = Annotated[float | str, BeforeValidator(_number_or_ramp)]
"""A number, or `start:end`."""
Couple = Annotated[str, AfterValidator(_known_ways)]
Temperatures = Annotated[str, BeforeValidator(_ladder)]
"""`first:last`, or one for each replica."""
Atoms = Annotated[str, BeforeValidator(_joined)]
Ensemble = Annotated[str, BeforeValidator(checked_word)]
NumberOfSteps = Annotated[int, Field(ge=0, le=MOST_STEPS)]
RampedTemperature = Annotated[Ramped, AfterValidator(_not_negative)]
