"""Python in other processes: the same modules as here, and none that lie in the user's folder."""

import os
import sys
from pathlib import Path
from typing import Final

SAME_MODULES: Final = ("-P",)
"""Options of Python: a folder in which a command runs is none to import from."""


def module_path() -> str:
    """PYTHONPATH of a process that shall import what this one imports."""
    return os.pathsep.join(dict.fromkeys(str(Path(path or ".").resolve()) for path in sys.path))
