"""What all scripts share on the command line: wrong input ends in one sentence."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch

from mdgraph.devices import device_named
from mdgraph.errors import InputError, MDGraphError


def run_script(main: Callable[[], int | None]) -> NoReturn:
    """Runs a script and exits with what it returns, or with 2 after an error raised on purpose."""
    try:
        status = main()
    except MDGraphError as error:
        program = Path(sys.argv[0]).name
        print(f"{program}: error: {' '.join(str(error).split())}", file=sys.stderr)
        status = 2
    sys.exit(status)


def device_argument(name: str) -> torch.device:
    """The device of an option; the parser says why there is none."""
    try:
        return device_named(name)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
