"""Field types of a configuration with their ranges, those of ensembles' options among them."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from mdgraph.ensembles import (
    ENSEMBLES,
    HIGHEST_PRESSURE,
    Option,
    checked_coupling,
    named_ensemble,
)
from mdgraph.errors import similar_names

DEFAULT_ENSEMBLE: Final = "nvt-langevin"


def checked_word(word: Any) -> str:
    """The ensemble's own name; raises ValueError that names the nearest for another word."""
    ensemble = named_ensemble(str(word))
    if ensemble is None:
        raise ValueError(nearest(str(word), ENSEMBLES))
    return ensemble.word


def nearest(word: str, known: Collection[str]) -> str:
    """Advice for an unknown word: what it begins, or is closest to, or everything known."""
    names = similar_names(word, known)
    if len(names) == 1:
        return f"did you mean {names[0]}?"
    return f"choose {joined(names or list(known), 'or')}"


def completed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a run with those that its ensemble has and nobody gave.

    Raises:
        ValueError: a parameter that the ensemble does not have.
    """
    given = {name: value for name, value in values.items() if value is not None}
    ensemble = named_ensemble(str(values.get("ensemble", DEFAULT_ENSEMBLE)))
    if ensemble is None:
        return given
    names = {known.word: known.defaults.keys() for known in ENSEMBLES.values()}
    wrong = sorted(set().union(*names.values()) & set(given) - names[ensemble.word])
    if wrong:
        which = " or ".join(word for word, own in names.items() if set(wrong) <= own)
        advice = f"leave {'it' if len(wrong) == 1 else 'them'} out"
        advice += f", or choose {which}" if which else ""
        raise ValueError(f"{ensemble.word} has no {', '.join(wrong)}; {advice}")
    return {**ensemble.defaults, **given}


def ends(value: float | str) -> tuple[float, float]:
    """Start and end of a number, which are the same, or of a ramp `start:end`.

    Raises:
        ValueError: anything else.
    """
    texts = value.split(":") if isinstance(value, str) else [value]
    try:
        numbers = [float(text) for text in texts]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) not in (1, 2):
        raise ValueError("it should be a valid number, or two as start:end")
    if not all(map(math.isfinite, numbers)):
        raise ValueError("it should be a finite number")
    return numbers[0], numbers[-1]


MOST_STEPS: Final = 10**15
"""Beyond any run; float64 still counts single steps."""

# Ranges are those beyond which nothing that moves by these potentials can be meant; docs/units.md
# lists them with their reasons. Numbers are finite by the configuration's own rule.
HIGHEST_TEMPERATURE: Final = 1e6
"""K: 86 eV an atom, where no atom keeps its electrons."""
SHORTEST_TIMESTEP: Final = 1e-6
"""fs: no atom moves by what float64 resolves in less."""


def _resolved(timestep: float) -> float:
    if timestep < SHORTEST_TIMESTEP:
        raise ValueError(f"it should be at least {SHORTEST_TIMESTEP:g}")
    return timestep


Timestep = Annotated[float, Field(gt=0, le=20), AfterValidator(_resolved)]
"""fs; longer ones are of another unit, as no vibration of atoms is as slow."""
HydrogenMass = Annotated[float, Field(ge=1.008, le=100)]
"""amu, no less than it has, and more than that of any atom it could be bonded to is no use."""
Charge = Annotated[float, Field(ge=-1e6, le=1e6)]
"""e; a structure's own bound, that of its nuclei, is closer."""
Cutoff = Annotated[float, Field(gt=0, le=1e4)]
"""A; pairs farther apart are more than memory holds, and all-pairs names all of a molecule."""
Skin = Annotated[float, Field(ge=0, le=20)]
"""A; twice the longest cutoff in use: lists grow with the cube, and are rebuilt less often."""
Stiffness = Annotated[float, Field(gt=0, le=1e6)]
"""eV/A^2: a thousand times a carbon bond's 30."""
Length = Annotated[float, Field(ge=0)]
"""ps; how many steps that is has a bound of its own."""
Limit = Annotated[float, Field(gt=0, le=1e30)]
"""Tolerances and thresholds, of any unit: a huge one switches a check off."""
AtomicStep = Annotated[float, Field(gt=0, le=10)]
"""A, beyond which an atom leaves what surrounds it."""
Seconds = Annotated[float, Field(gt=0, le=1e7)]
"""s, four months."""

Count = Annotated[int, Field(ge=1, le=MOST_STEPS)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


def _number_or_ramp(value: Any) -> Any:
    start, end = ends(value)
    return start if start == end else str(value).replace(" ", "")


def _temperature(value: float | str) -> float | str:
    if min(ends(value)) < 0.0:
        raise ValueError("it should be greater than or equal to 0")
    _check_below(max(ends(value)), HIGHEST_TEMPERATURE)
    return value


def _check_below(number: float, highest: float, where: str = "") -> None:
    if number > highest:
        raise ValueError(f"it should be at most {highest:,.0f}{where}")


def _ladder(value: Any) -> Any:
    """Temperatures as one text: `first:last`, or all of them with commas."""
    if isinstance(value, list | tuple):
        value = ",".join(map(str, value))
    text = str(value).replace(" ", "")
    numbers = [ends(part)[0] for part in text.replace(":", ",").split(",")]
    if min(numbers) <= 0.0:
        raise ValueError("it should be greater than 0")
    _check_below(max(numbers), HIGHEST_TEMPERATURE)
    if ":" in text and ("," in text or len(numbers) != 2):
        raise ValueError("it should be first:last, or a list of numbers")
    return text


def _one_or_many(value: Any) -> Any:
    if not isinstance(value, str | list | tuple):
        raise ValueError("it should be the name of a file, or a list of such")
    return (value,) if isinstance(value, str) else value


def _known_format(word: Any) -> str:
    from mdgraph.io.formats import known_format  # which imports torch

    return known_format(word)


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
    from mdgraph.engine.autotune import checked_length  # which imports torch

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
Coupling = Annotated[str, AfterValidator(checked_coupling)]
Temperatures = Annotated[str, BeforeValidator(_ladder)]
"""`first:last`, or one for each replica."""
Atoms = Annotated[str, BeforeValidator(_joined)]
Graph = Annotated[Literal["auto", "on", "off"], BeforeValidator(_switched)]
StepsPerReplay = Annotated[int, AfterValidator(_held_by_graph)]
Files = Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(_one_or_many)]
Committee = Annotated[tuple[str, ...], BeforeValidator(_members)]
Observed = Annotated[str, BeforeValidator(_observed)]
Ensemble = Annotated[str, BeforeValidator(checked_word)]
Trajectory = Annotated[str, BeforeValidator(_known_format)]
NumberOfSteps = Annotated[int, Field(ge=0, le=MOST_STEPS)]
RampedTemperature = Annotated[Ramped, AfterValidator(_temperature)]
Pressure = Annotated[float, Field(ge=-HIGHEST_PRESSURE, le=HIGHEST_PRESSURE)]
"""bar."""


def option_type(option: Option) -> Any:
    """The type of a field that holds an option of an ensemble, with its range."""
    if option.text is not None:
        return Annotated[str, AfterValidator(option.text)]
    if option.ramps:
        return Annotated[Ramped, AfterValidator(partial(_ramp_within, option))]
    return Annotated[float, Field(gt=option.above, ge=option.least, le=option.most)]


def _ramp_within(option: Option, value: float | str) -> float | str:
    both = ends(value)
    if option.most is not None and option.least == -option.most:
        _check_below(max(map(abs, both)), option.most, " either way")
        return value
    if option.above is not None and min(both) <= option.above:
        raise ValueError(f"it should be greater than {option.above:g}")
    if option.least is not None and min(both) < option.least:
        raise ValueError(f"it should be greater than or equal to {option.least:g}")
    if option.most is not None:
        _check_below(max(both), option.most)
    return value


def option_help(name: str) -> str:
    """Of which ensembles an option is, what it is, and its default in each."""
    own = {
        ensemble.word: option
        for ensemble in ENSEMBLES.values()
        for option in ensemble.options
        if option.name == name
    }
    words: dict[str, list[str]] = {}
    for word, option in own.items():
        default = option.default
        shown = default if isinstance(default, str) else f"{default:g}"
        words.setdefault(shown, []).append(word)
    defaults = [f"{shown} in {joined(which, 'and')}" for shown, which in words.items()]
    text = ", ".join(words if len(words) == 1 else defaults)
    help_text = next(iter(own.values())).help
    return f"Of {joined(list(own), 'and')}: {help_text} (default {text})."


def joined(words: Sequence[str], last: str) -> str:
    """Words with commas, and `last` before the last of them."""
    *others, end = words
    return f"{', '.join(others)} {last} {end}" if others else end
