"""What can go wrong while `mdgraph md` runs: each is forced, resumed and compared bit by bit.

    python tests/support/faults.py [--steps 2000] [--overflows 100] [--device cuda] [FAULT ...]

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
import random
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import torch
from safetensors.torch import load_file

from mdgraph.cli import main as mdgraph
from mdgraph.engine.calculation import Calculation
from mdgraph.engine.run_loop import RunLoop
from mdgraph.runs import md
from mdgraph.runs.folder import RunDirectory

CHUNK = 8
"""Steps; short, so that there are many of them to disturb."""

LOOK = 4 * CHUNK
"""Steps from one row of the log to the next, within which chunks overlap on CUDA."""

ATOM = 3


def _before_chunks(act: Callable[[Any, int], object]) -> None:
    """Does something before each chunk; it is told who moves the atoms, and the last step."""
    allocate, advance = RunLoop.__init__, RunLoop.advance
    moving: list[Any] = []

    def allocated(chunks: RunLoop, dynamics: Any, *others: Any) -> None:
        moving.append(dynamics)
        allocate(chunks, dynamics, *others)

    def disturbed(chunks: RunLoop, end: int, *others: Any) -> None:
        act(moving[-1], end)
        advance(chunks, end, *others)

    RunLoop.__init__, RunLoop.advance = allocated, disturbed


def overflow(step: int, times: int) -> None:
    """Takes the slots away before two chunks of three, until lists have grown so many times.

    Of two chunks that overlap, one growth repairs both.
    """
    generator, grown = random.Random(1), 0
    grow = Calculation.grow

    def counted(calculation: Calculation) -> None:
        nonlocal grown
        grown += 1
        grow(calculation)

    def shrink(dynamics: Any, end: int) -> None:
        if grown < times and generator.random() < 0.67:
            if dynamics.calculation.device.type == "cuda":
                torch.cuda.synchronize()  # the graphs of the chunk before may still run
            dynamics.step_graphs.forget()
            for one in dynamics.calculation.lists:
                one._allocate(1, one.reference_positions, one.reference_cell)

    Calculation.grow = counted
    _before_chunks(shrink)


def nan(step: int, times: int) -> None:
    """Spoils a force at the end of one step, on the device."""
    update_ = Calculation.update_

    def disturbed(calculation: Calculation) -> None:
        update_(calculation)
        state = calculation.state
        state.forces[ATOM].masked_fill_(state.step == step - 1, torch.nan)

    Calculation.update_ = disturbed


def _once(step: int, act: Callable[[], object]) -> None:
    """Does something before the chunk that reaches a step."""
    left = [act]
    _before_chunks(lambda dynamics, end: left.pop()() if left and end >= step else None)


def sigterm(step: int, times: int) -> None:
    _once(step, lambda: os.kill(os.getpid(), signal.SIGTERM))


def kill(step: int, times: int) -> None:
    _once(step, lambda: os.kill(os.getpid(), signal.SIGKILL))


def cuda(step: int, times: int) -> None:
    _once(step, lambda: torch._assert_async(torch.zeros(1, device="cuda")))


FAULTS = {"overflow": overflow, "nan": nan, "sigterm": sigterm, "kill": kill, "cuda": cuda}


@dataclass(frozen=True)
class Expected:
    """How a command must end, and what it must say."""

    status: int
    words: str


EXPECTED = {
    "overflow": Expected(0, "A neighbor list overflowed before step"),
    "nan": Expected(1, f"The forces on atoms {ATOM} are not finite at step"),
    "sigterm": Expected(128 + signal.SIGTERM, "Stopped by SIGTERM; continue with:"),
    "kill": Expected(-signal.SIGKILL, ""),
    "cuda": Expected(1, "mdgraph: error: The GPU failed (CUDA error"),
}


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
        self._context.set_forkserver_preload([md.__name__])

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
        places = [line for line in words.splitlines() if "Continuing from step" in line]
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
    sys.exit(main())
