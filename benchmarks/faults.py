"""What can go wrong while `mdgraph md` runs: each is forced, resumed and compared bit by bit.

    python benchmarks/faults.py [--steps 2000] [--overflows 100] [--device cuda] [FAULT ...]

overflow   lists lose all but one block of their slots, again and again, and must grow back
nan        the force on an atom is not a number at one step
sigterm    a batch queue's time limit is near
kill       the process dies at once
cuda       a device-side assert: every later call of CUDA fails (needs a CUDA device)

Each runs the shipped water in a process of its own. What ended early is resumed by
`mdgraph md --resume` in another process, without the fault. Trajectory, log and checkpoint
must then be those of a run that nothing disturbed. Exits with 1 where they are not.
"""

import argparse
import csv
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import h5py
import torch
from command_line import run_script
from disturbances import EXPECTED, FAULTS
from safetensors.torch import load_file

from mdgraph.cli import main as mdgraph
from mdgraph.runs import dynamics
from mdgraph.runs.directory import RunDirectory

CHUNK = 8
"""Steps; short, so that there are many of them to disturb."""

LOOK = 4 * CHUNK
"""Steps from one row of the log to the next, within which chunks overlap on CUDA."""


def child(arguments: list[str], said: Path, fault: str | None, step: int, times: int) -> None:
    """The command in this process, disturbed; both outputs go to a file."""
    with said.open("wb") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    if fault is not None:
        FAULTS[fault](step, times)
    sys.argv = ["mdgraph", *arguments]
    mdgraph()


class Runs:
    """Runs of `mdgraph md` in a folder, each in a process of its own."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options = folder, options
        # A server that has imported everything but touched no device starts them quickly.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([dynamics.__name__])

    def run(self, name: str, fault: str | None = None, resume: bool = False) -> tuple[int, str]:
        """Status, and what was said."""
        said = self.folder / f"{name}.txt"
        out = ["--out", str(self.folder / name)]
        arguments = ["md", "--resume", *out] if resume else ["md", *out, *self._settings()]
        asked = (arguments, said, fault, self.options.steps // 2, self.options.overflows)
        process = self._context.Process(target=child, args=asked)
        process.start()
        process.join()
        assert process.exitcode is not None
        return process.exitcode, said.read_text(encoding="utf-8", errors="replace")

    def _settings(self) -> list[str]:
        settings = {
            "steps": self.options.steps,
            "device": self.options.device,
            "chunk": CHUNK,
            "skin-A": 0.3,
            "log-interval": LOOK,
            "trajectory-interval": LOOK,
            "checkpoint-interval": 3 * LOOK,
            "seed": 1,
        }
        return [f"--{name}={value}" for name, value in settings.items()] + ["--no-check"]

    def directory(self, name: str) -> RunDirectory:
        return RunDirectory(self.folder / name)


def content(folder: RunDirectory) -> dict[str, Any]:
    """All that a run leaves, but for speeds and the picture."""
    found: dict[str, Any] = dict(load_file(folder.checkpoint))

    def add(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.dtype.kind in "fiu":
            found[f"trajectory/{name}"] = torch.from_numpy(item[()].reshape(item.shape))

    with h5py.File(folder.trajectory("h5md"), "r") as file:
        file.visititems(add)
    with folder.log.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found["log"] = [
        {name: cell for name, cell in row.items() if name != "ns_per_day"} for row in rows
    ]
    return found


def differing(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """Names of what is not the same."""

    def same(one: Any, other: Any) -> bool:
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            return one.shape == other.shape and torch.equal(one, other)
        return bool(one == other)

    return [name for name in first | second if not same(first.get(name), second.get(name))]


def checked(runs: Runs, fault: str, whole: dict[str, Any]) -> tuple[str, bool]:
    """A row of the table, and whether all is well."""
    expected = EXPECTED[fault]
    status, said = runs.run(fault, fault)
    wrong = []
    if status != expected.status:
        wrong.append(f"status {status} instead of {expected.status}")
    lines = [line for line in said.splitlines() if expected.words and expected.words in line]
    if expected.words and not lines:
        wrong.append(f"does not say '{expected.words}'")
    if "Traceback" in said:
        wrong.append("leaves a traceback")
    if fault == "overflow" and len(lines) < runs.options.overflows:
        wrong.append(f"grew {len(lines)} times, not {runs.options.overflows}; give more --steps")
    resumed = "-"
    if status != 0:
        again, words = runs.run(fault, resume=True)
        places = [line for line in words.splitlines() if "Going on from step" in line]
        resumed = places[0].split("step ")[1].rstrip(".") if places else "?"
        if again != 0:
            wrong.append(f"resuming ends with {again}: {words.splitlines()[-1]}")
    if not wrong:
        names = differing(whole, content(runs.directory(fault)))
        wrong += [f"other bits in {', '.join(names[:4])}"] if names else []
    verdict = "; ".join(wrong) or "same bits"
    said = lines[-1] if lines else ""
    return f"{fault:<10}{status:>7}{resumed:>15}  {verdict:<10}  {said}", not wrong


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"of {', '.join(FAULTS)}")
    parser.add_argument("--steps", type=int, default=2000, help="of each run")
    parser.add_argument("--overflows", type=int, default=100, help="after which lists grow")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    unknown = set(options.faults) - set(FAULTS)
    if unknown:
        parser.error(f"no fault is called {', '.join(unknown)}; choose among {', '.join(FAULTS)}")
    options.faults = options.faults or list(FAULTS)
    return options


def main() -> int:
    """Prints the table; 1 where a fault did not end well."""
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder), options)
        status, said = runs.run("whole")
        if status != 0:
            print(f"The undisturbed run ends with {status}:\n{said}")
            return 1
        whole = content(runs.directory("whole"))
        hardware = runs.directory("whole").read_record()["environment"]["gpu"]
        print(f"{hardware or 'CPU'}, {options.steps} steps of {CHUNK} a chunk")
        print(
            f"{'fault':<10}{'status':>7}{'resumed at':>15}  {'result':<10}  what it said",
            flush=True,
        )
        failed = 0
        for fault in options.faults:
            if fault == "cuda" and hardware is None:
                print(f"{fault:<10}{'-':>7}{'-':>15}  left out: it needs a CUDA device")
                continue
            row, good = checked(runs, fault, whole)
            print(row, flush=True)
            failed += not good
    return min(1, failed)


if __name__ == "__main__":
    run_script(main)
