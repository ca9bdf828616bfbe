"""Whether all that is said of the shipped potentials is what was measured of these weights.

    python benchmarks/shipping.py [--write]

Prints what is wrong, a line each, and exits with 1. `metrics.json` of a potential is what all else
is held against: the hash of each file beside it, the set that the errors of each part were measured
on, the errors themselves. The table of errors in docs/errors.md is written from it: --write writes
it and, where all else of a potential is right, the hashes of its files. README.md tells no error.
"""

import argparse
import csv
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from cases import run_script
from safetensors import safe_open

from mdgraph.checkpoints import load, load_domain
from mdgraph.checkpoints.native import DOMAIN_FILE, FILE_NAME
from mdgraph.errors import MDGraphError
from mdgraph.train.report import agreement_text

ROOT = Path(__file__).resolve().parent.parent
ERRORS = "<!-- errors: begin -->", "<!-- errors: end -->"
PARTS = ("train", "validation", "test")

UNITS = {
    "energy_rmse_meV": "meV RMSE",
    "energy_mae_meV": "meV MAE",
    "energy_rmse_meV_per_atom": "meV/atom RMSE",
    "energy_mae_meV_per_atom": "meV/atom MAE",
    "force_rmse_meV_per_A": "meV/A RMSE",
    "force_mae_meV_per_A": "meV/A MAE",
}


def metrics_of(folder: Path) -> dict[str, Any]:
    """What was measured of a potential."""
    values: dict[str, Any] = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    return values


def folders(root: Path) -> list[Path]:
    """Of the potentials."""
    return sorted(path.parent for path in root.glob(f"potentials/*/{FILE_NAME}"))


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hashes(folder: Path) -> dict[str, str]:
    """Of all files beside metrics.json."""
    files = sorted(path for path in folder.iterdir() if path.name != "metrics.json")
    return {path.name: sha256(path) for path in files if path.is_file()}


# Of one potential


def wrong_files(folder: Path, metrics: dict[str, Any]) -> Iterator[str]:
    """Files that came from another training, by what is in them."""
    weights = sha256(folder / FILE_NAME)
    with safe_open(folder / DOMAIN_FILE, framework="pt") as file:
        if file.metadata().get("weights-sha256") != weights:
            yield f"{DOMAIN_FILE} belongs to other weights; run mdgraph domain"
    config = load(folder).config
    if config.training_hash != metrics["training_hash"]:
        yield "metrics.json and the weights come from different trainings"
    recipe = folder / ("distil.yaml" if "distilled" in metrics else "train.yaml")
    settings = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    if (settings["steps"], settings["seed"]) != (metrics["steps"], metrics["seed"]):
        yield f"{recipe.name} has other steps or another seed than metrics.json"
    split = json.loads((folder / "split.json").read_text(encoding="utf-8"))
    if split["sha256"] != metrics["data_sha256"]:
        yield "split.json belongs to other data than metrics.json"
    for part in PARTS:
        if len(split[part]) != metrics.get(part, {"frames": 0})["frames"]:
            yield f"split.json has {len(split[part])} frames of {part}, metrics.json others"
    with (folder / "log.csv").open(encoding="utf-8", newline="") as text:
        last = list(csv.DictReader(text))[-1]
    # The log of a student is of all frames held out, those that its teachers labelled too.
    logged = metrics.get("all_frames", metrics)["validation"]
    forces = logged["force_rmse_meV_per_A"]
    if int(last["step"]) != metrics["steps"] or (
        abs(float(last["validation_force_rmse_meV_per_A"]) - forces) > 2e-3 * forces
    ):
        yield "log.csv ends elsewhere than metrics.json says"


def card_lines(folder: Path, metrics: dict[str, Any]) -> Iterator[str]:
    """Lines that the card must have, each once."""
    if folder.name != "water-pbe0":  # It has columns of its own, and a test of its own.
        for part in PARTS:
            if part in metrics:
                row, origin = metrics[part], metrics["sets"][part]
                yield (
                    f"| {part}, of {origin['file']} | {row['frames']} | "
                    f"{row['force_rmse_meV_per_A']:.4g} | {row['force_mae_meV_per_A']:.4g} | "
                    f"{row['energy_rmse_meV_per_atom']:.4g} | "
                    f"{row['energy_mae_meV_per_atom']:.4g} | {row['energy_mae_meV']:.4g} |"
                )
    domain = load_domain(folder)
    if domain is not None:
        yield from (f"- {line}" for line in domain.lines())
    for part, fit in metrics["uncertainty"].items():
        yield f"- {agreement_text(part, fit)}"
    yield f"{metrics['parameters']:,} parameters"
    yield f"{metrics['steps']:,} steps"
    yield f"{metrics['seconds'] / 60:.1f} minutes"
    for run in metrics["stability"]:
        yield f"{run['closest']:.2f}"
        yield f"{run['temperature_K']} K"
    for measurement in metrics["measured"]:
        yield measurement["says"]


def wrong_card(folder: Path, metrics: dict[str, Any]) -> Iterator[str]:
    """Numbers on the card that are not those of metrics.json."""
    card = " ".join((folder / "card.md").read_text(encoding="utf-8").split())
    for line in card_lines(folder, metrics):
        if " ".join(line.split()) not in card:
            yield f"card.md does not say: {line}"
    for part, origin in metrics["sets"].items():
        if origin["frames"] != metrics[part]["frames"]:
            yield f"metrics.json tells errors of {part} on other frames than its set has"
    for name in {name for origin in metrics["sets"].values() for name in [origin["file"]]}:
        if name not in card:
            yield f"card.md does not name {name}, on which errors were measured"


# Of the documents


def errors(row: dict[str, Any], metrics: dict[str, Any]) -> dict[str, str]:
    """Errors of a recipe with their units, energy and force."""
    cells = {}
    for kind, measure in zip(("energy", "force"), metrics["measures"], strict=True):
        error = row["errors"][measure]
        spread = error["standard_error"]
        digits = f" ± {spread:.2g}" if spread is not None else ""
        cells[kind] = f"{error['mean']:.3g}{digits} {UNITS[measure]}"
    return cells


def between(text: str, marks: tuple[str, str]) -> tuple[str, str, str]:
    """A text before, between and after two marks."""
    before, _, rest = text.partition(marks[0])
    there, _, after = rest.partition(marks[1])
    return before, there.strip(), after


def summary(name: str, metrics: dict[str, Any]) -> dict[str, str]:
    """Cells of the tables: what, on which frames."""
    row = metrics["rows"]["as it is"]
    origin = metrics["sets"][row["part"]]
    cells = {"potential": name, "frames": f"{row['frames']}, {row['part']}, {origin['how']}"}
    cells |= errors(row, metrics)
    cells["of"] = f"{row['runs']} of {row['splits']} split{'s' if row['splits'] > 1 else ''}"
    others = metrics["published"].items()
    cells["others"] = "; ".join(
        f"{who} {' and '.join(f'{value:g}' for value in values if value is not None)}"
        for who, values in others
    )
    training = metrics["train"][metrics["measures"][1]]
    cells["training"] = f"{training:.3g}"
    cells["minutes"], cells["steps"] = f"{row['minutes']:.1f}", f"{row['steps'][0]:,}"
    return cells


DOCUMENT = "docs/errors.md"
COLUMNS = (
    "potential", "minutes", "steps", "frames", "energy", "force", "of", "training", "others",
)  # fmt: skip
TITLES = {
    "frames": "frames held out",
    "of": "trainings",
    "training": "force, training frames",
    "others": "published by others",
}


def table(root: Path) -> str:
    """The table of errors, as it must be in docs/errors.md."""
    lines = [[TITLES.get(key, key) for key in COLUMNS], ["---"] * len(COLUMNS)]
    for folder in folders(root):
        cells = summary(folder.name, metrics_of(folder))
        lines.append([cells[key] for key in COLUMNS])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def wrong_documents(root: Path) -> Iterator[str]:
    """A table that is not that of metrics.json, and errors told in README.md."""
    readme = (root / "README.md").read_text(encoding="utf-8")
    for error in re.findall(r"[\d.]+ (?:meV|eV/A)\b[^|]{0,20}", readme):
        yield f"README.md: an error is told outside of the table: {error}"
    text = (root / DOCUMENT).read_text(encoding="utf-8")
    if between(text, ERRORS)[1] != table(root):
        yield f"{DOCUMENT}: the table of errors is not that of metrics.json; run with --write"
    for folder in folders(root):
        metrics = metrics_of(folder)
        for run in metrics["stability"]:
            pattern = (
                rf"^\| {folder.name}[^|]*\| {run['temperature_K']} \| {run['ps']:,} \| "
                rf"{run['timestep_fs']:g} \| {run['stable']} \| {run['closest']:.2f} \|"
            )
            if not re.search(pattern, text, re.MULTILINE):
                yield f"{DOCUMENT} does not tell how {folder.name} held: {run}"


def wrong_potential(folder: Path) -> list[str]:
    """What is wrong in a folder."""
    wrong = []
    try:
        metrics = metrics_of(folder)
        recorded, there = metrics.get("files", {}), hashes(folder)
        if recorded != there:
            changed = ", ".join(sorted({name for name, _ in recorded.items() ^ there.items()}))
            wrong.append(f"{folder.name}: not the files that were measured: {changed}")
        wrong += wrong_contents(folder, metrics)
    except (MDGraphError, KeyError, ValueError, OSError) as error:
        wrong.append(f"{folder.name}: cannot be read: {error}")
    return wrong


def wrong_contents(folder: Path, metrics: dict[str, Any]) -> list[str]:
    """What a hash does not tell."""
    wrong = [*wrong_files(folder, metrics), *wrong_card(folder, metrics)]
    return [f"{folder.name}: {line}" for line in wrong]


def problems(root: Path = ROOT) -> list[str]:
    """All that is wrong."""
    wrong = [line for folder in folders(root) for line in wrong_potential(folder)]
    return wrong + list(wrong_documents(root))


def write(root: Path = ROOT) -> None:
    """Writes the table and, where the rest of a potential is right, the hashes of its files."""
    for folder in folders(root):
        metrics = metrics_of(folder)
        if not wrong_contents(folder, metrics):
            metrics["files"] = hashes(folder)
            text = json.dumps(metrics, indent=None if folder.name == "water-pbe0" else 1)
            (folder / "metrics.json").write_text(text + "\n", encoding="utf-8")
    write_between(root / DOCUMENT, ERRORS, table(root))


def write_between(path: Path, marks: tuple[str, str], text: str) -> None:
    before, _, after = between(path.read_text(encoding="utf-8"), marks)
    path.write_text(f"{before}{marks[0]}\n{text}\n{marks[1]}{after}", encoding="utf-8")


def main() -> int:
    """1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="the table and hashes")
    if parser.parse_args().write:
        write()
    wrong = problems()
    print("\n".join(wrong or ["All that is said of the shipped potentials was measured."]))
    return int(bool(wrong))


if __name__ == "__main__":
    run_script(main)
