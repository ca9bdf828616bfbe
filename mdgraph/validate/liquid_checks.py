"""Checks of liquids: g(r), density of states and diffusion, which runs of `dynamics_checks` record.

They are held against the frames of the data, which go through the same observables. Frames in
order of time, with a known time between them, are a trajectory; other frames tell g(r) alone, and
may have been chosen or changed, so that no difference from them is wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mdgraph.analysis.rdf import most_common_heavy_element, smallest_height
from mdgraph.analysis.spectrum import LONGEST_INTERVAL, SpectrumResult, velocity_spectrum
from mdgraph.data import LabelledFrame
from mdgraph.data.dataset import evenly_spaced
from mdgraph.engine import (
    MeanSquaredDisplacement,
    RadialDistributions,
    Simulation,
    VelocityAutocorrelation,
)
from mdgraph.engine.observables import AutocorrelationResult, DisplacementResult
from mdgraph.engine.observables.frames import FrameReplay
from mdgraph.errors import InputError
from mdgraph.system import System, compact_cell
from mdgraph.units import DIFFUSION, NUMBERS, SPEED_OF_LIGHT, SYMBOLS
from mdgraph.validate.verdicts import Check, Curves, Verdict
from mdgraph.validate.vibrations import HIGHEST

Array = NDArray[np.float64]

REACH: Final = 5.0
LEAST_REACH: Final = 2.5
BINS: Final = 100
"""A up to which g(r) is recorded, or less if the cutoff or half of the cell is, A below which it
says nothing of neighbors, and its bins."""

BLOCK: Final = 0.25
FEWEST_BLOCKS: Final = 4
"""ps of a part of a run that has a g(r) of its own, and the fewest parts that tell an error."""

FEWEST_FRAMES: Final = 10
MOST_FRAMES: Final = 200
"""Frames that g(r) of the data is taken from."""

MOVED: Final = (0.03, 0.1)
"""Share of the neighbors within `REACH` that lie at other distances than in the data, beyond
`NOISE` times what the errors of both make, before it is looked at and before it is wrong. A first
shell of water that is 0.1 A wider moves 4 % of the oxygens around an oxygen."""

NOISE: Final = 2.0
"""Parts of picoseconds are not independent, so that standard errors from them are too small."""

OTHER: Final = (0.1, 0.25)
"""The same of the density of states, of which the stretches of O-H in water are a third."""

BEYOND: Final = 0.01
"""Share of the density of states beyond the highest frequency of any molecule that is wrong."""

SLOWER: Final = (2.0, 5.0)
"""Factors by which diffusion may differ from that of a trajectory, beyond `NOISE` standard errors:
levels of theory of one liquid differ by factors up to 5, and a fit of one of them should not."""

SAMPLED: Final = 2.0
SPECTRUM_FS: Final = 250.0
"""fs between samples of velocities, and the longest lag of their autocorrelation."""

DISPLACED: Final = 20.0
DIFFUSION_FS: Final = 2000.0
LEAST_DIFFUSION_FS: Final = 500.0
"""fs between samples of positions, their longest lag, and the least that is told from swinging."""

FITTED: Final = 0.5
"""Share of the longest lag from which on the slope is fitted."""

_ORIGINS: Final = 10
"""Samples from one origin of a correlation to the next."""

NOTHING: Final = "nothing judges it"


def standard_error(values: Array) -> Array:
    """Standard error of the mean over the first axis; NaN for a single value."""
    if len(values) < 2:
        return np.full(values.shape[1:], np.nan)
    return np.asarray(values.std(0, ddof=1) / np.sqrt(len(values)))


def mean_and_error(blocks: Array) -> tuple[Array, Array]:
    """Mean over (blocks, starts, ...), and the larger of the standard errors of all and of starts.

    The error of a single value is NaN.
    """
    mean = blocks.mean((0, 1))
    every = blocks.reshape(-1, *blocks.shape[2:])
    return mean, np.fmax(standard_error(every), standard_error(blocks.mean(0)))


class LiquidRecord:
    """What runs of a liquid record; a reporter of g(r) over parts of the run in a bath.

    Attributes:
        interval: steps of a part.
        distributions: for the run in a bath; None where the range of a list is too short.
        displacements: for the run at constant energy, as `velocities`.
        blocks: (S, P, B) g(r) of each part so far.
        pairs: names of P pairs of elements.
    """

    def __init__(self, system: System, cutoffs: Sequence[float], timestep: float, start: float):
        """Makes observables, each for one simulation.

        Args:
            system: the liquid.
            cutoffs: A, of the neighbor lists.
            timestep: fs.
            start: ps before g(r) counts.
        """
        longest = max((cutoff for cutoff in cutoffs if np.isfinite(cutoff)), default=0.0)
        self.reach = min(REACH, longest, 0.5 * smallest_height(system.cell))
        self.interval = max(1, round(1e3 * BLOCK / timestep))
        self._start = 1e3 * start
        every = max(1, round(DISPLACED / timestep))
        self.distributions = None
        if self.reach >= LEAST_REACH:
            self.distributions = RadialDistributions(self.reach, bins=BINS, every=every)
        self.displacements = _displacements(timestep, every)
        self.velocities = _velocities(timestep, max(1, round(SAMPLED / timestep)))
        self.blocks: list[Array] = []
        self.pairs: tuple[str, ...] = ()

    def report(self, simulation: Simulation) -> None:
        """Reads the device; see `mdgraph.engine.Reporter`."""
        assert self.distributions is not None
        if simulation.time > self._start + 1e3 * BLOCK * 0.99:
            result = self.distributions.result()
            self.blocks.append(result.value)
            self.pairs = result.pairs
        self.distributions.reset()


def _displacements(interval: float, every: int = 1) -> MeanSquaredDisplacement:
    return MeanSquaredDisplacement(**_window(DIFFUSION_FS, interval * every), every=every)


def _velocities(interval: float, every: int = 1) -> VelocityAutocorrelation:
    return VelocityAutocorrelation(**_window(SPECTRUM_FS, interval * every), every=every)


def _window(longest: float, interval: float) -> dict[str, Any]:
    """Lags of a correlation up to a time (fs), of samples so far apart."""
    lags = max(2, round(longest / interval))
    spacing = min(_ORIGINS, lags)
    return {"window": spacing * -(-lags // spacing), "spacing": spacing}


@dataclass(frozen=True, eq=False)
class LiquidReference:
    """Frames of a liquid, through the observables of a run.

    Attributes:
        frames: number of them.
        value: (P, B) g(r).
        error: (P, B) standard errors.
        displacements: of a trajectory, or None.
        velocities: of a trajectory whose frames lie close enough, or None.
        interval: fs from one frame to the next; 0 where they are no trajectory.
    """

    frames: int
    value: Array
    error: Array
    displacements: DisplacementResult | None = None
    velocities: AutocorrelationResult | None = None
    interval: float = 0.0


def liquid_reference(
    frames: Sequence[LabelledFrame], reach: float, interval: float | None
) -> LiquidReference | None:
    """The reference that frames give; None for too few.

    Args:
        frames: of the same atoms and cell, in order of time if there is an interval.
        reach: A, of g(r).
        interval: fs from one frame to the next; None for frames in no order.
    """
    if len(frames) < FEWEST_FRAMES or reach < LEAST_REACH:
        return None
    chosen = evenly_spaced(range(len(frames)), MOST_FRAMES)
    system = frames[0].system()
    values = []
    for group in np.array_split(chosen, FEWEST_FRAMES):
        distributions = RadialDistributions(reach, bins=BINS)
        replay = FrameReplay(system, [distributions], interval=1, timestep=1.0, cutoff=reach)
        for place in group:
            replay.record(frames[place].positions.copy(), frames[place].cell.copy())
        values.append(distributions.result().value[0])
    parts = np.array(values)
    reference = LiquidReference(len(frames), parts.mean(0), standard_error(parts))
    if interval is None:
        return reference
    every = max(1, round(DISPLACED / interval))
    places, cell = _unwrapped(frames), system.cell.copy()
    displacements = _displacements(interval, every)
    replay = FrameReplay(system, [displacements], interval=every, timestep=interval)
    for positions in places[::every]:
        replay.record(positions, cell)
    spread: Any = displacements.result()
    reference = replace(reference, displacements=spread, interval=interval)
    if interval > LONGEST_INTERVAL:
        return reference
    velocities = _velocities(interval)
    replay = FrameReplay(system, [velocities], interval=1, timestep=interval)
    for positions, motion in zip(places[1:], np.diff(places, axis=0) / interval, strict=True):
        replay.record(positions, cell, motion)
    correlated: Any = velocities.result()
    return replace(reference, velocities=correlated)


def _unwrapped(frames: Sequence[LabelledFrame]) -> Array:
    """(F, N, 3) A, where no atom moves by more than half of the cell between frames."""
    positions = np.array([frame.positions for frame in frames])
    cell = compact_cell(frames[0].cell)
    moves = np.diff(positions, axis=0) @ np.linalg.inv(cell)
    moves -= np.round(moves)
    return np.concatenate([positions[:1], positions[:1] + np.cumsum(moves @ cell, axis=0)])


# verdicts


def distribution_check(
    formula: str,
    pairs: Sequence[str],
    distance: Array,
    blocks: Sequence[Array],
    reference: LiquidReference | None,
) -> Check:
    """Judges g(r) of a run by that of frames.

    Args:
        formula: of the liquid.
        pairs: names of P pairs of elements.
        distance: (B,) A, middle of each bin.
        blocks: (S, P, B) of each part of the run.
        reference: of the frames, or None.
    """
    name = f"g(r) of {formula}"
    if len(blocks) < FEWEST_BLOCKS:
        least = FEWEST_BLOCKS * BLOCK
        return Check(
            name, Verdict.LOOK, f"The runs are too short for it, which takes {least:g} ps."
        )
    value, error = mean_and_error(np.array(blocks))
    panels, shares = {}, {}
    for place, pair in enumerate(pairs):
        lines = {"run": value[place]}
        if reference is not None:
            lines["frames"] = reference.value[place]
            shares[pair] = _moved(
                distance, value[place], error[place], reference.value[place], reference.error[place]
            )
        panels[pair] = Curves(distance, lines, "distance (Å)", "g(r)")
    peaks = {
        pair: float(distance[int(np.nanargmax(value[place]))]) for place, pair in enumerate(pairs)
    }
    numbers: dict[str, Any] = {"highest_at_A": {pair: round(x, 3) for pair, x in peaks.items()}}
    length = len(blocks) * BLOCK
    if reference is None:
        text = f"It is the mean of {length:g} ps; no frames of this liquid are given"
        return Check(name, Verdict.LOOK, f"{text}, {NOTHING}.", numbers, panels=panels)
    numbers["moved_share"] = {pair: round(share, 4) for pair, (share, _) in shares.items()}
    numbers["moved_share_by_errors"] = {
        pair: round(noise, 4) for pair, (_, noise) in shares.items()
    }
    worst_pair = max(shares, key=lambda pair: shares[pair][0] - NOISE * shares[pair][1])
    share, noise = shares[worst_pair]
    verdict = Verdict.by_limits(share - NOISE * noise, MOVED)
    text = (
        f"In {length:g} ps {share:.1%} of the neighbors within {distance[-1]:.1f} A lie at other "
        f"distances ({worst_pair}) than in {reference.frames} frames, of which errors make "
        f"{noise:.1%}"
    )
    if verdict is Verdict.WRONG and not reference.interval:
        verdict = Verdict.LOOK
        text += "; they are no trajectory, so it is not wrong for certain"
    return Check(name, verdict, f"{text}.", numbers, panels=panels)


def _moved(
    distance: Array, value: Array, error: Array, other: Array, other_error: Array
) -> tuple[float, float]:
    """Share of neighbors at other distances, and what errors make of it on average."""
    weight = distance**2
    whole = 2.0 * float((other * weight).sum())
    spread = np.sqrt(np.nan_to_num(error) ** 2 + np.nan_to_num(other_error) ** 2)
    noise = (2.0 / np.pi) ** 0.5 * float((spread * weight).sum())
    return float((np.abs(value - other) * weight).sum()) / whole, noise / whole


def spectrum_check(
    system: System,
    formula: str,
    result: AutocorrelationResult | None,
    reference: LiquidReference | None,
) -> Check:
    """Judges the density of states of a run by its highest frequencies, and by a trajectory.

    Args:
        system: the liquid.
        formula: its name.
        result: of a run; None where there is none.
        reference: of the frames, or None.
    """
    name = f"density of states of {formula}"
    if result is None or int((result.origins > 0).sum()) < 2 * _ORIGINS:
        return Check(name, Verdict.LOOK, "The runs are too short for it.")
    longest = float(result.lag[result.origins > 0][-1])
    known = None if reference is None else reference.velocities
    if known is not None:
        longest = min(longest, float(known.lag[known.origins > 0][-1]))
    spectrum = _spectrum(system, result, longest)
    wavenumber, total = spectrum.wavenumber, spectrum.total
    # A line that ends there reaches beyond by the resolution.
    shown = wavenumber <= HIGHEST + 2.0 * spectrum.resolution
    beyond = max(0.0, float(np.trapezoid(total[~shown], wavenumber[~shown])))
    lines = {"run": total, **dict(zip(spectrum.elements, spectrum.parts, strict=True))}
    numbers: dict[str, Any] = {
        "resolution_per_cm": round(spectrum.resolution, 1),
        "share_beyond": round(beyond, 5),
    }
    text = f"At a resolution of {spectrum.resolution:.0f} per cm"
    verdict, sentence = Verdict.LOOK, f"{text} it ends before {HIGHEST:.0f} per cm, and {NOTHING}."
    if known is not None:
        assert reference is not None
        other = _spectrum(system, known, longest)
        # Differences of positions are means of velocities over the interval.
        seen = other.total / np.sinc(other.wavenumber * SPEED_OF_LIGHT * reference.interval) ** 2
        lines["frames"] = np.interp(wavenumber, other.wavenumber, seen, right=0.0)
        lines["frames"] /= np.trapezoid(lines["frames"][shown], wavenumber[shown])
        apart = np.abs(total - lines["frames"])[shown]
        share = 0.5 * float(np.trapezoid(apart, wavenumber[shown]))
        numbers["other_share"] = round(share, 4)
        verdict = Verdict.by_limits(share, OTHER)
        sentence = f"{text} {share:.1%} of it lies at other frequencies than in the trajectory."
    if beyond > BEYOND:
        verdict = Verdict.WRONG
        sentence = f"{beyond:.1%} of it lies beyond {HIGHEST:.0f} per cm, where no molecule swings."
    x = wavenumber[shown]
    curves = Curves(
        x,
        {line: 1e3 * values[shown] for line, values in lines.items()},
        "wavenumber (1/cm)",
        "density of states (10⁻³ cm)",
    )
    return Check(name, verdict, sentence, numbers, curves)


def _spectrum(system: System, result: AutocorrelationResult, longest: float) -> SpectrumResult:
    """Of the mean over all systems, up to a lag in fs."""
    kept = result.lag <= longest * (1.0 + 1e-9)
    masses = np.array(
        [system.masses[system.numbers == NUMBERS[element]].sum() for element in result.elements]
    )
    mean = replace(
        result,
        lag=result.lag[kept],
        origins=result.origins[kept],
        value=result.value.mean(0, keepdims=True)[..., kept],
    )
    return velocity_spectrum(mean, masses)


def diffusion_check(
    system: System,
    formula: str,
    result: DisplacementResult | None,
    reference: LiquidReference | None,
) -> Check:
    """Judges the diffusion of the most common heavy element by that of a trajectory.

    Args:
        system: the liquid.
        formula: its name.
        result: of a run; None where there is none.
        reference: of the frames, or None.
    """
    element = SYMBOLS[most_common_heavy_element(system.numbers)]
    name = f"diffusion of {formula}"
    longest = 0.0 if result is None else float(result.lag[result.origins > 0][-1])
    known = None if reference is None else reference.displacements
    if known is not None:
        longest = min(longest, float(known.lag[known.origins > 0][-1]))
    if result is None or longest < LEAST_DIFFUSION_FS:
        least = 1e-3 * LEAST_DIFFUSION_FS
        text = f"The runs are too short for it, which takes lags of {least:g} ps."
        return Check(name, Verdict.LOOK, text)
    row = result.elements.index(element)

    def slopes(displacements: DisplacementResult) -> Array:
        fitted = displacements.fitted_diffusion(FITTED * longest, longest * (1.0 + 1e-9))
        return DIFFUSION * fitted[:, row]

    each = slopes(result)
    value, error = float(each.mean()), float(standard_error(each))
    begin, end = 1e-3 * FITTED * longest, 1e-3 * longest
    text = (
        f"From {begin:.2g} to {end:.2g} ps {element} moves by {value:.3g} +- {error:.1g} e-5 cm²/s"
    )
    numbers: dict[str, Any] = {
        "element": element,
        "diffusion_1e-5_cm2_per_s": value,
        "standard_error_1e-5_cm2_per_s": error if np.isfinite(error) else None,
        "fitted_ps": [begin, end],
    }
    lines = {"run": result.value.mean(0)[row]}
    verdict, ending = Verdict.LOOK, f"in so small a cell and so short a time; {NOTHING}."
    if known is not None:
        other = float(slopes(known)[0])
        numbers["trajectory_1e-5_cm2_per_s"] = other
        lines["frames"] = np.interp(result.lag, known.lag, known.value[0, row], right=np.nan)
        room = NOISE * float(np.nan_to_num(error))
        high, low = max(value - room, 0.0), max(value + room, 1e-9)
        factor = max(high / max(other, 1e-9), other / low) if other > 0.0 else 1.0
        verdict = Verdict.by_limits(factor, SLOWER)
        ending = f"in the trajectory by {other:.3g}."
    curves = Curves(1e-3 * result.lag, lines, "lag (ps)", "mean squared displacement (Å²)")
    return Check(name, verdict, f"{text}, {ending}", numbers, curves)


def liquid_checks(
    system: System,
    formula: str,
    record: LiquidRecord,
    frames: Sequence[LabelledFrame],
    interval: float | None,
) -> list[Check]:
    """Checks of what runs recorded.

    Args:
        system: the liquid.
        formula: its name.
        record: after its runs.
        frames: of these atoms in this cell, with or without an order.
        interval: fs from one frame to the next, if they are in order of time.
    """
    reference = liquid_reference(frames, record.reach, interval)
    checks = []
    if record.distributions is not None:
        distance = (np.arange(BINS) + 0.5) * record.reach / BINS
        checks.append(distribution_check(formula, record.pairs, distance, record.blocks, reference))
    displacements, velocities = _result(record.displacements), _result(record.velocities)
    checks.append(spectrum_check(system, formula, velocities, reference))
    checks.append(diffusion_check(system, formula, displacements, reference))
    return checks


def _result(observable: Any) -> Any:
    try:
        return observable.result()
    except InputError:
        return None  # the run stopped before its first sample
