"""Steps between reports, where a run does not say."""

from typing import Final, NamedTuple

_FRAMES: Final = 200
"""Of a trajectory, about: enough for a picture, and few where a GPU waits at each."""

_ROUND: Final = (10, 20, 50, 100, 200, 500, 1000)
"""Steps between frames that may be chosen."""

_FRAMES_PER_CHECKPOINT: Final = 10
_LEAST_CHECKPOINT: Final = 1000
"""Steps between checkpoints, at least."""


class Intervals(NamedTuple):
    """Steps between frames, between rows of the log and between checkpoints."""

    trajectory: int
    log: int
    checkpoint: int


def default_intervals(steps: int) -> Intervals:
    """The intervals of a run of so many steps.

    Frames, and rows of the log, come about 200 times, every 10 to 1,000 steps, a number that is
    1, 2 or 5 times a power of ten; checkpoints ten times as seldom, but at least 1,000 steps
    apart.
    """
    wanted = max(steps, 1) / _FRAMES
    between = min(_ROUND, key=lambda one: max(one / wanted, wanted / one))
    return Intervals(between, between, max(_FRAMES_PER_CHECKPOINT * between, _LEAST_CHECKPOINT))
