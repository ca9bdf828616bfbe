"""Ensembles by one word: the parameters that each takes, and what they are unless given."""

import difflib
import math
from collections.abc import Collection, Mapping
from typing import Any, Final

DEFAULTS: Final[Mapping[str, Mapping[str, float | str]]] = {
    "nve": {},
    "nvt-langevin": {"friction_per_ps": 1.0},
    "nvt-bussi": {"relaxation_fs": 100.0},
    "nvt-nose-hoover": {"relaxation_fs": 50.0},
    "npt": {
        "pressure_bar": 1.0,
        "relaxation_fs": 100.0,
        "cell_relaxation_fs": 1000.0,
        "compressibility_per_bar": 4.5e-5,
        "couple": "isotropic",
    },
    "npt-mtk": {"pressure_bar": 1.0, "relaxation_fs": 50.0, "cell_relaxation_fs": 500.0},
}
"""Parameters beside temperature and time step, with the numbers they have unless given."""

MIDDLE: Final = frozenset({"nvt-langevin", "nvt-bussi", "npt"})
"""Ensembles whose velocities belong to the middle of a step, half of one before the positions."""

ALIASES: Final = {"langevin": "nvt-langevin"}

_AXES: Final = ("x", "y", "z")


def checked_word(word: Any) -> str:
    """The ensemble's own name; raises ValueError that names the nearest for another word."""
    word = ALIASES.get(word, word)
    if word in DEFAULTS:
        return str(word)
    raise ValueError(nearest(str(word), DEFAULTS))


def nearest(word: str, known: Collection[str]) -> str:
    """Advice for an unknown word: what it begins, or is closest to, or everything known."""
    folded = {name.casefold(): name for name in known}
    begun = [name for fold, name in folded.items() if fold.startswith(word.casefold())]
    near = begun or difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=0.5)
    if len(near) == 1:
        return f"did you mean {folded.get(near[0], near[0])}?"
    *others, last = near or known
    return f"choose {', '.join(others)} or {last}"


def completed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a run with those that its ensemble has and nobody gave.

    Raises:
        ValueError: a parameter that the ensemble does not have.
    """
    word = values.get("ensemble", "nvt-langevin")
    word = ALIASES.get(word, word)
    given = {name: value for name, value in values.items() if value is not None}
    if word not in DEFAULTS:
        return given
    every = {name for own in DEFAULTS.values() for name in own}
    wrong = sorted(every & set(given) - set(DEFAULTS[word]))
    if wrong:
        which = " or ".join(other for other, own in DEFAULTS.items() if set(wrong) <= set(own))
        advice = f"leave {'it' if len(wrong) == 1 else 'them'} out"
        advice += f", or choose {which}" if which else ""
        raise ValueError(f"{word} has no {', '.join(wrong)}; {advice}")
    return {**DEFAULTS[word], **given}


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


def ways_and_axes(couple: str) -> tuple[str, tuple[bool, ...] | None]:
    """How a cell varies, as `Deformation` takes it: `x,z` are axes of which two vary.

    Raises:
        ValueError: another word.
    """
    if couple in ("isotropic", "axes", "full"):
        return couple, None
    chosen = [axis.strip() for axis in couple.split(",")]
    if not set(chosen) <= set(_AXES) or len(set(chosen)) < len(chosen):
        raise ValueError("it should be isotropic, axes, full, or some of x,y,z")
    return "axes", tuple(axis in chosen for axis in _AXES)
