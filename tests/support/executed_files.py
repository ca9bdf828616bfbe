"""Files of mdgraph whose functions run between `main()` and the end of a default `mdgraph md`.

    python tests/support/executed_files.py [ARGUMENTS OF mdgraph md]

Without arguments it takes 20 steps of the shipped water on a CPU. Bodies of modules and classes,
which run at import, do not count, and neither do comprehensions in them.
"""

import os
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import mdgraph
from mdgraph import cli

PACKAGE = str(Path(mdgraph.__file__).parent) + os.sep
FUNCTION = 0x1  # CO_OPTIMIZED: set for functions, not for bodies of modules and classes
COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")


def executed_files(arguments: list[str]) -> dict[str, int]:
    """Number of functions that ran, by file."""
    files: dict[str, set[str]] = {}

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        at_import = code.co_qualname in COMPREHENSIONS  # those within functions have longer names
        function = code.co_flags & FUNCTION and not at_import
        if event == "call" and function and code.co_filename.startswith(PACKAGE):
            files.setdefault(code.co_filename.removeprefix(PACKAGE), set()).add(code.co_qualname)

    sys.argv = ["mdgraph", *arguments]
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        cli.main()
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return {name: len(functions) for name, functions in sorted(files.items())}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        default = "md --potential water-pbe0 --device cpu --steps 20 --out"
        files = executed_files(sys.argv[1:] or [*default.split(), f"{folder}/run"])
    for name, functions in files.items():
        print(f"{functions:4} {name}")
    print(f"{len(files)} files")


if __name__ == "__main__":
    main()
