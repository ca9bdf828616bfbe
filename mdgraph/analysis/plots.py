"""Figures of a run: log, recorded observables, and the speed of execution modes."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from numpy.typing import NDArray

from mdgraph.analysis.rdf import RadialDistribution
from mdgraph.analysis.style import BLUE, COLOURS, GREEN, GREY, LINE, ORANGE, blank_figure, dress
from mdgraph.engine.observables import (
    AutocorrelationResult,
    AveragesResult,
    CorrelationResult,
    DistributionResult,
)
from mdgraph.errors import InputError

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


Recorded = AveragesResult | DistributionResult | CorrelationResult

_CM2_PER_S: Final = 1e4
"""One A^2/fs in 1e-5 cm^2/s."""


def recorded_figure(result: Recorded, *, system: int = 0) -> Figure:
    """Draws one system of a result.

    Averages show how their errors grow with the length of blocks until blocks are
    independent; distributions show g(r); correlations over time show the function and the
    diffusion coefficient that it gives up to each lag.

    Raises:
        InputError: there is no such system.
    """
    systems = len(result.blocked.mean if isinstance(result, AveragesResult) else result.value)
    if not 0 <= system < systems:
        raise InputError(f"There is no system {system} in {systems}; count from 0.")
    wide = isinstance(result, CorrelationResult)
    figure = blank_figure(
        10.0 if wide else 6.5,
        4.6,
        result.kind[0].upper() + result.kind[1:],
        f"system {system}, {result.samples} samples, every {result.every} steps",
    )
    axes = [figure.add_subplot(1, 1 + wide, 1 + place) for place in range(1 + wide)]
    if isinstance(result, AveragesResult):
        _draw_errors(axes[0], result, system)
    elif isinstance(result, DistributionResult):
        _draw_distributions(axes[0], result, system)
    else:
        _draw_correlation(axes[0], result, system)
        _draw_diffusion(axes[1], result, system)
    dress(*axes)
    if axes[0].get_legend_handles_labels()[0]:
        axes[0].legend(frameon=False, fontsize=9)
    return figure


def _draw_errors(axes: Axes, result: AveragesResult, system: int) -> None:
    """Errors in units of that of uncorrelated samples; a dot marks the one that is reported."""
    blocked, steps = result.blocked, result.every * result.blocked.length
    colours = _colours()
    for name in result.quantities:
        # The parts of the tensor would hide the rest, and kinetic energy goes as temperature.
        if name.startswith("pressure_") or name == "kinetic_energy":
            continue
        place = system, result.quantities.index(name)
        first = blocked.errors[(0, *place)] if len(steps) else 0.0
        if first <= 1e-12 * abs(blocked.mean[place]):
            continue
        error = blocked.errors[(slice(None), *place)] / first
        spread = blocked.spreads[(slice(None), *place)] / first
        colour = next(colours)
        axes.fill_between(steps, error - spread, error + spread, color=colour, alpha=0.12, lw=0)
        axes.plot(steps, error, color=colour, label=name.replace("_", " "), **LINE)
        level = blocked.level[place]
        if level >= 0:
            axes.plot(steps[level], error[level], "o", color=colour, markersize=7)
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("steps in a block")
    axes.set_ylabel("error / error of independent samples")


def _draw_distributions(axes: Axes, result: DistributionResult, system: int) -> None:
    for pair, value, colour in zip(result.pairs, result.value[system], _colours(), strict=False):
        if np.isfinite(value).all():
            axes.plot(result.distance, value, color=colour, label=pair, **LINE)
    axes.axhline(1.0, color=GREY, linewidth=0.8)
    axes.set_xlim(0.0, result.distance[-1])
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("distance (Å)")
    axes.set_ylabel("radial distribution function g(r)")


def _draw_correlation(axes: Axes, result: CorrelationResult, system: int) -> None:
    """Velocity autocorrelations are drawn as parts of what they are at lag 0."""
    normal = isinstance(result, AutocorrelationResult)
    for element, value, colour in zip(
        result.elements, result.value[system], _colours(), strict=False
    ):
        drawn = value / (value[0] or 1.0) if normal else value
        axes.plot(1e-3 * result.lag, drawn, color=colour, label=element, **LINE)
    axes.axhline(0.0, color=GREY, linewidth=0.8)
    axes.set_xlim(left=0.0)
    axes.set_xlabel("lag (ps)")
    axes.set_ylabel("velocity autocorrelation / its start" if normal else f"{result.kind} (Å²)")


def _draw_diffusion(axes: Axes, result: CorrelationResult, system: int) -> None:
    running = _CM2_PER_S * result.running_diffusion()[system]
    for element, value, colour in zip(result.elements, running, _colours(), strict=False):
        axes.plot(1e-3 * result.lag, value, color=colour, label=element, **LINE)
    axes.axhline(0.0, color=GREY, linewidth=0.8)
    axes.set_xlim(left=0.0)
    axes.set_xlabel("lag (ps)")
    axes.set_ylabel("diffusion coefficient (10⁻⁵ cm²/s)")


def _colours() -> Iterator[str]:
    return itertools.cycle(COLOURS)


_COLOURS: Final = {"model": BLUE, "neighbor list": ORANGE, "integrator": GREEN, "rest": "#8C8C8C"}
_ROOM: Final = 0.34
"""Of the width, for the words behind the longest bar."""

_NARROW: Final = 0.09
"""Shares below it have their words in the legend alone."""


def speed_figure(result: Mapping[str, Any], title: str) -> Figure:
    """Draws the table and the profile of `mdgraph bench`.

    Args:
        result: `ladder`, rows with `name`, and either `step_ms`, `ns_per_day` and `speedup`
            or the `reason` why not; `parts` of a step, `ms` and `share` by name; `precision`
            and `timestep_fs`.
        title: stamped on top.
    """
    rows = result["ladder"]
    subtitle = (
        f"Langevin dynamics at 300 K, precision {result['precision']}, "
        f"time step {result['timestep_fs']:g} fs"
    )
    figure = blank_figure(10.0, max(5.0, 3.1 + 0.36 * len(rows)), title, subtitle)
    table, profile = figure.subplots(2, 1, height_ratios=(len(rows), 1.0))
    _draw_modes(table, rows)
    _draw_parts(profile, result["parts"])
    return figure


def _draw_modes(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
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
    for name, part in parts.items():
        percent = 100.0 * part["share"]
        words = f"{name}, {_plain(part['ms'])} ms"
        axes.barh(0, percent, left=start, color=_COLOURS[name], height=0.8, label=words)
        if part["share"] > _NARROW:
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
