"""Processes that begin where Python has imported torch and mdgraph already.

They have streams, signals, an exit status and an end of their own, and save the seconds in which a
new interpreter imports. What a new interpreter does itself needs `subprocess`.
"""

import atexit
import contextlib
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from multiprocessing import reduction
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch

IMPORTED = (
    "mdgraph.runs.commands.app",
    "mdgraph.runs.evaluation",
    "mdgraph.runs.md",
    "mdgraph.train.loop",
    "mdgraph.analysis.plots",
    "mdgraph.fused.cpu.network",
    "torch._dynamo",
    "ready",
)
"""Modules of the process that the others are forked from.

Optimizers import torch's compiler, which takes 3 s, when the first of them is made.
"""


class Ended(NamedTuple):
    """How a process ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def run_prepared(context: Any, words: Sequence[object], folder: Path) -> Ended:
    """Runs a script, a module after -m or code after -c, on the CPU; warnings are errors.

    Args:
        context: of multiprocessing, such as the fixture `processes`.
        words: of the command line after `python`.
        folder: where it runs.
    """
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return ended(context, words, env=environment, cwd=folder, warn="error")


def ended(context: Any, words: Sequence[object], **options: Any) -> Ended:
    """Runs a process to its end; see `PreparedProcess` for the arguments."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    with PreparedProcess(context, words, **options) as process:
        out, err = process.communicate()
    return Ended(process.wait(), out, err)


class _Descriptor:
    """A file descriptor that goes along with what is pickled for a new process."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        return _received, (reduction.DupFd(self.number),)  # type: ignore[attr-defined]


def _received(duplicate: Any) -> int:
    return int(duplicate.detach())


class PreparedProcess:
    """What `subprocess.Popen` would be of `python *words`, as far as tests ask; streams are text.

    Attributes:
        pid: of the process.
        returncode: None until its end was seen.
        stdout, stderr: what it writes, where a pipe was asked for.
    """

    def __init__(
        self,
        processes: Any,
        words: Sequence[object],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: int | None = None,
        stdout: int = subprocess.DEVNULL,
        stderr: int = subprocess.DEVNULL,
        warn: str = "default",
    ) -> None:
        """Starts it.

        Args:
            processes: the fixture of that name.
            words: of the command line after `python`: a script, a module after -m, code after -c.
            env: the environment; None is that of this process.
            cwd: the folder it runs in.
            stdin, stdout, stderr: descriptors, `subprocess.PIPE` for the latter two, or DEVNULL.
            warn: what warnings do.
        """
        ends, ours = [os.open(os.devnull, os.O_RDONLY) if stdin is None else os.dup(stdin)], []
        for stream in (stdout, stderr):
            reading = None
            if stream == subprocess.PIPE:
                reading, writing = os.pipe()
            else:
                null = stream == subprocess.DEVNULL
                writing = os.open(os.devnull, os.O_WRONLY) if null else os.dup(stream)
            ends.append(writing)
            ours.append(None if reading is None else os.fdopen(reading, encoding="utf-8"))
        self.stdout, self.stderr = ours
        environment, folder = dict(os.environ if env is None else env), str(cwd or Path.cwd())
        arguments = ([*map(str, words)], [*map(_Descriptor, ends)], environment, folder, warn)
        self._process = processes.Process(target=_become, args=arguments)
        self._process.start()
        self.pid = int(self._process.pid)
        for number in ends:
            os.close(number)

    @property
    def returncode(self) -> int | None:
        code = self._process.exitcode
        return None if code is None else int(code)

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = 240.0) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            self.kill()
            raise subprocess.TimeoutExpired("mdgraph", timeout or 0.0)
        return self.returncode

    def communicate(self, timeout: float | None = 240.0) -> tuple[str, str]:
        """All that it writes until both streams end, and then its end."""
        texts = ["", ""]

        def read(place: int, stream: Any) -> None:
            texts[place] = stream.read()

        pipes = [(n, one) for n, one in enumerate((self.stdout, self.stderr)) if one is not None]
        readers = [threading.Thread(target=read, args=pipe, daemon=True) for pipe in pipes]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        self._close()
        return texts[0], texts[1]

    def _close(self) -> None:
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            if any(exception):
                self.kill()
        self.wait()
        self._close()


def prepared_ranks(
    processes: Any, words: Sequence[object], count: int, **options: Any
) -> list[PreparedProcess]:
    """A process for each rank, with the environment that torchrun would give them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = options.pop("env", None) or os.environ
    same = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}
    same |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        PreparedProcess(
            processes,
            words,
            env={**env, **same, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            **options,
        )
        for rank in range(count)
    ]


def _become(
    words: list[str], ends: list[int], environment: dict[str, str], folder: str, warn: str
) -> None:
    """Runs as the interpreter does, and ends as it does."""
    for number, end in enumerate(ends):
        os.dup2(end, number)
        os.close(end)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    if warn == "error":
        warnings.simplefilter("error")
    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", "1")))
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    # The command line replaces streams that are still those of the interpreter's start.
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
    status: object = 0
    try:
        _run(words)
    except SystemExit as error:
        status = error.code
        if isinstance(status, str):
            sys.stderr.write(f"{status}\n")
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(status if isinstance(status, int) else int(status is not None))


def _run(words: list[str]) -> None:
    if words[0] in ("-m", "-c"):
        kind, what = words[:2]
        sys.argv = [kind, *words[2:]]
        if kind == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            exec(what, {"__name__": "__main__"})
    else:
        sys.argv = words
        sys.path.insert(0, str(Path(words[0]).parent))
        runpy.run_path(words[0], run_name="__main__")
