"""How many steps of a training fit into so many minutes, timed with as many as will train."""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Mapping
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from command_line import run_script
from recipes import Run
from side_by_side import Job, run_side_by_side

from mdgraph.errors import InputError
from mdgraph.io.files import write_atomically

PROBED = 10.0
"""s, in which steps are timed."""

KEPT = "steps.json"
"""Of each row: how many steps its trainings have."""

KEPT_BACK = 0.85
"""Of the minutes, for steps; the rest is for lists, captures and validations."""

_PATIENCE = 120.0
"""s, for processes that are not ready."""

_UNREAD = 50
"""Steps between two waits for the device."""


def measured_lengths(
    runs: list[Run], options: argparse.Namespace, environment: dict[str, str], deadline: float
) -> dict[Path, int | None]:
    """Steps of each row's runs, by their folder: as asked for, as kept, or measured.

    None leaves them to train.yaml. All rows are measured at the same time.

    Raises:
        InputError: a training could not be timed before the deadline.
    """
    rows: dict[Path, list[Run]] = {}
    for run in runs:
        rows.setdefault(run.folder.parent, []).append(run)
    if options.steps is not None or options.minutes is None:
        return dict.fromkeys(rows, options.steps)
    minutes = options.minutes * options.sittings
    unknown = [row for row in rows if not (row / KEPT).exists()]
    copies = max(1, min(options.parallel, len(runs)) // max(1, len(unknown)))
    together = min(options.parallel, copies * len(unknown))
    with TemporaryDirectory() as place:
        words = ["--seconds", str(options.probed), "--meet", place, "--together", str(together)]
        devices = cycle(options.device)
        jobs = {
            row: _probes(rows[row][0], list(islice(devices, copies)), options, words)
            for row in unknown
        }
        every = [job for own in jobs.values() for job in own]
        outcome = run_side_by_side(every, options.parallel, environment, deadline)
    for job in [*(job for job, _ in outcome.failed), *outcome.left]:
        raise InputError(f"Steps could not be timed; see {job.log}, or give --steps.")
    for row, own in jobs.items():
        _keep(row, own, minutes)
    found: dict[Path, int | None] = {}
    for row in rows:
        known = json.loads((row / KEPT).read_text(encoding="utf-8"))
        found[row] = int(known["steps"])
        if known["minutes"] != minutes:
            print(f"{row / KEPT} has the steps of {known['minutes']:g} minutes; they are kept.")
    return found


def _probes(
    run: Run, devices: list[str], options: argparse.Namespace, words: list[str]
) -> list[Job]:
    """Processes that time the steps of a run, one on each of these devices."""
    row = run.folder.parent
    row.mkdir(parents=True, exist_ok=True)
    jobs = []
    for number, device in enumerate(devices):
        asked, log = row / f"probe-{number}.yaml", row / f"probe-{number}.log"
        settings = run.settings(options.rows[run.lever], None) | {"device": device}
        asked.write_text(yaml.safe_dump(settings), encoding="utf-8")
        log.unlink(missing_ok=True)
        jobs.append(Job((sys.executable, __file__, str(asked), *words), run.work, log))
    return jobs


def _keep(row: Path, jobs: list[Job], minutes: float) -> None:
    """Writes down what fits, by the slowest of the row's processes."""
    lines = [job.log.read_text(encoding="utf-8").splitlines()[-1] for job in jobs]
    milliseconds = max(json.loads(line)["ms_per_step"] for line in lines)
    steps = max(1, math.floor(60e3 * KEPT_BACK * minutes / milliseconds))
    record: Mapping[str, float] = {"ms_per_step": milliseconds, "minutes": minutes, "steps": steps}
    text = json.dumps(record) + "\n"
    write_atomically(row / KEPT, lambda path: path.write_text(text, encoding="utf-8"))


def probe(path: Path, seconds: float, place: Path, together: int) -> None:
    """Times steps of a training in this process, without a profiler, which MPS does not bear.

    Every shape is captured before, and the clock runs while the others take steps too.

    Args:
        path: train.yaml of it.
        seconds: for which steps are taken.
        place: folder in which the processes meet.
        together: how many of them wait for each other.
    """
    import torch
    from training import unending_steps

    from mdgraph.runs.training import read_training
    from mdgraph.train.loop import Training
    from mdgraph.train.workspaces import keep_workspaces_small

    keep_workspaces_small()
    with TemporaryDirectory() as folder:
        config = read_training(path, {"out": f"{folder}/out"})
        training = Training(config, resume=False, quiet=True)
        wait = torch.cuda.synchronize if training.step.controls.is_cuda else lambda: None
        steps = unending_steps(training)
        next(steps)
        wait()
        _meet(place, together)
        start, number, passed = time.perf_counter(), 0, 0.0
        while passed < seconds:
            number += len(list(islice(steps, _UNREAD)))
            wait()
            passed = time.perf_counter() - start
        steps.close()
    print(json.dumps({"ms_per_step": round(1e3 * passed / number, 3)}))


def _meet(place: Path, together: int) -> None:
    """Waits for the other processes, unless one of them seems to be lost."""
    (place / str(os.getpid())).touch()
    deadline = time.monotonic() + _PATIENCE
    while len(list(place.iterdir())) < together and time.monotonic() < deadline:
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=probe.__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--seconds", type=float, default=PROBED)
    parser.add_argument("--meet", type=Path, required=True)
    parser.add_argument("--together", type=int, default=1)
    options = parser.parse_args()
    probe(options.path, options.seconds, options.meet, options.together)


if __name__ == "__main__":
    run_script(main)
