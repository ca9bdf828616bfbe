"""The command `mdgraph`: signals, output streams, one-sentence errors and the exit status."""

import atexit
import contextlib
import errno
import io
import logging
import os
import re
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TextIO

import typer

from mdgraph.errors import InputError, MDGraphFutureWarning, name_some
from mdgraph.runs.config_fields import likely_names
from mdgraph.runs.config_files import plain
from mdgraph.signals import Interrupted, pending, settle, signals_caught

_BROKEN_PIPE: Final = 141
"""Of a command whose output nobody reads any more, as shells have it: 128 + SIGPIPE."""


def __getattr__(name: str) -> Any:
    """The commands, `app`, which take a while to import."""
    if name == "app":
        from mdgraph.runs.commands.app import app

        return app
    raise AttributeError(f"module 'mdgraph.cli' has no attribute '{name}'")


def main() -> None:
    """Runs the command line; an error raised on purpose, or a GPU lost, ends with status 1.

    A signal ends it with 128 and its number, and SIGUSR1 a run that can go on with 75. What nobody
    can read any more stops nothing: a run goes on without standard error, and one whose result
    cannot be printed ends with status 1.
    """
    with _streams() as refused, signals_caught(), _own_warnings():
        try:
            status = _unless_interrupted()
        except Interrupted as error:
            settle()
            advice = "\n".join(getattr(error, "__notes__", [])) or "no half file is left"
            _say(f"mdgraph: Stopped by {error.signal.name}; {advice}.")
            status = error.status
        finally:
            _finish_gpu_work()
        for refusal in refused():
            if not status and refusal.errno != errno.EPIPE:
                full = "the disk is full; free some space"
                reason = full if refusal.errno == errno.ENOSPC else refusal.strerror
                _say(f"mdgraph: error: Cannot write to standard output: {reason}.")
            status = status or (_BROKEN_PIPE if refusal.errno == errno.EPIPE else 1)
    atexit.unregister(_end_without_traceback)
    atexit.register(_end_without_traceback)
    sys.exit(status)


def _end_without_traceback() -> None:
    """Lets Ctrl-C end what is over anyway as other signals do, before libraries take their time."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _finish_gpu_work() -> None:
    """Leaves nothing in flight, which could end other processes that share the GPU."""
    if "torch" in sys.modules:
        from mdgraph.devices import finish_gpu_work

        finish_gpu_work()


def _unless_interrupted() -> int:
    """Runs; an error that a library made of an interruption is one again."""
    try:
        return _run()
    except Exception:
        number = pending()
        if number is None:
            raise
        raise Interrupted(number) from None


def _run() -> int:
    """Runs what the process was started with; returns its status."""
    from mdgraph.errors import MDGraphError
    from mdgraph.runs.commands.app import app, one_line

    try:
        return run(app, "mdgraph")
    except MDGraphError as error:
        if pending() is not None:
            raise
        _say(f"mdgraph: error: {one_line(str(error))}")
    except RuntimeError as error:
        what = str(error).partition("\n")[0].rstrip(".")
        if "CUDA error" not in what and "[CUDA]" not in what:
            raise
        _say(
            f"mdgraph: error: The GPU failed ({what}). What was written before is whole; "
            f"a run continues with --resume once the GPU works.{_neighbor()}"
        )
    return 1


def _neighbor() -> str:
    """What else may be the cause where processes share a GPU's memory protection."""
    pipe = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    if not pipe.exists():
        return ""
    return (
        " It may be another process's doing: one that is killed while the GPU works for it can end "
        "all others of the same Multi-Process Service."
    )


def _say(sentence: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"{sentence}\n")


@contextlib.contextmanager
def _own_warnings() -> Iterator[None]:
    """Shows Python's warnings only where mdgraph gives them, as a line like others.

    Those of libraries are about calls that mdgraph makes, so no user can do anything about them;
    they go to the log at level DEBUG, and what libraries log below errors goes nowhere, such as
    Matplotlib's lines about fonts. `-W`, PYTHONWARNINGS or MDGRAPH_DEBUG in the environment shows
    all of them as Python does.
    """
    if sys.warnoptions or os.environ.get("MDGRAPH_DEBUG"):
        yield
        return

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        own = issubclass(category, MDGraphFutureWarning)
        logging.getLogger("mdgraph").log(logging.WARNING if own else logging.DEBUG, "%s", message)

    def own_or_error(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR or record.name.partition(".")[0] == "mdgraph"

    # Takes what no handler does.
    handler = logging.lastResort or logging.NullHandler()
    before = warnings.showwarning
    warnings.showwarning = show
    handler.addFilter(own_or_error)
    try:
        yield
    finally:
        warnings.showwarning = before
        handler.removeFilter(own_or_error)


class _QuietStream(io.FileIO):
    """Takes all bytes; those that nobody takes go nowhere, and the first refusal is kept."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.refused: list[OSError] = []

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        size = len(left)
        try:
            while left:
                left = left[super().write(left) or 0 :]
        except OSError as error:
            self.refused.append(error)
        return size


@contextlib.contextmanager
def _streams() -> Iterator[Any]:
    """Lets standard output and error take everything, also where they are closed or full.

    Yields:
        What tells the refusal of standard output, a list of one or none.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, before a file has it
    before = sys.stdout, sys.stderr
    raw = _QuietStream(1), _QuietStream(2)
    texts: list[TextIO] = []
    for own, given, at_start in zip(raw, before, (sys.__stdout__, sys.__stderr__), strict=True):
        if given is not None and given is not at_start:
            texts.append(given)  # a program or a test looks at what is written
            continue
        encoding = "utf-8" if given is None else given.encoding
        # A terminal of another encoding shows an escape, and ends nothing.
        errors = "strict" if own is raw[1] or given is None else given.errors
        errors = "backslashreplace" if errors == "strict" else errors
        buffered = io.BufferedWriter(own)
        texts.append(io.TextIOWrapper(buffered, encoding, errors, line_buffering=True))

    def refused() -> list[OSError]:
        with contextlib.suppress(ValueError):
            texts[0].flush()
        return raw[0].refused[:1]

    sys.stdout, sys.stderr = texts
    try:
        yield refused
    finally:
        for text in texts:
            with contextlib.suppress(OSError, ValueError):
                text.flush()
        sys.stdout, sys.stderr = before


_MISUSE: Final[Any] = typer.BadParameter.__bases__[0]
"""Of typer's own errors the base: unknown options and commands, missing or bad values."""


def _option_advice(option: str, context: Any) -> str:
    """What to write instead of an unknown option of a command."""
    if (context.command.name, option) == ("protocol", "--resume"):
        return "leave it out: the same command continues where a protocol was stopped."
    parameters = [
        parameter
        for parameter in context.command.get_params(context)
        if not getattr(parameter, "hidden", False)
    ]
    flags = [flag for parameter in parameters for flag in parameter.opts + parameter.secondary_opts]
    likely = likely_names(option.strip("-"), [flag.strip("-") for flag in flags])
    if not likely:
        return f"see {context.command_path} --help."
    if likely[0] in flags:  # an argument, which has no dashes
        return f"give the {likely[0]} itself, without an option before it."
    return f"did you mean --{likely[0]}?"


def run(app: typer.Typer, name: str) -> int:
    """Runs what the process was started with.

    Args:
        app: its commands.
        name: what the program is called.

    Returns:
        The status it ends with.

    Raises:
        InputError: what was typed is no command, or lacks or has what it should not.
    """
    try:
        return app(prog_name=name, standalone_mode=False) or 0
    except _MISUSE as error:
        text = error.format_message()
        if missing := re.match(r"Missing argument '(\w+)'\. Choose from:", text):
            choices = name_some([word.strip(" ,\t") for word in text.splitlines()[1:]], 20)
            where = error.ctx.command_path if error.ctx else name
            text = f"{where} needs a {missing[1]}; choose from {choices}"
        if "\n" in text:  # a group of commands without a command explains itself
            error.show()
            return int(error.exit_code)
        message = plain(text.removeprefix("Invalid value for ").removeprefix("Invalid value: "))
        message = re.sub(r"^'(-\S+)'", r"\1", message)
        if hasattr(error, "possibilities"):  # of an unknown option alone
            option = error.option_name
            advice = _option_advice(option, error.ctx)
            raise InputError(f"No such option: {option}; {advice}") from error
        where = name if error.ctx is None else error.ctx.command_path
        if unknown := re.match("No such command '([^']*)'", message):
            commands = error.ctx.command.commands.items()
            likely = likely_names(unknown[1], [word for word, one in commands if not one.hidden])
            advice = f"did you mean {where} {likely[0]}?" if likely else f"see {where} --help."
            raise InputError(f"{unknown[0]}; {advice}") from error
        raise InputError(f"{message.rstrip('.')}; see {where} --help.") from error
    except typer.Abort as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise Interrupted(signal.SIGINT) from error
        return 130
