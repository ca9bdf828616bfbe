"""Pictures of a data set and of a training: learning curves, parity plots, errors by kind."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter
from numpy.typing import NDArray

from mdgraph.analysis.style import BLUE, COLOURS, GREEN, GREY, LINE, ORANGE, blank_figure, dress
from mdgraph.data.dataset import DatasetSummary

Array = NDArray[np.float64]

_MANY = 2000
"""Points from which on a parity plot shows how many lie at a place, instead of each."""

_CELLS = 80
"""Hexagons across a parity plot."""

_WIDTH = 8.0
"""Inches of all pictures: the page shows them at most 900 pixels wide, in the size of its text."""

_BARS = 20


def learning_figure(log: Mapping[str, Array], title: str) -> Figure:
    """Draws errors and learning rate over the steps of a log, a column a name."""
    about = "learning curves: train while weights move, validation with their running mean"
    figure = blank_figure(_WIDTH, 7.0, title, about)
    panels = figure.subplot_mosaic([["force", "energy"], ["rate", "rate"]], height_ratios=(2, 1))
    left, middle, right = panels["force"], panels["energy"], panels["rate"]
    for axes, quantity, unit in (
        (left, "force", "meV_per_A"),
        (middle, "energy", "meV_per_atom"),
    ):
        axes.set_yscale("log")
        for part, color in (("train", GREY), ("validation", BLUE)):
            values = log[f"{part}_{quantity}_rmse_{unit}"]
            if (values > 0.0).any():
                axes.plot(log["step"], values, color=color, label=part, **LINE)
                axes.legend(frameon=False, fontsize=9)
        axes.set_ylabel(f"{quantity} RMSE ({unit.replace('_per_', '/').replace('A', 'Å')})")
        for axis_part in ("major", "minor"):
            getattr(axes.yaxis, f"set_{axis_part}_formatter")(LogFormatter(minor_thresholds=(2, 1)))
    right.plot(log["step"], log["learning_rate"], color=ORANGE, **LINE)
    right.set_ylabel("learning rate")
    for axes in (left, middle, right):
        axes.set_xlabel("step")
    dress(left, middle, right)
    return figure


def parity_figure(energy: Array, forces: Array, title: str) -> Figure:
    """Draws predictions over labels, and what is left between the two.

    Many points are drawn as their number in hexagons, on a logarithmic scale.

    Args:
        energy: (M, 2) eV an atom, label and prediction.
        forces: (C, 2) eV/A, components; without a label for either there is one column.
        title: what frames they are of.
    """
    figure = blank_figure(_WIDTH, 7.0, title, "predictions over labels, and their errors")
    energy = energy[np.isfinite(energy).all(1)]
    middle = float(np.mean(energy[:, 0])) if len(energy) else 0.0
    forces = forces[np.isfinite(forces).all(1)]
    columns = (
        ("energy less its mean (meV/atom)", "error (meV/atom)", 1e3 * (energy - middle), 1.0, BLUE),
        ("force component (eV/Å)", "error (meV/Å)", forces, 1e3, ORANGE),
    )
    drawn = [column for column in columns if len(column[2])]
    axes = figure.subplots(2, len(drawn), sharex="col", squeeze=False, height_ratios=(2, 1))
    for (upper, lower), (name, error, pairs, factor, color) in zip(axes.T, drawn, strict=True):
        label, predicted = pairs.T
        for part, value in ((upper, predicted), (lower, factor * (predicted - label))):
            if len(label) <= _MANY:
                part.scatter(label, value, s=8, color=color, alpha=0.4, linewidths=0)
                continue
            cells = part.hexbin(
                *(label, value),
                gridsize=_CELLS,
                bins="log",
                mincnt=1,
                cmap="viridis",
                linewidths=0.1,
            )
            figure.colorbar(cells, ax=part, label="number", pad=0.02)
        ends = [float(pairs.min()), float(pairs.max())]
        upper.plot(ends, ends, color=GREY, linewidth=0.8)
        lower.axhline(0.0, color=GREY, linewidth=0.8)
        upper.set_ylabel(f"predicted {name}")
        lower.set_xlabel(f"label: {name}")
        lower.set_ylabel(error)
    dress(*axes.flat)
    return figure


def error_figure(panels: Mapping[str, Mapping[str, float]], title: str) -> Figure:
    """Draws errors as bars, the largest first: of each panel, by what its axis says, a kind each.

    Args:
        panels: of each axis the errors by kind; of many kinds the largest are drawn.
        title: what frames they are of.
    """
    drawn = {
        label: sorted(values.items(), key=lambda item: -item[1])[:_BARS]
        for label, values in panels.items()
    }
    heights = [0.9 + 0.25 * len(values) for values in drawn.values()]
    figure = blank_figure(_WIDTH, 1.0 + sum(heights), title, "where the errors are")
    every = figure.subplots(len(drawn), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (label, values), color in zip(every, drawn.items(), COLOURS, strict=False):
        bars = axes.barh([name for name, _ in values], [size for _, size in values], color=color)
        axes.bar_label(bars, fmt=_number, padding=3, fontsize=9)
        axes.invert_yaxis()
        axes.margins(x=0.15)
        axes.set_xlabel(label)
        if len(panels[label]) > _BARS:
            axes.set_title(f"the largest of {len(panels[label])}", fontsize=9, color=GREY)
    dress(*every)
    for axes in every:
        axes.grid(visible=False, axis="y")
    return figure


def _number(value: float) -> str:
    """Three digits, and all of those before the point."""
    return f"{value:.0f}" if value >= 100.0 else f"{value:.3g}"


def dataset_figure(summary: DatasetSummary, name: str) -> Figure:
    """Draws distributions of energies and forces, and the share of each element."""
    least, _, most = summary.atoms
    atoms = f"{most} atoms each" if least == most else f"{least} to {most} atoms"
    text = f"{summary.frames} frames, {atoms}"
    figure = blank_figure(11.0, 5.2, name, text)
    left, middle, right = figure.subplots(1, 3)
    energies = summary.energies[np.isfinite(summary.energies)]
    if len(energies):
        left.hist(1e3 * (energies - np.median(energies)), bins=60, color=BLUE)
    left.set_xlabel("energy, from the median (meV/atom)")
    left.set_ylabel("frames")
    if len(summary.forces):
        middle.hist(summary.forces, bins=80, color=ORANGE, log=True)
    middle.set_xlabel("force on an atom (eV/Å)")
    middle.set_ylabel("atoms")
    right.bar(list(summary.elements), list(summary.elements.values()), color=GREEN)
    # From below one atom up, or the rarest element of a log scale would have no bar.
    right.set_yscale("log")
    right.set_ylim(bottom=0.5)
    right.set_ylabel("atoms")
    dress(left, middle, right)
    return figure
