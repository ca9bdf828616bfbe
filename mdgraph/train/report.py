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
    parts.append(_image(learning_figure(read_log(log), title)))
    for name in ("validation", "test"):
        if name in scores:
            one = scores[name]
            parts.append(_image(parity_figure(one.energy, one.forces.reshape(-1, 2), name)))
    validation = metrics["validation"]
    elements = {
        key.split("_")[2]: value
        for key, value in validation.items()
        if key.startswith("force_rmse_") and key.count("_") == 5
    }
    groups = {
        name: errors.get("force_rmse_meV_per_A", np.nan)
        for name, errors in validation.get("by_group", {}).items()
    }
    if elements:
        parts.append(_image(error_figure(elements, groups or {"all": np.nan})))
    body = "\n".join(parts)
    path.write_text(
        f"<!doctype html><html><head><meta charset='utf-8'><title>{html.escape(title)}</title>"
        f"<style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n",
        encoding="utf-8",
    )


def _image(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return f'<img src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}">'
