"""Choices by measurement: of a skin, and of how steps are taken. No device, no clock."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

T = TypeVar("T", bound=Hashable)

SKINS: Final = (0.0, 0.3, 0.6, 1.0)
"""A, that are tried."""

LENGTHS: Final = (1, 8, 32)
"""Steps in a graph that are tried."""

EAGER: Final = 0
"""Stands for steps without a graph where lengths of graphs are compared."""

TOLERANCE: Final = 0.005
"""What is slower by less may be chosen, because it is simpler."""


@dataclass(frozen=True)
class SkinTiming:
    """Steps with a skin.

    Attributes:
        seconds: a step.
        interval: steps from one build of a list to the next.
    """

    seconds: float
    interval: float


def preferred(seconds: Mapping[T, float]) -> T:
    """The first candidate, of those in order of simplicity, that is as fast as the fastest."""
    allowed = (1.0 + TOLERANCE) * min(seconds.values())
    return next(one for one, taken in seconds.items() if taken <= allowed)


def skin_sentence(timings: Mapping[float, SkinTiming], chosen: float, mechanism: str) -> str:
    """What the log says of skins, in A."""
    parts = [
        f"{1e3 * one.seconds:.4g} ms with a skin of {skin:g} A "
        f"(list built every {one.interval:.3g} steps)"
        for skin, one in timings.items()
    ]
    return f"A step takes {', '.join(parts)}: skin {chosen:g} A, lists built by {mechanism}."


def way_sentence(seconds: Mapping[int, float], chosen: int) -> str:
    """What the log says of eager steps and graphs of so many."""
    parts = [f"{1e3 * taken:.4g} ms {_way(length)}" for length, taken in seconds.items()]
    return f"A step takes {', '.join(parts)}: steps run {_way(chosen)}."


def _way(length: int) -> str:
    if length == EAGER:
        return "eagerly"
    return "as a CUDA graph" if length == 1 else f"in a CUDA graph of {length}"
