"""Pictures of an analysis of a trajectory that no run records: shapes, spectra, series."""

import math
from collections.abc import Mapping
from typing import Final

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mdgraph.analysis.molecules import AngleResult, HistogramResult, RMSDResult
from mdgraph.analysis.spectrum import SpectrumResult
from mdgraph.analysis.style import BLUE, COLOURS, GREY, LINE, blank_figure, dress

_COLUMNS: Final = 3
"""Panels in a row."""

_MOST_PANELS: Final = 12
"""Types with a panel; the most frequent ones."""

_MARKED: Final = 40
"""Points of a line, below which each is marked."""

_HIGHEST: Final = 4500.0
"""1/cm, above any vibration of atoms."""


def histogram_figure(result: HistogramResult) -> Figure:
    """Draws a panel for each type of bond or angle, the most frequent first."""
    quantity, unit = ("angle", "degrees") if isinstance(result, AngleResult) else ("length", "Å")
    order = np.argsort(-result.terms, kind="stable")[:_MOST_PANELS]
    left_out = len(result.types) - len(order)
    columns = min(_COLUMNS, len(order))
    rows = math.ceil(len(order) / columns)
    subtitle = f"{result.samples} frames" + (
        f"; the {_MOST_PANELS} most frequent of {len(result.types)} types" if left_out else ""
    )
    figure = blank_figure(8.4, 0.9 + 2.4 * rows, result.kind[0].upper() + result.kind[1:], subtitle)
    panels = figure.subplots(rows, _COLUMNS, squeeze=False)
    for axes in panels.flat[len(order) :]:
        axes.set_visible(False)
    width = float(result.middle[1] - result.middle[0])
    for axes, place in zip(panels.flat, order, strict=False):
        filled = np.flatnonzero(result.counts[place])
        part = slice(max(filled[0] - 1, 0), filled[-1] + 2)
        axes.fill_between(
            result.middle[part], result.density()[place][part], step="mid", color=BLUE, alpha=0.35
        )
        axes.step(
            result.middle[part], result.density()[place][part], where="mid", color=BLUE, lw=1.1
        )
        digits = 1 if quantity == "angle" else 3
        title = (
            f"{result.types[place]}: {result.mean[place]:.{digits}f} ± "
            f"{result.deviation[place]:.{digits}f} {unit}"
        )
        axes.set_title(title, fontsize=9)
        axes.tick_params(labelsize=8)
        axes.set_ylim(bottom=0.0)
        middle = result.mean[place]
        half = max(result.middle[filled[-1]] - middle, middle - result.middle[filled[0]], 3 * width)
        axes.set_xlim(middle - 1.1 * half, middle + 1.1 * half)
        dress(axes)
    figure.supxlabel(f"{quantity} ({unit})", fontsize=10)
    figure.supylabel(f"probability density (1/{unit})", fontsize=10)
    return figure


def spectrum_figure(result: SpectrumResult) -> Figure:
    """Draws the spectrum and the share of each element."""
    subtitle = f"{result.samples} frames, resolution {result.resolution:.3g} 1/cm"
    figure = blank_figure(7.4, 4.4, "Velocity spectrum", subtitle)
    axes = figure.add_subplot()
    shown = result.wavenumber <= _HIGHEST
    if len(result.elements) > 1:
        axes.plot(
            result.wavenumber[shown], 1e3 * result.total[shown], color=GREY, label="all", **LINE
        )
    for number, symbol in enumerate(result.elements):
        axes.plot(
            result.wavenumber[shown],
            1e3 * result.parts[number][shown],
            color=COLOURS[number % len(COLOURS)],
            label=symbol,
            **LINE,
        )
    axes.axhline(0.0, color=GREY, linewidth=0.8)
    axes.set_xlim(0.0, result.wavenumber[shown][-1])
    axes.set_xlabel("wavenumber (1/cm)")
    axes.set_ylabel("share of the kinetic energy (10⁻³ cm)")
    axes.legend(frameon=False, fontsize=9)
    dress(axes)
    return figure


def rmsd_figure(result: RMSDResult) -> Figure:
    """Draws the RMSD of each kind of molecule over time."""
    series = {
        f"{name.partition('_')[0]}, mean of {count}" if count > 1 else name: result.value[name]
        for name, count in result.molecules.items()
    }
    return series_figure(
        "RMSD from the first frame",
        "after the best superposition of each molecule, without masses",
        result.time,
        series,
        "RMSD (Å)",
        from_zero=True,
    )


def series_figure(
    title: str,
    subtitle: str,
    time: NDArray[np.float64],
    series: Mapping[str, NDArray[np.float64]],
    label: str,
    *,
    from_zero: bool = False,
) -> Figure:
    """Draws quantities of one unit over time.

    Args:
        title: of the figure.
        subtitle: a smaller line under it.
        time: (F,) ps.
        series: (F,) values by name.
        label: of the axis, with its unit.
        from_zero: whether the axis begins at 0.
    """
    figure = blank_figure(7.4, 3.8, title, subtitle)
    axes = figure.add_subplot()
    marker = "o" if len(time) < _MARKED else None
    for number, (name, values) in enumerate(series.items()):
        axes.plot(
            time,
            values,
            color=COLOURS[number % len(COLOURS)],
            label=name,
            marker=marker,
            markersize=3.5,
            **LINE,
        )
    if len(series) > 1 or from_zero:
        axes.legend(frameon=False, fontsize=9)
    if from_zero:
        axes.set_ylim(bottom=0.0)
    axes.margins(x=0.0)
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.set_xlabel("time (ps)")
    axes.set_ylabel(label)
    dress(axes)
    return figure
