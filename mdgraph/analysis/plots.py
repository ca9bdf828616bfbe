"""Figures of runs and trajectories: logs, observables, shapes of molecules, spectra, speeds."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator
from numpy.typing import NDArray

from mdgraph.analysis.molecules import AngleResult, HistogramResult, RMSDResult
from mdgraph.analysis.rdf import RadialDistribution
from mdgraph.analysis.spectrum import SpectrumResult
from mdgraph.analysis.style import BLUE, COLOURS, GREEN, GREY, LINE, ORANGE, blank_figure, dress
from mdgraph.engine.observables import (
    AutocorrelationResult,
    AveragesResult,
    CorrelationResult,
    DistributionResult,
    TemperaturesResult,
)
from mdgraph.errors import InputError
from mdgraph.units import DIFFUSION

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


@dataclass(frozen=True, eq=False)
class Ladder:
    """The way of replicas through the temperatures or windows that they exchange.

    Attributes:
        time_ps: (rows,), ps.
        places: (rows, replicas), the temperature of each replica as its place, from the lowest, 0.
        rates: share of accepted exchanges between each place and the next; NaN without a try.
        labels: of each place, such as its temperature, K.
        place: what a place is.
        neighbors: what two neighboring ones are.
    """

    time_ps: NDArray[np.float64]
    places: NDArray[np.int64]
    rates: Sequence[float]
    labels: Sequence[str]
    place: str = "bath temperature (K)"
    neighbors: str = "temperatures (K)"


def replicas_figure(
    logs: Sequence[Mapping[str, NDArray[Any]]],
    *,
    title: str,
    subtitle: str,
    atoms: Sequence[int],
    first: int = 0,
    bath_temperature: float | None = None,
    ladder: Ladder | None = None,
) -> Figure:
    """Draws temperature and potential energy of replicas over time, and how they exchange.

    Args:
        logs: of each replica, see `run_figure`.
        title: stamped on top.
        subtitle: a second, smaller line.
        atoms: of each replica; energies are drawn for one atom.
        first: number of the first replica.
        bath_temperature: K, of all, drawn as a line.
        ladder: None leaves the right half out.
    """
    figure = blank_figure(11.0 if ladder else 6.5, 5.2, title, subtitle)
    grid = figure.add_gridspec(2, 2 if ladder else 1, width_ratios=(1, 1) if ladder else None)
    upper = figure.add_subplot(grid[0, 0])
    lower = figure.add_subplot(grid[1, 0], sharex=upper)
    colours = _graded(first + len(logs) if ladder is None else len(ladder.labels))[first:]
    for number, (log, count, colour) in enumerate(zip(logs, atoms, colours, strict=False), first):
        energy = log["potential_energy_eV"]
        change = 1e3 * (energy - energy[0]) / count
        name = f"replica {number}" if number == first else f"{number}"
        _draw_series(upper, log["time_ps"], log["temperature_K"], colour, name)
        _draw_series(lower, log["time_ps"], change, colour)
    if bath_temperature is not None:
        upper.axhline(bath_temperature, color=GREY, linestyle="--", linewidth=1.2)
    end = max(float(log["time_ps"][-1]) for log in logs)
    if end > 0.0:
        upper.set_xlim(0.0, end)
    upper.tick_params(labelbottom=False)
    upper.set_ylabel("temperature (K)")
    lower.set_ylabel("potential energy\nchange (meV/atom)")
    lower.set_xlabel("time (ps)")
    if len(logs) <= _MOST_NAMES:
        upper.legend(
            frameon=False,
            fontsize=9,
            ncols=len(logs),
            columnspacing=1.0,
            handlelength=1.2,
            loc="lower left",
            bbox_to_anchor=(0.0, 1.0),
            borderaxespad=0.0,
        )
    drawn = [upper, lower]
    if ladder is not None:
        drawn += [figure.add_subplot(grid[0, 1]), figure.add_subplot(grid[1, 1])]
        _draw_places(drawn[2], ladder, end)
        _draw_rates(drawn[3], ladder)
    figure.align_ylabels([upper, lower])
    dress(*drawn)
    return figure


_MOST_NAMES: Final = 8
"""Of replicas, in a legend."""


def _graded(count: int) -> list[str]:
    """Colours from dark to light, for replicas by their number."""
    return [to_hex(colormaps["viridis"](0.9 * place / max(count - 1, 1))) for place in range(count)]


def _draw_places(axes: Axes, ladder: Ladder, end: float) -> None:
    """A row for each place, in the colour of the replica that has it."""
    replicas = np.argsort(ladder.places, axis=1)  # by their places
    edges = np.append(ladder.time_ps, end)
    if end <= ladder.time_ps[-1]:
        replicas, edges = replicas[:-1], edges[:-1]
    count = replicas.shape[1]
    if len(replicas):
        axes.pcolormesh(
            edges,
            np.arange(count + 1) - 0.5,
            replicas.T,
            cmap=ListedColormap(_graded(count)),
            vmin=-0.5,
            vmax=count - 0.5,
            rasterized=True,
        )
        axes.set_xlim(edges[0], edges[-1])
    shown = range(0, count, math.ceil(count / _MOST_NAMES))
    axes.set_yticks(shown, [ladder.labels[place] for place in shown])
    axes.set_ylabel(f"replica at each\n{ladder.place}")
    axes.set_xlabel("time (ps)")


def _draw_rates(axes: Axes, ladder: Ladder) -> None:
    percent = 100.0 * np.asarray(ladder.rates)
    places = np.arange(len(percent))
    axes.bar(places, np.nan_to_num(percent), color=BLUE, width=0.7)
    if len(percent) <= _MOST_NAMES:
        pairs = zip(ladder.labels, ladder.labels[1:], strict=False)
        axes.set_xticks(places, [f"{low}\n{high}" for low, high in pairs])
        for place, value in enumerate(percent):
            text = "no try" if math.isnan(value) else f"{value:.0f} %"
            height = 0.0 if math.isnan(value) else value
            axes.annotate(
                text, (place, height), (0, 2), textcoords="offset points", ha="center", fontsize=9
            )
        axes.set_xlabel(f"neighboring {ladder.neighbors}")
    else:
        shown = places[:: math.ceil(len(places) / _MOST_NAMES)]
        axes.set_xticks(shown, [ladder.labels[place] for place in shown])
        axes.set_xlabel(f"lower of two neighboring {ladder.neighbors}")
    axes.set_ylim(0.0, 110.0)
    axes.set_ylabel("accepted exchanges (%)")


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
    curves = [pairs.simulated.value]
    if pairs.reference is not None:
        distance, value = pairs.reference
        axes.plot(
            distance, value, color=ORANGE, linestyle="--", linewidth=1.8, label="training frames"
        )
        curves.append(value)
    axes.plot(
        pairs.simulated.distance,
        pairs.simulated.value,
        color=BLUE,
        label=f"this run, {pairs.simulated.frames} frames",
        **LINE,
    )
    axes.axhline(1.0, color=GREY, linewidth=0.8)
    axes.set_xlim(0.0, pairs.simulated.distance[-1])
    _scale_height(axes, curves)
    axes.set_xlabel(f"{pairs.pair} distance (Å)")
    axes.set_ylabel(f"{pairs.pair} radial distribution function g(r)")
    axes.legend(frameon=False, fontsize=9, loc="upper right")


_BOND: Final = 4.0
"""A first peak this many times higher than all beyond it is that of a bond."""


def _scale_height(axes: Axes, curves: Sequence[NDArray[np.float64]]) -> None:
    """Fits the axis of g(r) to what lies beyond bonds, whose peaks go on in logarithms above it."""
    highest, beyond_bonds = 1.0, 1.0
    for value in curves:
        peak = int(value.argmax())
        gap = np.flatnonzero(value[peak:] < 0.05)
        beyond = float(value[peak + gap[0] :].max()) if len(gap) else 0.0
        # A solid has peaks with nothing between them too, but none so far above the next.
        is_bond = beyond > 0.5 and value[peak] > _BOND * beyond
        highest = max(highest, float(value[peak]))
        beyond_bonds = max(beyond_bonds, beyond if is_bond else float(value[peak]))
    if highest <= _BOND * beyond_bonds:
        axes.set_ylim(0.0, 1.08 * highest)
        return
    linear = math.ceil(2.0 * 1.08 * beyond_bonds) / 2.0
    decades = math.log10(1.3 * highest / linear)
    axes.set_yscale("symlog", linthresh=linear, linscale=_LINEAR_SHARE * decades)
    axes.set_ylim(0.0, 1.3 * highest)
    step = 0.5 if linear < 4.0 else 1.0
    above = [2.0**power * linear for power in range(1, 1 + int(math.log2(1.3 * highest / linear)))]
    axes.set_yticks([*np.arange(0.0, linear + 0.1, step), *above])
    axes.yaxis.set_major_formatter(lambda value, place: f"{value:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.axhline(linear, color=GREY, linewidth=0.8, linestyle=":")
    axes.annotate(
        "logarithmic above this line",
        (1.0, linear),
        (0, 3),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        ha="right",
        color=GREY,
        fontsize=8,
    )


_LINEAR_SHARE: Final = 2.5
"""Height of the linear part of an axis of g(r), in units of that of the part above."""


Recorded = AveragesResult | DistributionResult | CorrelationResult | TemperaturesResult


def recorded_figure(result: Recorded, *, system: int = 0) -> Figure:
    """Draws one system of a result.

    Averages show every mean with its error, and how errors grow with the length of blocks
    until blocks are independent; distributions show g(r); correlations over time show the
    function and the diffusion coefficient that it gives up to each lag; temperatures of
    elements show both with two standard errors.

    Raises:
        InputError: there is no such system.
    """
    systems = _systems(result)
    if not 0 <= system < systems:
        raise InputError(f"There is no system {system} in {systems}; count from 0.")
    wide = isinstance(result, CorrelationResult)
    width = 8.5 if isinstance(result, AveragesResult) else 6.5
    which = f"system {system}, " if systems > 1 else ""
    steps = "step" if result.every == 1 else f"{result.every} steps"
    figure = blank_figure(
        10.0 if wide else width,
        4.6,
        result.kind[0].upper() + result.kind[1:],
        f"{which}{result.samples} samples, one every {steps}"
        + ("; a dot marks the error that is given" if isinstance(result, AveragesResult) else ""),
    )
    axes = [figure.add_subplot(1, 1 + wide, 1 + place) for place in range(1 + wide)]
    if isinstance(result, AveragesResult):
        _draw_errors(axes[0], result, system)
    elif isinstance(result, TemperaturesResult):
        _draw_temperatures(axes[0], result, system)
    elif isinstance(result, DistributionResult):
        _draw_distributions(axes[0], result, system)
    else:
        _draw_correlation(axes[0], result, system)
        _draw_diffusion(axes[1], result, system)
    dress(*axes)
    if axes[0].get_legend_handles_labels()[0] and not isinstance(result, AveragesResult):
        axes[0].legend(frameon=False, fontsize=9)
    return figure


def _systems(result: Recorded) -> int:
    """Number of systems of a result."""
    if isinstance(result, AveragesResult):
        return len(result.blocked.mean)
    if isinstance(result, TemperaturesResult):
        return len(result.kinetic.mean)
    return len(result.value)


def _draw_temperatures(axes: Axes, result: TemperaturesResult, system: int) -> None:
    """Both temperatures of each element side by side."""
    rows, colours = result.rows(system), _colours()
    places = np.arange(len(rows), dtype=float)
    for name, shift in (("kinetic", -0.1), ("configurational", 0.1)):
        means = [row[f"{name}_K"] for row in rows]
        errors = [2.0 * float(row[f"{name}_error_K"]) for row in rows]
        colour = next(colours)
        axes.errorbar(places + shift, means, errors, fmt="o", color=colour, label=name, capsize=3)
    axes.set_xticks(places, [str(row["element"]) for row in rows])
    axes.set_xlim(-0.5, len(rows) - 0.5)
    axes.set_ylabel("temperature (K), with two standard errors")


def _draw_errors(axes: Axes, result: AveragesResult, system: int) -> None:
    """Errors in units of that of uncorrelated samples; a dot marks the one that is reported.

    The legend has the means with their errors.
    """
    blocked, lengths = result.blocked, result.blocked.length
    table = {row["quantity"]: row for row in result.rows(system)}
    colours, words = _colours(), []
    for name in result.quantities:
        # The parts of the tensor would hide the rest, and kinetic energy goes as temperature.
        if name.startswith("pressure_") or name == "kinetic_energy":
            continue
        place = system, result.quantities.index(name)
        first = blocked.errors[(0, *place)] if len(lengths) else 0.0
        if first <= 1e-12 * abs(blocked.mean[place]):
            continue
        error = blocked.errors[(slice(None), *place)] / first
        spread = blocked.spreads[(slice(None), *place)] / first
        colour = next(colours)
        axes.errorbar(lengths, error, spread, fmt="none", ecolor=colour, alpha=0.5, capsize=2)
        axes.plot(lengths, error, color=colour, label=name.replace("_", " "), **LINE)
        level = blocked.level[place]
        if level >= 0:
            axes.plot(lengths[level], error[level], "o", color=colour, markersize=7)
        words.append(_mean_text(table[name], sure=bool(level >= 0)))
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("samples in a block, $2^n$")
    axes.set_ylabel("standard error from blocks of $2^n$\n/ that of independent samples")
    if words:
        lines = [line for line in axes.lines if not str(line.get_label()).startswith("_")]
        axes.legend(
            lines, words, frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0)
        )


def _mean_text(row: Mapping[str, Any], *, sure: bool) -> str:
    """Name, mean and error of a quantity, with two digits of the error."""
    decimals = max(0, 1 - math.floor(math.log10(row["error"]))) if row["error"] > 0.0 else 3
    unit = str(row["unit"]).replace("^3", "³")
    text = f"{row['mean']:,.{decimals}f} ± {row['error']:,.{decimals}f} {unit}"
    name = str(row["quantity"]).replace("_", " ")
    return f"{name}\n{text}" + ("" if sure else "\n(run too short to know its error)")


def _draw_distributions(axes: Axes, result: DistributionResult, system: int) -> None:
    for pair, value, colour in zip(result.pairs, result.value[system], _colours(), strict=False):
        if np.isfinite(value).all():
            axes.plot(result.distance, value, color=colour, label=pair, **LINE)
    axes.axhline(1.0, color=GREY, linewidth=0.8)
    axes.set_xlim(0.0, result.distance[-1])
    _scale_height(axes, [value for value in result.value[system] if np.isfinite(value).all()])
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
    axes.set_ylabel(
        "velocity autocorrelation / value at lag 0" if normal else f"{result.kind} (Å²)"
    )


def _draw_diffusion(axes: Axes, result: CorrelationResult, system: int) -> None:
    running = DIFFUSION * result.running_diffusion()[system]
    for element, value, colour in zip(result.elements, running, _colours(), strict=False):
        axes.plot(1e-3 * result.lag, value, color=colour, label=element, **LINE)
    axes.axhline(0.0, color=GREY, linewidth=0.8)
    axes.set_xlim(left=0.0)
    axes.set_xlabel("lag (ps)")
    axes.set_ylabel("diffusion coefficient (10⁻⁵ cm²/s)")


def _colours() -> Iterator[str]:
    return itertools.cycle(COLOURS)


_COLUMNS: Final = 3
"""Panels in a row."""

_MOST_PANELS: Final = 12
"""Types with a panel; the most frequent ones."""

_MOST_MARKERS: Final = 40
"""Points of a line, below which each is marked."""

_HIGHEST_WAVENUMBER: Final = 4500.0
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
    shown = result.wavenumber <= _HIGHEST_WAVENUMBER
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
    marker = "o" if len(time) < _MOST_MARKERS else None
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
