"""Autotuning: short runs that measure which skin and which graph lengths are fastest.

The atoms move as they will, so that lists fall due as often as they will, and are taken back.
Neither choice moves a bit of what the fused form computes.
"""

import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Final, TypeVar

import torch

from mdgraph.engine.dynamics import POWERS, StepDynamics
from mdgraph.errors import InputError, name_some
from mdgraph.neighbors import NeighborList

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


def execution_sentence(seconds: Mapping[int, float], chosen: int) -> str:
    """What the log says of eager steps and graphs of so many."""
    parts = [f"{1e3 * taken:.4g} ms {_way(length)}" for length, taken in seconds.items()]
    return f"A step takes {', '.join(parts)}: steps run {_way(chosen)}."


def _way(length: int) -> str:
    if length == EAGER:
        return "eagerly"
    return "as a CUDA graph" if length == 1 else f"in a CUDA graph of {length}"


logger = logging.getLogger(__name__)

Timer = Callable[[Callable[[], None]], float]
"""Seconds that some work takes, until the device has done it."""

SECONDS: Final = 0.15
"""Aimed at for each pass of a candidate; compilation comes on top."""

PASSES: Final = 3
"""Of which the fastest counts, where a pass takes no longer than that."""

FEWEST, MOST = 8, 64
"""Steps timed."""


@dataclass(frozen=True)
class TuningOptions:
    """What a simulation may choose by measurement.

    Attributes:
        skin: the skin.
        execution: how steps run: eagerly, or as graphs of how many steps.
        eager: whether steps may run without one.
    """

    skin: bool = False
    execution: bool = False
    eager: bool = False

    @classmethod
    def of(
        cls, kind: str, skin: float | None, graph: str, steps_per_replay: int | None
    ) -> "TuningOptions":
        """What the arguments of a simulation leave open on a kind of device.

        Raises:
            InputError: a word or a number that cannot be.
        """
        if not isinstance(graph, str) or graph not in ("auto", "on", "off"):
            raise InputError(f"graph is '{graph}'; choose auto, on or off.")
        if graph == "on" and kind != "cuda":
            raise InputError("graph='on' needs a CUDA device; choose graph='auto'.")
        if steps_per_replay is not None:
            try:
                checked_length(steps_per_replay)
            except ValueError as error:
                raise InputError(f"steps_per_replay is {steps_per_replay}; {error}.") from error
        if kind != "cuda":
            return cls()
        return cls(skin is None, graph != "off" and steps_per_replay is None, eager=graph == "auto")


def checked_length(steps: int) -> int:
    """Most steps in a graph; raises ValueError that advises for a number that cannot be."""
    if not isinstance(steps, Integral) or steps not in POWERS:
        raise ValueError(f"choose among {name_some(POWERS)}")
    return steps


def stopwatch(device: torch.device) -> Timer:
    """A timer by the host's clock; syncs."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def timed(work: Callable[[], None]) -> float:
        wait()
        begin = time.perf_counter()
        work()
        wait()
        return time.perf_counter() - begin

    return timed


def say_mechanism(lists: Sequence[NeighborList]) -> None:
    """Says in the log how lists are built whose skin is not measured."""
    if lists:
        logger.debug("Lists are built by %s.", lists[0].mechanism)


def choose_skin(dynamics: StepDynamics, timer: Timer) -> None:
    """Gives the lists the fastest of `SKINS` and says so in the log.

    Lists are replaced. Skins whose lists do not fit into memory count as slow.
    """
    lists = dynamics.calculation.lists
    if not lists:
        return
    timings: dict[float, SkinTiming] = {}
    count = FEWEST
    for skin in SKINS:
        try:
            dynamics.set_skin(skin)
            if not timings:
                _steps(dynamics, FEWEST)
                count = _count(_timed(dynamics, FEWEST, timer).seconds)
            # Graphs of all the lengths that are timed, which would count as slow steps.
            _steps(dynamics, count)
            timings[skin] = _timed(dynamics, count, timer)
        except torch.OutOfMemoryError:
            if not timings:
                raise
            break
    chosen = preferred({skin: one.seconds for skin, one in timings.items()})
    dynamics.set_skin(chosen)
    logger.info(skin_sentence(timings, chosen, lists[0].mechanism))


def choose_execution(
    dynamics: StepDynamics, timer: Timer, together: int, eager: bool = True
) -> None:
    """Takes the fastest of graphs of `LENGTHS`, or eager steps, and says so in the log.

    Args:
        dynamics: on a device with graphs.
        timer: of steps.
        together: most steps that are launched without a look or a report between them.
        eager: whether eager steps may be taken.
    """
    step_graphs = dynamics.step_graphs
    ready: list[int] = []
    count = FEWEST

    def take(length: int) -> None:
        step_graphs.graphed, step_graphs.longest = length != EAGER, max(length, 1)

    for length in (*LENGTHS, EAGER) if eager else LENGTHS:
        if length > min(count, together):
            continue
        take(length)
        try:
            _steps(dynamics, count)
            if length != EAGER and not step_graphs.graphed:
                return  # no graph can be captured, which the log says already
            if not ready:
                count = _count(_timed(dynamics, FEWEST, timer).seconds)
        except torch.OutOfMemoryError:
            if not ready:
                raise
            break
        ready.append(length)
    # Only now, as graphs that are made later may make those that are there slower.
    seconds: dict[int, float] = {}
    for length in ready:
        take(length)
        try:
            seconds[length] = _timed(dynamics, count, timer).seconds
        except torch.OutOfMemoryError:
            if not seconds:
                raise
            break
    # Of those as fast, the one that launches least: bursts this short do not show all of its gain.
    chosen = preferred(dict(sorted(seconds.items(), reverse=True)))
    take(chosen)
    logger.info(execution_sentence(seconds, chosen))


def _count(seconds: float) -> int:
    """Steps to time where one takes so long, a multiple of the fewest."""
    fitting = int(SECONDS / max(seconds, 1e-9)) // FEWEST * FEWEST
    return min(MOST, max(FEWEST, fitting))


def _steps(dynamics: StepDynamics, count: int) -> None:
    """Takes steps and takes them back; compiles and captures what they need."""
    with dynamics.unchanged():
        dynamics.step_graphs.advance_(dynamics.step, count)


def _timed(dynamics: StepDynamics, count: int, timer: Timer) -> SkinTiming:
    """Times steps from the state of the moment, and one build of each list."""
    lists, state = dynamics.calculation.lists, dynamics.state

    def work() -> None:
        for one in lists:
            one.rebuild_(state.positions, state.cell)
        dynamics.step_graphs.advance_(dynamics.step, count)

    seconds = []
    for _ in range(PASSES if count > FEWEST else 1):
        with dynamics.unchanged():
            before = [int(one.rebuilds) for one in lists]
            seconds.append(timer(work))
            builds = [int(one.rebuilds) - first for one, first in zip(lists, before, strict=True)]
    # The first build of each is ours.
    return SkinTiming(min(seconds) / count, count / max([1, *(one - 1 for one in builds)]))
