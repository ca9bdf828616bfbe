"""The page of a validation: one HTML file with tables and pictures, without links to others."""

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mdgraph.analysis.style import (
    COLOURS,
    GREEN,
    GREY,
    LINE,
    ORANGE,
    blank_figure,
    dress,
    html_image,
    html_page,
    html_table,
)
from mdgraph.validate.verdicts import Check, Curves, Verdict

_STYLE: Final = (
    "body{max-width:72em}table.lines td{text-align:left}table.words td+td{text-align:right}"
    "a{color:inherit}.verdict{font-weight:bold;color:#fff;padding:.1em .5em;border-radius:.2em}"
    "summary{cursor:pointer;color:#6E6E6E}"
)

_COLOURS: Final = {Verdict.OK: GREEN, Verdict.LOOK: "#B37400", Verdict.WRONG: ORANGE}

_COLUMNS: Final = 4
"""Small pictures in a row."""

_BESIDE, _BELOW, _ABOVE, _EDGE = 0.6, 0.3, 0.25, 0.1
"""Inches around small pictures, for numbers to the left and below, for titles, and at the right."""

_HEADING: Final = 0.65
"""Inches above all of them."""

_LONGEST: Final = 100
"""Numbers of a list and rows of a table that are shown; all are in the JSON."""


_FEW: Final = 40
"""Points of a line, below which each is marked."""


def page(title: str, about: Mapping[str, str], checks: Sequence[Check]) -> str:
    """The text of the file.

    Args:
        title: heading.
        about: what was validated, by name.
        checks: in the order of the page.
    """
    counts = ", ".join(
        f"{sum(check.verdict is verdict for check in checks)} {verdict}" for verdict in Verdict
    )
    parts = [f"<p><b>{counts}</b></p>"]
    parts.append(html_table([[name, text] for name, text in about.items()], header=False))
    parts.append("<table class='lines'>")
    for number, check in enumerate(checks):
        link = f"<a href='#check-{number}'>{html.escape(check.name)}</a>"
        cells = (_badge(check.verdict), link, html.escape(check.sentence))
        parts.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    parts.append("</table>")
    for number, check in enumerate(checks):
        heading = f"{html.escape(check.name)} {_badge(check.verdict)}"
        parts.append(f"<h2 id='check-{number}'>{heading}</h2><p>{html.escape(check.sentence)}</p>")
        if check.curves is not None:
            parts.append(html_image(_curve_figure(check, check.curves), check.name))
        if check.panels:
            parts.append(html_image(_panel_figure(check), check.name))
        if numbers := _numbers(check.numbers):
            parts.append(f"<details><summary>numbers</summary>{numbers}</details>")
    return html_page(title, parts, _STYLE)


def _badge(verdict: Verdict) -> str:
    return f"<span class='verdict' style='background:{_COLOURS[verdict]}'>{verdict}</span>"


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        shown = ", ".join(map(_text, value[:_LONGEST]))
        return shown + (f" and {len(value) - _LONGEST} more" if len(value) > _LONGEST else "")
    return str(value)


def _numbers(numbers: Mapping[str, Any]) -> str:
    """Tables of numbers: a row a name, and a table for each mapping or list of rows."""
    plain, tables = [], []
    for name, value in numbers.items():
        rows: list[tuple[str, Mapping[str, Any]]] = []
        if isinstance(value, Mapping) and all(isinstance(row, Mapping) for row in value.values()):
            rows = [(str(key), row) for key, row in value.items()]
        elif isinstance(value, list | tuple) and all(isinstance(row, Mapping) for row in value):
            rows = [(str(number + 1), row) for number, row in enumerate(value)]
        elif isinstance(value, Mapping):
            rows = [("", value)]
        if not rows:
            if value not in (None, [], {}):
                plain.append([name, _text(value)])
            continue
        columns = list(dict.fromkeys(column for _, row in rows for column in row))
        cells = [[key, *(_text(row.get(column)) for column in columns)] for key, row in rows]
        tables.append(html_table([[name, *columns], *cells[:_LONGEST]]))
    return (html_table(plain, header=False) if plain else "") + "".join(tables)


def _draw(axes: Axes, curves: Curves, mark: float) -> None:
    """Draws lines through all known points, with marks of a size where they are few."""
    for number, (name, values) in enumerate(curves.y.items()):
        known = np.isfinite(values)
        marks: dict[str, Any] = {"marker": "o", "markersize": mark} if known.sum() < _FEW else {}
        color = COLOURS[number % len(COLOURS)]
        axes.plot(curves.x[known], values[known], color=color, label=name, **LINE, **marks)
    dress(axes)


def _curve_figure(check: Check, curves: Curves) -> Figure:
    figure = blank_figure(7.0, 4.2, check.name, "")
    axes = figure.add_subplot()
    _draw(axes, curves, 3.5)
    axes.set_xlabel(curves.x_label)
    axes.set_ylabel(curves.y_label)
    if len(curves.y) > 1:
        # Beside the lines, which may be many.
        axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _panel_figure(check: Check) -> Figure:
    """Small pictures side by side, with a frame title in the colour of the verdict in it."""
    rows = math.ceil(len(check.panels) / _COLUMNS)
    first = next(iter(check.panels.values()))
    columns = min(_COLUMNS, len(check.panels))
    width, height = 2.9 * max(columns, 2), 0.9 + 2.2 * rows
    under = f"{first.y_label} over {first.x_label}"
    # Places are in inches, as to look for room for each label takes as long as to draw all.
    figure = blank_figure(width, height, check.name, under, makes_room=False)
    every = figure.subplots(rows, columns, squeeze=False)
    between = _BELOW + _ABOVE
    figure.subplots_adjust(
        left=_BESIDE / width,
        right=1.0 - _EDGE / width,
        bottom=_BELOW / height,
        top=1.0 - (_HEADING + _ABOVE) / height,
        wspace=_BESIDE / ((width - _EDGE) / columns - _BESIDE),
        hspace=between / ((height - _HEADING) / rows - between),
    )
    for axes in every.flat[len(check.panels) :]:
        axes.set_visible(False)
    for number, (axes, (title, curves)) in enumerate(
        zip(every.flat, check.panels.items(), strict=False)
    ):
        _draw(axes, curves, 2.5)
        colour = next(
            (_COLOURS[verdict] for verdict in Verdict if title.endswith(f": {verdict}")), GREY
        )
        axes.set_title(title, fontsize=9, color=colour)
        axes.tick_params(labelsize=8)
        axes.locator_params(nbins=5)  # as few as a small picture needs; each takes time to draw
        if number == 0:
            axes.legend(frameon=False, fontsize=7)
    return figure
