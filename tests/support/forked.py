"""Calls in a forked process of their own, with a bound on time and on memory."""

import os
import pickle
import resource
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from mdgraph.errors import MDGraphError

SECONDS = 20
BYTES = 2 << 30


class Outcome(NamedTuple):
    """What became of a call.

    Attributes:
        kind: `value`, `refused` by an error of mdgraph's own, `traceback`, `slow` or `died`.
        value: the value, the sentence, the traceback or the signal.
    """

    kind: str
    value: Any


def in_fork(function: Callable[[], Any]) -> Outcome:
    """Calls a function; its value must be one that pickle takes."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        content = pickle.dumps(_bounded(function))
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(content)
        os._exit(0)
    os.close(writing)
    parts: list[bytes] = []
    end = time.monotonic() + SECONDS
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while True:
            ready, _, _ = select.select([pipe], [], [], max(0.0, end - time.monotonic()))
            part = pipe.read(1 << 20) if ready else None
            if not part:
                break
            parts.append(part)
    if part is None:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if part is None:
        return Outcome("slow", f"more than {SECONDS} s")
    if status or not parts:
        return Outcome("died", f"status {status}")
    outcome: Outcome = pickle.loads(b"".join(parts))
    return outcome


def _bounded(function: Callable[[], Any]) -> Outcome:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, 1 if stream is sys.stdout else 2)
    try:
        return Outcome("value", function())
    except MDGraphError as error:
        return Outcome("refused", str(error))
    except BaseException:  # noqa: BLE001
        return Outcome("traceback", traceback.format_exc()[-4000:])
