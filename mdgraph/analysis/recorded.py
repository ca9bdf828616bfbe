"""Pictures of what a simulation recorded within its steps."""

import itertools
from collections.abc import Iterator
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mdgraph.analysis.style import COLOURS, GREY, LINE, blank_figure, dress
from mdgraph.engine.online import (
    AutocorrelationResult,
    AveragesResult,
    CorrelationResult,
    DistributionResult,
)
from mdgraph.errors import InputError

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
    found, steps = result.blocked, result.every * result.blocked.length
    colours = _colours()
    for name in result.quantities:
        # The parts of the tensor would hide the rest, and kinetic energy goes as temperature.
        if name.startswith("pressure_") or name == "kinetic_energy":
            continue
        place = system, result.quantities.index(name)
        first = found.errors[(0, *place)] if len(steps) else 0.0
        if first <= 1e-12 * abs(found.mean[place]):
            continue
        error = found.errors[(slice(None), *place)] / first
        spread = found.spreads[(slice(None), *place)] / first
        colour = next(colours)
        axes.fill_between(steps, error - spread, error + spread, color=colour, alpha=0.12, lw=0)
        axes.plot(steps, error, color=colour, label=name.replace("_", " "), **LINE)
        level = found.level[place]
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
