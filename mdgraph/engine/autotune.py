"""Autotuning: short runs measure which skin and which graph length are fastest.

Atoms move in these runs, so that lists are built as often as in the real run; then the state is
restored. Neither choice changes a bit of what the fused form computes.
"""

import gc
import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Final, TypeVar

import torch

from mdgraph.engine.dynamics import StepDynamics
from mdgraph.engine.step_graphs import POWERS
from mdgraph.errors import InputError, name_some
from mdgraph.neighbors import NeighborList

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=Hashable)

SKINS: Final = (0.0, 0.3, 0.6, 1.0)
"""Skins to try, A."""

LENGTHS: Final = (1, 8, 32)
"""Graph lengths to try, steps."""

EAGER: Final = 0
"""Graph length that means eager steps."""

TOLERANCE: Final = 0.005
"""A simpler candidate may be slower by this fraction."""


@dataclass(frozen=True)
class SkinTiming:
    """Timing of steps with a skin.

    Attributes:
        seconds: of a step.
        interval: steps between builds of a list.
    """

    seconds: float
    interval: float


def preferred(seconds: Mapping[T, float]) -> T:
    """The first candidate within `TOLERANCE` of the fastest; candidates come simplest first."""
    allowed = (1.0 + TOLERANCE) * min(seconds.values())
    return next(candidate for candidate, duration in seconds.items() if duration <= allowed)


def skin_sentence(timings: Mapping[float, SkinTiming], choice: float, mechanism: str) -> str:
    """The sentence of the log about skins (A)."""
    parts = [
        f"{1e3 * timing.seconds:.4g} ms with a skin of {skin:g} A "
        f"(list built every {timing.interval:.3g} steps)"
        for skin, timing in timings.items()
    ]
    return f"A step takes {', '.join(parts)}: skin {choice:g} A, lists built by {mechanism}."


def execution_sentence(seconds: Mapping[int, float], choice: int) -> str:
    """The sentence of the log about eager steps and graph lengths."""
    parts = [
        f"{1e3 * duration:.4g} ms {_mode_text(length)}" for length, duration in seconds.items()
    ]
    return f"A step takes {', '.join(parts)}: steps run {_mode_text(choice)}."


def _mode_text(length: int) -> str:
    if length == EAGER:
        return "eagerly"
    return "as a CUDA graph" if length == 1 else f"in a CUDA graph of {length}"


Timer = Callable[[Callable[[], None]], float]
"""Measures the seconds until the device has finished some work."""

SECONDS: Final = 0.15
"""Target duration of a pass over a candidate, without compilation."""

PASSES: Final = 3
"""Passes over a candidate, of which the fastest counts; slow candidates get two: of one alone,
skins of 0.3 and 1 A took turns at 98,304 atoms on an H200."""

FEWEST, MOST = 8, 64
"""Smallest and largest number of timed steps."""


@dataclass(frozen=True)
class TuningOptions:
    """What a simulation may tune.

    Attributes:
        skin: the skin.
        execution: whether steps run eagerly or as graphs, and of which length.
        eager: whether eager steps are a candidate.
        division: whether work that may be divided among ranks is.
    """

    skin: bool = False
    execution: bool = False
    eager: bool = False
    division: bool = False

    @classmethod
    def of(
        cls, device_type: str, skin: float | None, graph: str, steps_per_replay: int | None
    ) -> "TuningOptions":
        """The options that the arguments of a simulation leave open.

        Raises:
            InputError: an invalid word or number.
        """
        if not isinstance(graph, str) or graph not in ("auto", "on", "off"):
            raise InputError(f"graph is '{graph}'; choose auto, on or off.")
        if graph == "on" and device_type != "cuda":
            raise InputError("graph='on' needs a CUDA device; choose graph='auto'.")
        if steps_per_replay is not None:
            try:
                checked_length(steps_per_replay)
            except ValueError as error:
                raise InputError(f"steps_per_replay is {steps_per_replay}; {error}.") from error
        if device_type != "cuda":
            return cls()
        execution = graph != "off" and steps_per_replay is None
        return cls(skin is None, execution, eager=graph == "auto", division=True)


def checked_length(steps: int) -> int:
    """Checks a graph length; raises ValueError with advice for an invalid one."""
    if not isinstance(steps, Integral) or steps not in POWERS:
        raise ValueError(f"choose among {name_some(POWERS)}")
    return steps


def stopwatch(device: torch.device) -> Timer:
    """A timer by the host's clock, which syncs the GPU."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def measure(work: Callable[[], None]) -> float:
        wait()
        begin = time.perf_counter()
        work()
        wait()
        return time.perf_counter() - begin

    return measure


def log_mechanism(lists: Sequence[NeighborList]) -> None:
    """Logs how lists are built, if their skin is not tuned."""
    if lists:
        logger.debug("Lists are built by %s.", lists[0].mechanism)


def choose_skin(dynamics: StepDynamics, timer: Timer) -> None:
    """Sets the fastest of `SKINS` and logs it; syncs.

    Lists are replaced. Skins whose lists do not fit into memory are left out.
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
                _warm_up(dynamics, FEWEST)
                count = _count(_time_steps(dynamics, FEWEST, timer).seconds)
            # Capture all graphs first: a capture would count as slow steps.
            _warm_up(dynamics, count)
            timings[skin] = _time_steps(dynamics, count, timer)
        except torch.OutOfMemoryError:
            if not timings:
                raise
            break
    choice = preferred({skin: timing.seconds for skin, timing in timings.items()})
    dynamics.set_skin(choice)
    logger.info(skin_sentence(timings, choice, lists[0].mechanism))


def choose_division(dynamics: StepDynamics, timer: Timer, divide_: Callable[[bool], None]) -> None:
    """Leaves work divided among ranks where that is faster than one of them alone; syncs.

    Logs which it is. Where all of it does not fit into the memory of one it stays divided.

    Args:
        dynamics: whose work is divided.
        timer: of steps.
        divide_: divides the work, or does it on one.
    """

    def select(divides: bool) -> None:
        divide_(divides)
        dynamics.step_graphs.forget()
        for item in dynamics.calculation.lists:
            item.rebuild_(dynamics.state.positions, dynamics.state.cell)

    seconds: dict[bool, float] = {}
    fits = True
    try:
        for divides in (False, True):
            select(divides)
            _warm_up(dynamics, FEWEST)
            count = _count(_time_steps(dynamics, FEWEST, timer).seconds)
            _warm_up(dynamics, count)
            seconds[divides] = _time_steps(dynamics, count, timer).seconds
    except torch.OutOfMemoryError:
        if divides:
            raise
        fits = False  # the error holds what was begun until this block ends
    if not fits:
        select(True)
        gc.collect()
        return
    choice = preferred(seconds)
    if not choice:
        select(False)
    logger.info(division_sentence(seconds, choice))


def division_sentence(seconds: Mapping[bool, float], choice: bool) -> str:
    """The sentence of the log about steps that are divided."""
    whole, divided = (f"{1e3 * seconds[divides]:.4g} ms" for divides in (False, True))
    chosen = "so the system is divided" if choice else "so one does all, and the others wait"
    return f"A step takes {whole} on one GPU, {divided} in domains on all: {chosen}."


def choose_execution(
    dynamics: StepDynamics, timer: Timer, together: int, eager: bool = True
) -> None:
    """Sets the fastest graph length of `LENGTHS`, or eager steps, and logs it; syncs.

    Args:
        dynamics: on a device with graphs.
        timer: of steps.
        together: most steps between two checks or reports.
        eager: whether eager steps are a candidate.
    """
    step_graphs = dynamics.step_graphs
    candidates: list[int] = []
    count = FEWEST

    def select(length: int) -> None:
        step_graphs.graphed, step_graphs.longest = length != EAGER, max(length, 1)

    for length in (*LENGTHS, EAGER) if eager else LENGTHS:
        if length > min(count, together):
            continue
        select(length)
        try:
            _warm_up(dynamics, count)
            if length != EAGER and not step_graphs.graphed:
                return  # no graph can be captured, and the log says so already
            if not candidates:
                count = _count(_time_steps(dynamics, FEWEST, timer).seconds)
        except torch.OutOfMemoryError:
            if not candidates:
                raise
            break
        candidates.append(length)
    # Timed after all captures, because a later capture may slow earlier graphs.
    seconds: dict[int, float] = {}
    for length in candidates:
        select(length)
        try:
            seconds[length] = _time_steps(dynamics, count, timer).seconds
        except torch.OutOfMemoryError:
            if not seconds:
                raise
            break
    # Among equally fast ones take the longest graph: short runs hide part of its gain.
    choice = preferred(dict(sorted(seconds.items(), reverse=True)))
    select(choice)
    logger.info(execution_sentence(seconds, choice))


def _count(seconds: float) -> int:
    """Number of steps to time, a multiple of `FEWEST`, from the seconds of a step."""
    fitting = int(SECONDS / max(seconds, 1e-9)) // FEWEST * FEWEST
    return min(MOST, max(FEWEST, fitting))


def _warm_up(dynamics: StepDynamics, count: int) -> None:
    """Runs steps, which compiles and captures, and restores the state."""
    with dynamics.unchanged():
        dynamics.advance_(count)


def _time_steps(dynamics: StepDynamics, count: int, timer: Timer) -> SkinTiming:
    """Times steps from the current state, with one build of each list."""
    lists, state = dynamics.calculation.lists, dynamics.state

    def work() -> None:
        for neighbors in lists:
            neighbors.rebuild_(state.positions, state.cell)
        dynamics.advance_(count)

    seconds = []
    for _ in range(PASSES if count > FEWEST else min(PASSES, 2)):
        with dynamics.unchanged():
            before = [int(neighbors.rebuilds) for neighbors in lists]
            seconds.append(timer(work))
            builds = [
                int(neighbors.rebuilds) - start
                for neighbors, start in zip(lists, before, strict=True)
            ]
    # `work` builds each list once itself.
    return SkinTiming(min(seconds) / count, count / max([1, *(number - 1 for number in builds)]))
