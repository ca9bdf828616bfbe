"""The picture of a speed: a bar for each way to take a step, and the parts of the last."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from mdgraph.analysis.style import BLUE, GREEN, GREY, ORANGE, blank_figure

_COLOURS: Final = {"model": BLUE, "neighbor list": ORANGE, "integrator": GREEN, "rest": "#8C8C8C"}
_ROOM: Final = 0.34
"""Of the width, for the words behind the longest bar."""

_NARROW: Final = 0.09
"""Shares below it have their words in the legend alone."""


def speed_figure(found: Mapping[str, Any], title: str) -> Figure:
    """Draws what `mdgraph bench` found.

    Args:
        found: `ladder`, rows with `name`, and either `step_ms`, `ns_per_day` and `speedup`
            or the `reason` why not; `parts` of a step, `ms` and `share` by name; `precision`
            and `timestep_fs`.
        title: stamped on top.
    """
    rows = found["ladder"]
    subtitle = (
        f"Langevin dynamics at 300 K, precision {found['precision']}, "
        f"time step {found['timestep_fs']:g} fs"
    )
    figure = blank_figure(10.0, max(5.0, 3.1 + 0.36 * len(rows)), title, subtitle)
    ladder, parts = figure.subplots(2, 1, height_ratios=(len(rows), 1.0))
    _draw_ladder(ladder, rows)
    _draw_parts(parts, found["parts"])
    return figure


def _draw_ladder(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """On a logarithmic axis, so a bar half as long is not half the time: the words say it."""
    times = [row["step_ms"] for row in rows if not row["reason"]]
    low = 10.0 ** math.floor(math.log10(0.7 * min(times)))
    decades = math.log10(max(times) / low)
    axes.set_xscale("log")
    axes.set_xlim(low, low * 10.0 ** (decades / (1.0 - _ROOM)))
    for place, row in enumerate(rows):
        if row["reason"]:
            text, start, colour = row["reason"], low, GREY
        else:
            start, colour = row["step_ms"], "black"
            last = place == len(rows) - 1
            axes.barh(place, start - low, left=low, color=BLUE if last else "#8FB8D4", height=0.7)
            text = f"{_plain(start)} ms, {_plain(row['ns_per_day'])} ns/day"
            text += f", {_plain(row['speedup'])}x" if row["speedup"] != 1.0 else ""
        axes.annotate(
            text,
            (start, place),
            (5, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            fontsize=9,
            style="italic" if row["reason"] else "normal",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
        )
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(lambda value, place: f"{value:,g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("time of a step (ms)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)


def _draw_parts(axes: Axes, parts: Mapping[str, Mapping[str, float]]) -> None:
    start = 0.0
    for name, one in parts.items():
        percent = 100.0 * one["share"]
        words = f"{name}, {_plain(one['ms'])} ms"
        axes.barh(0, percent, left=start, color=_COLOURS[name], height=0.8, label=words)
        if one["share"] > _NARROW:
            middle = start + 0.5 * percent
            axes.text(middle, 0, f"{percent:.0f} %", ha="center", va="center", color="white")
        start += percent
    axes.set_xlim(0.0, 100.0)
    axes.set_yticks([0], ["parts of a step\nof the last row"])
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("share of a step (%)")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.legend(
        frameon=False, fontsize=9, ncols=len(parts), loc="lower center", bbox_to_anchor=(0.5, 1.0)
    )


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 100.0 else f"{value:.3g}"
