"""Interruption: Ctrl-C and SIGTERM end a run after the steps under way."""

import signal
import threading
from types import FrameType
from typing import Self

from mdgraph.engine import Simulation


class Interruption:
    """Waits for SIGINT and SIGTERM while it is entered; a reporter that stops the run.

    A second signal takes its usual course. Outside the main thread, where Python handles
    no signals, nothing is caught.

    Attributes:
        signal: the one that came, or None.
        interval: steps between two looks.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, interval: int) -> None:
        self.interval = interval
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

    def _give_back(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)  # type: ignore[arg-type]

    def report(self, simulation: Simulation) -> None:
        """Stops the run once a signal came."""
        if self.signal is not None:
            simulation.stop()

    def __exit__(self, *exception: object) -> None:
        self._give_back()
