"""Signals that ask a process to end: a terminal's, a closed terminal's, a batch system's.

A command catches them from its first line on. What is under way ends by an exception, so that
nothing half is left; what has something to keep holds a signal back, and ends by itself.
Signals that are ignored at the start, as by nohup, stay ignored.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any, Final

SIGNALS: Final = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""Ctrl-C, what batch systems send, a closed terminal, Ctrl-backslash, and batch systems' warnings
that the time is nearly up."""

PATIENCE: Final = 4.0
"""s, in which what holds a signal back ends by itself; steps may take longer."""

_AGAIN: Final = 2.0
"""s, after which an exception comes again that something swallowed, as what C calls does."""

_MOST: Final = 3
"""Times that it comes again before the process ends as it is."""


class Interrupted(BaseException):
    """A signal that ends a command; no library takes it for an error.

    Attributes:
        signal: the one that came first.
        status: of the command that it ends.
    """

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.signal = number
        self.status = 128 + number


def unfinished_status(number: signal.Signals) -> int:
    """Exit status of a command that a signal ended and that can go on from its files.

    After SIGUSR1, by which batch systems warn that the time is nearly up, it is 75 (EX_TEMPFAIL),
    so that a script can tell an unfinished run from a failed one; after others 128 and the signal.
    """
    return os.EX_TEMPFAIL if number == signal.SIGUSR1 else 128 + number


class _Catcher:
    """Raises Interrupted for the first signal, and again until that is dealt with.

    Attributes:
        first: the signal that is not dealt with yet, or None.
        hook: what is told of other exceptions that are lost.
    """

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self.hook = sys.unraisablehook
        self._times = 0
        self._timer: threading.Timer | None = None

    def catch(self, number: int, frame: FrameType | None) -> None:
        """Handles a signal."""
        if self.first is None:
            self.first = signal.Signals(number)
            self._expect()
        elif self._times == 0:
            return  # a second Ctrl-C while all ends already
        raise Interrupted(self.first)

    def note_lost(self, lost: "sys.UnraisableHookArgs") -> None:
        """Says nothing of an exception lost in a callback or finalizer, as it comes again."""
        if not issubclass(lost.exc_type, Interrupted):
            self.hook(lost)

    def _expect(self) -> None:
        self._timer = delivered_later(_AGAIN, self._insist)

    def _insist(self) -> None:
        """In the thread of the timer."""
        first = self.first
        if first is None:
            return
        self._times += 1
        if self._times > _MOST:
            with contextlib.suppress(OSError):
                os.write(2, f"mdgraph: Stopped by {first.name}.\n".encode())
            os._exit(128 + first)
        self._expect()
        deliver(first)

    def settle(self) -> None:
        """Takes the signal as dealt with; the next one is the first again."""
        if self._timer is not None:
            self._timer.cancel()
        self.first, self._times = None, 0


_catchers: Final[list[_Catcher]] = []


@contextlib.contextmanager
def signals_ignored() -> Iterator[None]:
    """Lets no signal through, for some seconds in which all ends anyway; in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, signal.SIG_IGN)
        for number in SIGNALS
        if signal.getsignal(number) is not None
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """Delivers signals once what is within is over, such as an import that aborts on exceptions."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def import_torch() -> None:
    """Imports torch, which ends the process with a dump where an exception comes in between."""
    with signals_deferred():
        import torch  # noqa: F401


@contextlib.contextmanager
def signals_caught() -> Iterator[None]:
    """Ends what is within by `Interrupted` when a signal comes; outside the main thread does not.

    Where nothing gives way within some seconds, the process ends.
    """
    catcher, before = _Catcher(), {}
    _catchers.append(catcher)
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, catcher.catch)
    sys.unraisablehook = catcher.note_lost
    try:
        yield
    finally:
        catcher.settle()
        if sys.unraisablehook == catcher.note_lost:
            sys.unraisablehook = catcher.hook
        _catchers.remove(catcher)
        for number, handler in before.items():
            if signal.getsignal(number) == catcher.catch:
                signal.signal(number, handler)


def settle() -> None:
    """Takes an `Interrupted` as dealt with: what follows may take its time."""
    for catcher in _catchers:
        catcher.settle()


def pending() -> signal.Signals | None:
    """The signal whose `Interrupted` is on its way, or was made another exception on it."""
    return next((one.first for one in _catchers if one.first is not None), None)


def is_caught(number: int) -> bool:
    """Whether a signal raises `Interrupted` as things are."""
    return any(signal.getsignal(number) == catcher.catch for catcher in _catchers)


def may_hold(number: signal.Signals) -> bool:
    """Whether a signal may be held back: it is not ignored, nor another program's own."""
    handler = signal.getsignal(number)
    if handler in (signal.SIG_IGN, None):
        return False
    own = number in (signal.SIGINT, signal.SIGTERM) or handler is signal.SIG_DFL
    return own or is_caught(number)


def deliver(number: int) -> None:
    """Sends a signal to the main thread, which wakes it where it waits."""
    identity = threading.main_thread().ident
    if identity is not None:
        signal.pthread_kill(identity, number)


def delivered_later(seconds: float, act: object) -> threading.Timer:
    """Starts a timer that keeps no process alive."""
    timer = threading.Timer(seconds, act)  # type: ignore[arg-type]
    timer.daemon = True
    timer.start()
    return timer


class HeldSignals:
    """Signals of the main thread that reach a handler of one's own for a while.

    In other threads, where Python handles no signals, none does.
    """

    def __init__(self) -> None:
        """Takes none yet."""
        self._before: dict[signal.Signals, Any] = {}
        self._timer: threading.Timer | None = None

    def take(self, handler: Callable[[int, FrameType | None], None]) -> None:
        """Takes all that may be held back, see `may_hold`."""
        if threading.current_thread() is threading.main_thread():
            for number in filter(may_hold, SIGNALS):
                self._before[number] = signal.signal(number, handler)

    def keep(self, number: signal.Signals) -> None:
        """Never gives a signal back."""
        self._before.pop(number, None)

    def give_back(self) -> None:
        """Gives them back to those who had them before; safe in a handler, and twice."""
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)

    def deliver_later(self, number: int, seconds: float = PATIENCE) -> None:
        """Sends a signal anew after some seconds, unless that is cancelled."""
        self._timer = delivered_later(seconds, partial(deliver, number))

    def cancel(self) -> None:
        """Sends nothing anew."""
        if self._timer is not None:
            self._timer.cancel()
