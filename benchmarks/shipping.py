"""Whether all that is said of the shipped potentials is what was measured of these weights.

    python benchmarks/shipping.py [--write]
    python benchmarks/shipping.py --take tables/NAME/as-it-is/split-1-seed-3
    python benchmarks/shipping.py --validation FOLDER --potential NAME

Prints what is wrong, a line each, and exits with 1. `metrics.json` of a potential is what all else
is held against: the hash of each file beside it, the set that the errors of each part were measured
on, the errors themselves. Its card and the table of errors in docs/errors.md are written from it:
--write writes them and, where all else of a potential is right, the hashes of its files. README.md
tells no error.

--take puts a run of error_tables.py in the place of what ships under that name; errors of what
shipped before stay as a row of its metrics. What is said of the old weights alone (stability,
validation, measurements) goes. --validation takes what `mdgraph validate` found into metrics.json.
"""

import argparse
import contextlib
import csv
import hashlib
import json
import math
import re
import shutil
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import error_tables
import yaml
from cases import run_script
from safetensors import safe_open

from mdgraph.checkpoints import load, load_domain
from mdgraph.checkpoints.native import DOMAIN_FILE, FILE_NAME
from mdgraph.errors import InputError, MDGraphError
from mdgraph.io.files import write_atomically
from mdgraph.train.report import agreement_text, rows_of
from mdgraph.units import SYMBOLS

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


def recipe_name(metrics: dict[str, Any]) -> str:
    """File of the settings that the potential was made by."""
    default = "distil.yaml" if "distilled" in metrics else "train.yaml"
    return str(metrics.get("recipe", default))


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
    recipe = folder / recipe_name(metrics)
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


def wrong_seeds(metrics: dict[str, Any]) -> Iterator[str]:
    """Means and standard errors that are not those of this training and the other seeds."""
    row = metrics["rows"]["as it is"]
    part = row["part"]
    others = [entry for entry in metrics.get("history", []) if entry["table"] == "other seeds"]
    if len(others) != row["runs"] - 1:
        return
    for measure in metrics["measures"]:
        told = row["errors"][measure]
        runs = [metrics[part][measure], *(float(entry[f"{part} {measure}"]) for entry in others)]
        found = error_tables.mean_and_error(runs, [1] * len(runs))
        for name, must in zip(("mean", "standard_error"), found, strict=True):
            value = math.nan if told[name] is None else told[name]
            if math.isnan(value) != math.isnan(must) or abs(value - must) > 5e-4 * told["mean"]:
                yield f"the {name} of {measure} is not that of the seeds: {value}, {must}"


def wrong_validation(metrics: dict[str, Any]) -> Iterator[str]:
    """Errors that `mdgraph validate` found where metrics.json has others of the same frames."""
    record = metrics.get("validated")
    if record is None:
        return
    part = re.search(r"\b(validation|test)\b", record["frames"])
    if part is None:
        yield "what mdgraph validate found is not of frames held out"
        return
    own = metrics[part[1]]
    sentences = {check["name"]: check["sentence"] for check in record["checks"]}
    for name, must in (
        ("energies", f"RMSE {own['energy_rmse_meV_per_atom']:.3g} meV/atom over {own['frames']} "),
        ("forces", f"RMSE {own['force_rmse_meV_per_A']:.3g} meV/A"),
    ):
        if not sentences[name].startswith(must):
            yield f"mdgraph validate says {sentences[name]!r} where metrics.json has {must!r}"


# The card


def card(folder: Path, metrics: dict[str, Any]) -> str:
    """The text of card.md: all of it from metrics.json, the weights and notes.md."""
    about = metrics["about"]
    lines = [f"# {folder.name}", "", f"**For** {about['for']} **Not for** {about['not_for']}", ""]
    lines += ["| | |", "| --- | --- |"]
    lines += [f"| {name} | {text} |" for name, text in _facts(folder, metrics).items()]
    lines += ["", *_errors_chapter(metrics), *_beyond_chapter(metrics)]
    domain = load_domain(folder)
    if domain is not None:
        lines += ["", "## What it was trained on", "", *(f"- {line}" for line in domain.lines())]
        lines += [f"- {agreement_text(part, fit)}" for part, fit in metrics["uncertainty"].items()]
        lines += [f"- {line}" for line in about.get("training", [])]
    lines += _distilled_chapter(metrics) + _validated_chapter(metrics) + _stability_chapter(metrics)
    if metrics["measured"]:
        lines += ["", "## Measured beside that", ""]
        lines += [
            f"- {entry['says']} (`{entry['command']}`, {entry['hardware']}, {entry['date']})"
            for entry in metrics["measured"]
        ]
    notes = folder / "notes.md"
    if notes.is_file():
        lines += ["", notes.read_text(encoding="utf-8").strip()]
    lines += ["", "## What it is not for", "", *(f"- {line}" for line in about["limits"])]
    return "\n".join(lines) + "\n"


def _facts(folder: Path, metrics: dict[str, Any]) -> dict[str, str]:
    potential, about = load(folder), metrics["about"]
    config = potential.config
    recipe = yaml.safe_load((folder / recipe_name(metrics)).read_text(encoding="utf-8"))
    command = "distil" if "teacher" in recipe else "train"
    facts = {
        "model": (
            f"TensorNet, {config.layers} layer{'s' * (config.layers != 1)}, "
            f"{config.channels} channels, "
            f"{config.radial_basis.number} radial functions, cutoff {config.cutoff:g} A; "
            f"{metrics['parameters']:,} parameters (`{recipe_name(metrics)}`)"
        ),
        "elements": ", ".join(SYMBOLS[number] for number in config.species),
        "level of theory": config.level_of_theory,
        "dispersion": potential.stated_dispersion or "none stated",
        "data": about["data"],
        "licence": config.licence,
    }
    if "prior" in metrics:
        facts["prior"] = metrics["prior"]
    facts["trained by"] = (
        f"`mdgraph {command}`, {metrics['steps']:,} "
        f"step{'s' * (metrics['steps'] != 1)} of {recipe['batch']} frames, "
        f"{metrics['seconds'] / 60:.1f} minutes of one {metrics['hardware']} {about['shared']}, "
        f"torch {metrics['torch']}, {about['date']}, seed {metrics['seed']}"
    )
    return facts


def _errors_chapter(metrics: dict[str, Any]) -> list[str]:
    head, *rows = rows_of(metrics)
    lines = ["## Errors", "", f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for part, *cells in rows:
        first = f"{part}, of {metrics['sets'][part]['file']}"
        lines.append(f"| {' | '.join([first, *cells])} |")
    row = metrics["rows"]["as it is"]
    means = errors(row, metrics)
    several = "One training. "
    if row["runs"] > 1:
        splits = f"{row['splits']} split{'s' * (row['splits'] > 1)}"
        several = f"One of {row['runs']} trainings on {splits}, whose mean errors on {row['part']} "
        several += f"are {means['energy']} and {means['force']}. "
    others = "`metrics.json` has errors by element and of other recipes, `log.csv` the course of "
    others += "the training."
    return [*lines, "", f"{several}{metrics['about']['errors']} {others}"]


def _beyond_chapter(metrics: dict[str, Any]) -> list[str]:
    if not metrics.get("beyond"):
        return []
    lines = ["", "## Beyond its frames", "", "| frames | energy | force |", "| --- | --- | --- |"]
    for entry in metrics["beyond"]:
        cells = errors(entry, entry)
        lines.append(
            f"| {entry['frames']} of {entry['set']}, {entry['what']} | {cells['energy']} | "
            f"{cells['force']} |"
        )
    runs = metrics["rows"]["as it is"]["runs"]
    text = f"Means of the {runs} trainings. " if runs > 1 else ""
    text += "Nothing was trained on these frames, and nothing was "
    return [*lines, "", f"{text}chosen by them; `metrics.json` tells every look at them (`looks`)."]


def _distilled_chapter(metrics: dict[str, Any]) -> list[str]:
    if "distilled" not in metrics:
        return []
    record = metrics["distilled"]
    lines = ["", "## Distilled", ""]
    count = len(record["teachers"])
    lines += [f"- {count} teacher{'s' * (count > 1)}, {metrics['about']['teachers']}"]
    if "random_teacher" in record:
        other = record["random_teacher"]
        lines += [f"- random structures by {other['name']} (sha256 {other['sha256'][:12]})"]
    for number, counts in enumerate(record["rounds"], 1):
        frames = ", ".join(f"{count} {kind}" for kind, count in counts["frames"].items())
        lines.append(
            f"- round {number}: {frames}; left out: {counts['near_copies']} near-copies, "
            f"{counts['extreme']} with extreme forces or energies, {counts['without_label']} on "
            "which teachers disagree"
        )
    return lines


def _validated_chapter(metrics: dict[str, Any]) -> list[str]:
    record = metrics.get("validated")
    if record is None:
        return []
    verdicts = [check["verdict"] for check in record["checks"]]
    counts = ", ".join(f"{verdicts.count(word)} {word}" for word in ("ok", "look", "wrong"))
    about = f"{record['frames']}, {record['temperature']}, {record['hardware']}, {record['date']}"
    lines = ["", "## Validation", "", f"`mdgraph validate`, {record['extent']}: {about}: {counts}."]
    lines += ["", "| verdict | check | finding |", "| --- | --- | --- |"]
    return lines + [
        f"| {check['verdict']} | {check['name']} | {check['sentence'].replace('|', ' ')} |"
        for check in record["checks"]
    ]


def _stability_chapter(metrics: dict[str, Any]) -> list[str]:
    if not metrics["stability"]:
        return []
    text = (
        "Langevin dynamics of several starts, by a script that the dynamics of `mdgraph validate` "
    )
    text += 'took the place of; "closest" is the closest contact over the shortest distance in '
    text += "training:"
    lines = ["", "## Does it hold?", "", text, ""]
    lines += ["| K | ps | step, fs | starts that held | closest | on |", f"|{' --- |' * 6}"]
    return lines + [
        f"| {run['temperature_K']} | {run['ps']:,} | {run['timestep_fs']:g} | "
        f"{run['stable']} of {run['starts']}, so more than {run['interval'][0]:.0%} (Wilson, 95 %) "
        f"| {run['closest']:.2f} | {run['hardware']} |"
        for run in metrics["stability"]
    ]


def wrong_card(folder: Path, metrics: dict[str, Any]) -> Iterator[str]:
    """Where the card is not what is written from metrics.json, the first line that differs."""
    there = (folder / "card.md").read_text(encoding="utf-8").splitlines()
    for has, must in zip_longest(there, card(folder, metrics).splitlines(), fillvalue=""):
        if has != must:
            yield f"card.md says {has!r} where metrics.json has {must!r}; run with --write"
            return
    for part, origin in metrics["sets"].items():
        if origin["frames"] != metrics[part]["frames"]:
            yield f"metrics.json tells errors of {part} on other frames than its set has"


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
    others = "; ".join(
        f"{who} {' and '.join(f'{value:g}' for value in values if value is not None)}"
        for who, values in metrics["published"].items()
    )
    cells["others"] = f"without a prior: {others}" if "prior" in metrics else others
    cells["prior"] = metrics.get("prior", "").partition(" ")[0]
    training = metrics["train"][metrics["measures"][1]]
    cells["training"] = f"{training:.3g}"
    cells["minutes"], cells["steps"] = f"{row['minutes']:.1f}", f"{row['steps'][0]:,}"
    return cells


DOCUMENT = "docs/errors.md"
COLUMNS = (
    "potential", "prior", "minutes", "steps", "frames", "energy", "force", "of", "training",
    "others",
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
    try:
        wrong = [
            *wrong_files(folder, metrics),
            *wrong_card(folder, metrics),
            *wrong_seeds(metrics),
            *wrong_validation(metrics),
        ]
    except MDGraphError as error:
        wrong = [f"cannot be read: {error}"]
    return [f"{folder.name}: {line}" for line in wrong]


def problems(root: Path = ROOT) -> list[str]:
    """All that is wrong."""
    wrong = [line for folder in folders(root) for line in wrong_potential(folder)]
    return wrong + list(wrong_documents(root))


def write(root: Path = ROOT) -> None:
    """Writes cards, the table and, where the rest of a potential is right, hashes of its files."""
    for folder in folders(root):
        metrics = metrics_of(folder)
        with contextlib.suppress(MDGraphError):  # damaged weights are told by `problems`
            (folder / "card.md").write_text(card(folder, metrics), encoding="utf-8")
        if not wrong_contents(folder, metrics):
            write_metrics(folder, metrics | {"files": hashes(folder)})
    write_between(root / DOCUMENT, ERRORS, table(root))


def write_metrics(folder: Path, metrics: dict[str, Any]) -> None:
    text = json.dumps(metrics, indent=1) + "\n"
    write_atomically(folder / "metrics.json", text)


def write_between(path: Path, marks: tuple[str, str], text: str) -> None:
    before, _, after = between(path.read_text(encoding="utf-8"), marks)
    path.write_text(f"{before}{marks[0]}\n{text}\n{marks[1]}{after}", encoding="utf-8")


# New weights and measurements

OF_WEIGHTS = ("validated", "beyond", "looks", "prior", "recipe")
"""What --take removes of metrics, beside stability and what was measured, which get empty."""


def take(run: Path, root: Path = ROOT) -> Path:
    """Puts a run of error_tables.py into `potentials`, and returns the folder.

    The recipe (train.yaml, or teacher.yaml and distil.yaml) is to be there already; its seed
    becomes that of the run. `about` of metrics.json wants an editor's eye afterwards.
    """
    work = run.parents[1]
    folder = root / "potentials" / work.name
    before, after = metrics_of(folder), error_tables.metrics_of(run)
    summary = json.loads((work / "metrics.json").read_text(encoding="utf-8"))
    rows = dict(before["rows"])
    former = rows.pop("as it is")
    title = f"as it was until {before['about']['date']}, {former['steps'][0]:,} steps"
    kept = {name: value for name, value in before.items() if name not in (*OF_WEIGHTS, *after)}
    new = {name: value for name, value in summary.items() if name not in ("runs", "rows")}
    metrics = kept | after | new
    metrics["rows"] = {"as it is": summary["rows"]["as it is"], title: former, **rows}
    metrics["rows"]["as it is"].pop("best_on_validation")
    metrics |= {"stability": [], "measured": []}
    for name in (FILE_NAME, DOMAIN_FILE, "log.csv"):
        shutil.copyfile(run / name, folder / name)
    recipe = folder / recipe_name(metrics)
    text = recipe.read_text(encoding="utf-8")
    settings = yaml.safe_load(text)
    shutil.copyfile(
        work / f"{Path(settings['split']).stem}-{_split_of(summary, run)}.json",
        folder / "split.json",
    )
    recipe.write_text(
        re.sub(r"^seed: \d+", f"seed: {metrics['seed']}", text, flags=re.MULTILINE), "utf-8"
    )
    write_metrics(folder, metrics)
    return folder


def _split_of(summary: dict[str, Any], run: Path) -> int:
    label = f"{run.parent.name}/{run.name}"
    (split,) = {entry["split"] for entry in summary["runs"] if entry["folder"] == label}
    return int(split)


VALIDATED = ("frames", "judge of molecules", "temperature", "extent", "hardware", "date")
CHECK = ("verdict", "name", "sentence")


def take_validation(folder: Path, validation: Path) -> None:
    """Puts verdicts and sentences of a `validation.json` into metrics.json."""
    record = json.loads((validation / "validation.json").read_text(encoding="utf-8"))
    weights = sha256(folder / FILE_NAME)
    if not weights.startswith(record["potential"].rpartition("sha256 ")[2]):
        raise InputError(f"{validation} is of other weights than {folder}.")
    checks = [{name: check[name] for name in CHECK} for check in record["checks"]]
    validated = {name: record[name] for name in VALIDATED} | {"checks": checks}
    write_metrics(folder, metrics_of(folder) | {"validated": validated})


def main() -> int:
    """1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="cards, the table and hashes")
    parser.add_argument("--take", type=Path, metavar="RUN", help="a run of error_tables.py")
    parser.add_argument("--validation", type=Path, metavar="FOLDER", help="of mdgraph validate")
    parser.add_argument("--potential", metavar="NAME", help="that was validated")
    options = parser.parse_args()
    if options.take is not None:
        print(f"{take(options.take.resolve())} has other weights now; look at its metrics.json.")
        return 0
    if options.validation is not None:
        take_validation(ROOT / "potentials" / options.potential, options.validation)
        return 0
    if options.write:
        write()
    wrong = problems()
    print("\n".join(wrong or ["All that is said of the shipped potentials was measured."]))
    return int(bool(wrong))


if __name__ == "__main__":
    run_script(main)
