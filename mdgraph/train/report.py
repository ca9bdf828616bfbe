"""The folder of a trained potential: weights, metrics, card, and an HTML report."""

import html
import json
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from mdgraph import __version__
from mdgraph.analysis.plots_training import error_figure, learning_figure, parity_figure
from mdgraph.analysis.style import html_image, html_page, html_table
from mdgraph.checkpoints import save, save_domain
from mdgraph.devices import hardware_name
from mdgraph.io.files import write_atomically
from mdgraph.models import Domain, PotentialModule, SumPotential, architecture_named
from mdgraph.shipped import FILE_NAME
from mdgraph.train.domain import mean_latents, measure_domain
from mdgraph.train.evaluation import (
    Scores,
    find_outliers,
    no_learning_warning,
    outlier_sentences,
    score,
    table,
)
from mdgraph.train.progress import Progress
from mdgraph.train.setup import PreparedTraining
from mdgraph.units import SYMBOLS

logger = logging.getLogger(__name__)

_STYLE: Final = "body{max-width:72em}table{margin:0}td,th{padding:.3em .9em}"

COLUMNS: Final = {
    "frames": "frames",
    "force_rmse_meV_per_A": "force RMSE, meV/A",
    "force_mae_meV_per_A": "force MAE, meV/A",
    "energy_rmse_meV_per_atom": "energy RMSE, meV/atom",
    "energy_mae_meV_per_atom": "energy MAE, meV/atom",
    "energy_mae_meV": "energy MAE, meV",
    "stress_rmse_meV_per_A3": "stress RMSE, meV/A^3",
    "dipole_rmse_me_A": "dipole RMSE, me A",
}


def rows_of(metrics: Mapping[str, Any]) -> list[list[str]]:
    """The error table, a row a part, the header first."""
    parts = {name: metrics[name] for name in ("train", "validation", "test") if name in metrics}
    columns = [name for name in COLUMNS if any(name in part for part in parts.values())]
    rows = [["part", *(COLUMNS[name] for name in columns)]]
    for name, part in parts.items():
        values = [part.get(column) for column in columns]
        texts = ["" if v is None else str(v) if isinstance(v, int) else f"{v:.4g}" for v in values]
        rows.append([name, *texts])
    return rows


_NAMED: Final = 10
"""Elements that the title names."""

_LATE: Final = 0.8
"""Share of the training; that the best step lies after it is usual."""


def best_step_metrics(progress: Progress) -> dict[str, Any]:
    """The step that `keep: best` kept, for metrics.json, and losses on validation.

    Losses of later steps are left out if there are none.
    """
    kept: dict[str, Any] = {"step": progress.best_step, "of": progress.step}
    losses = {"validation_loss": progress.lowest}
    if np.isfinite(progress.lowest_later):
        losses |= {"lowest_later": progress.lowest_later, "last": progress.last}
    return kept | {name: float(f"{loss:.6g}") for name, loss in losses.items() if np.isfinite(loss)}


def early_step_text(metrics: Mapping[str, Any]) -> str:
    """Why an early step was kept; empty if it was a late one, or the last."""
    kept = metrics.get("kept", {})
    if "last" not in kept or kept["step"] >= _LATE * kept["of"]:
        return ""
    return (
        f"keep: best kept step {kept['step']:,} of {kept['of']:,}, whose validation loss was "
        f"{kept['validation_loss']:.4g}; later steps had {kept['lowest_later']:.4g} or more, the "
        f"last {kept['last']:.4g}. What was learned after it did not help on held-out frames; more "
        "frames or fewer steps may."
    )


def agreement_text(part: str, fit: Mapping[str, Any]) -> str:
    """Agreement of the errors of a part with their sigma, in one sentence."""
    return (
        f"{part}: energies have a sigma of {fit['sigma_meV_per_atom']:.3g} meV/atom; errors in "
        f"units of sigma have the mean {fit['z_mean']:.2f} and the spread {fit['z_spread']:.2f}, "
        f"{fit['within_1_sigma']:.0%} lie within one and {fit['within_2_sigma']:.0%} within two, "
        f"and their size has the rank correlation {fit['rank_correlation']:.2f} with sigma."
    )


def read_log(path: Path) -> dict[str, Any]:
    """Columns of the log of a training by name."""
    values = np.genfromtxt(path, delimiter=",", names=True)
    return {name: np.atleast_1d(values[name]) for name in values.dtype.names or ()}


def write_report(
    path: Path, title: str, metrics: Mapping[str, Any], scores: Mapping[str, Scores], log: Path
) -> None:
    """Writes tables and pictures to one HTML file without links to others."""
    parts = [html_table(rows_of(metrics))]
    if text := early_step_text(metrics):
        parts.append(f"<p>{html.escape(text)}</p>")
    for name, fit in metrics["uncertainty"].items():
        parts.append(f"<p>{html.escape(agreement_text(name, fit))}</p>")
    for name, outliers in metrics["outliers"].items():
        sentences = [html.escape(text) for text in outlier_sentences(name, outliers)]
        if sentences:
            items = "".join(f"<li>{text}</li>" for text in sentences[1:])
            parts.append(f"<p>{sentences[0]}</p><ul>{items}</ul>")
    figure = learning_figure(read_log(log), "course of the training")
    parts.append(html_image(figure, "errors over the training"))
    for name in ("validation", "test"):
        part = scores.get(name)
        if (
            part is not None
            and np.isfinite(part.energy[:, 0]).any() | np.isfinite(part.forces[..., 0]).any()
        ):
            figure = parity_figure(part.energy, part.forces.reshape(-1, 2), name)
            parts.append(html_image(figure, f"predictions over labels, {name}"))
    for name in scores:
        panels = _panels(metrics[name])
        if name != "train" and panels:
            parts.append(html_image(error_figure(panels, name), f"errors by kind, {name}"))
    path.write_text(html_page(title, parts, _STYLE), encoding="utf-8")


def _panels(errors: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Errors of a part by element and by kind of configuration, for each quantity."""
    elements = {
        key.split("_")[2]: value
        for key, value in errors.items()
        if key.startswith("force_rmse_") and key.count("_") == 5
    }
    panels = {"force RMSE by element (meV/Å)": elements} if elements else {}
    for quantity, unit in (("force", "meV_per_A"), ("energy", "meV_per_atom")):
        label = f"{quantity} RMSE by kind ({unit.replace('_per_', '/').replace('A', 'Å')})"
        values = {
            name or "unnamed": group[f"{quantity}_rmse_{unit}"]
            for name, group in errors.get("by_group", {}).items()
            if f"{quantity}_rmse_{unit}" in group
        }
        if values:
            panels[label] = values
    return panels


def write_potential(prepared: PreparedTraining, progress: Progress) -> dict[str, Any]:
    """Scores all parts, writes all files but the log, and returns the metrics."""
    folder, potential, dataset = prepared.folder, prepared.potential, prepared.dataset
    parts = prepared.parts
    logger.info("All %d frames are scored, and the report is drawn.", len(parts.every))
    scores = {
        name: score(potential, prepared.store, dataset, part)
        for name, part in vars(parts).items()
        if len(part)
    }
    domain, uncertainty = measure_domain(
        potential, prepared.store, dataset, parts, prepared.config.seed, prepared.labels
    )
    whole = prepared.whole()
    metrics: dict[str, Any] = {name: table(part, dataset) for name, part in scores.items()}
    metrics |= {
        "uncertainty": uncertainty,
        "outliers": {
            name: find_outliers(part, dataset, partial(mean_latents, potential, prepared.store))
            for name, part in scores.items()
        },
        "parameters": potential.parameter_count,
        "steps": progress.step,
        "best_step": progress.best_step if prepared.config.keep == "best" else progress.step,
        "seconds": round(progress.seconds, 1),
        "seed": prepared.config.seed,
        "hardware": hardware_name(potential.scale.device),
        "mdgraph": __version__,
        "torch": torch.__version__,
        "data_sha256": prepared.labels.sha256(),
        "training_hash": potential.config.training_hash,
    }
    if isinstance(whole, SumPotential):
        metrics["baseline"] = [
            {
                "name": term.potential.name,
                "weight": term.weight,
                "level_of_theory": term.potential.level_of_theory or "not stated",
                "licence": term.potential.licence or "not stated",
                "sha256": term.sha256,
            }
            for term in whole.config.terms[:-1]
        ]
    if prepared.config.keep == "best":
        metrics["kept"] = best_step_metrics(progress)
        if text := early_step_text(metrics):
            logger.warning("%s", text)
    if text := no_learning_warning(scores["validation"], "validation"):
        logger.warning("%s", text)
    save(whole, folder / FILE_NAME, overwrite=True)
    save_domain(domain, folder, overwrite=True)
    text = json.dumps(metrics, indent=1) + "\n"
    write_atomically(folder / "metrics.json", text)
    card = _card(prepared, whole, metrics, domain)
    write_atomically(folder / "card.md", card)
    network = architecture_named(potential.config.architecture).title
    elements = ", ".join(SYMBOLS[number] for number in potential.config.species[:_NAMED])
    others = len(potential.config.species) - _NAMED
    title = (
        f"{prepared.name}: {network} for {elements}{f' and {others} more' if others > 0 else ''}, "
        f"trained on {len(scores['train'].energy)} frames"
    )
    write_atomically(
        folder / "report.html",
        lambda path: write_report(path, title, metrics, scores, folder / "log.csv"),
    )
    return metrics


def _card(
    prepared: PreparedTraining, whole: PotentialModule, metrics: Mapping[str, Any], domain: Domain
) -> str:
    config, loss, dataset = prepared.potential.config, prepared.config.loss, prepared.labels
    names = [SYMBOLS[number] for number in config.species]
    sources = ", ".join(
        f"{source.file}{f' (sha256 {source.sha256[:12]})' * bool(source.sha256)}"
        for source in dataset.sources
    )
    network = architecture_named(config.architecture).title
    model = (
        f"{network}, {config.layers} layer{'s' * (config.layers != 1)}, "
        f"{config.channels} channels, {config.radial_basis.number} radial functions, "
        f"cutoff {config.cutoff:g} A; {metrics['parameters']:,} parameters (`train.yaml`)"
    )
    training = (
        f"`mdgraph train`, {metrics['steps']:,} steps, {metrics['seconds'] / 60:.1f} minutes of "
        f"{metrics['hardware']}, torch {metrics['torch']}, seed {metrics['seed']}"
    )
    about = {
        "model": model,
        "elements": ", ".join(names),
        "level of theory": config.level_of_theory or "not stated",
        "dispersion": whole.stated_dispersion or "none stated",
        "data": f"{len(dataset)} frames of {sources}",
        "licence": config.licence or "not stated",
        "trained by": training,
    }
    lines = [f"# {prepared.name}", "", "| | |", "| --- | --- |"]
    lines += [f"| {name} | {text} |" for name, text in about.items()]
    lines += [
        f"| baseline | {term['weight']:g} times {term['name']}, {term['level_of_theory']}, "
        f"licence {term['licence']}, "
        f"sha256 {term['sha256'][:12]}; added to the model above, weights in `model.safetensors` |"
        for term in metrics.get("baseline", [])
    ]
    header, *rows = rows_of(metrics)
    lines += ["", "## Errors", "", f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    files = (
        "`metrics.json` has them by element and configuration type, `report.html` as pictures, "
        "`log.csv` the course of the training."
    )
    if text := early_step_text(metrics):
        lines += ["", text]
    lines += ["", files, *domain_lines(domain, metrics["uncertainty"])]
    perturbation = loss.perturbation
    if any(perturbation.weight):
        lines.append(
            "- displaced frames, without labels: where atoms are moved by up to "
            f"{perturbation.max_displacement:g} A, energies were held between Morse curves of "
            f"{perturbation.well_depth:g} eV. Barriers between frames follow this rule, not the "
            "level of theory."
        )
    limits = "- Elements, compositions, phases and temperatures that the data do not hold."
    lines += ["", "## What it is not for", "", limits]
    if prepared.baseline is not None:
        lines.append(
            "- The level of theory far from the data: there the sum is neither that of the labels "
            "nor that of the baseline."
        )
    if not any(loss.stress.weight):
        lines.append("- Stress and density: no stresses were trained on.")
    if not whole.has_repulsion:
        lines.append("- Atoms nearer than in the data: nothing keeps them apart there.")
    return "\n".join(lines) + "\n"


def domain_lines(domain: Domain, uncertainty: Mapping[str, Any]) -> list[str]:
    """Chapter of the card about the training set."""
    lines = ["", "## What it was trained on", "", *(f"- {line}" for line in domain.lines())]
    for part, fit in uncertainty.items():
        lines.append(f"- {agreement_text(part, fit)}")
    return lines
