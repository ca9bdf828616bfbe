"""One training for each of several seeds, and what their errors have in common."""

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mdgraph.errors import InputError
from mdgraph.io.files import disk_failures, write_atomically

SUMMARY_FILE = "summary.json"


def seeds_of(text: str) -> list[int]:
    """Numbers from text such as 1,2,3; raises InputError for anything else."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise InputError(f"--seeds is '{text}'; give whole numbers with commas, such as 1,2,3.")
    seeds = [int(part) for part in parts]
    if len(set(seeds)) < max(2, len(seeds)):
        raise InputError(f"--seeds is '{text}'; give two different numbers or more.")
    return seeds


def train_each(
    folder: Path, seeds: Sequence[int], train_one: Callable[[Path, int], Any], *, resume: bool
) -> dict[str, Any]:
    """Trains into `seed-N` of a folder, in turn; writes and returns the summary.

    Args:
        folder: of all of them.
        seeds: one for each.
        train_one: trains into a folder with a seed.
        resume: leave out those that are finished.
    """
    found = []
    for seed in seeds:
        own = folder / f"seed-{seed}"
        path = own / "metrics.json"
        if not (resume and path.exists() and (own / "report.html").exists()):
            train_one(own, seed)
        with disk_failures(path, "read"):
            found.append(json.loads(path.read_text(encoding="utf-8")))
    summary = {"seeds": list(seeds), **summarized(found)}
    text = json.dumps(summary, indent=1) + "\n"
    write_atomically(folder / SUMMARY_FILE, lambda path: path.write_text(text, encoding="utf-8"))
    return summary


def summarized(metrics: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Mean and standard error over trainings of each error of each part."""
    from mdgraph.train.report import COLUMNS

    found: dict[str, dict[str, dict[str, float]]] = {}
    for part in ("train", "validation", "test"):
        for column in COLUMNS:
            values = [one[part][column] for one in metrics if column in one.get(part, {})]
            if column != "frames" and len(values) == len(metrics):
                found.setdefault(part, {})[column] = {
                    "mean": round(statistics.mean(values), 4),
                    "standard_error": round(statistics.stdev(values) / len(values) ** 0.5, 4),
                }
    return found


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """The summary as a table."""
    return [
        f"{part:<10}  {column:<28} {value['mean']:.4g} +- {value['standard_error']:.2g}"
        for part in ("train", "validation", "test")
        for column, value in summary.get(part, {}).items()
    ]
