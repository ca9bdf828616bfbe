"""The folder of a trained potential: weights, metrics, card, report."""

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mdgraph import __version__
from mdgraph.checkpoints import save
from mdgraph.checkpoints.native import FILE_NAME
from mdgraph.data import Dataset
from mdgraph.elements import SYMBOLS
from mdgraph.io.files import write_atomically
from mdgraph.models import TensorNetPotential
from mdgraph.train.configuration import TrainConfig
from mdgraph.train.evaluation import Scores, table
from mdgraph.train.progress import Progress
from mdgraph.train.report import rows_of, write_report


def write_potential(
    folder: Path,
    potential: TensorNetPotential,
    dataset: Dataset,
    config: TrainConfig,
    scores: Mapping[str, Scores],
    progress: Progress,
) -> dict[str, Any]:
    """Writes everything but the log, each file whole; returns the metrics."""
    metrics: dict[str, Any] = {name: table(one, dataset) for name, one in scores.items()}
    device = potential.scale.device
    hardware = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    )
    metrics |= {
        "parameters": potential.parameter_count,
        "steps": progress.step,
        "best_step": progress.best_step,
        "seconds": round(progress.seconds, 1),
        "seed": config.seed,
        "hardware": hardware,
        "mdgraph": __version__,
        "torch": torch.__version__,
        "data_sha256": dataset.sha256(),
        "training_hash": potential.config.training_hash,
    }
    save(potential, folder / FILE_NAME)
    text = json.dumps(metrics, indent=1) + "\n"
    write_atomically(folder / "metrics.json", lambda path: path.write_text(text, encoding="utf-8"))
    card = _card(potential, dataset, metrics)
    write_atomically(folder / "card.md", lambda path: path.write_text(card, encoding="utf-8"))
    title = potential.config.name
    write_atomically(
        folder / "report.html",
        lambda path: write_report(path, title, metrics, scores, folder / "log.csv"),
    )
    return metrics


def _card(potential: TensorNetPotential, dataset: Dataset, metrics: Mapping[str, Any]) -> str:
    config = potential.config
    names = [SYMBOLS[number] for number in config.species]
    sources = ", ".join(
        f"{source.file} (sha256 {source.sha256[:12]})" for source in dataset.sources
    )
    kind = "TensorNet2" if config.architecture == "tensornet2" else "TensorNet"
    model = (
        f"{kind}, {config.layers} layers, {config.channels} channels, "
        f"{config.radial_basis.number} radial functions, cutoff {config.cutoff:g} A; "
        f"{metrics['parameters']:,} parameters (`train.yaml`)"
    )
    made = (
        f"`mdgraph train`, {metrics['steps']:,} steps, {metrics['seconds'] / 60:.1f} minutes of "
        f"{metrics['hardware']}, torch {metrics['torch']}, seed {metrics['seed']}"
    )
    about = {
        "model": model,
        "elements": ", ".join(names),
        "level of theory": config.level_of_theory or "not stated",
        "data": f"{len(dataset)} frames of {sources}",
        "licence": config.licence or "not stated",
        "trained by": made,
    }
    lines = [f"# {config.name}", "", "| | |", "| --- | --- |"]
    lines += [f"| {name} | {text} |" for name, text in about.items()]
    header, *rows = rows_of(metrics)
    lines += ["", "## Errors", "", f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    files = (
        "`metrics.json` has them by element and configuration type, `report.html` as pictures, "
        "`log.csv` the course of the training."
    )
    limits = "- Elements, compositions, phases and temperatures that the data do not hold."
    lines += ["", files, "", "## What it is not for", "", limits]
    if not torch.isfinite(torch.from_numpy(dataset.stress)).any():
        lines.append("- Stress and density: no stresses were trained on.")
    if not config.repulsion:
        lines.append("- Atoms nearer than in the data: nothing keeps them apart there.")
    return "\n".join(lines) + "\n"
