"""The folder of a trained potential: weights, metrics, card, report."""

import json
import logging
import platform
from collections.abc import Mapping
from typing import Any

import torch

from mdgraph import __version__
from mdgraph.checkpoints import save, save_domain
from mdgraph.checkpoints.native import FILE_NAME
from mdgraph.data import Dataset
from mdgraph.elements import SYMBOLS
from mdgraph.io.files import write_atomically
from mdgraph.models import Domain, TensorNetPotential
from mdgraph.train.domain import measured_domain
from mdgraph.train.evaluation import nothing_learned, score, table
from mdgraph.train.outliers import outlying_frames
from mdgraph.train.preparation import Prepared
from mdgraph.train.progress import Progress
from mdgraph.train.report import agreement_text, rows_of, write_report
from mdgraph.train.terms import LossConfig

logger = logging.getLogger(__name__)


def write_potential(prepared: Prepared, progress: Progress) -> dict[str, Any]:
    """Scores all parts and writes everything but the log, each file whole; returns the metrics."""
    folder, potential, dataset = prepared.folder, prepared.potential, prepared.dataset
    parts = prepared.parts
    logger.info("All %d frames are scored, and the report is drawn.", len(parts.every))
    scores = {
        name: score(potential, prepared.store, dataset, part)
        for name, part in vars(parts).items()
        if len(part)
    }
    domain, uncertainty = measured_domain(
        potential, prepared.store, dataset, parts, prepared.config.seed
    )
    metrics: dict[str, Any] = {name: table(one, dataset) for name, one in scores.items()}
    device, threads = potential.scale.device, torch.get_num_threads()
    hardware = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{platform.machine()} CPU, {threads} thread{'s' * (threads > 1)}"
    )
    metrics |= {
        "uncertainty": uncertainty,
        "outliers": {name: outlying_frames(one, dataset) for name, one in scores.items()},
        "parameters": potential.parameter_count,
        "steps": progress.step,
        "best_step": progress.best_step if prepared.config.keep == "best" else progress.step,
        "seconds": round(progress.seconds, 1),
        "seed": prepared.config.seed,
        "hardware": hardware,
        "mdgraph": __version__,
        "torch": torch.__version__,
        "data_sha256": dataset.sha256(),
        "training_hash": potential.config.training_hash,
    }
    if text := nothing_learned(scores["validation"], "validation"):
        logger.warning("%s", text)
    save(potential, folder / FILE_NAME, overwrite=True)
    save_domain(domain, folder, overwrite=True)
    text = json.dumps(metrics, indent=1) + "\n"
    write_atomically(folder / "metrics.json", lambda path: path.write_text(text, encoding="utf-8"))
    card = _card(potential, dataset, metrics, domain, prepared.config.loss)
    write_atomically(folder / "card.md", lambda path: path.write_text(card, encoding="utf-8"))
    title = potential.config.name
    write_atomically(
        folder / "report.html",
        lambda path: write_report(path, title, metrics, scores, folder / "log.csv"),
    )
    return metrics


def _card(
    potential: TensorNetPotential,
    dataset: Dataset,
    metrics: Mapping[str, Any],
    domain: Domain,
    loss: LossConfig,
) -> str:
    config = potential.config
    names = [SYMBOLS[number] for number in config.species]
    sources = ", ".join(
        f"{source.file} (sha256 {source.sha256[:12]})" for source in dataset.sources
    )
    kind = "TensorNet2" if config.architecture == "tensornet2" else "TensorNet"
    model = (
        f"{kind}, {config.layers} layer{'s' * (config.layers != 1)}, {config.channels} channels, "
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
    lines += ["", files, *domain_lines(domain, metrics["uncertainty"])]
    if any(loss.displaced.weight):
        lines.append(
            f"- displaced frames, without labels: where atoms are moved by up to "
            f"{loss.displaced.largest:g} A, energies were held between Morse curves of "
            f"{loss.displaced.depth:g} eV. Barriers between frames follow this rule, not the level "
            "of theory."
        )
    limits = "- Elements, compositions, phases and temperatures that the data do not hold."
    lines += ["", "## What it is not for", "", limits]
    if not any(loss.stress.weight):
        lines.append("- Stress and density: no stresses were trained on.")
    if not config.repulsion:
        lines.append("- Atoms nearer than in the data: nothing keeps them apart there.")
    return "\n".join(lines) + "\n"


def domain_lines(domain: Domain, uncertainty: Mapping[str, Any]) -> list[str]:
    """What it was trained on, as a chapter of the card."""
    lines = ["", "## What it was trained on", "", *(f"- {line}" for line in domain.lines())]
    for part, fit in uncertainty.items():
        lines.append(f"- {agreement_text(part, fit)}")
    return lines
