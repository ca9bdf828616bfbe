"""Trainings of `error_tables.py`: their recipes, how long they are, and several side by side.

A recipe is `potentials/NAME/train.yaml` with the commands in its head: the lines `#   mdgraph data
...` there are what a reader types, and what is run here, so they stay true. A split of another
seed has that seed in place of the one written.
"""

import argparse
import contextlib
import io
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from cases import run_script

from mdgraph.errors import InputError
from mdgraph.io.files import write_atomically
from mdgraph.runs.data_commands import app as data_commands

_POLL = 0.2
_PATIENCE = 30.0
"""s, for the first process under MPS, and for processes that were asked to stop."""


@dataclass(frozen=True)
class Job:
    """A command.

    Attributes:
        words: of it.
        folder: where it runs.
        log: file that its output is added to.
    """

    words: tuple[str, ...]
    folder: Path
    log: Path


@dataclass
class Outcome:
    """Of a queue: jobs that failed, with status, and those that were stopped or not begun."""

    failed: list[tuple[Job, int]] = field(default_factory=list)
    left: list[Job] = field(default_factory=list)


def run_side_by_side(
    jobs: Sequence[Job], parallel: int, environment: Mapping[str, str], deadline: float
) -> Outcome:
    """Runs jobs, so many at a time, until all are done or the deadline (of time.monotonic)."""
    waiting, running, outcome = list(jobs), {}, Outcome()
    try:
        while (waiting or running) and time.monotonic() < deadline:
            while waiting and len(running) < parallel:
                job = waiting.pop(0)
                with job.log.open("a", encoding="utf-8") as log:
                    running[job] = subprocess.Popen(
                        job.words,
                        cwd=job.folder,
                        env=dict(environment),
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
            time.sleep(_POLL)
            for job, process in list(running.items()):
                if process.poll() is not None:
                    del running[job]
                    if process.returncode:
                        outcome.failed.append((job, process.returncode))
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE)
            process.kill()
    outcome.left = [*running, *waiting]
    return outcome


def share_of_cores(parallel: int) -> dict[str, str]:
    """The environment, with threads for so many processes at a time unless it says how many."""
    threads = str(max(1, (os.cpu_count() or 1) // parallel))
    return {"OMP_NUM_THREADS": threads} | os.environ


@contextlib.contextmanager
def multi_process_service(environment: dict[str, str], wanted: bool) -> Iterator[bool]:
    """Starts NVIDIA's Multi-Process Service where it is to be had, and stops it in the end.

    With it kernels of several processes run at the same time; without it they take turns.

    Args:
        environment: gets the service's variables where it works.
        wanted: False does nothing.
    """
    control = shutil.which("nvidia-cuda-mps-control") if wanted else None
    if control is None or "CUDA_MPS_PIPE_DIRECTORY" in environment:
        yield control is not None
        return
    with TemporaryDirectory() as folder:
        own = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        served = environment | own
        try:
            works = _answers([control, "-d"], served) and _answers(
                [sys.executable, "-c", "import torch; torch.zeros(1, device='cuda')"], served
            )
            if works:
                environment |= own
            yield works
        finally:
            for name in own:
                environment.pop(name, None)
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                subprocess.run(
                    [control],
                    input="quit\n",
                    env=served,
                    text=True,
                    timeout=10.0,
                    check=False,
                    capture_output=True,
                )


def _answers(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    try:
        done = subprocess.run(
            words,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


POTENTIALS = Path(__file__).resolve().parent.parent / "potentials"
PROGRAM = (sys.executable, "-m", "mdgraph")


@dataclass(frozen=True)
class Recipe:
    """How a potential is made.

    Attributes:
        name: of its folder.
        settings: of train.yaml.
        convert, split, check: words of `mdgraph data`, the files as they are written there.
    """

    name: str
    settings: dict[str, Any]
    convert: list[str]
    split: list[str]
    check: list[str]


def read_recipe(name: str) -> Recipe:
    """Reads one; raises InputError where there is none, or a command is not in its head."""
    path = POTENTIALS / name / "train.yaml"
    if not path.is_file():
        known = sorted(one.parent.name for one in POTENTIALS.glob("*/train.yaml"))
        raise InputError(f"There is no recipe {name}; there are {', '.join(known)}.")
    text = path.read_text(encoding="utf-8")
    found = {words[1]: words[2:] for words in commands(text) if words[0] == "data"}
    lacking = [word for word in ("convert", "split", "check") if word not in found]
    if lacking:
        raise InputError(f"The head of {path} has no 'mdgraph data {lacking[0]}'; write it there.")
    return Recipe(name, yaml.safe_load(text), found["convert"], found["split"], found["check"])


def commands(text: str) -> list[list[str]]:
    """Words of each command of mdgraph in the comments of a file, without `mdgraph`."""
    found: list[list[str]] = []
    unfinished = ""
    for line in text.splitlines():
        comment = line.removeprefix("#").strip() if line.startswith("#   ") else ""
        if unfinished or comment.startswith("mdgraph "):
            unfinished += comment.removesuffix("\\")
            if not comment.endswith("\\"):
                found.append(shlex.split(unfinished)[1:])
                unfinished = ""
    return found


def prepare_data(recipe: Recipe, data: Path, folder: Path, split: int) -> list[str]:
    """Converts and splits what is not yet there.

    Args:
        recipe: see Recipe.
        data: where the published files lie.
        folder: of this potential's work.
        split: seed of the split.

    Returns:
        What `mdgraph data check` calls wrong, such as frames that are alike across parts.

    Raises:
        MDGraphError: a command failed, or another seed cannot give another split.
    """
    if split != 1 and "--seed" not in recipe.split:
        raise InputError(f"{recipe.name} has one split alone; leave --splits at 1.")
    folder.mkdir(parents=True, exist_ok=True)
    held = recipe.settings["data"], recipe.settings["split"]
    if not (folder / held[0]).exists():
        given = [
            str((data / word).resolve()) if (data / word).is_file() else word
            for word in recipe.convert
        ]
        _data("convert", given, folder)
    own = split_name(recipe, split)
    if not (folder / own).exists():
        words = [own if word == held[1] else word for word in recipe.split]
        if "--seed" in words:
            words[words.index("--seed") + 1] = str(split)
        _data("split", words, folder)
    said = folder / f"check-{split}.txt"
    if not said.exists():
        words = [own if word == held[1] else word for word in recipe.check]
        said.write_text(_data("check", words, folder), encoding="utf-8")
    lines = said.read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("wrong: ") for line in lines if line.startswith("wrong: ")]


def split_name(recipe: Recipe, split: int) -> str:
    """File of a split in the folder of the potential's work."""
    path = Path(recipe.settings["split"])
    return f"{path.stem}-{split}{path.suffix}"


def _data(command: str, words: list[str], folder: Path) -> str:
    """What `mdgraph data` says; in this process, as a program would take longer to start."""
    said = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(said):
        data_commands([command, *words], standalone_mode=False)
    return said.getvalue()


def merged(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with changes, mapping by mapping; a change to null takes a key away."""
    result = dict(settings)
    for key, value in changes.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = merged(result[key], value)
        else:
            result[key] = value
    return result


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        recipe: of the potential.
        lever: row of the ablation.
        split, seed: of the frames, of the weights.
        work: folder of the potential's work.
    """

    recipe: Recipe
    lever: str
    split: int
    seed: int
    work: Path

    @property
    def label(self) -> str:
        """Folder of the run within `work`; no two runs share it."""
        return (
            f"{self.lever.replace(' ', '-').replace('/', '-')}/split-{self.split}-seed-{self.seed}"
        )

    @property
    def folder(self) -> Path:
        return self.work / self.label

    @property
    def done(self) -> bool:
        return (self.folder / "metrics.json").exists()

    def settings(self, changes: dict[str, Any], steps: int | None) -> dict[str, Any]:
        """Of this run, with paths relative to `work`."""
        found = merged(self.recipe.settings, changes) | {
            "split": split_name(self.recipe, self.split),
            "out": self.label,
            "name": self.recipe.name,
            "seed": self.seed,
        }
        if steps is not None:
            found["steps"] = steps
            found.pop("epochs", None)
        return found

    def job(self, settings: dict[str, Any], device: str) -> Job:
        """The training, or the rest of it."""
        words = ["--device", device]
        if (self.folder / "checkpoint.safetensors").exists():
            words = [f"{self.label}/train.yaml", "--resume", *words]
        else:
            shutil.rmtree(self.folder, ignore_errors=True)
            path = self.folder.with_suffix(".yaml")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
            words = [str(path.relative_to(self.work)), *words]
        return Job((*PROGRAM, "train", *words), self.work, self.folder.with_suffix(".log"))


PROBED = 10.0
"""s, in which steps are timed."""

KEPT = "steps.json"
"""Of each row: how many steps its trainings have."""

KEPT_BACK = 0.85
"""Of the minutes, for steps; the rest is for lists, captures and validations."""

_READY = 120.0
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
    from mdgraph.train.loop import Training, keep_workspaces_small

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
    deadline = time.monotonic() + _READY
    while len(list(place.iterdir())) < together and time.monotonic() < deadline:
        time.sleep(0.05)


def main() -> None:
    """Times the steps of one training; `error_tables.py` starts this file in processes."""
    parser = argparse.ArgumentParser(description=probe.__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--seconds", type=float, default=PROBED)
    parser.add_argument("--meet", type=Path, required=True)
    parser.add_argument("--together", type=int, default=1)
    options = parser.parse_args()
    probe(options.path, options.seconds, options.meet, options.together)


if __name__ == "__main__":
    run_script(main)
