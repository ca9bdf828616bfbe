"""Scripts in processes of their own that have imported torch and mdgraph already."""

import os
import runpy
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch


class Ended(NamedTuple):
    """How a process ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def run_prepared(context: Any, words: Sequence[object], folder: Path, prints: Path) -> Ended:
    """Runs a script, a module after -m or code after -c, on the CPU; warnings are errors.

    Args:
        context: of multiprocessing, such as the fixture `processes`.
        words: of the command line after `python`.
        folder: where it runs.
        prints: an empty folder for what it prints.
    """
    files = [prints / "out", prints / "err"]
    process = context.Process(target=_run, args=([*map(str, words)], folder, files))
    process.start()
    process.join()
    out, err = (path.read_text(encoding="utf-8") for path in files)
    return Ended(process.exitcode, out, err)


def _run(words: list[str], folder: Path, files: list[Path]) -> None:
    for number, path in enumerate(files, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(folder)
    os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    warnings.simplefilter("error")
    torch.set_num_threads(1)
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
