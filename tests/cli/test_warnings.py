"""Commands show mdgraph's warnings of old names, and those of libraries only where asked to."""

import os
import subprocess
import sys

import pytest

CODE = """
import logging, sys, warnings
from mdgraph import cli

def command():
    import numpy as np
    from mdgraph.arguments import current_keywords
    np.float64(1e308) * np.float64(10.0)
    warnings.warn("the library moved its house", UserWarning)
    warnings.warn("a library's old name", FutureWarning)
    logging.getLogger("library.fonts").warning("a font is not there")
    current_keywords({"old_name": 1}, {"old_name": "new_name"})
    return 0

cli._run = command
cli.main()
"""
LIBRARIES = (
    "overflow encountered",
    "moved its house",
    "a library's old name",
    "a font is not there",
)
OWN = "old_name is now new_name; the old name goes with release 0.3.0."


@pytest.mark.parametrize(
    ("options", "environment", "shown"),
    [
        ((), {}, False),
        ((), {"MDGRAPH_DEBUG": "1"}, True),
        (("-W", "default"), {}, True),
        ((), {"PYTHONWARNINGS": "default"}, True),
    ],
)
def test_warnings_of_libraries_are_not_the_users(
    options: tuple[str, ...], environment: dict[str, str], shown: bool
) -> None:
    names = ("MDGRAPH_DEBUG", "PYTHONWARNINGS")
    clean = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, *options, "-c", CODE],
        capture_output=True,
        text=True,
        env=clean | environment,
        check=True,
    )
    assert [text in done.stderr for text in LIBRARIES] == [shown] * 4
    assert OWN in done.stderr
    assert shown or done.stderr == f"{OWN}\n"
