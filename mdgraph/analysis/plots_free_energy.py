"""Pictures of free energy profiles along one variable or two."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, MultipleLocator
from numpy.typing import NDArray

from mdgraph.analysis.free_energies import Barrier, FreeEnergyProfile, Well
from mdgraph.analysis.style import BLUE, COLOURS, LINE, ORANGE, blank_figure, dress

_HIGHEST: Final = 25.0
"""kT above the lowest value, where contours end."""

_CLEAR: Final = 0.06
"""Share of the width and of the height of a picture that a label keeps clear of others."""

_MOST_POINTS: Final = 4000
"""Of a trajectory in the lower panel."""


@dataclass(kw_only=True)
class ProfilePicture:
    """What is drawn.

    Attributes:
        profile: the profile.
        other: the same by reweighting; None without it.
        half_names: words for its halves.
        wells: its wells.
        barriers: its barriers.
        units: of the variables, empty if not known.
        factor: one kJ/mol in the unit of energies.
        energy_unit: its name.
        samples: (n, d) of each run or window.
        times: of these, ps; empty for windows.
        title: heading.
        subtitle: line under it.
        windows: whether the samples are those of windows.
    """

    profile: FreeEnergyProfile
    other: FreeEnergyProfile | None
    half_names: tuple[str, str]
    wells: Sequence[Well]
    barriers: Sequence[Barrier]
    units: Sequence[str]
    factor: float
    energy_unit: str
    samples: list[NDArray[np.float64]] = field(default_factory=list)
    times: list[NDArray[np.float64]] = field(default_factory=list)
    title: str
    subtitle: str
    windows: bool

    def degrees(self, axis: int) -> bool:
        """Whether a variable is drawn in degrees: one that turns once."""
        period = self.profile.grid.periods[axis]
        return period is not None and math.isclose(period, 2.0 * math.pi, rel_tol=1e-6)

    def scale(self, axis: int) -> float:
        """Of a variable, from its unit to the drawn one."""
        return 180.0 / math.pi if self.degrees(axis) else 1.0

    def label(self, axis: int) -> str:
        """Name of a variable with its unit."""
        unit = "degrees" if self.degrees(axis) else self.units[axis].replace("^3", "³")
        name = self.profile.grid.names[axis]
        return f"{name} ({unit})" if unit else name


def profile_figure(picture: ProfilePicture) -> Figure:
    """Draws a profile with its errors; along one variable also the samples below it."""
    if len(picture.profile.grid.names) == 1:
        return _along_one(picture)
    return _along_two(picture)


def _along_one(picture: ProfilePicture) -> Figure:
    figure = blank_figure(7.6, 6.4 if picture.samples else 4.8, picture.title, picture.subtitle)
    if picture.samples:
        axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(2.6, 1.0))
    else:
        axes, below = figure.add_subplot(), None
    profile, factor, lowest = picture.profile, picture.factor, picture.profile.lowest
    place = picture.scale(0) * profile.grid.centers[0]
    period = profile.grid.periods[0]
    turn = None if period is None else period * picture.scale(0)

    def line(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Points of a line; that of a periodic variable goes on to its ends."""
        heights = factor * (values - lowest)
        if turn is None:
            return place, heights
        return (
            np.concatenate([[place[-1] - turn], place, [place[0] + turn]]),
            np.concatenate([heights[-1:], heights, heights[:1]]),
        )

    for half, word, colour in zip(
        profile.halves, picture.half_names, ("#56B4E9", "#CC79A7"), strict=False
    ):
        axes.plot(*line(half), color=colour, linewidth=0.9, label=word)
    if picture.other is not None:
        axes.plot(
            *line(picture.other.values), color=ORANGE, linestyle="--", lw=1.2, label="reweighted"
        )
    error = profile.error()
    if np.isfinite(error).any():
        at, high = line(profile.values + error)
        axes.fill_between(
            at,
            line(profile.values - error)[1],
            high,
            color=BLUE,
            alpha=0.25,
            lw=0.0,
            label="standard error",
        )
    at, heights = line(profile.values)
    axes.plot(at, heights, color=BLUE, label="free energy", **LINE)
    _mark(axes, picture)
    top = float(np.nanmax(heights + np.nan_to_num(line(lowest + error)[1])))
    axes.set_ylim(-0.06 * top, 1.12 * top)
    axes.set_ylabel(f"free energy ({picture.energy_unit})")
    edges = picture.scale(0) * profile.grid.edges[0]
    axes.set_xlim(edges[0], edges[-1])
    axes.legend(frameon=False, fontsize=8.5, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    dress(axes)
    lower = axes if below is None else below
    if below is not None:
        _draw_samples(below, picture, edges)
    if picture.degrees(0):
        lower.xaxis.set_major_locator(MultipleLocator(60))
    lower.set_xlabel(picture.label(0))
    return figure


def _mark(axes: Axes, picture: ProfilePicture) -> None:
    """Writes heights at wells and barriers."""
    scale, factor = picture.scale(0), picture.factor
    marks: list[tuple[float, float, float, bool]] = [
        (scale * well.place[0], factor * well.height, factor * well.error, False)
        for well in picture.wells[1:]
    ]
    marks += [
        (scale * one.place[0], factor * one.height, factor * one.error, True)
        for one in picture.barriers
    ]
    width = scale * float(picture.profile.grid.edges[0][-1] - picture.profile.grid.edges[0][0])
    tall = factor * float(np.nanmax(picture.profile.values) - picture.profile.lowest)
    for place, height, error, above in _clear(marks, (width, tall)):
        text = f"{height:.1f}" if not math.isfinite(error) else f"{height:.1f} ± {error:.1f}"
        axes.annotate(
            text,
            (place, height),
            (0, 6 if above else -6),
            textcoords="offset points",
            ha="center",
            va="bottom" if above else "top",
            fontsize=8.5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.75},
        )


def _clear(
    marks: Sequence[tuple[float, float, float, bool]], spans: tuple[float, float]
) -> list[tuple[float, float, float, bool]]:
    """The marks whose labels do not overlap an earlier one."""
    drawn: list[tuple[float, float, float, bool]] = []
    for mark in marks:
        if not any(
            abs(mark[0] - other[0]) < _CLEAR * spans[0]
            and abs(mark[1] - other[1]) < _CLEAR * spans[1]
            for other in drawn
        ):
            drawn.append(mark)
    return drawn


def _draw_samples(axes: Axes, picture: ProfilePicture, edges: NDArray[np.float64]) -> None:
    """Histograms of windows, or the way of each run in time."""
    scale = picture.scale(0)
    columns = [scale * samples[:, 0] for samples in picture.samples]
    if picture.windows:
        fine = np.linspace(edges[0], edges[-1], 2 * (len(edges) - 1) + 1)
        for number, column in enumerate(columns):
            counts, _ = np.histogram(column, fine)
            colour = COLOURS[number % len(COLOURS)]
            axes.plot(fine[1:], counts, color=colour, lw=0.9, drawstyle="steps-pre")
        axes.set_ylabel("samples of\neach window")
    else:
        for number, (column, times) in enumerate(zip(columns, picture.times, strict=True)):
            step = max(1, len(column) * len(columns) // _MOST_POINTS)
            colour = COLOURS[number % len(COLOURS)]
            axes.plot(column[::step], times[::step], ".", color=colour, ms=1.5, rasterized=True)
        axes.set_ylabel("time (ps)")
        axes.invert_yaxis()
    dress(axes)


def _along_two(picture: ProfilePicture) -> Figure:
    figure = blank_figure(11.0, 5.0, picture.title, picture.subtitle)
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    profile, factor = picture.profile, picture.factor
    shape = profile.grid.shape
    heights = factor * (profile.values - profile.lowest).reshape(shape)
    errors = factor * profile.error().reshape(shape)
    top = min(float(np.nanmax(heights)), _HIGHEST * profile.kt * factor)
    levels = np.asarray(MaxNLocator(12).tick_values(0.0, top))
    _contours(figure, left, picture, heights, levels, "viridis_r", "free energy")
    contour = _joined(picture, heights)
    left.contour(*contour, levels=levels, colors="black", linewidths=0.4, alpha=0.5)
    for number, well in enumerate(picture.wells):
        place = [picture.scale(axis) * value for axis, value in enumerate(well.place)]
        left.plot(*place, "o", color="white", markeredgecolor="black", ms=5)
        left.annotate(
            str(number + 1),
            place,
            (5, 5),
            textcoords="offset points",
            fontsize=9,
            color="black",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.7},
        )
    for barrier in picture.barriers:
        place = [picture.scale(axis) * value for axis, value in enumerate(barrier.place)]
        left.plot(*place, "x", color=ORANGE, ms=6, mew=1.8)
    if np.isfinite(errors).any():
        shown = float(np.nanquantile(errors, 0.98))
        _contours(
            figure,
            right,
            picture,
            errors,
            np.linspace(0.0, shown or 1.0, 11),
            "magma_r",
            "standard error",
        )
    else:
        right.text(0.5, 0.5, "errors are not known", transform=right.transAxes, ha="center")
    for axes in (left, right):
        axes.set_xlabel(picture.label(0))
        axes.spines[["top", "right"]].set_visible(False)
        for axis, line in enumerate((axes.xaxis, axes.yaxis)):
            if picture.degrees(axis):
                line.set_major_locator(MultipleLocator(60))
    left.set_ylabel(picture.label(1))
    for axis, limit in enumerate((left.set_xlim, left.set_ylim)):
        edges = picture.scale(axis) * profile.grid.edges[axis]
        limit(edges[0], edges[-1])
    return figure


def _joined(picture: ProfilePicture, values: NDArray[np.float64]) -> tuple[Any, ...]:
    """Coordinates and values of contours; a periodic variable goes on to its ends."""
    grid = picture.profile.grid
    axes = []
    for axis, (centers, period) in enumerate(zip(grid.centers, grid.periods, strict=True)):
        ends = [[], []] if period is None else [[centers[-1] - period], [centers[0] + period]]
        axes.append(picture.scale(axis) * np.concatenate([ends[0], centers, ends[1]]))
        if period is not None:
            before, after = np.take(values, [-1], axis), np.take(values, [0], axis)
            values = np.concatenate([before, values, after], axis)
    return axes[0], axes[1], np.ma.masked_invalid(values).T


def _contours(
    figure: Figure,
    axes: Axes,
    picture: ProfilePicture,
    values: NDArray[np.float64],
    levels: NDArray[np.float64],
    colours: str,
    words: str,
) -> None:
    drawn = axes.contourf(*_joined(picture, values), levels=levels, cmap=colours, extend="max")
    bar = figure.colorbar(drawn, ax=axes, pad=0.02)
    if words == "standard error":
        bar.ax.yaxis.set_major_formatter(lambda value, place: f"{value:.2g}")
    bar.set_label(f"{words} ({picture.energy_unit})")
