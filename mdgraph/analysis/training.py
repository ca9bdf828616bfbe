"""Pictures of a training: learning curves, predictions beside labels, errors by kind."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mdgraph.analysis.style import BLUE, GREEN, GREY, LINE, ORANGE, blank_figure, dress

Array = NDArray[np.float64]

_DRAWN = 20_000
"""Points of a parity plot, at most."""


def learning_figure(log: Mapping[str, Array], title: str) -> Figure:
    """Draws errors and learning rate over the steps of a log, a column a name."""
    figure = blank_figure(11.0, 5.2, title, "learning curves")
    left, middle, right = figure.subplots(1, 3)
    for axes, quantity, unit in (
        (left, "force", "meV_per_A"),
        (middle, "energy", "meV_per_atom"),
    ):
        for part, color in (("train", GREY), ("validation", BLUE)):
            values = log[f"{part}_{quantity}_rmse_{unit}"]
            if np.isfinite(values).any():
                axes.plot(log["step"], values, color=color, label=part, **LINE)
        axes.set_yscale("log")
        axes.set_ylabel(f"{quantity} RMSE ({unit.replace('_per_', '/').replace('A', 'Å')})")
        axes.legend(frameon=False, fontsize=9)
    right.plot(log["step"], log["learning_rate"], color=ORANGE, **LINE)
    right.set_ylabel("learning rate")
    for axes in (left, middle, right):
        axes.set_xlabel("step")
    dress(left, middle, right)
    return figure


def parity_figure(energy: Array, forces: Array, title: str) -> Figure:
    """Draws predictions over labels.

    Args:
        energy: (M, 2) eV an atom, label and prediction.
        forces: (C, 2) eV/A, components.
        title: what frames they are of.
    """
    figure = blank_figure(11.0, 5.2, title, "predictions over labels")
    left, right = figure.subplots(1, 2)
    known = energy[np.isfinite(energy).all(1)]
    middle = float(np.mean(known[:, 0])) if len(known) else 0.0
    _parity(left, 1e3 * (known - middle), "energy from the mean (meV/atom)", BLUE)
    _parity(right, forces[np.isfinite(forces).all(1)], "force (eV/Å)", ORANGE)
    dress(left, right)
    return figure


def _parity(axes: Axes, pairs: Array, label: str, color: str) -> None:
    step = max(1, len(pairs) // _DRAWN)
    label_values, predicted = pairs[::step].T
    axes.scatter(
        label_values, predicted, s=4, color=color, alpha=0.4, linewidths=0, rasterized=True
    )
    if len(pairs):
        ends = [float(pairs.min()), float(pairs.max())]
        axes.plot(ends, ends, color=GREY, linewidth=0.8)
    axes.set_xlabel(f"label: {label}")
    axes.set_ylabel("prediction")


def error_figure(by_element: Mapping[str, float], by_group: Mapping[str, float]) -> Figure:
    """Draws the RMSE of forces (meV/A) by element and by configuration type."""
    figure = blank_figure(11.0, 5.2, "Where the errors are", "RMSE of forces, validation")
    left, right = figure.subplots(1, 2)
    for axes, values, color in ((left, by_element, BLUE), (right, by_group, GREEN)):
        axes.bar(list(values), list(values.values()), color=color)
        axes.set_ylabel("force RMSE (meV/Å)")
        axes.tick_params(axis="x", rotation=30 if len(values) > 6 else 0)
    dress(left, right)
    return figure
