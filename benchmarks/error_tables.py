"""Trains potentials by their recipes, several seeds and splits, and tells their errors.

    python benchmarks/error_tables.py acac-pbe ethanol-pbe --data FOLDER --out FOLDER \\
        --seeds 1 2 3 --splits 3 --minutes 6 --parallel 9 [--stop-after 9]

FOLDER of --data holds the published files under the names that the heads of
`potentials/*/train.yaml` have. Each potential gets a folder with its data set, splits, what
`mdgraph data check` found, a folder a training, and `metrics.json`: every run, means and
standard errors, beside what others published. `errors.md` is the table of all.

Trainings run side by side, under NVIDIA's MPS where it can be started. With --minutes a step
is timed first, by as many processes at once as will train, and the number of steps is what
fits; it is kept, so all runs of a row are equally long. What is there already is not done
again, and a training that was stopped goes on: give the same command once more.

With --levers each potential is trained once for every row of that file.
"""

import argparse
import json
import math
import os
import signal
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from error_summary import collect, summarise, table
from recipes import Run, prepare_data, read_recipe
from side_by_side import Job, multi_process_service, run_side_by_side, share_of_cores

from mdgraph.errors import InputError
from mdgraph.io.files import write_atomically

PUBLISHED = Path(__file__).resolve().parent / "published.yaml"
PROBED = 100
"""Steps that are timed."""

KEPT = "steps.json"
"""Of each row: how many steps its trainings have."""

KEPT_BACK = 0.85
"""Of the minutes, for steps; the rest is for lists, captures and validations."""

AS_IT_IS = "as it is"


def planned(options: argparse.Namespace) -> list[Run]:
    """All runs, seeds and splits of one potential after the other."""
    return [
        Run(read_recipe(name), lever, split, seed, options.out / name)
        for name in options.names
        for lever in options.rows
        for split in range(1, options.splits + 1)
        for seed in options.seeds
    ]


def lengths(
    runs: list[Run], options: argparse.Namespace, environment: dict[str, str], deadline: float
) -> dict[Path, int | None]:
    """Steps of each row's runs, by their folder: as asked for, as kept, or measured.

    None leaves them to train.yaml. All rows are measured at the same time.
    """
    rows: dict[Path, list[Run]] = {}
    for run in runs:
        rows.setdefault(run.folder.parent, []).append(run)
    if options.steps is not None or options.minutes is None:
        return dict.fromkeys(rows, options.steps)
    unknown = [row for row in rows if not (row / KEPT).exists()]
    copies = max(1, min(options.parallel, len(runs)) // max(1, len(unknown)))
    jobs = {row: _probes(rows[row][0], copies, options) for row in unknown}
    every = [job for own in jobs.values() for job in own]
    outcome = run_side_by_side(every, options.parallel, environment, deadline)
    for job in [*(job for job, _ in outcome.failed), *outcome.left]:
        raise InputError(f"Steps could not be timed; see {job.log}, or give --steps.")
    for row, own in jobs.items():
        lines = [job.log.read_text(encoding="utf-8").splitlines()[-1] for job in own]
        milliseconds = max(json.loads(line)["ms_per_step"] for line in lines)
        steps = max(1, math.floor(60e3 * KEPT_BACK * options.minutes / milliseconds))
        record = {"ms_per_step": milliseconds, "minutes": options.minutes, "steps": steps}
        text = json.dumps(record) + "\n"
        write_atomically(row / KEPT, lambda path, text=text: path.write_text(text))
    found: dict[Path, int | None] = {}
    for row in rows:
        known = json.loads((row / KEPT).read_text(encoding="utf-8"))
        found[row] = int(known["steps"])
        if known["minutes"] != options.minutes:
            print(f"{row / KEPT} has the steps of {known['minutes']:g} minutes; they are kept.")
    return found


def _probes(run: Run, copies: int, options: argparse.Namespace) -> list[Job]:
    """Processes that time the steps of a run."""
    row = run.folder.parent
    row.mkdir(parents=True, exist_ok=True)
    settings = run.settings(options.rows[run.lever], options.probed) | {"device": options.device}
    asked = row / "probe.yaml"
    asked.write_text(yaml.safe_dump(settings), encoding="utf-8")
    logs = [row / f"probe-{number}.log" for number in range(copies)]
    for log in logs:
        log.unlink(missing_ok=True)
    words = (sys.executable, __file__, "--probe", str(asked))
    return [Job(words, run.work, log) for log in logs]


def probe(path: Path) -> None:
    """Times steps of a training in this process, without a profiler, which MPS does not bear."""
    import torch

    from mdgraph.runs.training import read_training
    from mdgraph.train.loop import Training
    from mdgraph.train.schedule import controls_at

    with TemporaryDirectory() as folder:
        config = read_training(path, {"out": f"{folder}/out"})
        assert config.steps is not None
        training = Training(config, resume=False, quiet=True)
        wait = torch.cuda.synchronize if training.step.controls.is_cuda else lambda: None
        warm = 2 * len(training.store.shapes)
        upcoming = training.store.stream(training.plan.upcoming(0))
        start = 0.0
        for step in range(warm + config.steps):
            if step == warm:
                wait()
                start = time.perf_counter()
            shape, rows = next(upcoming)
            training.store.fill_(training.plan.batches[shape], shape, rows)
            training.step.run(shape, controls_at(config, step, warm + config.steps, 1.0))
        wait()
        seconds = time.perf_counter() - start
    print(json.dumps({"ms_per_step": round(1e3 * seconds / config.steps, 3)}))


def train_all(runs: list[Run], options: argparse.Namespace, deadline: float) -> bool:
    """Whether all runs are done in the end."""
    environment = share_of_cores(options.parallel)
    root = str(Path(__file__).resolve().parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
    left = [run for run in runs if not run.done]
    shared = options.device != "cpu" and options.parallel > 1 and bool(left)
    with multi_process_service(environment, shared) as served:
        if shared:
            print(f"Multi-Process Service: {'yes' if served else 'no, processes take turns'}")
        steps = lengths(left, options, environment, deadline) if left else {}
        jobs = [
            run.job(run.settings(options.rows[run.lever], steps[run.folder.parent]), options.device)
            for run in left
        ]
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
    parser.add_argument("--minutes", type=float, help="of each training, instead of its steps")
    parser.add_argument("--steps", type=int, help="of each training, instead of its steps")
    parser.add_argument("--parallel", type=int, default=1, help="trainings at a time")
    parser.add_argument("--stop-after", type=float, default=math.inf, help="minutes in all")
    parser.add_argument("--levers", type=Path, help="rows of an ablation")
    parser.add_argument("--only", nargs="+", help="those of its rows")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--probed", type=int, default=PROBED, help="steps that are timed")
    parser.add_argument("--probe", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.probe is None and not (options.names and options.data and options.out):
        parser.error("give names, --data and --out")
    options.rows = {AS_IT_IS: {}}
    if options.levers is not None:
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
    if options.probe is not None:
        probe(options.probe)
        return
    # Trainings end with this process, so that the same command can go on with them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    deadline = time.monotonic() + 60.0 * options.stop_after
    options.out = options.out.resolve()
    runs = planned(options)
    wrong: dict[str, list[str]] = {}
    for run in {(run.work, run.split): run for run in runs}.values():
        found = prepare_data(run.recipe, options.data, run.work, run.split)
        wrong.setdefault(run.recipe.name, []).extend(found)
        for sentence in found:
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
        write_atomically(path, lambda place, text=text: place.write_text(text, encoding="utf-8"))
        collect(options.out / name, summaries[name])
    text = table(summaries)
    write_atomically(
        options.out / "errors.md", lambda path: path.write_text(text, encoding="utf-8")
    )
    print(text, end="")
    if not complete:
        sys.exit(1)


if __name__ == "__main__":
    main()
