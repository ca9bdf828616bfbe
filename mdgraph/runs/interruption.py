"""Interruption: a signal ends a run after the steps under way."""

import signal
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Self

from mdgraph.engine import Simulation
from mdgraph.signals import PATIENCE, SIGNALS, deliver, delivered_later, is_caught, may_hold


class Interruption:
    """Waits for the signals that end a process while it is entered, and stops the run at once.

    A second signal takes its usual course, but not in one of several ranks: these stop together.
    In a command, a run that does not stop within some seconds, as its steps take long, ends as
    by a second one. Outside the main thread, where Python handles no signals, nothing is caught.
    A signal just before the run begins is seen when it reports.

    Attributes:
        signal: the one that came, or None.
        interval: steps from one report to the next.
    """

    def __init__(
        self, stop: Callable[[signal.Signals], None], interval: int, *, together: bool = False
    ) -> None:
        """Catches nothing yet.

        Args:
            stop: asks the run to end, told why; safe in a signal handler.
            interval: see above.
            together: whether other ranks stop with this one.
        """
        self.interval = interval
        self._stop = stop
        self._together = together
        self.signal: signal.Signals | None = None
        self._before: dict[signal.Signals, object] = {}
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in filter(may_hold, SIGNALS):
                self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        first = self.signal is None
        self.signal = self.signal or signal.Signals(number)
        if not self._together:
            self._give_back()
            if first and is_caught(number):
                self._timer = delivered_later(PATIENCE, partial(deliver, number))
        self._stop(self.signal)

    def _give_back(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)  # type: ignore[arg-type]

    def report(self, simulation: Simulation) -> None:
        """See Reporter."""
        if self.signal is not None:
            self._stop(self.signal)

    def __exit__(self, *exception: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._give_back()
