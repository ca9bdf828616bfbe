"""Trains potentials by their recipes, several seeds and splits, and tabulates their errors.

    python benchmarks/error_tables.py acac-pbe ethanol-pbe --data FOLDER --out FOLDER \\
        --seeds 1 2 3 --splits 3 --parallel 9 [--stop-after 9]

A recipe is `potentials/NAME/train.yaml` with the commands in its head: the lines `#   mdgraph data
...` are what a reader types, and what is run here; a split of another seed has that seed in place
of the one written. A potential that is distilled has `distil.yaml` too, which goes first, and
`teacher.yaml` for the training of its teachers, whose folders are named in it `.../seed-N`: they
are trained first, once for each split. Where there is `first.yaml`, it distils them, `second.yaml`
and `third.yaml` go on from what comes out, if there are any, and `distil.yaml` from that.
--from-scratch takes `train.yaml` all the same, and so does --levers. FOLDER of --data holds the
published files, and the potentials that a baseline or a fine-tuning starts from, under the names in
those commands and files.

Each potential gets a folder with its data set, splits, the output of `mdgraph data check`, a folder
for each training, and `metrics.json`: every run, means and standard errors, beside published
errors. `errors.md` is the table of all.

Trainings run side by side, under NVIDIA's MPS where it can be started, and on several devices
where --device names them. Finished work is kept, and a training that was stopped goes on: give the
same command once more. With --levers each potential is trained once for every row of that file.
"""

import argparse
import contextlib
import io
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import yaml
from cases import run_script

from mdgraph.errors import InputError
from mdgraph.io.files import write_atomically
from mdgraph.runs.commands.data import app as data_commands

POTENTIALS = Path(__file__).resolve().parent.parent / "potentials"
PUBLISHED = Path(__file__).resolve().parent / "published.yaml"
PROGRAM = (sys.executable, "-m", "mdgraph")
AS_IT_IS = "as it is"

LEFT_OUT = {"checkpoint.safetensors", "split.json", "train.yaml", "distil.yaml"}
"""Files of a training that a potential needs no more."""

TITLES = {
    "energy_rmse_meV": "RMSE, meV",
    "energy_mae_meV": "MAE, meV",
    "energy_rmse_meV_per_atom": "RMSE, meV/atom",
    "energy_mae_meV_per_atom": "MAE, meV/atom",
    "force_rmse_meV_per_A": "RMSE, meV/A",
    "force_mae_meV_per_A": "MAE, meV/A",
}


_POLL = 0.2
_PATIENCE = 30.0
"""s, for the first process under MPS, and for a process to stop."""


@dataclass(frozen=True)
class Job:
    """A command.

    Attributes:
        words: of it.
        folder: where it runs.
        log: file that its output is added to.
        needs: files of other jobs, without which it does not begin.
    """

    words: tuple[str, ...]
    folder: Path
    log: Path
    needs: tuple[Path, ...] = ()


@dataclass
class Outcome:
    """Jobs that failed, with their status, and those that were stopped or not begun."""

    failed: list[tuple[Job, int]] = field(default_factory=list)
    left: list[Job] = field(default_factory=list)


def run_side_by_side(
    jobs: Sequence[Job], parallel: int, environment: Mapping[str, str], deadline: float
) -> Outcome:
    """Runs up to `parallel` jobs at a time, until all are done or the deadline (time.monotonic)."""
    waiting, running, outcome = list(jobs), {}, Outcome()
    try:
        while (waiting or running) and time.monotonic() < deadline:
            while len(running) < parallel:
                ready = (job for job in waiting if all(path.exists() for path in job.needs))
                job = next(ready, None)
                if job is None:
                    break
                waiting.remove(job)
                with job.log.open("a", encoding="utf-8") as log:
                    running[job] = subprocess.Popen(
                        job.words,
                        cwd=job.folder,
                        env=dict(environment),
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
            if not running:  # what is left needs files of a job that failed
                break
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
    """The environment, with OMP_NUM_THREADS for `parallel` processes unless it is set."""
    threads = str(max(1, (os.cpu_count() or 1) // parallel))
    return {"OMP_NUM_THREADS": threads} | os.environ


@contextlib.contextmanager
def multi_process_service(environment: dict[str, str], enabled: bool) -> Iterator[bool]:
    """Runs NVIDIA's Multi-Process Service within the block, if it is installed and works.

    With it kernels of several processes run at the same time; without it they take turns.

    Args:
        environment: gets the service's variables.
        enabled: False does nothing.
    """
    control = shutil.which("nvidia-cuda-mps-control") if enabled else None
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


EARLIER = ("first", "second", "third")
"""Students that the one of distil.yaml goes on from; each goes on from the one before."""


@dataclass(frozen=True)
class Recipe:
    """How a potential is made.

    Attributes:
        name: of its folder.
        settings: of train.yaml or distil.yaml.
        teacher: settings of teacher.yaml, for what is distilled.
        earlier: settings of first.yaml and second.yaml, if `settings` go on from their students.
        convert, split, check: words of `mdgraph data`, the files as they are written there.
    """

    name: str
    settings: dict[str, Any]
    teacher: dict[str, Any] | None
    earlier: list[dict[str, Any]]
    convert: list[str]
    split: list[str]
    check: list[str]

    @property
    def teacher_seeds(self) -> list[int]:
        """Of the teachers, by the names of their folders."""
        student = self.earlier[0] if self.earlier else self.settings
        teachers = student["teacher"] if self.teacher is not None else []
        return [int(path.rpartition("/seed-")[2]) for path in teachers]


def read_recipe(name: str, *, from_scratch: bool = False) -> Recipe:
    """Reads one; raises InputError where there is none, or a command is not in its head.

    Args:
        name: folder of the potential.
        from_scratch: takes train.yaml where there is a distil.yaml too.
    """
    folder = POTENTIALS / name
    path, teacher, earlier = folder / "distil.yaml", None, []
    if path.is_file() and not from_scratch:
        if (folder / "teacher.yaml").is_file():  # else the teachers ship
            teacher = yaml.safe_load((folder / "teacher.yaml").read_text(encoding="utf-8"))
        files = [folder / f"{name}.yaml" for name in EARLIER]
        earlier = [yaml.safe_load(file.read_text("utf-8")) for file in files if file.is_file()]
    else:
        path = folder / "train.yaml"
    if not path.is_file():
        known = sorted({other.parent.name for other in POTENTIALS.glob("*/*.yaml")})
        raise InputError(f"There is no recipe {name}; there are {', '.join(known)}.")
    text = path.read_text(encoding="utf-8")
    data = {words[1]: words[2:] for words in commands(text) if words[0] == "data"}
    lacking = [word for word in ("convert", "split", "check") if word not in data]
    if lacking:
        raise InputError(f"The head of {path} has no 'mdgraph data {lacking[0]}'; write it there.")
    settings = yaml.safe_load(text)
    return Recipe(name, settings, teacher, earlier, data["convert"], data["split"], data["check"])


def commands(text: str) -> list[list[str]]:
    """Words of each command of mdgraph in the comments of a file, without `mdgraph`."""
    words: list[list[str]] = []
    unfinished = ""
    for line in text.splitlines():
        comment = line.removeprefix("#").strip() if line.startswith("#   ") else ""
        if unfinished or comment.startswith("mdgraph "):
            unfinished += comment.removesuffix("\\")
            if not comment.endswith("\\"):
                words.append(shlex.split(unfinished)[1:])
                unfinished = ""
    return words


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
        MDGraphError: a command failed, another seed cannot give another split, or nothing is
            trained on data.
    """
    if "data" not in recipe.settings:
        raise InputError(
            f"{recipe.name} is trained on no data; give its distil.yaml to mdgraph distil."
        )
    if split != 1 and "--seed" not in recipe.split:
        raise InputError(f"{recipe.name} has one split alone; leave --splits at 1.")
    folder.mkdir(parents=True, exist_ok=True)
    dataset, written = recipe.settings["data"], recipe.settings["split"]
    if not (folder / dataset).exists():
        words = [
            str((data / word).resolve()) if (data / word).is_file() else word
            for word in recipe.convert
        ]
        _data("convert", words, folder)
    own = split_name(recipe, split)
    if not (folder / own).exists():
        words = [own if word == written else word for word in recipe.split]
        if "--seed" in words:
            words[words.index("--seed") + 1] = str(split)
        _data("split", words, folder)
    report = folder / f"check-{split}.txt"
    if not report.exists():
        words = [own if word == written else word for word in recipe.check]
        report.write_text(_data("check", words, folder), encoding="utf-8")
    lines = report.read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("wrong: ") for line in lines if line.startswith("wrong: ")]


def split_name(recipe: Recipe, split: int) -> str:
    """File of a split in the folder of the potential's work."""
    path = Path(recipe.settings["split"])
    return f"{path.stem}-{split}{path.suffix}"


def _data(command: str, words: list[str], folder: Path) -> str:
    """Output of `mdgraph data`, run in this process, since a program takes longer to start."""
    output = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(output):
        data_commands([command, *words], standalone_mode=False)
    return output.getvalue()


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

    def teacher_folder(self, seed: int) -> str:
        """Of a teacher within `work`; runs of one split share teachers."""
        return f"teachers/split-{self.split}-seed-{seed}"

    def earlier_folder(self, number: int) -> str:
        """Of a student that this one goes on from, within `work`; runs of one split share it."""
        return f"{EARLIER[number]}/split-{self.split}"

    def settings(self, changes: dict[str, Any], steps: int | None) -> dict[str, Any]:
        """Of this run, with paths relative to `work`."""
        settings = merged(self.recipe.settings, changes) | {
            "split": split_name(self.recipe, self.split),
            "out": self.label,
            "name": self.recipe.name,
            "seed": self.seed,
        }
        if self.recipe.earlier:
            settings |= _going_on(self.earlier_folder(len(self.recipe.earlier) - 1))
        elif self.recipe.teacher is not None:
            settings["teacher"] = list(map(self.teacher_folder, self.recipe.teacher_seeds))
        return _with_steps(settings, steps)

    def jobs(
        self, changes: dict[str, Any], steps: int | None, data: Path, device: str
    ) -> Iterator[Job]:
        """Trainings of what it builds on, and its own; each is the rest of one that was stopped.

        Args:
            changes: to the settings of the recipe.
            steps: of each training, instead of its recipe's.
            data: where the published files lie.
            device: of all.
        """
        needs = []
        teacher = self.recipe.teacher or {}
        for seed in self.recipe.teacher_seeds:
            out = self.teacher_folder(seed)
            needs.append(self.work / out / "report.html")  # the last file of a training
            if not needs[-1].exists():
                own = {"split": split_name(self.recipe, self.split), "out": out, "seed": seed}
                settings = _with_steps(_with_full_paths(teacher, data) | own, steps)
                yield _job(self.work, "train", settings, "checkpoint.safetensors", device)
        for number, student in enumerate(self.recipe.earlier):
            out = self.earlier_folder(number)
            own: dict[str, Any] = {"split": split_name(self.recipe, self.split), "out": out}
            if number:
                own |= _going_on(self.earlier_folder(number - 1))
            else:
                own["teacher"] = list(map(self.teacher_folder, self.recipe.teacher_seeds))
            settings = _with_steps(_with_full_paths(student, data) | own, steps)
            last = self.work / out / "card.md"  # of a distillation
            if not last.exists():
                yield _job(self.work, "distil", settings, "distil.yaml", device, tuple(needs))
            needs = [last]
        settings = _with_full_paths(self.settings(changes, steps), data)
        if self.recipe.teacher is None:
            yield _job(self.work, "train", settings, "checkpoint.safetensors", device)
        else:
            yield _job(self.work, "distil", settings, "distil.yaml", device, tuple(needs))


def _going_on(folder: str) -> dict[str, Any]:
    """Settings of a student that goes on from another one, which teaches it too."""
    return {"teacher": [folder], "start_from": folder}


def _with_steps(settings: dict[str, Any], steps: int | None) -> dict[str, Any]:
    if steps is None:
        return settings
    lengths = {name: steps for name in ("steps", "earlier_steps") if name in settings}
    return {name: value for name, value in settings.items() if name != "epochs"} | lengths


def _with_full_paths(settings: Mapping[str, Any], data: Path) -> dict[str, Any]:
    """Settings with full paths of potentials and structures: of a folder, else of the project."""

    def full(path: str) -> str:
        places = [folder / path for folder in (data, POTENTIALS.parent)]
        return next((str(place.resolve()) for place in places if place.exists()), path)

    changed = dict(settings)
    for name in ("start_from", "baseline", "structures"):
        if isinstance(changed.get(name), str):
            changed[name] = full(changed[name])
        elif isinstance(changed.get(name), list):
            changed[name] = list(map(full, changed[name]))
    if random_teacher := changed.get("sampling", {}).get("random_teacher"):
        changed["sampling"] = changed["sampling"] | {"random_teacher": full(random_teacher)}
    return changed


def _job(
    work: Path,
    command: str,
    settings: dict[str, Any],
    begun: str,
    device: str,
    needs: tuple[Path, ...] = (),
) -> Job:
    """A command, or the rest of it where its folder holds the file `begun`."""
    label = settings["out"]
    folder, words = work / label, ["--device", device]
    if (folder / begun).exists():
        words = [f"{label}/{command}.yaml", "--resume", *words]
    else:
        shutil.rmtree(folder, ignore_errors=True)
        path = folder.with_suffix(".yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
        words = [str(path.relative_to(work)), *words]
    return Job((*PROGRAM, command, *words), work, folder.with_suffix(".log"), needs)


def metrics_of(folder: Path) -> dict[str, Any]:
    """What a training or distillation measured, of frames with labels of the data alone.

    A student has frames that its teachers labelled too; errors on all of them are `all_frames`.
    """
    metrics: dict[str, Any] = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    if "distilled" in metrics:
        metrics["all_frames"] = {}
        for part in ("train", "validation"):
            sources = dict(metrics[part]["by_source"])
            for other in ("sampled", "copies"):
                sources.pop(other, None)
            metrics["all_frames"][part] = metrics[part]
            (metrics[part],) = sources.values()
        split = yaml.safe_load((folder / "distil.yaml").read_text(encoding="utf-8"))["split"]
        record = json.loads((folder.parents[1] / split).read_text(encoding="utf-8"))
        metrics["data_sha256"] = record["sha256"]
    return metrics


def mean_and_error(values: Sequence[float], splits: Sequence[int]) -> tuple[float, float]:
    """Mean and its standard error, NaN for one value.

    Runs on one split share its held-out frames and are not independent: the error is the larger
    of those from the scatter of all runs and from that of the means of splits.
    """
    every, parts = np.asarray(values), np.asarray(splits)
    means = np.array([every[parts == part].mean() for part in np.unique(parts)])
    errors = [
        sample.std(ddof=1) / np.sqrt(len(sample)) if len(sample) > 1 else np.nan
        for sample in (every, means)
    ]
    return float(every.mean()), float(np.fmax(*errors))


def summarise(runs: Sequence[Run], known: Mapping[str, Any], wrong: list[str]) -> dict[str, Any]:
    """Everything about one potential, for metrics.json.

    Args:
        runs: those that are done.
        known: entry of published.yaml.
        wrong: findings about the data.
    """
    records = []
    for run in runs:
        metrics = metrics_of(run.folder)
        about = {"lever": run.lever, "split": run.split, "seed": run.seed, "folder": run.label}
        records.append(about | metrics)
    measures = known.get("measures", ["energy_rmse_meV_per_atom", "force_rmse_meV_per_A"])
    rows = {
        lever: _row([record for record in records if record["lever"] == lever], measures)
        for lever in dict.fromkeys(record["lever"] for record in records)
    }
    return {"rows": rows, **known, "measures": measures, "findings": wrong, "runs": records}


def _row(runs: list[dict[str, Any]], measures: Sequence[str]) -> dict[str, Any]:
    """Of one lever: errors on test frames where there are some, else on those of validation."""
    part = "test" if all("test" in run for run in runs) else "validation"
    errors = {}
    for measure in measures:
        values = [run[part][measure] for run in runs]
        mean, error = mean_and_error(values, [run["split"] for run in runs])
        errors[measure] = {
            "mean": round(mean, 4),
            "standard_error": None if np.isnan(error) else round(error, 4),
        }
    # For shipping: what was never scored chooses.
    chosen = min(runs, key=lambda run: run["validation"]["force_rmse_meV_per_A"])
    return {
        "part": part,
        "frames": runs[0][part]["frames"],
        "runs": len(runs),
        "splits": len({run["split"] for run in runs}),
        "steps": sorted({run["steps"] for run in runs}),
        "minutes": round(float(np.mean([run["seconds"] for run in runs])) / 60.0, 2),
        "hardware": sorted({run["hardware"] for run in runs}),
        "errors": errors,
        "best_on_validation": chosen["folder"],
    }


def collect(work: Path, summary: Mapping[str, Any]) -> None:
    """Copies what is worth shipping of the best run of the first row to `work/potential`.

    Its `metrics.json` gets the means over runs, what was published and what is wrong with the
    data.
    """
    if not summary["rows"]:
        return
    chosen = next(iter(summary["rows"].values()))["best_on_validation"]
    target = work / "potential"
    target.mkdir(exist_ok=True)
    for path in (work / chosen).iterdir():
        if path.is_file() and path.name not in LEFT_OUT:
            shutil.copyfile(path, target / path.name)
    metrics = metrics_of(work / chosen)
    metrics |= {name: value for name, value in summary.items() if name != "runs"}
    text = json.dumps(metrics, indent=1) + "\n"
    write_atomically(target / "metrics.json", text)


def table(summaries: Mapping[str, Mapping[str, Any]]) -> str:
    """Markdown: a line a potential, or a row of its ablation."""
    ablation = any(len(summary["rows"]) > 1 for summary in summaries.values())
    titles = ["potential", *(["row"] if ablation else []), "held out", "runs"]
    titles += ["energy", "force", "wanted", "published, energy / force"]
    lines = [f"| {' | '.join(titles)} |", f"|{' --- |' * len(titles)}"]
    for name, summary in summaries.items():
        published = ", ".join(
            f"{who} {_both(values)}" for who, values in summary.get("published", {}).items()
        )
        targets = _both(summary["wanted"]) if "wanted" in summary else ""
        for lever, row in summary["rows"].items():
            runs = str(row["runs"])
            if row["splits"] > 1:
                runs += f" on {row['splits']} splits"
            cells = [name, *([lever] if ablation else []), f"{row['frames']}, {row['part']}", runs]
            cells += [
                f"{_with_error(row['errors'][measure])} {TITLES[measure]}"
                for measure in summary["measures"]
            ]
            lines.append(f"| {' | '.join([*cells, targets, published])} |")
    return "\n".join(lines) + "\n"


def _with_error(error: Mapping[str, Any]) -> str:
    spread = error["standard_error"]
    return f"{error['mean']:.3g}" + ("" if spread is None else f" ± {spread:.2g}")


def _both(values: Sequence[float | None]) -> str:
    return " / ".join("-" if value is None else f"{value:g}" for value in values)


def planned(options: argparse.Namespace) -> list[Run]:
    """All runs, seeds and splits of one potential after the other."""
    return [
        Run(
            read_recipe(name, from_scratch=options.from_scratch),
            lever,
            split,
            seed,
            options.out / name,
        )
        for name in options.names
        for lever in options.rows
        for split in range(1, options.splits + 1)
        for seed in options.seeds
    ]


def train_all(runs: list[Run], options: argparse.Namespace, deadline: float) -> bool:
    """Whether all runs are done in the end."""
    environment = share_of_cores(options.parallel)
    root = str(Path(__file__).resolve().parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
    left = [run for run in runs if not run.done]
    shared = set(options.device) != {"cpu"} and options.parallel > 1 and bool(left)
    with multi_process_service(environment, shared) as served:
        if shared:
            print(f"Multi-Process Service: {'yes' if served else 'no, processes take turns'}")
        every = (
            job
            for run, device in zip(left, cycle(options.device), strict=False)
            for job in run.jobs(options.rows[run.lever], options.steps, options.data, device)
        )
        # Runs of one split share teachers, and all teachers go first.
        jobs = sorted({job.log: job for job in every}.values(), key=lambda job: bool(job.needs))
        outcome = run_side_by_side(jobs, options.parallel, environment, deadline)
    for job, status in outcome.failed:
        print(f"Status {status}: see {job.log}")
    if outcome.left:
        print(f"{len(outcome.left)} trainings are not at their end; give the same command again.")
    return not (outcome.failed or outcome.left)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="folders of potentials/")
    parser.add_argument("--data", type=Path, help="folder of the published files")
    parser.add_argument("--out", type=Path, help="folder of the work and the tables")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="of the weights")
    parser.add_argument("--splits", type=int, default=1, help="of seeds 1, 2, ...")
    parser.add_argument("--steps", type=int, help="of each training, instead of its recipe's")
    parser.add_argument("--parallel", type=int, default=1, help="trainings at a time")
    parser.add_argument("--stop-after", type=float, default=math.inf, help="minutes in all")
    parser.add_argument("--levers", type=Path, help="rows of an ablation")
    parser.add_argument(
        "--from-scratch", action="store_true", help="by train.yaml, where there is a distil.yaml"
    )
    parser.add_argument("--only", nargs="+", help="those of its rows")
    parser.add_argument(
        "--device", nargs="+", default=["auto"], help="cuda:0 cuda:1 ... take turns"
    )
    options = parser.parse_args()
    if not (options.names and options.data and options.out):
        parser.error("give names, --data and --out")
    options.rows = {AS_IT_IS: {}}
    if options.levers is not None:
        options.from_scratch = True
        options.rows = yaml.safe_load(options.levers.read_text(encoding="utf-8"))
    if options.only is not None:
        unknown = set(options.only) - set(options.rows)
        if unknown:
            parser.error(f"--only: there is no row {', '.join(sorted(unknown))}")
        options.rows = {name: options.rows[name] for name in options.only}
    return options


def main() -> None:
    """Trains what is left to train, and writes the tables of what is there."""
    options = arguments()
    # Trainings end with this process, so that the same command can go on with them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    deadline = time.monotonic() + 60.0 * options.stop_after
    options.out = options.out.resolve()
    runs = planned(options)
    wrong: dict[str, list[str]] = {}
    for run in {(run.work, run.split): run for run in runs}.values():
        sentences = prepare_data(run.recipe, options.data, run.work, run.split)
        wrong.setdefault(run.recipe.name, []).extend(sentences)
        for sentence in sentences:
            print(f"{run.recipe.name}, split {run.split}: {sentence}")
    complete = train_all(runs, options, deadline)
    published = yaml.safe_load(PUBLISHED.read_text(encoding="utf-8"))
    summaries = {}
    for name in options.names:
        own = [run for run in runs if run.recipe.name == name and run.done]
        known = published.get(name, {})
        summaries[name] = summarise(own, known, list(dict.fromkeys(wrong[name])))
        text = json.dumps(summaries[name], indent=1) + "\n"
        path = options.out / name / "metrics.json"
        write_atomically(path, text)
        collect(options.out / name, summaries[name])
    text = table(summaries)
    write_atomically(options.out / "errors.md", text)
    print(text, end="")
    if not complete:
        sys.exit(1)


if __name__ == "__main__":
    run_script(main)
