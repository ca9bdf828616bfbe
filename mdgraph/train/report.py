"""report.html: the error table and the pictures of a training in one file."""

import base64
import html
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure

from mdgraph.analysis.training import error_figure, learning_figure, parity_figure
from mdgraph.train.evaluation import Scores
from mdgraph.train.outliers import outlier_sentences

_STYLE: Final = (
    "body{font-family:sans-serif;max-width:72em;margin:2em auto;color:#222}"
    "table{border-collapse:collapse}td,th{padding:.3em .9em;border-bottom:1px solid #ddd;"
    "text-align:right}td:first-child,th:first-child{text-align:left}img{max-width:100%}"
)

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


def agreement_text(part: str, fit: Mapping[str, Any]) -> str:
    """How the errors of a part go with their sigma, in one sentence."""
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
    """Draws everything and writes it to one file without links to others."""
    parts = [f"<h1>{html.escape(title)}</h1>", "<table>"]
    for number, row in enumerate(rows_of(metrics)):
        cell = "td" if number else "th"
        cells = "".join(f"<{cell}>{html.escape(text)}</{cell}>" for text in row)
        parts.append(f"<tr>{cells}</tr>")
    parts.append("</table>")
    for name, fit in metrics["uncertainty"].items():
        parts.append(f"<p>{html.escape(agreement_text(name, fit))}</p>")
    for name, found in metrics["outliers"].items():
        sentences = [html.escape(one) for one in outlier_sentences(name, found)]
        if sentences:
            items = "".join(f"<li>{one}</li>" for one in sentences[1:])
            parts.append(f"<p>{sentences[0]}</p><ul>{items}</ul>")
    parts.append(_image(learning_figure(read_log(log), title)))
    for name in ("validation", "test"):
        one = scores.get(name)
        if (
            one is not None
            and np.isfinite(one.energy[:, 0]).any() | np.isfinite(one.forces[..., 0]).any()
        ):
            parts.append(_image(parity_figure(one.energy, one.forces.reshape(-1, 2), name)))
    for name in scores:
        panels = _panels(metrics[name])
        if name != "train" and panels:
            parts.append(_image(error_figure(panels, name)))
    body = "\n".join(parts)
    path.write_text(
        f"<!doctype html><html><head><meta charset='utf-8'><title>{html.escape(title)}</title>"
        f"<style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n",
        encoding="utf-8",
    )


def _panels(errors: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Errors of a part by element and by kind of configuration, under what they are."""
    elements = {
        key.split("_")[2]: value
        for key, value in errors.items()
        if key.startswith("force_rmse_") and key.count("_") == 5
    }
    found = {"force RMSE by element (meV/Å)": elements} if elements else {}
    for quantity, unit in (("force", "meV_per_A"), ("energy", "meV_per_atom")):
        label = f"{quantity} RMSE by kind ({unit.replace('_per_', '/').replace('A', 'Å')})"
        values = {
            name or "unnamed": group[f"{quantity}_rmse_{unit}"]
            for name, group in errors.get("by_group", {}).items()
            if f"{quantity}_rmse_{unit}" in group
        }
        if values:
            found[label] = values
    return found


def _image(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return f'<img src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}">'
