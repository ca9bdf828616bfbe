"""Quantities of a trajectory: which ones its frames permit, and how frames add to them.

Distributions, displacements, velocities and averages go through the observables of the engine.
"""

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mdgraph.analysis.molecules import (
    SMALLEST_MOLECULE,
    BondedTerms,
    HistogramResult,
    MoleculeRMSD,
)
from mdgraph.analysis.plots import (
    histogram_figure,
    recorded_figure,
    rmsd_figure,
    series_figure,
    spectrum_figure,
)
from mdgraph.analysis.rdf import smallest_height
from mdgraph.analysis.series import independent_samples
from mdgraph.analysis.spectrum import LONGEST_INTERVAL, velocity_spectrum
from mdgraph.engine import MeanSquaredDisplacement, RadialDistributions, VelocityAutocorrelation
from mdgraph.engine.observables import AveragesResult
from mdgraph.engine.observables.averages import TABLE_UNITS, UNITS
from mdgraph.engine.observables.frames import FrameReplay, NumberAverages
from mdgraph.errors import InputError
from mdgraph.io.topology import Molecules
from mdgraph.io.trajectories import Frame
from mdgraph.system import System, completed_cell
from mdgraph.units import DIFFUSION, NUMBERS

logger = logging.getLogger(__name__)

_FEWEST_FRAMES: Final = 4
"""Frames of a function of time."""

_FEWEST_LAGS: Final = 3
"""Of a mean squared displacement: both ends, and one between them where a line is fitted."""

_LONGEST_RANGE: Final = 10.0
"""A, of distributions, unless a longer one is asked for: the work grows with its third power."""

_MOST_PAIRS: Final = 3e6
"""Of a frame, well beyond half of the cell: some 10 s."""

_BIN: Final = 0.05
"""A, width of a bin of distributions."""

_BLOCKS: Final = 5
"""Parts of a trajectory, each with a diffusion coefficient."""

_FIT: Final = (0.2, 0.9)
"""Shares of the longest lag between which a line is fitted to the MSD."""

_MOST_ORIGINS: Final = 100
"""Time origins that are in memory."""

_SPECTRUM_FS: Final = 2000.0
"""Longest lag of velocities: a resolution of 17/cm."""

FEWEST_INDEPENDENT: Final = 10
"""Independent samples below which a run is too short: errors of errors are then a quarter."""

_UNEVEN: Final = 1e-3
"""Largest deviation from even times, in intervals between frames."""


@dataclass(frozen=True, eq=False, kw_only=True)
class FrameSource:
    """What is known of the frames before they are read, and what was asked of them.

    Attributes:
        system: all atoms at frame 0, with names and bonds.
        start: the first frame that is analysed.
        frames: number of frames.
        interval: steps between frames; 0 if they are not evenly spaced.
        timestep: fs.
        atoms: indices of the selected atoms, ascending; None for all.
        complete: whether the frames hold all atoms of the simulation.
        anchored: whether atoms were fixed or restrained.
        rdf_range: A; None chooses.
        rdf_bins: None for bins of 0.05 A.
        window: frames, of correlations; None chooses.
        spacing: frames between time origins; None chooses.
    """

    system: System
    start: Frame
    frames: int
    interval: int
    timestep: float
    atoms: Sequence[int] | None = None
    complete: bool = True
    anchored: bool = False
    rdf_range: float | None = None
    rdf_bins: int | None = None
    window: int | None = None
    spacing: int | None = None

    @property
    def periodic(self) -> bool:
        """Whether the cell has a volume and all directions are periodic."""
        return bool(self.system.pbc.all()) and self.system.volume > 0.0

    def part(self) -> System:
        """The selected atoms."""
        return self.system if self.atoms is None else self.system.select(self.atoms)

    def lags(self, window: int) -> dict[str, int]:
        """Window and spacing of a correlation; this window, unless an option says another."""
        window = min(self.window or window, self.frames)
        spacing = self.spacing or max(1, math.ceil(window / _MOST_ORIGINS))
        return {"window": max(window // spacing, 1) * spacing, "spacing": spacing}


@dataclass(kw_only=True)
class Outcome:
    """What one word of the command gives.

    Attributes:
        title: heading of its section.
        tables: content of CSV files by their names.
        figures: by what they show.
        numbers: for analysis.json.
        independent: how many samples are independent; of several quantities the fewest.
        rows: a table of the page, the header first.
        note: sentences of the page.
    """

    title: str
    tables: dict[str, str]
    figures: dict[str, Figure]
    numbers: Any
    independent: float
    rows: list[list[str]] = field(default_factory=list)
    note: str = ""


class _IndependentFrames:
    """How many frames are independent, by their potential energy.

    Frames without one, such as those of some atoms, are judged by the waves of density along the
    cell vectors, whichever is the slowest; without a cell, by the distances from the centre.
    """

    def __init__(self) -> None:
        self._energies: list[float] = []
        self._shapes: list[NDArray[np.float64]] = []

    def add(self, frame: Frame) -> None:
        """Adds the next frame."""
        self._energies.append(frame.energy)
        if np.linalg.matrix_rank(frame.cell) == 3:
            angles = 2.0 * math.pi * frame.positions @ np.linalg.inv(frame.cell)
            self._shapes.append(np.concatenate([np.cos(angles).sum(0), np.sin(angles).sum(0)]))
        else:
            away = frame.positions - frame.positions.mean(0)
            self._shapes.append(np.sum(away**2, keepdims=True).ravel())

    def count(self) -> float:
        """The number of independent frames so far."""
        if np.isfinite(self._energies).all():
            return independent_samples(self._energies)
        return min(independent_samples(series) for series in np.transpose(self._shapes))


class FrameQuantity(ABC):
    """A quantity that frames are added to, one after the other.

    Attributes:
        words: by which the command names what it gives.
    """

    words: ClassVar[tuple[str, ...]]

    def __init__(self, source: FrameSource) -> None:
        """Allocates.

        Raises:
            InputError: the frames do not permit it.
        """
        self.source = source

    def obstacle(self, word: str) -> str | None:
        """Why the frames do not permit what one of its words names; None if they do."""
        return None

    @abstractmethod
    def add(self, frame: Frame) -> None:
        """Adds the next frame; raises InputError if it does not permit the quantity."""

    @abstractmethod
    def outcome(self, word: str) -> Outcome:
        """What the frames so far give."""


class _Distributions(FrameQuantity):
    """Radial distribution functions of the selected atoms."""

    words: ClassVar[tuple[str, ...]] = ("rdf",)

    def __init__(self, source: FrameSource) -> None:
        super().__init__(source)
        if not source.periodic:
            raise InputError("there is no cell that is periodic in three directions")
        part = source.part()
        if len(part) < 2:
            raise InputError("there is no pair of atoms")
        half = 0.5 * smallest_height(source.start.cell)
        reach = min(half, _LONGEST_RANGE)
        reach = max(math.floor(reach / _BIN), 1) * _BIN
        if source.rdf_range is not None and source.rdf_range > half:
            self._log_beyond(source.rdf_range, half, part)
        reach = reach if source.rdf_range is None else source.rdf_range
        self._record = RadialDistributions(
            reach,
            bins=source.rdf_bins or max(1, round(reach / _BIN)),
            every=max(source.interval, 1),
        )
        self._replay = FrameReplay(
            part,
            [self._record],
            interval=max(source.interval, 1),
            timestep=source.timestep,
            cutoff=reach,
        )
        self._sampling = _IndependentFrames()

    def _log_beyond(self, reach: float, half: float, part: System) -> None:
        density = len(part) ** 2 / part.volume * 4.0 / 3.0 * math.pi
        pairs, most = density * reach**3, max(_MOST_PAIRS, density * (1.2 * half) ** 3)
        if pairs > most:
            raise InputError(
                f"--rdf-range-A is {reach:g}, where a frame has {pairs:.1e} pairs; give at most "
                f"{(most / density) ** (1 / 3):.3g}"
            )
        logger.warning(
            "--rdf-range-A is %g, beyond half of the cell (%.3g A): atoms meet their own periodic "
            "images there, and each frame has %.1e pairs, which takes time",
            reach,
            half,
            pairs,
        )

    def add(self, frame: Frame) -> None:
        """See FrameQuantity."""
        self._sampling.add(frame)
        self._replay.add(frame if self.source.atoms is None else frame.select(self.source.atoms))

    def outcome(self, word: str) -> Outcome:
        """See FrameQuantity."""
        result = self._record.result()
        rows = [["pair", "highest g(r)", "at (Å)"]]
        numbers = {}
        for pair, value in zip(result.pairs, result.value[0], strict=True):
            if np.isfinite(value).all() and value.any():
                place = int(value.argmax())
                numbers[pair] = {
                    "highest": float(value[place]),
                    "distance_A": float(result.distance[place]),
                }
                rows.append([pair, f"{value[place]:.3g}", f"{result.distance[place]:.3g}"])
        return Outcome(
            title="Radial distribution functions",
            tables={"rdf.csv": result.csv()},
            figures={"Radial distribution functions": recorded_figure(result)},
            numbers=numbers,
            independent=self._sampling.count(),
            rows=rows,
        )


class _Correlated(FrameQuantity):
    """Base of functions of time, which need frames that are evenly spaced."""

    def __init__(self, source: FrameSource) -> None:
        super().__init__(source)
        if source.frames < _FEWEST_FRAMES:
            count = f"{source.frames} frame{'s' * (source.frames != 1)}"
            raise InputError(f"{count} are too few; {_FEWEST_FRAMES} are needed")
        if not source.interval:
            raise InputError("the frames are not evenly spaced")
        self._frames = 0
        self._lag_count = 1

    def _lags_in_run(self) -> float:
        """How many times the longest lag fits into the run."""
        return self._frames / self._lag_count

    def _lags_note(self) -> str:
        return f" The longest lag fits {self._lags_in_run():.3g} times into the run."

    def _advance(self, frame: Frame) -> None:
        """Counts a frame; raises InputError if it comes too early or too late."""
        interval = self.source.interval * self.source.timestep
        late = frame.time_fs - self.source.start.time_fs - self._frames * interval
        if abs(late) > _UNEVEN * interval:
            raise InputError(f"the frames are not evenly spaced in time at step {frame.step}")
        self._frames += 1

    def _replay_of(self, *records: Any) -> FrameReplay:
        source = self.source
        return FrameReplay(
            source.system,
            records,
            interval=source.interval,
            timestep=source.timestep,
            anchored=source.anchored,
        )


class _Displacements(_Correlated):
    """Mean squared displacements, and diffusion coefficients with errors from blocks."""

    words: ClassVar[tuple[str, ...]] = ("msd",)

    def __init__(self, source: FrameSource) -> None:
        super().__init__(source)
        # A tenth of the run is long enough for many origins, and fits twice into each block.
        few = max(source.frames // 2, _FEWEST_LAGS)
        lags = source.lags(source.frames // 10 if source.frames >= 50 else few)
        if lags["window"] < _FEWEST_LAGS * lags["spacing"]:
            raise InputError(
                f"a window of {lags['window']} frames has no lag between its ends, through which a "
                f"line could go; give one of {_FEWEST_LAGS * lags['spacing']} or more"
            )
        options: dict[str, Any] = {**lags, "every": source.interval, "atoms": source.atoms}
        self._all = MeanSquaredDisplacement(**options)
        self._block = MeanSquaredDisplacement(**options)
        self._replay = self._replay_of(self._all, self._block)
        self._length = max(source.frames // _BLOCKS, 1)
        self._lag_count = lags["window"]
        self._slopes: list[NDArray[np.float64]] = []
        self._previous: NDArray[np.float64] | None = None
        pbc = source.system.pbc
        self._inverse = np.linalg.inv(completed_cell(source.start.cell, pbc)) * pbc

    def add(self, frame: Frame) -> None:
        """See FrameQuantity."""
        self._advance(frame)
        if not np.array_equal(frame.cell, self.source.start.cell):
            raise InputError(
                "the cell varies and carries its atoms along, so displacements say nothing of "
                "diffusion"
            )
        if self._previous is not None:
            turns = np.abs((frame.positions - self._previous) @ self._inverse)
            if turns.max() > 0.5:
                raise InputError(
                    f"atoms move by more than half of the cell before step {frame.step}; "
                    "positions were wrapped, or frames lie too far apart"
                )
        self._previous = frame.positions
        self._replay.add(frame)
        if self._frames % self._length == 0 and len(self._slopes) < _BLOCKS:
            if self._lag_count <= self._length:
                self._slopes.append(self._fit(self._block.result())[0])
            self._block.reset()

    def _fit(self, result: Any) -> NDArray[np.float64]:
        longest = float(result.lag[-1])
        fitted: NDArray[np.float64] = result.fitted_diffusion(*(share * longest for share in _FIT))
        return fitted

    def outcome(self, word: str) -> Outcome:
        """See FrameQuantity.

        The coefficient is a sixth of the slope of a line through the MSD of all frames. Each of
        `_BLOCKS` consecutive parts of the trajectory gives one more, from origins of its own; the
        standard error of their mean is the error, which is good where the parts are independent.
        DOI 10.33011/livecoms.1.1.5067 and 10.33011/livecoms.1.1.6324. The coefficient is that of
        a box of this size, DOI 10.1021/jp0477147.
        """
        result: Any = self._all.result()
        begin, end = (share * float(result.lag[-1]) for share in _FIT)
        fit = (result.lag >= begin) & (result.lag <= end) & (result.origins > 0)
        coefficients = DIFFUSION * self._fit(result)[0]
        blocks = DIFFUSION * np.array(self._slopes)
        numbers, rows = {}, [["element", "D (10⁻⁵ cm²/s)", "standard error", "exponent"]]
        for place, element in enumerate(result.elements):
            value = result.value[0, place]
            if not np.isfinite(value[fit]).all():
                continue
            error = math.nan
            if len(blocks) > 1:
                error = float(blocks[:, place].std(ddof=1) / math.sqrt(len(blocks)))
            exponent = math.nan
            if fit.sum() > 1 and (value[fit] > 0.0).all() and result.lag[fit][0] > 0.0:
                exponent = float(np.polyfit(np.log(result.lag[fit]), np.log(value[fit]), 1)[0])
            numbers[element] = {
                "diffusion_1e-5_cm2_per_s": float(coefficients[place]),
                "error_1e-5_cm2_per_s": error,
                "exponent": exponent,
            }
            row = (f"{coefficients[place]:.4g}", f"{error:.2g}", f"{exponent:.2f}")
            rows.append([element, *(text.replace("nan", "unknown") for text in row)])
        note = (
            f"D is a sixth of the slope of a line through the mean squared displacement from "
            f"{1e-3 * begin:.3g} to {1e-3 * end:.3g} ps, in a box of this size. It is a diffusion "
            "coefficient where the exponent, the slope of both logarithms, is near 1. "
        )
        note += (
            f"Its error is that of the mean of {_BLOCKS} consecutive parts of the trajectory."
            if len(blocks) > 1
            else "The trajectory is too short for an error from parts of it."
        )
        note += self._lags_note()
        return Outcome(
            title="Mean squared displacement and diffusion",
            tables={
                "msd.csv": result.csv(),
                "diffusion.csv": _csv(
                    ["element", *(next(iter(numbers.values())) if numbers else [])],
                    [[name, *row.values()] for name, row in numbers.items()],
                ),
            },
            figures={"Mean squared displacement": recorded_figure(result)},
            numbers={
                "fit_ps": [1e-3 * begin, 1e-3 * end],
                "blocks": len(blocks),
                "elements": numbers,
            },
            independent=self._lags_in_run(),
            rows=rows,
            note=note,
        )


class _Velocities(_Correlated):
    """The velocity autocorrelation and its spectrum."""

    words: ClassVar[tuple[str, ...]] = ("vacf", "spectrum")

    def __init__(self, source: FrameSource) -> None:
        super().__init__(source)
        if source.start.velocities is None:
            raise InputError("the frames have no velocities; save them with the run")
        interval = source.interval * source.timestep
        window = min(source.frames // 2, math.ceil(_SPECTRUM_FS / interval))
        lags = source.lags(max(window, 2))
        options: dict[str, Any] = {**lags, "every": source.interval, "atoms": source.atoms}
        self._record = VelocityAutocorrelation(**options)
        self._lag_count = lags["window"]
        self._replay = self._replay_of(self._record)

    def obstacle(self, word: str) -> str | None:
        """See FrameQuantity."""
        interval = self.source.interval * self.source.timestep
        if word != "spectrum" or interval <= LONGEST_INTERVAL * (1.0 + _UNEVEN):
            return None
        return (
            f"there are {interval:.4g} fs between frames, and a spectrum needs at most "
            f"{LONGEST_INTERVAL:g} fs, or fast vibrations appear at wrong frequencies; save frames "
            "more often"
        )

    def add(self, frame: Frame) -> None:
        """See FrameQuantity."""
        self._advance(frame)
        if frame.velocities is None:
            raise InputError(f"the frame of step {frame.step} has no velocities")
        self._replay.add(frame)

    def outcome(self, word: str) -> Outcome:
        """See FrameQuantity."""
        result: Any = self._record.result()
        if word == "spectrum":
            return self._spectrum_outcome(result)
        last = DIFFUSION * result.running_diffusion()[0, :, result.origins > 0][-1]
        numbers = {
            element: {"diffusion_1e-5_cm2_per_s": float(value)}
            for element, value in zip(result.elements, last, strict=True)
            if math.isfinite(value)
        }
        longest = 1e-3 * float(result.lag[-1])
        return Outcome(
            title="Velocity autocorrelation",
            tables={"vacf.csv": result.csv()},
            figures={"Velocity autocorrelation": recorded_figure(result)},
            numbers={"longest_lag_ps": longest, "elements": numbers},
            independent=self._lags_in_run(),
            note=(
                f"By Green and Kubo its integral is a diffusion coefficient, here up to a lag of "
                f"{longest:.3g} ps. It has no error, and is rough where frames lie farther apart "
                "than a few fs." + self._lags_note()
            ),
        )

    def _spectrum_outcome(self, result: Any) -> Outcome:
        part = self.source.part()
        masses = np.array(
            [part.masses[part.numbers == NUMBERS[symbol]].sum() for symbol in result.elements]
        )
        spectrum = velocity_spectrum(result, masses)
        numbers = {
            "resolution_per_cm": spectrum.resolution,
            "highest_per_cm": float(spectrum.wavenumber[spectrum.total.argmax()]),
        }
        return Outcome(
            title="Velocity spectrum",
            tables={"spectrum.csv": spectrum.csv()},
            figures={"Velocity spectrum": spectrum_figure(spectrum)},
            numbers=numbers,
            independent=self._lags_in_run(),
            note=(
                "The cosine transform of the velocity autocorrelation with a Hann window, weighted "
                "by mass; the spectrum of all selected atoms integrates to 1." + self._lags_note()
            ),
        )


class _Bonded(FrameQuantity):
    """Distributions of bond lengths and angles."""

    words: ClassVar[tuple[str, ...]] = ("bonds", "angles")

    def __init__(self, source: FrameSource) -> None:
        super().__init__(source)
        system = source.system
        self._bonds = Molecules.of(system).bonds
        self._terms = BondedTerms(
            system.numbers, self._bonds.pairs, self._bonds.shifts, system.pbc, source.atoms
        )
        if not len(self._terms.bonds):
            raise InputError("there are no bonds")
        self._sampling = _IndependentFrames()

    def obstacle(self, word: str) -> str | None:
        """See FrameQuantity."""
        no_angles = word == "angles" and not len(self._terms.angles)
        return "no two bonds share an atom" if no_angles else None

    def add(self, frame: Frame) -> None:
        """See FrameQuantity."""
        self._sampling.add(frame)
        self._terms.add(frame.positions, completed_cell(frame.cell, self.source.system.pbc))

    def outcome(self, word: str) -> Outcome:
        """See FrameQuantity."""
        every = max(self.source.interval, 1)
        is_angle = word == "angles"
        result: HistogramResult = (
            self._terms.angle_result(every) if is_angle else self._terms.length_result(every)
        )
        unit, suffix = ("degrees", "degrees") if is_angle else ("Å", "A")
        form = ".2f" if is_angle else ".4f"
        rows = [["type", "number", f"mean ({unit})", f"standard deviation ({unit})"]]
        numbers = {}
        for place, name in enumerate(result.types):
            mean, deviation = float(result.mean[place]), float(result.deviation[place])
            count = int(result.terms[place])
            numbers[name] = {
                "number": count,
                f"mean_{suffix}": mean,
                f"deviation_{suffix}": deviation,
            }
            rows.append([name, str(count), f"{mean:{form}}", f"{deviation:{form}}"])
        return Outcome(
            title="Angles between bonds" if is_angle else "Bond lengths",
            tables={f"{word}.csv": result.csv()},
            figures={result.kind.capitalize(): histogram_figure(result)},
            numbers=numbers,
            independent=self._sampling.count(),
            rows=rows,
            note=f"Bonds are {self._bonds.origin}; they stay the same in all frames.",
        )


class _Shapes(FrameQuantity):
    """RMSD of molecules from the first frame."""

    words: ClassVar[tuple[str, ...]] = ("rmsd",)

    def __init__(self, source: FrameSource) -> None:
        super().__init__(source)
        system = source.system
        self._molecules = Molecules.of(system)
        self._rmsd = MoleculeRMSD(
            system.numbers, self._molecules.labels, self._molecules.finite, source.atoms
        )
        if self._rmsd.empty:
            raise InputError(
                f"there is no molecule of {SMALLEST_MOLECULE} atoms or more that ends in the cell"
            )
        if source.frames < 2:
            raise InputError("1 frame is too few")

    def add(self, frame: Frame) -> None:
        """See FrameQuantity."""
        pbc = self.source.system.pbc
        whole = self._molecules.whole(frame.positions, frame.cell, pbc)
        self._rmsd.add(1e-3 * frame.time_fs, whole)

    def outcome(self, word: str) -> Outcome:
        """See FrameQuantity."""
        result = self._rmsd.result(max(self.source.interval, 1))
        rows = [["molecule", "number", "mean (Å)", "largest (Å)", "last (Å)"]]
        numbers = {}
        for name, values in result.value.items():
            later = values[1:]
            numbers[name] = {
                "molecules": result.molecules[name],
                "mean_A": float(later.mean()),
                "largest_A": float(later.max()),
                "last_A": float(later[-1]),
            }
            texts = [f"{value:.3f}" for value in (later.mean(), later.max(), later[-1])]
            rows.append([name, str(result.molecules[name]), *texts])
        return Outcome(
            title="RMSD of molecules",
            tables={"rmsd.csv": result.csv()},
            figures={"RMSD over time": rmsd_figure(result)},
            numbers=numbers,
            independent=min(independent_samples(value[1:]) for value in result.value.values()),
            rows=rows,
        )


class _Numbers(FrameQuantity):
    """Base of averages of numbers that frames hold, with their series."""

    title: ClassVar[str]
    units: ClassVar[dict[str, str]]

    def __init__(self, source: FrameSource) -> None:
        super().__init__(source)
        first = self._values(source.start)
        self._names = [name for name, value in first.items() if math.isfinite(value)]
        self._times: list[float] = []
        self._series: list[list[float]] = []
        self._averages = NumberAverages(self._names, every=max(source.interval, 1))

    @abstractmethod
    def _values(self, frame: Frame) -> dict[str, float]:
        """The numbers of a frame, in the units of the averages; NaN where there is none."""

    @abstractmethod
    def _figures(self, time: NDArray[np.float64], series: dict[str, Any]) -> dict[str, Figure]:
        """Pictures of the series, in the units of the table."""

    def add(self, frame: Frame) -> None:
        """See FrameQuantity."""
        values = self._values(frame)
        if not all(math.isfinite(values[name]) for name in self._names):
            raise InputError(f"the frame of step {frame.step} lacks numbers of earlier frames")
        self._averages.add(values)
        self._times.append(1e-3 * frame.time_fs)
        self._series.append([values[name] for name in self._names])

    def outcome(self, word: str) -> Outcome:
        """See FrameQuantity."""
        result: AveragesResult = self._averages.result()
        time, columns = np.array(self._times), np.array(self._series).T
        series, numbers = {}, {}
        header = ["quantity", "mean", "standard error", "standard deviation", "unit"]
        rows, fewest = [[*header, "independent samples"]], math.inf
        for row, name, column in zip(result.rows(), self._names, columns, strict=True):
            mean, unit = float(row["mean"]), str(row["unit"])
            _, factor = TABLE_UNITS.get(UNITS[name], (unit, 1.0))
            series[f"{name}_{_column_unit(unit)}"] = factor * column
            numbers[name] = {key: row[key] for key in ("unit", "mean", "error", "deviation")}
            independent = independent_samples(column)
            numbers[name]["independent_samples"] = independent
            fewest = min(fewest, independent)
            texts = [f"{mean:.8g}", *(f"{float(row[key]):.3g}" for key in ("error", "deviation"))]
            words = name.replace("_", " ")
            texts = [text.replace("nan", "unknown") for text in texts]
            rows.append([words, *texts, unit, f"{independent:.3g}"])
        figures = self._figures(time, series)
        if any(np.ptp(column) > 0.0 for column in columns):
            figures[f"Errors of {word} by the length of blocks"] = recorded_figure(result)
        return Outcome(
            title=self.title,
            tables={
                f"{word}.csv": result.csv(),
                f"{word}_over_time.csv": _csv(
                    ["time_ps", *series], zip(time, *series.values(), strict=True)
                ),
            },
            figures=figures,
            numbers=numbers,
            independent=fewest,
            rows=rows,
            note=(
                "Standard errors are from blocks of frames, whose length is chosen so that blocks "
                "are independent; the picture shows how errors grow with it."
            ),
        )


class _EnergyAverages(_Numbers):
    """Energies and temperature."""

    words: ClassVar[tuple[str, ...]] = ("energies",)
    title = "Energies and temperature"

    def __init__(self, source: FrameSource) -> None:
        super().__init__(source)
        if not self._names:
            raise InputError("the frames have no energies")

    def _values(self, frame: Frame) -> dict[str, float]:
        return {
            "potential_energy": frame.energy,
            "kinetic_energy": frame.kinetic_energy,
            "total_energy": frame.energy + frame.kinetic_energy,
            "temperature": frame.temperature,
        }

    def _figures(self, time: NDArray[np.float64], series: dict[str, Any]) -> dict[str, Figure]:
        figures = {}
        energies = {
            name.removesuffix("_energy_eV"): values - values[0]
            for name, values in series.items()
            if name.endswith("_energy_eV")
        }
        if energies:
            figures["Energies over time"] = series_figure(
                "Energies",
                "change since the first frame",
                time,
                energies,
                "energy change (eV)",
            )
        if "temperature_K" in series:
            mean = float(series["temperature_K"].mean())
            figures["Temperature over time"] = series_figure(
                "Temperature",
                f"mean {mean:.1f} K",
                time,
                {"temperature": series["temperature_K"]},
                "temperature (K)",
            )
        return figures


class _DensityAverages(_Numbers):
    """Volume, density and pressure."""

    words: ClassVar[tuple[str, ...]] = ("density",)
    title = "Density, volume and pressure"

    def __init__(self, source: FrameSource) -> None:
        super().__init__(source)
        if not source.periodic:
            raise InputError("there is no cell that is periodic in three directions")
        if not source.complete:
            raise InputError("the frames hold some of the atoms alone")

    def _values(self, frame: Frame) -> dict[str, float]:
        first, second, third = frame.cell
        volume = abs(float(np.cross(first, second) @ third)) or math.nan
        mass = float(self.source.system.masses.sum())
        values = {"volume": volume, "density": mass / volume}
        if frame.stress is not None:
            # Stress is that of the forces alone, tension positive.
            kinetic = 2.0 * frame.kinetic_energy / volume
            values["pressure"] = (kinetic - float(np.trace(frame.stress))) / 3.0
        else:
            values["pressure"] = math.nan
        return values

    def _figures(self, time: NDArray[np.float64], series: dict[str, Any]) -> dict[str, Figure]:
        density = series["density_g_per_cm3"]
        figures = {}
        if np.ptp(density) > 0.0:
            mean = float(density.mean())
            figures["Density over time"] = series_figure(
                "Density", f"mean {mean:.4f} g/cm³", time, {"density": density}, "density (g/cm³)"
            )
        if "pressure_bar" in series:
            mean = float(series["pressure_bar"].mean())
            figures["Pressure over time"] = series_figure(
                "Pressure",
                f"mean {mean:.4g} bar",
                time,
                {"pressure": series["pressure_bar"]},
                "pressure (bar)",
            )
        return figures


QUANTITIES: Final[tuple[type[FrameQuantity], ...]] = (
    _EnergyAverages,
    _DensityAverages,
    _Distributions,
    _Displacements,
    _Velocities,
    _Bonded,
    _Shapes,
)

WORDS: Final = tuple(word for quantity in QUANTITIES for word in quantity.words)
"""What the command can be asked for, in the order of the page."""


def _column_unit(unit: str) -> str:
    return unit.replace("^", "").replace("/", "_per_")


def _csv(header: Sequence[str], rows: Any) -> str:
    texts = [[v if isinstance(v, str) else format(float(v), ".15g") for v in row] for row in rows]
    return "".join(",".join(row) + "\n" for row in [header, *texts])
