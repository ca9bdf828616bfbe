"""Types of the fields of a configuration, with what they refuse."""

import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from mdgraph.runs.ensembles import checked_word, ends, nearest, ways_and_axes

MOST_STEPS: Final = 10**15
"""Beyond any run; float64 still counts single steps."""

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Timestep = Annotated[float, Field(gt=0, le=20)]
"""fs; longer ones are of another unit, as no vibration of atoms is as slow."""
HydrogenMass = Annotated[float, Field(ge=1.008)]
"""amu, no less than it has."""

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


def _one_or_many(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _members(value: Any) -> Any:
    """Potentials of a committee; a folder of potentials stands for all of them."""
    from mdgraph.checkpoints.native import FILE_NAME  # which imports torch

    found: list[str] = []
    for one in _one_or_many(value):
        folder = Path(str(one)).expanduser()
        inner = sorted(path.parent for path in folder.glob(f"*/{FILE_NAME}"))
        found += [str(one)] if (folder / FILE_NAME).exists() or not inner else map(str, inner)
    if len(found) < 2:
        raise ValueError("a committee has at least two members")
    return tuple(found)


def _switched(value: Any) -> Any:
    """The words on and off, which YAML takes for truth values."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def _held_by_graph(value: int) -> int:
    from mdgraph.engine.measurement import checked_length  # which imports torch

    return checked_length(value)


def _joined(value: Any) -> Any:
    """A list of atoms, or one of them, as one text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else value


INTERVALS: Final = {"averages": 10, "rdf": 20, "msd": 20, "vacf": 4}
"""What can be observed, with the steps from one sample to the next unless given."""


def _observed(value: Any) -> str:
    """Words with their intervals, as `rdf:20,msd:100`."""
    found = {}
    for part in filter(None, re.split(r"[,\s]+", str(_joined(value)))):
        word, _, every = part.partition(":")
        if word not in INTERVALS:
            raise ValueError(nearest(word, INTERVALS))
        if every and not re.fullmatch("[1-9][0-9]*", every):
            raise ValueError("an interval should be a number of steps, as in msd:100")
        if word in found:
            raise ValueError(f"{word} is named twice; name it once")
        found[word] = every or INTERVALS[word]
    if not found:
        raise ValueError(f"it should name some of {', '.join(INTERVALS)}")
    return ",".join(f"{word}:{every}" for word, every in found.items())


Ramped = Annotated[float | str, BeforeValidator(_number_or_ramp)]
"""A number, or `start:end`."""
Couple = Annotated[str, AfterValidator(_known_ways)]
Temperatures = Annotated[str, BeforeValidator(_ladder)]
"""`first:last`, or one for each replica."""
Atoms = Annotated[str, BeforeValidator(_joined)]
Graph = Annotated[Literal["auto", "on", "off"], BeforeValidator(_switched)]
StepsPerReplay = Annotated[int, AfterValidator(_held_by_graph)]
Files = Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(_one_or_many)]
Committee = Annotated[tuple[str, ...], BeforeValidator(_members)]
Observed = Annotated[str, BeforeValidator(_observed)]
Ensemble = Annotated[str, BeforeValidator(checked_word)]
NumberOfSteps = Annotated[int, Field(ge=0, le=MOST_STEPS)]
RampedTemperature = Annotated[Ramped, AfterValidator(_not_negative)]
