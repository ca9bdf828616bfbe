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
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from cases import run_script
from recipes import (
    PROBED,
    Run,
    measured_lengths,
    multi_process_service,
    prepare_data,
    read_recipe,
    run_side_by_side,
    share_of_cores,
)

from mdgraph.io.files import write_atomically

PUBLISHED = Path(__file__).resolve().parent / "published.yaml"
AS_IT_IS = "as it is"

LEFT_OUT = {"checkpoint.safetensors", "split.json", "train.yaml"}
"""Files of a training that a potential needs no more."""

TITLES = {
    "energy_rmse_meV": "RMSE, meV",
    "energy_mae_meV": "MAE, meV",
    "energy_rmse_meV_per_atom": "RMSE, meV/atom",
    "energy_mae_meV_per_atom": "MAE, meV/atom",
    "force_rmse_meV_per_A": "RMSE, meV/A",
    "force_mae_meV_per_A": "MAE, meV/A",
}


def mean_and_error(values: Sequence[float], splits: Sequence[int]) -> tuple[float, float]:
    """Mean and its standard error, NaN for one value.

    Runs on one split share its held-out frames and are not independent: the error is the larger
    of those from the scatter of all runs and from that of the means of splits.
    """
    every, parts = np.asarray(values), np.asarray(splits)
    means = np.array([every[parts == part].mean() for part in np.unique(parts)])
    errors = [
        one.std(ddof=1) / np.sqrt(len(one)) if len(one) > 1 else np.nan for one in (every, means)
    ]
    return float(every.mean()), float(np.fmax(*errors))


def summarise(runs: Sequence[Run], known: Mapping[str, Any], wrong: list[str]) -> dict[str, Any]:
    """Everything about one potential, for metrics.json.

    Args:
        runs: those that are done.
        known: entry of published.yaml.
        wrong: findings about the data.
    """
    told = []
    for run in runs:
        metrics = json.loads((run.folder / "metrics.json").read_text(encoding="utf-8"))
        about = {"lever": run.lever, "split": run.split, "seed": run.seed, "folder": run.label}
        told.append(about | metrics)
    measures = known.get("measures", ["energy_rmse_meV_per_atom", "force_rmse_meV_per_A"])
    rows = {
        lever: _row([one for one in told if one["lever"] == lever], measures)
        for lever in dict.fromkeys(one["lever"] for one in told)
    }
    return {"rows": rows, **known, "measures": measures, "findings": wrong, "runs": told}


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
        if path.name not in LEFT_OUT:
            shutil.copyfile(path, target / path.name)
    metrics = json.loads((work / chosen / "metrics.json").read_text(encoding="utf-8"))
    metrics |= {name: value for name, value in summary.items() if name != "runs"}
    text = json.dumps(metrics, indent=1) + "\n"
    write_atomically(target / "metrics.json", lambda path: path.write_text(text, encoding="utf-8"))


def table(summaries: Mapping[str, Mapping[str, Any]]) -> str:
    """Markdown: a line a potential, or a row of its ablation."""
    ablation = any(len(one["rows"]) > 1 for one in summaries.values())
    titles = ["potential", *(["row"] if ablation else []), "held out", "runs"]
    titles += ["energy", "force", "wanted", "published, energy / force"]
    lines = [f"| {' | '.join(titles)} |", f"|{' --- |' * len(titles)}"]
    for name, summary in summaries.items():
        published = ", ".join(
            f"{who} {_both(values)}" for who, values in summary.get("published", {}).items()
        )
        wanted = _both(summary["wanted"]) if "wanted" in summary else ""
        for lever, row in summary["rows"].items():
            runs = str(row["runs"])
            if row["splits"] > 1:
                runs += f" on {row['splits']} splits"
            cells = [name, *([lever] if ablation else []), f"{row['frames']}, {row['part']}", runs]
            cells += [f"{_told(row['errors'][one])} {TITLES[one]}" for one in summary["measures"]]
            lines.append(f"| {' | '.join([*cells, wanted, published])} |")
    return "\n".join(lines) + "\n"


def _told(error: Mapping[str, Any]) -> str:
    spread = error["standard_error"]
    return f"{error['mean']:.3g}" + ("" if spread is None else f" ± {spread:.2g}")


def _both(values: Sequence[float | None]) -> str:
    return " / ".join("-" if value is None else f"{value:g}" for value in values)


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
