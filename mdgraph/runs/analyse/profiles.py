"""Free energy profiles of biased runs: joined windows, sums of hills, reweighted samples."""

import logging
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mdgraph.analysis.free_energies import (
    MOLAR_BOLTZMANN,
    FreeEnergyProfile,
    ProfileGrid,
    WeightedSeries,
    normalise,
    profile_grid,
    weighted_profile,
)
from mdgraph.analysis.metadynamics import HillSum, log_weights
from mdgraph.analysis.series import (
    equilibrated_start,
    fewest_independent,
    independent_samples,
    round_trips,
    series_coordinates,
)
from mdgraph.analysis.umbrellas import (
    OVERLAP,
    JoinedWindows,
    StaticBias,
    UmbrellaWindow,
    join_windows,
)
from mdgraph.errors import InputError, name_some
from mdgraph.runs.analyse.biased_runs import BiasedRun, BiasedRuns
from mdgraph.units import KILOJOULE_PER_MOLE

logger = logging.getLogger(__name__)

METHODS: Final = ("mbar", "hills", "reweight", "histogram")

_FEWEST_ROWS: Final = 10
"""Rows of a COLVAR after equilibration; fewer say nothing."""

_FEWEST_INDEPENDENT: Final = 10
"""Independent samples of a window or a run, below which there is a warning."""

_FEWEST_EFFECTIVE: Final = 30
"""Independent samples of equal weight, below which there is a warning."""

_WARMER: Final = 0.1
"""Relative difference of the temperature of a run from its bath, above which it warns."""

_SIGMAS: Final = 3.0
"""Errors by which the temperature or the start of a run differ."""

_AVERAGED: Final = 0.5
"""Share of the time over which sums of hills that keep their height are averaged."""

_METADYNAMICS_START: Final = 0.1
"""Share of a run of metadynamics that is left out of its weights, while the first hills fall."""

_POINTS: Final = {1: 400, 2: 100, 3: 30}
"""Of each variable, where c(t) is integrated, by the number of variables."""

_UNITS: Final = {"kJ/mol": 1.0, "kcal/mol": 1.0 / 4.184, "eV": KILOJOULE_PER_MOLE}
"""One kJ/mol in each unit but kT."""

_COMPARED: Final = 8.0
"""kT above the lowest value, up to which halves are compared."""


@dataclass(frozen=True, kw_only=True)
class FreeEnergyOptions:
    """How to make a profile.

    Attributes:
        along: names of one variable or two; None for those that were biased.
        method: one of `METHODS`, or None for what the biases permit.
        temperature: K, of runs that do not tell theirs.
        hills: of COLVAR files that are given by path.
        windows: table of umbrella windows of another program.
        discard_ps: left out at the start; None finds where equilibrium begins.
        bins: of each variable.
        ranges: of each variable.
        ends: between which round trips along the first variable are counted.
        radial: whether 2 kT ln r is added, so that the profile of a free pair is flat.
        unit: of energies: kJ/mol, kcal/mol, eV or kT.
        resamples: of the bootstrap.
        seed: of the bootstrap.
    """

    along: tuple[str, ...] | None = None
    method: str | None = None
    temperature: float | None = None
    hills: tuple[Path, ...] = ()
    windows: Path | None = None
    discard_ps: float | None = None
    bins: tuple[int, ...] | None = None
    ranges: tuple[tuple[float, float], ...] | None = None
    ends: tuple[float, float] | None = None
    radial: bool = False
    unit: str = "kJ/mol"
    resamples: int = 100
    seed: int = 0

    def energy_factor(self, kt: float) -> float:
        """One kJ/mol in the unit of energies, at a temperature of `kt` kJ/mol."""
        return 1.0 / kt if self.unit == "kT" else _UNITS[self.unit]


@dataclass(kw_only=True)
class ProfileResult:
    """A profile and what is said of it.

    Attributes:
        method: one of `METHODS`.
        profile: the profile.
        half_names: words for the parts of the data in its halves.
        other: the same by reweighting, of a sum of hills; None without it.
        numbers: of the runs, for JSON.
        windows: what MBAR says; None of other methods.
        warnings: sentences.
        samples: of each run or window, (n, d), for the picture.
        times: of these, ps.
    """

    method: str
    profile: FreeEnergyProfile
    half_names: tuple[str, str] = ("first half", "second half")
    other: FreeEnergyProfile | None = None
    numbers: dict[str, Any] = field(default_factory=dict)
    windows: JoinedWindows | None = None
    warnings: list[str] = field(default_factory=list)
    samples: list[NDArray[np.float64]] = field(default_factory=list)
    times: list[NDArray[np.float64]] = field(default_factory=list)


def biased_profile(runs: BiasedRuns, options: FreeEnergyOptions) -> ProfileResult:
    """The profile of runs by the method asked for, or by what their biases permit; logs warnings.

    Raises:
        InputError: a wrong option, or runs that permit no profile.
    """
    method = options.method or _method(runs, options.along)
    along = options.along or _default_variables(runs)
    _check_options(options, along, runs)
    result = _MAKERS[method](runs, along, options)
    result.warnings[:0] = runs.warnings + _exchange_warnings(runs)
    if runs.exchanges:
        result.numbers["exchanges"] = list(runs.exchanges)
    for sentence in result.warnings:
        logger.warning("%s", sentence)
    if options.radial:
        result.profile = _without_volume(result.profile)
        result.other = None if result.other is None else _without_volume(result.other)
    return result


def _method(runs: BiasedRuns, along: tuple[str, ...] | None) -> str:
    """What the biases permit."""
    if runs.hills:
        same = along is None or set(along) == set(runs.hills[0].names)
        if not same or len(runs.hills[0].names) > 2:
            return "reweight"
        if runs.beside_hills:
            logger.info("%s; samples are reweighted instead.", _biased_sum(runs))
            return "reweight"
        return "hills"
    if any(run.static for run in runs.runs):
        return "mbar"
    return "reweight" if any(run.fixed_columns for run in runs.runs) else "histogram"


def _biased_sum(runs: BiasedRuns) -> str:
    return (
        "The hills add up to the free energy with other biases in it "
        f"({name_some(runs.beside_hills)})"
    )


def _default_variables(runs: BiasedRuns) -> tuple[str, ...]:
    """The variables that were biased, or the only ones."""
    if runs.hills:
        names = list(runs.hills[0].names)
    else:
        biases = [bias for run in runs.runs for bias in run.static if bias.kind == "harmonic"]
        names = list(dict.fromkeys(name for bias in biases for name in bias.variables))
    if not names:
        names = runs.runs[0].variables
    if not 1 <= len(names) <= 2:
        raise InputError(
            f"There are {len(names)} variables ({name_some(names, 20)}); choose one or two with "
            "--along."
        )
    return tuple(names)


def _check_options(options: FreeEnergyOptions, along: tuple[str, ...], runs: BiasedRuns) -> None:
    """Raises InputError for options that do not fit the variables or the runs."""
    if len(along) > 2 or len(set(along)) < len(along):
        raise InputError(f"--along is {','.join(along)}; give one variable or two.")
    for name, values in (("--bins", options.bins), ("--range", options.ranges)):
        if values is not None and len(values) != len(along):
            raise InputError(
                f"{name} has {len(values)} entries for {len(along)} variables; give one for each."
            )
    if options.radial and len(along) > 1:
        raise InputError("--radial is for the profile along one distance; give one variable.")
    first = runs.runs[0].variables if runs.runs else []
    for run in runs.runs:
        if set(run.variables) != set(first):
            raise InputError(
                f"{run.name} has the variables {name_some(run.variables, 20)}, and "
                f"{runs.runs[0].name} has {name_some(first, 20)}; give runs of the same."
            )
    for hills in runs.hills[1:]:
        if hills.names != runs.hills[0].names:
            raise InputError(
                f"Some hills are of {', '.join(runs.hills[0].names)} and others of "
                f"{', '.join(hills.names)}; give runs of the same variables."
            )
    if runs.hills and any(run.hills is None for run in runs.runs):
        free = next(run.name for run in runs.runs if run.hills is None)
        raise InputError(f"{free} has no hills and other runs have; give runs of one kind.")
    if runs.hills and runs.runs:
        missing = set(runs.hills[0].names) - set(first)
        if missing:
            raise InputError(
                f"The hills are of {', '.join(runs.hills[0].names)}, and {runs.runs[0].name} has "
                f"no {name_some(sorted(missing))}; give the COLVAR and HILLS of one run."
            )


@dataclass(frozen=True, eq=False)
class _Equilibrated:
    """Rows of a run after its equilibration."""

    run: BiasedRun
    start: int
    values: NDArray[np.float64]
    indicators: NDArray[np.float64]
    independent: float

    @property
    def inefficiency(self) -> float:
        return len(self.values) / self.independent

    def numbers(self) -> dict[str, Any]:
        times = self.run.times
        return {
            "file": self.run.name,
            "rows": len(times),
            "equilibrated_from_ps": float(times[self.start]),
            "end_ps": float(times[-1]),
            "independent_samples": round(self.independent, 1),
            "statistical_inefficiency": round(self.inefficiency, 2),
        }


def _equilibrium_part(
    run: BiasedRun,
    along: Sequence[str],
    runs: BiasedRuns,
    options: FreeEnergyOptions,
    share: float | None = None,
) -> _Equilibrated:
    """Leaves out what comes before equilibrium, or a share of the run.

    Raises:
        InputError: too few rows are left.
    """
    hills = runs.hills[run.hills].names if run.hills is not None else ()
    biased = [name for bias in run.static for name in bias.variables]
    indicator_names = list(dict.fromkeys([*along, *biased, *hills]))
    domains = runs.domains
    periods = tuple(
        domains[name][1] - domains[name][0] if name in domains else None for name in indicator_names
    )
    indicators = series_coordinates(run.columns(indicator_names), periods)
    times = run.times
    if len(times) < _FEWEST_ROWS:
        raise InputError(
            f"{run.name} has {len(times)} rows, which are too few; run longer, or write more."
        )
    if options.discard_ps is not None:
        start = int(np.count_nonzero(times < times[0] + options.discard_ps * (1.0 - 1e-9)))
    elif share is not None:
        start = min(int(share * len(times)), len(times) - _FEWEST_ROWS)
    else:
        start = min(equilibrated_start(indicators), len(times) - _FEWEST_ROWS)
    if len(times) - start < _FEWEST_ROWS:
        raise InputError(
            f"{run.name} has {len(times) - start} rows after {options.discard_ps:g} ps, which are "
            "too few; discard less."
        )
    indicators = indicators[start:]
    return _Equilibrated(
        run, start, run.columns(along)[start:], indicators, fewest_independent(indicators)
    )


def _doubts(
    parts: Sequence[_Equilibrated], profile: FreeEnergyProfile, options: FreeEnergyOptions
) -> list[str]:
    """Warnings about samples that are few, or not those of equilibrium at the temperature."""
    warnings = _short(parts) + _warm(parts)
    longer = "run longer, or leave out more of the start by --discard-ps"
    drifting = [part.run.name for part in parts if options.discard_ps is None and _drifts(part)]
    if drifting:
        warnings.append(
            f"The first fifth of {name_some(drifting, 4)} differs from the rest by more than "
            f"{_SIGMAS:g} errors, and no start was found that could be left out; {longer}."
        )
    apart = options.energy_factor(profile.kt) * profile.between_halves()
    if apart > 0.0:
        warnings.append(
            f"The two halves of the samples differ by up to {apart:.3g} {options.unit}, which is "
            f"more than their errors; {longer}."
        )
    return warnings


def _drifts(part: _Equilibrated) -> bool:
    """Whether nothing was left out of a run, though its first fifth is not as the rest."""
    if part.start:
        return False
    count = len(part.indicators) // 5
    for column in part.indicators.T:
        first, rest = column[:count], column[count:]
        separation = len(rest) / independent_samples(rest)
        error = rest.std() * math.sqrt(separation * (1.0 / len(first) + 1.0 / len(rest)))
        if abs(first.mean() - rest.mean()) > _SIGMAS * error:
            return True
    return False


def _warm(parts: Sequence[_Equilibrated]) -> list[str]:
    """A warning about runs whose mean temperature is not that of their bath."""
    bath = parts[0].run.temperature
    others = []
    for part in parts:
        temperatures = part.run.temperatures(float(part.run.times[part.start]))
        if len(temperatures) < _FEWEST_ROWS:
            continue
        mean = float(temperatures.mean())
        error = float(temperatures.std()) / math.sqrt(independent_samples(temperatures))
        if abs(mean - bath) > max(_WARMER * bath, _SIGMAS * error):
            others.append(f"{part.run.name} ({mean:.0f} K)")
    if not others:
        return []
    sentence = (
        f"The mean temperature is not the {bath:g} K of the bath in {name_some(others, 4)}; a "
        "spring that was pulled from far away heats the system, and a start at a minimum cools it: "
        "leave out more of the start by --discard-ps, or run longer."
    )
    return [sentence]


def _short(parts: Sequence[_Equilibrated]) -> list[str]:
    """A warning about runs with few independent samples."""
    few = [part for part in parts if part.independent < _FEWEST_INDEPENDENT]
    if not few:
        return []
    names = name_some([part.run.name for part in few], 4)
    least = min(part.independent for part in few)
    sentence = (
        f"Too few independent samples in {names}: {least:.2g}, where {_FEWEST_INDEPENDENT} are "
        "few; errors are not known well, so run longer."
    )
    return [sentence]


def _grid(
    runs: BiasedRuns,
    along: Sequence[str],
    samples: NDArray[np.float64],
    options: FreeEnergyOptions,
) -> ProfileGrid:
    domains = runs.domains
    return profile_grid(
        along, samples, [domains.get(name) for name in along], options.bins, options.ranges
    )


def _trips(
    parts: Sequence[_Equilibrated], grid: ProfileGrid, options: FreeEnergyOptions
) -> dict[str, Any]:
    """Round trips of the whole runs along each variable, and between which ends."""
    trips = {}
    for axis, (name, period) in enumerate(zip(grid.names, grid.periods, strict=True)):
        if axis == 0 and options.ends is not None:
            ends = options.ends
        elif period is not None:
            low = float(grid.edges[axis][0])
            ends = (low + 0.25 * period, low + 0.75 * period)
        else:
            together = np.concatenate([part.values[:, axis] for part in parts])
            low, high = (float(value) for value in np.quantile(together, [0.05, 0.95]))
            ends = (low, high)
        counts = [round_trips(part.run.columns([name])[:, 0], ends, period) for part in parts]
        trips[name] = {"ends": list(ends), "count": sum(counts), "by_run": counts}
    return trips


def _histogram(
    runs: BiasedRuns, along: tuple[str, ...], options: FreeEnergyOptions
) -> ProfileResult:
    """-kT ln p of unbiased runs."""
    if not runs.runs:
        raise InputError("HILLS alone have no samples; give the COLVAR too.")
    result = _profile_of_samples(runs, along, options, biased=False)
    if are_biased(runs):
        result.warnings.insert(
            0,
            "A histogram leaves the biases of the runs in the samples, so this is no free energy "
            "of the system without them; leave --method out.",
        )
    return result


def are_biased(runs: BiasedRuns) -> bool:
    """Whether a bias acted on any samples."""
    return any(run.fixed_columns or run.metadynamics is not None for run in runs.runs)


def _profile_by_reweighting(
    runs: BiasedRuns, along: tuple[str, ...], options: FreeEnergyOptions
) -> ProfileResult:
    """Samples weighted by exp(V/kT), for metadynamics by exp((V - c(t))/kT)."""
    if not runs.runs:
        raise InputError("HILLS alone have no samples to reweight; give the COLVAR too.")
    unequal = len({(run.static, run.fixed_columns) for run in runs.runs}) > 1
    unknown = any(run.fixed_columns and not run.static for run in runs.runs) and not runs.hills
    if len(runs.runs) > 1 and (unknown or unequal):
        raise InputError(
            "Several runs with biases are joined by their windows; give those of other programs "
            "by --windows TABLE, with a row '#! FIELDS file phi kappa_phi' for each."
        )
    return _profile_of_samples(runs, along, options, biased=True)


def _profile_of_samples(
    runs: BiasedRuns, along: tuple[str, ...], options: FreeEnergyOptions, *, biased: bool
) -> ProfileResult:
    kt = MOLAR_BOLTZMANN * runs.temperature
    share = _METADYNAMICS_START if runs.hills else None
    parts = [_equilibrium_part(run, along, runs, options, share) for run in runs.runs]
    grid = _grid(runs, along, np.concatenate([part.values for part in parts]), options)
    series = []
    offsets: dict[
        int, tuple[NDArray[np.float64], NDArray[np.float64]]
    ] = {}  # of shared hills, once
    for part in parts:
        weights = np.zeros(len(part.values))
        if biased:
            for column in part.run.fixed_columns:
                weights += part.run.table.column(column)[part.start :] / kt
            if part.run.metadynamics is not None and part.run.hills is not None:
                number = part.run.hills
                if number not in offsets:
                    hills = runs.hills[number]
                    offsets[number] = hills.offsets(_points(hills), kt)
                weights += log_weights(
                    offsets[number],
                    part.run.table.column(part.run.metadynamics)[part.start :],
                    part.run.times[part.start :],
                    kt,
                )
        series.append(WeightedSeries(part.values, weights, part.indicators))
    profile = weighted_profile(series, grid, kt, options.resamples, options.seed)
    result = ProfileResult(
        method="reweight" if biased else "histogram",
        profile=profile,
        numbers={
            "runs": [part.numbers() for part in parts],
            "round_trips": _trips(parts, grid, options),
        },
        warnings=_doubts(parts, profile, options),
        samples=[part.values for part in parts],
        times=[part.run.times[part.start :] for part in parts],
    )
    if biased:
        joined = np.concatenate([part.log_weights for part in series])
        weights = np.exp(joined - joined.max())
        effective = float(weights.sum() ** 2 / (weights**2).sum())
        effective *= sum(part.independent for part in parts) / len(weights)
        result.numbers["effective_samples"] = round(effective, 1)
        if effective < _FEWEST_EFFECTIVE:
            result.warnings.append(
                f"The weights leave {effective:.2g} effective samples, where {_FEWEST_EFFECTIVE} "
                "are few; run longer, or discard more of the start."
            )
    return result


def _points(hills: HillSum) -> NDArray[np.float64]:
    """Points over the domain of hills, or over where they are, (n, d)."""
    count = len(hills.names)
    if count > max(_POINTS):
        raise InputError(
            f"The hills are of {count} variables; weights are computed for at most {max(_POINTS)}."
        )
    axes = []
    for axis, domain in enumerate(hills.domains):
        column, width = hills.centers[:, axis], float(hills.sigmas[:, axis].max())
        low, high = (column.min() - width, column.max() + width) if domain is None else domain
        axes.append(np.linspace(low, high, _POINTS[count], endpoint=domain is None))
    return np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=1)


def _hill_profile(
    runs: BiasedRuns, along: tuple[str, ...], options: FreeEnergyOptions
) -> ProfileResult:
    """Minus the sum of hills; of hills that keep their height, its mean over the last half.

    Where there is a COLVAR, errors are those of its reweighted samples and the difference of the
    two profiles.
    """
    if not runs.hills:
        raise InputError("No run has HILLS; leave --method out, or give runs of metadynamics.")
    names = runs.hills[0].names
    if set(along) != set(names):
        raise InputError(
            f"The hills are of {', '.join(names)}; a profile along {', '.join(along)} takes "
            "--method reweight."
        )
    if runs.beside_hills:
        raise InputError(f"{_biased_sum(runs)}; leave --method out, and samples are reweighted.")
    kt = MOLAR_BOLTZMANN * runs.temperature
    order = [names.index(name) for name in along]
    samples = np.concatenate([hills.centers[:, order] for hills in runs.hills])
    grid = _grid(runs, along, samples, options)
    mesh = np.meshgrid(*grid.centers, indexing="ij")
    points = np.empty((grid.size, len(names)))
    for axis, place in enumerate(order):
        points[:, place] = mesh[axis].ravel()

    def mean_of(share: float) -> NDArray[np.float64]:
        parts = []
        for hills in runs.hills:
            length = hills.times[-1] - hills.times[0]
            end = hills.times[0] + share * length + 1e-9 * max(abs(length), 1.0)
            known = hills.before(end)
            if hills.bias_factor <= 1.0:
                known = known.mean_from(hills.times[0] + (1.0 - _AVERAGED) * share * length)
            parts.append(normalise(known.free_energy(points), grid, kt))
        return normalise(np.mean(parts, axis=0), grid, kt)

    profile = FreeEnergyProfile(
        grid=grid, kt=kt, values=mean_of(1.0), halves=(mean_of(0.5), mean_of(0.75))
    )
    result = ProfileResult(
        method="hills",
        profile=profile,
        half_names=("after half of the time", "after 3/4 of the time"),
        numbers={
            "hills": [
                {
                    "count": len(hills.heights),
                    "bias_factor": hills.bias_factor,
                    "last_height_over_first": float(
                        np.mean(hills.heights[-20:]) / np.mean(hills.heights[:20])
                    ),
                }
                for hills in runs.hills
            ]
        },
    )
    if runs.runs:
        ranges = tuple((float(edges[0]), float(edges[-1])) for edges in grid.edges)
        same = replace(options, bins=grid.shape, ranges=ranges)
        other = _profile_by_reweighting(runs, along, same)
        result.other = other.profile
        result.numbers |= other.numbers
        result.warnings = other.warnings
        result.samples, result.times = other.samples, other.times
        if other.profile.resamples is not None:
            profile.scale = other.profile.scale
            profile.resamples = profile.values + other.profile.resamples - other.profile.values
            profile.doubt = profile.values - other.profile.values
        apart = rms_difference(profile.values, other.profile.values, kt)
        result.numbers["reweighted_rms"] = apart / kt
        if apart > kt:
            result.warnings.append(
                f"The sum of hills and the reweighted samples differ by {apart / kt:.2g} kT, so the"
                " run is not converged; run longer."
            )
    return result


def rms_difference(one: NDArray[np.float64], other: NDArray[np.float64], kt: float) -> float:
    """Root mean square difference up to 8 kT above the lowest value of the first profile."""
    with np.errstate(invalid="ignore"):
        low = (one - np.nanmin(one) < _COMPARED * kt) & np.isfinite(other)
    return float(np.sqrt(np.mean((one - other)[low] ** 2))) if low.any() else math.nan


def _profile_by_mbar(
    runs: BiasedRuns, along: tuple[str, ...], options: FreeEnergyOptions
) -> ProfileResult:
    """Windows with static biases, joined by MBAR."""
    if runs.hills:
        raise InputError("MBAR joins fixed biases, and hills grow; use --method reweight.")
    kt = MOLAR_BOLTZMANN * runs.temperature
    parts = [_equilibrium_part(run, along, runs, options) for run in runs.runs]
    grid = _grid(runs, along, np.concatenate([part.values for part in parts]), options)
    states: dict[tuple[StaticBias, ...], list[_Equilibrated]] = defaultdict(list)
    for part in parts:
        states[part.run.static].append(part)
    biases = list(states)
    windows = []
    for number, members in enumerate(states.values()):
        rows = [
            part.start + np.arange(0.0, len(part.values), part.inefficiency).astype(np.int64)
            for part in members
        ]
        energies = np.zeros((len(biases), sum(map(len, rows))))
        for place, others in enumerate(biases):
            for bias in others:
                values = [
                    part.run.columns(bias.variables)[row]
                    for part, row in zip(members, rows, strict=True)
                ]
                energies[place] += bias.energy(np.concatenate(values)) / kt
        name, centre = _window_name(number, biases[number])
        values = [part.run.columns(along)[row] for part, row in zip(members, rows, strict=True)]
        windows.append(UmbrellaWindow(name, centre, np.concatenate(values), energies))
    joined = join_windows(windows, grid, kt, options.resamples, options.seed)
    warnings = _doubts(parts, joined.profile, options)
    for one, other, shared in joined.links:
        if shared < OVERLAP:
            middle = _between(biases[one], biases[other])
            warnings.append(
                f"Windows {windows[one].name} and {windows[other].name} overlap by {shared:.2g}, "
                f"less than {OVERLAP}; put another window {middle}."
            )
    return ProfileResult(
        method="mbar",
        profile=joined.profile,
        numbers={
            "runs": [part.numbers() for part in parts],
            "windows": [
                {
                    "name": window.name,
                    "samples": len(window.values),
                    "free_energy_kT": float(value),
                }
                for window, value in zip(windows, joined.free_energies, strict=True)
            ],
            "overlap": np.round(joined.overlap, 5).tolist(),
            "links": [
                {"windows": [windows[one].name, windows[other].name], "overlap": shared}
                for one, other, shared in joined.links
            ],
        },
        windows=joined,
        warnings=warnings,
        samples=[window.values for window in windows],
    )


def _window_name(number: int, biases: Sequence[StaticBias]) -> tuple[str, tuple[float, ...]]:
    """The number of a window and its centres."""
    springs = [bias for bias in biases if bias.kind == "harmonic"]
    if not springs:
        return f"{number} (without a spring)", ()
    text = ", ".join(
        f"{name} {centre:.4g}"
        for bias in springs
        for name, centre in zip(bias.variables, bias.centre, strict=True)
    )
    return f"{number} ({text})", tuple(value for bias in springs for value in bias.centre)


def _between(one: Sequence[StaticBias], other: Sequence[StaticBias]) -> str:
    """Where a window between two others has its centre."""
    words = []
    for first, second in zip(one, other, strict=False):
        if first.kind == second.kind == "harmonic" and first.variables == second.variables:
            for name, period, low, high in zip(
                first.variables, first.periods, first.centre, second.centre, strict=True
            ):
                change = high - low
                if period is not None:
                    change -= period * round(change / period)
                words.append(f"{name} = {low + 0.5 * change:.4g}")
    return f"at {', '.join(words)}" if words else "between them"


def _exchange_warnings(runs: BiasedRuns) -> list[str]:
    """Warnings about neighboring windows between which no exchange was accepted."""
    warnings = []
    for exchange in runs.exchanges:
        pairs = [
            f"{low} and {low + 1}"
            for low, count in enumerate(exchange["accepted"])
            if not count and exchange["attempted"][low] >= _FEWEST_ROWS
        ]
        if pairs:
            warnings.append(
                f"No exchange between the windows {name_some(pairs)} of {exchange['run']} was "
                "accepted, so that replicas do not pass there; put a window in between."
            )
    return warnings


def _without_volume(profile: FreeEnergyProfile) -> FreeEnergyProfile:
    """Adds 2 kT ln r, the free energy of the shell of a pair at a distance."""
    distances = profile.grid.centers[0]
    if distances.min() <= 0.0:
        raise InputError("--radial is for distances, and this variable is not above 0.")
    volume = 2.0 * profile.kt * np.log(distances)
    return FreeEnergyProfile(
        grid=profile.grid,
        kt=profile.kt,
        values=profile.values + volume,
        resamples=None if profile.resamples is None else profile.resamples + volume,
        halves=tuple(half + volume for half in profile.halves),
        scale=profile.scale,
        doubt=profile.doubt,
    )


_MAKERS: Final = {
    "mbar": _profile_by_mbar,
    "hills": _hill_profile,
    "reweight": _profile_by_reweighting,
    "histogram": _histogram,
}
