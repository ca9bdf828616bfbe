"""`mdgraph free-energy`: the folder of a profile, with its table, its numbers and its picture."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from mdgraph import __version__
from mdgraph.analysis.free_energies import MOLAR_BOLTZMANN, Barrier, Well
from mdgraph.analysis.plots_free_energy import ProfilePicture, profile_figure
from mdgraph.engine.observables.base import finite_or_null
from mdgraph.errors import name_some, printable
from mdgraph.runs.analyse.biased_runs import BiasedRuns, read_biased_runs
from mdgraph.runs.analyse.profiles import (
    FreeEnergyOptions,
    ProfileResult,
    are_biased,
    biased_profile,
    rms_difference,
)
from mdgraph.runs.analyse.report import new_results, refuse_folder

TABLE: Final = "free_energy.csv"
NUMBERS: Final = "free_energy.json"
PICTURE: Final = "free_energy.png"

_APART: Final = 0.01
"""Share of the probability that is not joined to the deepest well, from which on it is said."""

_MOST_LINES: Final = 8
"""Wells and barriers that are printed."""


def free_energy(
    paths: Sequence[Path], out: Path, options: FreeEnergyOptions, *, overwrite: bool = False
) -> list[str]:
    """Makes a profile of runs and writes a folder with its table, numbers and picture.

    Args:
        paths: folders of runs, or COLVAR and HILLS files.
        out: a new folder; it appears once it is complete.
        options: how.
        overwrite: whether a profile in the folder is replaced.

    Returns:
        Sentences that say how deep wells and how high barriers are.

    Raises:
        InputError: a wrong option, or runs that permit no profile.
        FileError: a file cannot be read or written; the folder is unchanged then.
    """
    refuse_folder(out, NUMBERS, overwrite=overwrite)
    runs = read_biased_runs(paths, options.temperature, options.hills, options.windows)
    result = biased_profile(runs, options)
    along = result.profile.grid.names
    factor = options.energy_factor(MOLAR_BOLTZMANN * runs.temperature)
    wells = result.profile.wells()
    barriers = result.profile.barriers(wells)
    units = [runs.unit(name) for name in along]
    about = {
        "mdgraph": __version__,
        "method": result.method,
        "temperature_K": runs.temperature,
        "energy_unit": options.unit,
        "variables": [
            {"name": name, "unit": unit, "period": period}
            for name, unit, period in zip(along, units, result.profile.grid.periods, strict=True)
        ],
        "wells": [_well_numbers(well, along, factor) for well in wells],
        "barriers": [_barrier_numbers(barrier, along, factor) for barrier in barriers],
        "halves_rms": _apart(result, factor),
        **result.numbers,
        "warnings": result.warnings,
    }
    title = _title(result, runs)
    picture = ProfilePicture(
        profile=result.profile,
        other=result.other,
        half_names=result.half_names,
        wells=wells,
        barriers=barriers,
        units=units,
        factor=factor,
        energy_unit=options.unit,
        samples=result.samples,
        times=result.times,
        title=title,
        subtitle=_subtitle(result, runs),
        windows=result.method == "mbar",
    )
    with new_results(out, NUMBERS, overwrite=overwrite) as folder:
        (folder / TABLE).write_text(_table(result, units, options.unit, factor), encoding="utf-8")
        text = json.dumps(finite_or_null(about), indent=1) + "\n"
        (folder / NUMBERS).write_text(text, encoding="utf-8")
        profile_figure(picture).savefig(folder / PICTURE)
    return _sentences(title, result, wells, barriers, units, options.unit, factor, out)


_TITLES: Final = {
    "mbar": "Free energy by MBAR",
    "hills": "Free energy by the sum of hills",
    "reweight": "Free energy of reweighted samples",
    "histogram": "Free energy of unbiased samples",
}


def _title(result: ProfileResult, runs: BiasedRuns) -> str:
    if result.method == "histogram" and are_biased(runs):
        return "-kT ln p of biased samples"
    return _TITLES[result.method]


def _subtitle(result: ProfileResult, runs: BiasedRuns) -> str:
    parts = [f"{runs.temperature:g} K"]
    if result.windows is not None:
        count = len(result.windows.free_energies)
        parts.append(f"{count} window{'s' * (count != 1)}")
        if result.windows.links:
            parts.append(f"smallest overlap {min(one[2] for one in result.windows.links):.2g}")
    elif runs.runs:
        parts.append(f"{len(runs.runs)} run{'s' * (len(runs.runs) != 1)}")
    if runs.hills:
        parts.append(f"{sum(len(hills.heights) for hills in runs.hills):,} hills")
    if "runs" in result.numbers:
        total = sum(one["independent_samples"] for one in result.numbers["runs"])
        parts.append(f"{total:,.0f} independent samples")
    return ", ".join(parts)


def _table(result: ProfileResult, units: Sequence[str], unit: str, factor: float) -> str:
    """CSV: middle of the bins, F, its error and the halves, empty where there is nothing."""
    profile = result.profile
    energy = unit.replace("/", "_per_")
    names = [
        f"{name}_{unit.replace('^', '')}" if unit else name
        for name, unit in zip(profile.grid.names, units, strict=True)
    ]
    lowest = profile.lowest
    halves = [word.replace(" ", "_").replace("3/4", "three_quarters") for word in result.half_names]
    columns = {
        f"free_energy_{energy}": profile.values - lowest,
        f"error_{energy}": profile.error(),
    }
    for word, half in zip(halves, profile.halves, strict=False):
        columns[f"{word}_{energy}"] = half - lowest
    if result.other is not None:
        columns[f"reweighted_{energy}"] = result.other.values - lowest
    lines = [",".join([*names, *columns])]
    for number in range(profile.grid.size):
        place = [f"{value:.8g}" for value in profile.grid.place(number)]
        numbers = [factor * float(column[number]) for column in columns.values()]
        lines.append(
            ",".join(place + [f"{one:.6g}" if math.isfinite(one) else "" for one in numbers])
        )
    return "\n".join(lines) + "\n"


def _well_numbers(well: Well, along: Sequence[str], factor: float) -> dict[str, Any]:
    return {
        "place": dict(zip(along, well.place, strict=True)),
        "free_energy": factor * well.height,
        "error": factor * well.error,
        "share": well.share,
        "difference_of_shares": factor * well.difference,
        "difference_error": factor * well.difference_error,
    }


def _barrier_numbers(barrier: Barrier, along: Sequence[str], factor: float) -> dict[str, Any]:
    return {
        "between_wells": list(barrier.between),
        "place": dict(zip(along, barrier.place, strict=True)),
        "free_energy": factor * barrier.height,
        "error": factor * barrier.error,
        "from_wells": [factor * height for height in barrier.from_wells],
    }


def _apart(result: ProfileResult, factor: float) -> float:
    """RMS difference of the two halves."""
    if len(result.profile.halves) < 2:
        return math.nan
    first, second = result.profile.halves
    return factor * rms_difference(first, second, result.profile.kt)


def _sentences(
    title: str,
    result: ProfileResult,
    wells: Sequence[Well],
    barriers: Sequence[Barrier],
    units: Sequence[str],
    unit: str,
    factor: float,
    out: Path,
) -> list[str]:
    names = result.profile.grid.names

    def where(place: Sequence[float]) -> str:
        texts = (
            f"{name} {value:.3g}{f' {unit}' * bool(unit)}"
            for name, value, unit in zip(names, place, units, strict=True)
        )
        return ", ".join(texts)

    lines = [f"{title} along {', '.join(names)}; {out / PICTURE}"]
    for number, well in enumerate(wells[:_MOST_LINES]):
        text = f"Well {number + 1} at {where(well.place)}: {100.0 * well.share:.3g} %"
        if len(wells) == 1 and result.profile.within_errors:
            text += "; other minima are within the errors"
        if number:
            text += f", {_with_error(factor * well.height, factor * well.error, unit)} above well 1"
        lines.append(text)
    for barrier in barriers[:_MOST_LINES]:
        one, other = barrier.between
        text = f"Barrier at {where(barrier.place)}"
        height = _with_error(factor * barrier.height, factor * barrier.error, unit)
        lines.append(f"{text}, between wells {one + 1} and {other + 1}: {height} above well 1")
    alone = _alone(len(wells), barriers)
    apart = result.profile.share_apart
    if alone:
        lines.append(
            f"Not joined by samples to well 1, so that barriers are not known: "
            f"well{'s' * (len(alone) > 1)} {name_some([number + 1 for number in alone])}"
        )
    elif apart >= _APART:
        lines.append(
            f"Not joined by samples to well 1: {100.0 * apart:.2g} % of the probability, beyond "
            "empty bins"
        )
    if max(len(wells), len(barriers)) > _MOST_LINES:
        lines.append(
            f"{len(wells)} wells and {len(barriers)} barriers in all are in {out / NUMBERS}"
        )
    trips = result.numbers.get("round_trips") or {}
    for name, one in trips.items():
        low, high = one["ends"]
        lines.append(f"Round trips of {name} between {low:.3g} and {high:.3g}: {one['count']}")
    for exchange in result.numbers.get("exchanges", ()):
        rates = [rate for rate in exchange["rates"] if math.isfinite(rate)]
        if rates:
            lines.append(
                f"Exchanges of umbrellas in {exchange['run']}: {min(rates):.0%} to "
                f"{max(rates):.0%} of each pair accepted, {sum(exchange['round_trips'])} round "
                "trips of replicas through all windows"
            )
    return [printable(line, 300) for line in lines]


def _alone(count: int, barriers: Sequence[Barrier]) -> list[int]:
    """Wells from which no known barriers lead to the deepest one."""
    reached, size = {0}, 0
    while len(reached) > size:
        size = len(reached)
        for barrier in barriers:
            if reached & set(barrier.between):
                reached |= set(barrier.between)
    return [number for number in range(count) if number not in reached]


def _with_error(value: float, error: float, unit: str) -> str:
    """A number with two digits of its error."""
    if not math.isfinite(error) or error <= 0.0:
        return f"{value:.3g} {unit} (error not known)"
    decimals = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:.{decimals}f} ± {error:.{decimals}f} {unit}"
