"""Grouped cross-validation of recipes for small sets of crystals.

    python benchmarks/folds.py Ge Li Mo Ni --data FOLDER --out FOLDER [--rows benchmarks/folds.yaml]
        [--folds 5] [--first 2] [--only "from scratch"] [--parallel 12] [--stop-after 9]
        [--against POTENTIAL] [--mean ROW ROW ...]

FOLDER of --data holds ELEMENT_train.xyz.gz of Zuo et al. (DOI 10.1021/acs.jpca.9b08723) and what
rows start from. Frames of one trajectory are held out together, or stretches of one that is too
long. Each row changes the recipe of copper-pbe/train.yaml. Finished trainings are kept: give the
same command once more to go on. The table has mean absolute errors over the frames of all folds
that are done, and the standard error over folds. With --against, a second table has the error that
each row shares with a potential that saw none of these labels: what both lack, the labels have
beyond any potential of this kind. With --mean a last table has the errors of the mean of the forces
of several rows, over the folds that all of them have.
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from cases import run_script
from error_tables import (
    POTENTIALS,
    PROGRAM,
    Job,
    merged,
    multi_process_service,
    run_side_by_side,
    share_of_cores,
)

from mdgraph.data import Split, open_dataset, read_split
from mdgraph.data.splits import trajectories, write_split
from mdgraph.runs.commands.data import app as data_commands
from mdgraph.validate.crystals import CrystalProbe

ROWS = Path(__file__).resolve().parent / "folds.yaml"
ENERGY, FORCE = "energy_mae_meV_per_atom", "force_mae_meV_per_A"
HOT = 0.5
"""eV/A. Frames whose forces are larger in the mean of their components are hot."""
_CHUNK = 8

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def fold_of(trajectory: np.ndarray, folds: int) -> np.ndarray:
    """(M,) fold of each frame: trajectories, longest first, go where there are the fewest frames.

    Those too long for a fold are cut into as many stretches of consecutive frames as there are
    folds.

    Args:
        trajectory: (M,) of each frame.
        folds: number of folds.
    """
    names, lengths = np.unique(trajectory, return_counts=True)
    fold, filled = np.empty(len(trajectory), dtype=np.int64), np.zeros(folds, dtype=np.int64)
    for name in names[np.argsort(-lengths, kind="stable")]:
        own = np.flatnonzero(trajectory == name)
        if folds * len(own) > len(trajectory):
            fold[own] = np.arange(len(own)) * folds // len(own)
        else:
            fold[own] = int(filled.argmin())
        filled += np.bincount(fold[own], minlength=folds)
    return fold


def prepare(element: str, options: argparse.Namespace) -> Path:
    """A folder with the set of an element and the split of each fold."""
    folder: Path = options.out / element
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "set.h5").exists():
        source = str(options.data / f"{element}_train.xyz.gz")
        about = ["--level-of-theory", "PBE", "--licence", "BSD-3-Clause"]
        words = ["convert", source, str(folder / "set.h5"), *about]
        data_commands(words, standalone_mode=False)
    with open_dataset(folder / "set.h5") as dataset:
        fold = fold_of(trajectories(dataset), options.folds)
        for number in range(options.folds):
            if not (path := folder / f"fold-{number}.json").exists():
                train, held = (np.flatnonzero(mask) for mask in (fold != number, fold == number))
                nothing = np.zeros(0, dtype=np.int64)
                method = f"whole trajectories or stretches, fold {number + 1} of {options.folds}"
                write_split(Split(train, held, nothing, method, dataset.sha256()), path)
    return folder


def job(folder: Path, row: str, fold: int, changes: dict[str, Any], data: Path) -> Job | None:
    """A training, or the rest of one; None where it is done."""
    label = f"{row.replace(' ', '-')}-{fold}"
    words: tuple[str, ...] = (f"{label}.yaml",)
    if (folder / label / "report.html").exists():
        return None
    if (folder / label / "checkpoint.safetensors").exists():
        words = (f"{label}/train.yaml", "--resume")
    else:
        recipe = yaml.safe_load((POTENTIALS / "copper-pbe" / "train.yaml").read_text("utf-8"))
        settings = merged(recipe, changes)
        settings |= {"data": "set.h5", "split": f"fold-{fold}.json", "out": label}
        if "start_from" in settings:
            settings["start_from"] = str((data / settings["start_from"]).resolve())
        (folder / f"{label}.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    return Job((*PROGRAM, "train", *words), folder, folder / f"{label}.log")


def table(options: argparse.Namespace, rows: dict[str, Any]) -> str:
    """Markdown: a line for each element and row."""
    lines = [
        "| | row | folds | energy, meV/atom | force, meV/A |",
        "| --- | --- | --- | --- | --- |",
    ]
    for element in options.elements:
        for row in rows:
            paths = [
                options.out / element / f"{row.replace(' ', '-')}-{fold}" / "metrics.json"
                for fold in range(options.folds)
            ]
            done = [json.loads(path.read_text("utf-8")) for path in paths if path.exists()]
            if not done:
                continue
            held = [metrics["validation"] for metrics in done]
            frames = np.array([part["frames"] for part in held])
            cells = []
            for measure in (ENERGY, FORCE):
                values = np.array([part[measure] for part in held])
                mean = float((values * frames).sum() / frames.sum())
                spread = (
                    float(values.std(ddof=1) / math.sqrt(len(values))) if len(held) > 1 else 0.0
                )
                cells.append(f"{mean:.3g} ± {spread:.2g}")
            lines.append(f"| {element} | {row} | {len(held)} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def held_out_errors(folder: Path, fold: int, potential: Path) -> tuple[Array, Array]:
    """Errors of forces, (N, 3) in eV/A, and (N,) whether the frame is hot, of a fold's atoms."""
    with open_dataset(folder / "set.h5") as dataset:
        frames = list(dataset.frames(read_split(folder / f"fold-{fold}.json", dataset).validation))
    probe = CrystalProbe(str(potential), torch.device("cpu"), "mixed")
    systems = [frame.system() for frame in frames]
    chunks = [probe.evaluate(systems[k : k + _CHUNK]) for k in range(0, len(systems), _CHUNK)]
    forces = [np.asarray(result.forces) for chunk in chunks for result in chunk]
    labels = [np.asarray(frame.forces) for frame in frames]
    hot = [np.full(len(label), np.abs(label).mean() > HOT) for label in labels]
    return np.concatenate(forces) - np.concatenate(labels), np.concatenate(hot)


def common_error(first: Array, second: Array) -> tuple[float, float, float]:
    """RMS of two arrays of errors, and of what is common to both: the root of their covariance."""
    covariance = np.cov(first.ravel(), second.ravel())
    return (
        math.sqrt(covariance[0, 0]),
        math.sqrt(covariance[1, 1]),
        math.sqrt(max(0.0, covariance[0, 1])),
    )


def common_table(options: argparse.Namespace, rows: dict[str, Any]) -> str:
    """Markdown: errors of hot frames that rows share with the potential of --against."""
    other_name = options.against.name
    lines = [
        f"| | row | folds | forces of hot frames, RMSE, meV/A | of {other_name} | common |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for element in options.elements:
        folder = options.out / element
        other: dict[int, Array] = {}
        for row in rows:
            names = {fold: f"{row.replace(' ', '-')}-{fold}" for fold in range(options.folds)}
            pairs = []
            for fold, name in names.items():
                if (folder / name / "model.safetensors").exists():
                    errors, hot = held_out_errors(folder, fold, folder / name)
                    if fold not in other:
                        other[fold] = held_out_errors(folder, fold, options.against)[0]
                    pairs.append((errors[hot], other[fold][hot]))
            if sum(map(len, (errors for errors, _ in pairs))):
                own, others = (np.concatenate(errors) for errors in zip(*pairs, strict=True))
                cells = " | ".join(f"{1000 * value:.0f}" for value in common_error(own, others))
                lines.append(f"| {element} | {row} | {len(pairs)} | {cells} |")
    return "\n".join(lines)


def mean_table(options: argparse.Namespace) -> str:
    """Markdown: errors of the mean of the forces of the rows of --mean."""
    lines = ["| | mean of | folds | force, meV/A |", "| --- | --- | --- | --- |"]
    for element in options.elements:
        folder = options.out / element
        values, frames = [], []
        for fold in range(options.folds):
            trained = [folder / f"{row.replace(' ', '-')}-{fold}" for row in options.mean]
            if all((path / "model.safetensors").exists() for path in trained):
                errors = [held_out_errors(folder, fold, path)[0] for path in trained]
                values.append(1000.0 * float(np.abs(np.mean(errors, axis=0)).mean()))
                with open_dataset(folder / "set.h5") as dataset:
                    split = read_split(folder / f"fold-{fold}.json", dataset)
                frames.append(len(split.validation))
        if values:
            mean = np.average(values, weights=frames)
            lines.append(f"| {element} | {', '.join(options.mean)} | {len(values)} | {mean:.3g} |")
    return "\n".join(lines)


def main() -> None:
    """Trains what is left to train, and prints the table of what is done."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("elements", nargs="+", metavar="ELEMENT")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--only", nargs="+", help="those of the rows")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--first", type=int, help="train the first so many folds alone")
    parser.add_argument("--against", type=Path, help="a potential that saw none of these labels")
    parser.add_argument("--mean", nargs="+", metavar="ROW", help="whose forces are averaged")
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--stop-after", type=float, default=math.inf, help="minutes in all")
    options = parser.parse_args()
    deadline = time.monotonic() + 60.0 * options.stop_after
    rows = yaml.safe_load(options.rows.read_text(encoding="utf-8"))
    if unknown := {*(options.only or ()), *(options.mean or ())} - set(rows):
        parser.error(f"there is no row {', '.join(sorted(unknown))}")
    jobs = []
    for element in options.elements:
        folder = prepare(element, options)
        jobs += [
            job(folder, row, fold, rows[row], options.data)
            for row in options.only or rows
            for fold in range(options.first or options.folds)
        ]
    waiting = [one for one in jobs if one is not None]
    environment = share_of_cores(options.parallel)
    with multi_process_service(environment, bool(waiting) and options.parallel > 1):
        outcome = run_side_by_side(waiting, options.parallel, environment, deadline)
    for failed, status in outcome.failed:
        print(f"Status {status}: see {failed.log}")
    print(table(options, rows))
    if options.against is not None:
        print(common_table(options, rows))
    if options.mean:
        print(mean_table(options))
    if outcome.failed or outcome.left:
        print(f"{len(outcome.left)} trainings are not at their end; give the same command again.")
        sys.exit(1)


if __name__ == "__main__":
    run_script(main)
