"""Trains potentials by their recipes, several seeds and splits, and tells their errors.

    python benchmarks/error_tables.py acac-pbe ethanol-pbe --data FOLDER --out FOLDER \\
        --seeds 1 2 3 --splits 3 --minutes 6 --parallel 9 [--stop-after 9]

FOLDER of --data holds the published files under the names that the heads of
`potentials/*/train.yaml` have. Each potential gets a folder with its data set, splits, what
`mdgraph data check` found, a folder a training, and `metrics.json`: every run, means and
standard errors, beside what others published. `errors.md` is the table of all.

Trainings run side by side, under NVIDIA's MPS where it can be started, and on several devices
where --device names them. With --minutes steps
are timed first, by as many processes at once as will train, and the number of steps is what
fits; it is kept, so all runs of a row are equally long. What is there already is not done
again, and a training that was stopped goes on: give the same command once more. With
--sittings N the steps are those of N times the minutes; --stop-after says when each sitting ends.

With --levers each potential is trained once for every row of that file.
"""

import argparse
import json
import math
import os
import signal
import sys
import time
from itertools import cycle
from pathlib import Path

import yaml
from command_line import run_script
from error_summary import collect, summarise, table
from lengths import PROBED, measured_lengths
from recipes import Run, prepare_data, read_recipe
from side_by_side import multi_process_service, run_side_by_side, share_of_cores

from mdgraph.io.files import write_atomically

PUBLISHED = Path(__file__).resolve().parent / "published.yaml"
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
        steps = measured_lengths(left, options, environment, deadline) if left else {}
        jobs = [
            run.job(run.settings(options.rows[run.lever], steps[run.folder.parent]), device)
            for run, device in zip(left, cycle(options.device), strict=False)
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
    parser.add_argument(
        "--sittings", type=int, default=1, help="of so many minutes each that a training takes"
    )
    parser.add_argument("--steps", type=int, help="of each training, instead of its steps")
    parser.add_argument("--parallel", type=int, default=1, help="trainings at a time")
    parser.add_argument("--stop-after", type=float, default=math.inf, help="minutes in all")
    parser.add_argument("--levers", type=Path, help="rows of an ablation")
    parser.add_argument("--only", nargs="+", help="those of its rows")
    parser.add_argument(
        "--device", nargs="+", default=["auto"], help="cuda:0 cuda:1 ... take turns"
    )
    parser.add_argument("--probed", type=float, default=PROBED, help="s that steps are timed for")
    options = parser.parse_args()
    if not (options.names and options.data and options.out):
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
    run_script(main)
