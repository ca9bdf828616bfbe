"""Pictures of a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mdgraph.analysis.rdf import RadialDistribution
from mdgraph.analysis.style import BLUE, GREEN, GREY, LINE, ORANGE, blank_figure, dress

_MANY_ROWS: Final = 100
"""From twice as many on, a line hides itself, and a running mean is drawn over it."""


@dataclass(frozen=True, eq=False)
class PairDistribution:
    """A radial distribution function with what it is compared with.

    Attributes:
        pair: name of the pair, such as O-O.
        simulated: from the frames of the run.
        reference: distances (A) and values of the training frames, or None.
    """

    pair: str
    simulated: RadialDistribution
    reference: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None


def run_figure(
    log: Mapping[str, NDArray[Any]],
    *,
    title: str,
    subtitle: str,
    atoms: int,
    bath_temperature: float | None = None,
    pairs: PairDistribution | None = None,
) -> Figure:
    """Draws temperature and energies over time, and a radial distribution beside them.

    Args:
        log: columns of the log by name, as `mdgraph.io.log.read_log` gives them.
        title: stamped on top; says the potential, the time simulated and the temperature.
        subtitle: a second, smaller line.
        atoms: energies are drawn for one atom.
        bath_temperature: K, drawn as a line.
        pairs: None leaves the right half out.
    """
    figure = blank_figure(11.0 if pairs else 6.5, 5.2, title, subtitle)
    grid = figure.add_gridspec(2, 2 if pairs else 1, width_ratios=(1, 1) if pairs else None)
    upper = figure.add_subplot(grid[0, 0])
    lower = figure.add_subplot(grid[1, 0], sharex=upper)
    _draw_temperature(upper, log, bath_temperature)
    _draw_energies(lower, log, atoms)
    upper.tick_params(labelbottom=False)
    lower.set_xlabel("time (ps)")
    drawn = [upper, lower]
    if pairs is not None:
        right = figure.add_subplot(grid[:, 1])
        _draw_distribution(right, pairs)
        drawn.append(right)
    figure.align_ylabels([upper, lower])
    dress(*drawn)
    return figure


def _draw_temperature(
    axes: Axes, log: Mapping[str, NDArray[Any]], bath_temperature: float | None
) -> None:
    time, kelvin = log["time_ps"], log["temperature_K"]
    _draw_series(axes, time, kelvin, BLUE)
    if bath_temperature is not None:
        label = f"bath, {bath_temperature:g} K"
        axes.axhline(bath_temperature, color=GREY, linestyle="--", linewidth=1.2, label=label)
        axes.legend(frameon=False, fontsize=9, loc="upper left")
    axes.margins(y=0.2)
    axes.set_ylabel("temperature (K)")
    if time[-1] > time[0]:
        axes.set_xlim(time[0], time[-1])


def _draw_energies(axes: Axes, log: Mapping[str, NDArray[Any]], atoms: int) -> None:
    """Changes since the start, because the energies themselves lie far apart."""
    for name, color in (("potential", BLUE), ("kinetic", ORANGE), ("total", GREEN)):
        energy = log[f"{name}_energy_eV"]
        change = 1e3 * (energy - energy[0]) / atoms
        _draw_series(axes, log["time_ps"], change, color, label=name)
    axes.set_ylabel("energy change (meV/atom)")
    axes.margins(y=0.2)
    axes.legend(frameon=False, fontsize=9, loc="upper left", ncols=3)


def _draw_series(
    axes: Axes,
    time: NDArray[np.float64],
    values: NDArray[np.float64],
    color: str,
    label: str | None = None,
) -> None:
    """A line, or, where rows are many, a faint line under its running mean."""
    window = len(values) // _MANY_ROWS
    if window > 1:
        axes.plot(time, values, color=color, alpha=0.25, linewidth=0.6)
        mean = np.convolve(values, np.full(window, 1.0 / window), mode="valid")
        middle = np.convolve(time, np.full(window, 1.0 / window), mode="valid")
        axes.plot(middle, mean, color=color, label=label, **LINE)
    else:
        axes.plot(time, values, color=color, label=label, **LINE)


def _draw_distribution(axes: Axes, pairs: PairDistribution) -> None:
    highest = pairs.simulated.value.max()
    if pairs.reference is not None:
        distance, value = pairs.reference
        axes.plot(
            distance, value, color=ORANGE, linestyle="--", linewidth=1.8, label="training frames"
        )
        highest = max(highest, value.max())
    axes.plot(
        pairs.simulated.distance,
        pairs.simulated.value,
        color=BLUE,
        label=f"this run, {pairs.simulated.frames} frames",
        **LINE,
    )
    axes.axhline(1.0, color=GREY, linewidth=0.8)
    axes.set_xlim(0.0, pairs.simulated.distance[-1])
    axes.set_ylim(0.0, 1.08 * max(highest, 1.0))
    axes.set_xlabel(f"{pairs.pair} distance (Å)")
    axes.set_ylabel(f"{pairs.pair} radial distribution function g(r)")
    axes.legend(frameon=False, fontsize=9, loc="upper right")
