"""When ASE calls its observers."""

from collections.abc import Sequence
from typing import Any


def steps_to_next_call(observers: Sequence[tuple[Any, ...]], now: int, end: int) -> int:
    """Steps from `now` to the next one at which ASE calls an observer, or to the end.

    An interval above zero means each multiple of it, another one that step alone.
    """
    due = [end]
    for _, interval, *_ in observers:
        at = (now // interval + 1) * interval if interval > 0 else -interval
        due += [at] if at > now else []
    return min(due) - now
