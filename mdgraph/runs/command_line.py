"""Running a command line whose mistakes end in one sentence."""

import re
import signal
from typing import Any, Final

import typer

from mdgraph.errors import InputError
from mdgraph.runs.settings import plain
from mdgraph.signals import Interrupted

_MISUSE: Final[Any] = typer.BadParameter.__bases__[0]
"""Of typer's own errors the base: unknown options and commands, missing or bad values."""


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
        if "\n" in text:  # a group of commands without a command explains itself
            error.show()
            return int(error.exit_code)
        said = plain(text.removeprefix("Invalid value for ").removeprefix("Invalid value: "))
        said = re.sub(r"^'(-\S+)'", r"\1", said)
        where = name if error.ctx is None else error.ctx.command_path
        raise InputError(f"{said.rstrip('.')}; see {where} --help.") from error
    except typer.Abort as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise Interrupted(signal.SIGINT) from error
        return 130
