"""Verdicts: how `mdgraph validate` says what it thinks of one property of a potential."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdgraph.engine.observables.base import finite_or_null
from mdgraph.system import System


class Verdict(StrEnum):
    """What a check concludes.

    Attributes:
        OK: within the limits.
        LOOK: a person should look, because something is unusual or nothing is there to judge by.
        WRONG: beyond the limits; the command ends with status 1.
    """

    OK = "ok"
    LOOK = "look"
    WRONG = "wrong"

    @classmethod
    def by_limits(cls, value: float, limits: tuple[float, float]) -> "Verdict":
        """A look beyond the first limit; wrong beyond the second, or without a number."""
        if not value <= limits[1]:
            return cls.WRONG
        return cls.LOOK if value > limits[0] else cls.OK


@dataclass(frozen=True, eq=False)
class Curves:
    """Lines of one picture that share their x.

    Attributes:
        x: (P,) of all lines.
        y: (P,) of each line by its name in the legend; NaN leaves a gap.
        x_label: name and unit of x, such as "lattice constant (Å)".
        y_label: of y.
    """

    x: NDArray[np.float64]
    y: Mapping[str, NDArray[np.float64]]
    x_label: str
    y_label: str

    def as_json(self) -> dict[str, Any]:
        """Ready for JSON; numbers that are not finite become None."""
        return {
            "x_label": self.x_label,
            "y_label": self.y_label,
            "x": _numbers(self.x),
            "y": {name: _numbers(values) for name, values in self.y.items()},
        }


@dataclass(frozen=True, eq=False)
class Check:
    """One line of a validation.

    Attributes:
        name: of what was checked, unique within a validation, such as "bonds of C7H8O".
        verdict: the conclusion.
        sentence: what was measured, and for a verdict other than ok why.
        numbers: what was measured, by name with unit, ready for JSON.
        curves: of a picture, or None.
        panels: of further small pictures by title, the most telling first.
        structures: whose labels would decide it, by what they are, with those that energies are
            counted from; not in the JSON.
    """

    name: str
    verdict: Verdict
    sentence: str
    numbers: Mapping[str, Any] = field(default_factory=dict)
    curves: Curves | None = None
    panels: Mapping[str, Curves] = field(default_factory=dict)
    structures: Mapping[str, System] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Ready for JSON; numbers that are not finite become None."""
        values: dict[str, Any] = {
            "name": self.name,
            "verdict": self.verdict.value,
            "sentence": self.sentence,
            "numbers": finite_or_null(dict(self.numbers)),
        }
        if self.curves is not None:
            values["curves"] = self.curves.as_json()
        if self.panels:
            values["panels"] = {title: panel.as_json() for title, panel in self.panels.items()}
        return values


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The most severe of some verdicts; ok for none."""
    return max(verdicts, key=list(Verdict).index, default=Verdict.OK)


def _numbers(values: NDArray[np.float64]) -> list[float | None]:
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values]
