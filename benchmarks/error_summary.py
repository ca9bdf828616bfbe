"""What error_tables.py found: means over seeds and splits, and a table beside published errors."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mdgraph.io.files import write_atomically

if TYPE_CHECKING:
    from recipes import Run

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


def summarise(runs: "Sequence[Run]", known: Mapping[str, Any], wrong: list[str]) -> dict[str, Any]:
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
