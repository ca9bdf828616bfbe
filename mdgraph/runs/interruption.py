"""Interruption: Ctrl-C and SIGTERM end a run after the steps under way."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Self

from mdgraph.engine import Simulation


class Interruption:
    """Waits for SIGINT and SIGTERM while it is entered, and stops the run at once.

    A second signal takes its usual course. Outside the main thread, where Python handles
    no signals, nothing is caught. A signal just before the run begins is seen when it reports.

    Attributes:
        signal: the one that came, or None.
        interval: steps from one report to the next.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, stop: Callable[[signal.Signals], None], interval: int) -> None:
        """Catches nothing yet.

        Args:
            stop: asks the run to end, told why; safe in a signal handler.
            interval: see above.
        """
        self.interval = interval
        self._stop = stop
        self.signal: signal.Signals | None = None
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self.SIGNALS:
                self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = signal.Signals(number)
        self._give_back()
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
        self._give_back()
