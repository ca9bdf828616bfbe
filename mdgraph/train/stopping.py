"""Stopping: signals wait until the step under way is done and its checkpoint written."""

import signal
import threading
from functools import partial
from types import FrameType
from typing import Final, NoReturn, Self

from mdgraph.signals import PATIENCE, SIGNALS, deliver, delivered_later, is_caught, may_hold
from mdgraph.train.processes import Processes
from mdgraph.train.step import TrainingStep

_TOLD: Final = 20
"""Steps after which processes on GPUs read whether another one got a signal, for which they
wait for the device."""


class Stopping:
    """Holds signals back while it is entered; `end` lets the one that came take its course.

    Of one process, a second signal takes its course at once. Of several every other one is held
    back too: a batch system sends it to all processes, and torchrun, which got it as well, sends
    it again. SIGTERM is held back even after an error of one of them, which is to be said before
    torchrun ends what is left. Signals that were ignored stay so, and outside the main thread,
    where Python handles none, nothing is held back.
    """

    def __init__(self, step: TrainingStep, processes: Processes) -> None:
        """Holds nothing back yet."""
        self._step, self._processes = step, processes
        self._number: signal.Signals | None = None
        self._before: dict[signal.Signals, object] = {}
        self._timer: threading.Timer | None = None

    def is_due(self, step: int) -> bool:
        """Whether a signal came, to any process: all stop after the same step.

        Of several on GPUs it syncs, every 20th step, and is False at others.
        """
        if self._processes.count == 1:
            return self._number is not None
        wishes = self._step.wishes
        return (step % _TOLD == 0 or not wishes.is_cuda) and bool(wishes > 0.0)

    def end(self) -> NoReturn:
        """Raises the signal that came, or where it came to another process SIGTERM."""
        self._give_back()
        if self._timer is not None:
            self._timer.cancel()
        signal.raise_signal(self._number or signal.SIGTERM)
        raise KeyboardInterrupt  # what the signal does may let this process live

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._number = signal.Signals(number)
        self._step.stops = True
        if self._processes.count == 1:
            self._give_back()
            if is_caught(number):  # validations take long; the last checkpoint is whole
                self._timer = delivered_later(PATIENCE, partial(deliver, number))

    def _give_back(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)  # type: ignore[arg-type]

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in filter(may_hold, SIGNALS):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if kind is not None and self._processes.count > 1:
            self._before.pop(signal.SIGTERM, None)
        self._give_back()
        if kind is None and self._number is not None and self._processes.count == 1:
            self.end()
