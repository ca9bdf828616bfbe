"""Reads a trajectory once, and writes the folder of its analysis: page, tables and JSON.

Folders of results are complete once they appear, and are not written over without being asked.
"""

import json
import logging
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from tqdm import tqdm

from mdgraph import __version__
from mdgraph.analysis.style import html_image, html_page, html_table
from mdgraph.engine.observables.base import finite_or_null
from mdgraph.errors import FileError, InputError, name_some, printable, similar_names
from mdgraph.io.conversion import JoinedTrajectory, frames_between
from mdgraph.io.files import check_folder, disk_failures, sync_file
from mdgraph.io.trajectories import Frame
from mdgraph.runs.analyse.quantities import (
    FEWEST_INDEPENDENT,
    QUANTITIES,
    WORDS,
    FrameQuantity,
    FrameSource,
    Outcome,
)
from mdgraph.runs.folder import RunDirectory, formula, trajectory_file
from mdgraph.selection import select_atoms
from mdgraph.system import System
from mdgraph.units import KINETIC_ENERGY

logger = logging.getLogger(__name__)

PAGE: Final = "report.html"
NUMBERS: Final = "analysis.json"

_SAME_ENERGY: Final = 1e-4
"""Relative difference of kinetic energies of the same atoms, from velocities of any precision."""


_BETWEEN_LINES: Final = 60.0
"""s from one line of progress to the next, where there is no terminal."""


def refuse_folder(out: Path, results: str, *, overwrite: bool) -> None:
    """Refuses a folder with other files than earlier results.

    Args:
        out: the folder, which need not exist.
        results: name of the file that marks earlier results.
        overwrite: whether these may be replaced.

    Raises:
        FileError: the folder may not be written.
    """
    if not out.is_file():
        check_folder(out)
    with disk_failures(out, "write"):
        if not out.exists():
            return
        if not out.is_dir():
            raise FileError(f"{out} is a file; give the name of a new folder with --out.")
        if not any(out.iterdir()):
            return
        if not (out / results).is_file():
            raise FileError(
                f"{out} holds other files than an analysis; give a new folder with --out."
            )
    if not overwrite:
        raise FileError(
            f"{out} holds an analysis already; replace it with --overwrite, or give another folder "
            "with --out."
        )


def switching_warning(folder: Path, record: Mapping[str, Any]) -> str | None:
    """A sentence about a run whose weights of terms change; None for others.

    Args:
        folder: of the run.
        record: what its run.json holds.
    """
    about = record.get("switching")
    if not about:
        return None
    end = 1e-3 * about["steps"] * record["configuration"]["timestep_fs"]
    return (
        f"{folder} changes weights of terms ({name_some([one['term'] for one in about['terms']])}) "
        f"until {end:.6g} ps, so that nothing is at equilibrium before; leave that part out."
    )


@contextmanager
def new_results(out: Path, results: str, *, overwrite: bool) -> Iterator[Path]:
    """A temporary folder beside `out`, which takes its place at the end of the block.

    Args:
        out: see `refuse_folder`.
        results: name of the file that marks earlier results.
        overwrite: whether these are replaced.
    """
    target = Path(os.path.realpath(out))
    with disk_failures(out, "write"):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            temporary.chmod(0o777 & ~_umask())
            yield temporary
            for path in temporary.iterdir():
                sync_file(path)
            refuse_folder(out, results, overwrite=overwrite)
            if target.exists():
                before = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
                target.rename(before / target.name)
                temporary.rename(target)
                shutil.rmtree(before)
            else:
                temporary.rename(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@dataclass(frozen=True, kw_only=True)
class AnalysisOptions:
    """What to analyse.

    Attributes:
        only: some of `WORDS`, or None for all that the frames permit.
        select: a selection of atoms in frame 0, or None for all.
        first: index of the first frame; negative ones count from the end.
        last: index of the last frame, which is included.
        stride: distance of frames.
        rdf_range: A; None chooses.
        rdf_bins: None for bins of 0.05 A.
        window: frames, longest lag of correlations; None chooses.
        spacing: frames between time origins, a divisor of the window; None chooses.
        frame_interval_fs: fs between frames of `.traj` files without times.

    Raises:
        InputError: a range or a spacing that cannot be.
    """

    only: tuple[str, ...] | None = None
    select: str | None = None
    first: int = 0
    last: int = -1
    stride: int = 1
    rdf_range: float | None = None
    rdf_bins: int | None = None
    window: int | None = None
    spacing: int | None = None
    frame_interval_fs: float | None = None

    def __post_init__(self) -> None:
        if self.rdf_range is not None and not 0.0 < self.rdf_range < math.inf:
            raise InputError(f"--rdf-range-A is {self.rdf_range:g}; give a distance above 0.")
        if self.spacing is not None and (self.window is None or self.window % self.spacing):
            window = "not given" if self.window is None else f"{self.window} and no multiple of it"
            raise InputError(
                f"--spacing is {self.spacing}, and --window is {window}; give a multiple of it."
            )


def words_of(text: str) -> tuple[str, ...]:
    """Splits `rdf,msd` into words; raises InputError for one that names no analysis."""
    words = tuple(dict.fromkeys(filter(None, (word.strip() for word in text.split(",")))))
    for word in words:
        if word not in WORDS:
            near = similar_names(word, WORDS)
            advice = f"did you mean {near[0]}?" if near else f"choose from {', '.join(WORDS)}."
            raise InputError(f"--only is {printable(text, 100)}; {advice}")
    if not words:
        raise InputError(f"--only names nothing; choose from {', '.join(WORDS)}.")
    return words


def analyse(
    runs: Sequence[Path], out: Path, options: AnalysisOptions, *, overwrite: bool = False
) -> str:
    """Analyses frames of runs and writes a folder.

    Frames are read one at a time. What is kept of each is a few numbers, so memory grows with the
    time origins of correlations and hardly with the number of frames.

    Args:
        runs: folders of runs or trajectories, which are joined.
        out: a new folder; it appears once it is complete.
        options: what to analyse.
        overwrite: whether an analysis in the folder is replaced.

    Returns:
        A sentence that says what was analysed.

    Raises:
        InputError: a wrong option, or frames that do not permit an analysis of `only`.
        FileError: a file cannot be read or written; the folder is unchanged then.
    """
    sources = [trajectory_file(run) for run in runs]
    refuse_folder(out, NUMBERS, overwrite=overwrite)
    with JoinedTrajectory(sources, options.frame_interval_fs) as trajectory:
        frames = frames_between(len(trajectory), options.first, options.last, options.stride)
        source = _source(trajectory, frames, options)
        outcomes, left_out = _read(trajectory, frames, source, options.only)
        end = trajectory[frames[-1]]
    about = _about(sources, source, end, options)
    about["independent_samples"] = {word: result.independent for word, result in outcomes.items()}
    about["too_short"] = [word for word, result in outcomes.items() if _is_too_short(result)]
    with new_results(out, NUMBERS, overwrite=overwrite) as folder:
        for outcome in outcomes.values():
            for name, text in outcome.tables.items():
                (folder / name).write_text(text, encoding="utf-8")
        numbers = {
            **about,
            "results": {word: outcome.numbers for word, outcome in outcomes.items()},
            "left_out": left_out,
        }
        text = json.dumps(finite_or_null(numbers), indent=1) + "\n"
        (folder / NUMBERS).write_text(text, encoding="utf-8")
        page = _page(runs, about, outcomes, left_out)
        (folder / PAGE).write_text(page, encoding="utf-8")
    if about["too_short"]:
        logger.warning(
            "The run is too short for %s: it has fewer than %d independent samples",
            ", ".join(about["too_short"]),
            FEWEST_INDEPENDENT,
        )
    size, times = about["atoms"], about["time_ps"]
    return (
        f"{len(frames)} frame{'s' * (len(frames) != 1)} of {size} atom{'s' * (size != 1)}, "
        f"{times[0]:.6g} to {times[1]:.6g} ps: {', '.join(outcomes)}; {out / PAGE}"
    )


def _source(trajectory: JoinedTrajectory, frames: range, options: AnalysisOptions) -> FrameSource:
    system = trajectory.system(0)
    steps = trajectory.steps[frames.start : frames.stop : frames.step]
    start = trajectory[frames[0]]
    interval, timestep = 0, 1.0
    if len(frames) > 1 and (np.diff(steps) == steps[1] - steps[0]).all():
        time = trajectory[frames[1]].time_fs - start.time_fs
        if time > 0.0:
            interval = int(steps[1] - steps[0])
            timestep = time / interval
    record = _record_of(trajectory.path)
    configuration = record.get("configuration", {})
    if (sentence := switching_warning(trajectory.path.parent, record)) is not None:
        logger.warning("%s", sentence)
    return FrameSource(
        system=system,
        start=start,
        frames=len(frames),
        interval=interval,
        timestep=timestep,
        atoms=None if options.select is None else select_atoms(options.select, system),
        complete=_has_all_atoms(system, start),
        anchored=trajectory.has_constraints
        or any(configuration.get(key) for key in ("fix", "restrain")),
        rdf_range=options.rdf_range,
        rdf_bins=options.rdf_bins,
        window=options.window,
        spacing=options.spacing,
    )


def _record_of(path: Path) -> dict[str, Any]:
    """The record of the run that wrote a trajectory; empty if there is none."""
    for folder in (path.parent, path.parent.parent):
        try:
            return RunDirectory(folder).read_record()
        except FileError:
            continue
    return {}


def _has_all_atoms(system: System, start: Frame) -> bool:
    """Whether a frame holds all atoms that its kinetic energy is of; true if nothing tells."""
    if start.velocities is None or not start.kinetic_energy > 0.0:
        return True
    own = 0.5 * KINETIC_ENERGY * float((system.masses * (start.velocities**2).sum(1)).sum())
    return abs(own - start.kinetic_energy) <= _SAME_ENERGY * start.kinetic_energy


def _read(
    trajectory: JoinedTrajectory,
    frames: range,
    source: FrameSource,
    only: tuple[str, ...] | None,
) -> tuple[dict[str, Outcome], dict[str, str]]:
    """What each word gives, and why other words give nothing."""
    left_out: dict[str, str] = {}

    def leave_out(word: str, reason: str) -> None:
        reason = reason.rstrip(".")
        if only is not None:
            raise InputError(f"No {word}: {reason}.")
        logger.info("No %s: %s.", word, reason)
        left_out[word] = reason

    quantities: dict[FrameQuantity, list[str]] = {}
    for quantity_class in QUANTITIES:
        words = [word for word in quantity_class.words if only is None or word in only]
        if not words:
            continue
        try:
            quantity = quantity_class(source)
        except InputError as error:
            for word in words:
                leave_out(word, str(error))
            continue
        for word in [*words]:
            if obstacle := quantity.obstacle(word):
                leave_out(word, obstacle)
                words.remove(word)
        if words:
            quantities[quantity] = words
    for index in _with_progress(frames):
        frame = trajectory[index]
        for quantity, words in [*quantities.items()]:
            try:
                quantity.add(frame)
            except InputError as error:
                for word in words:
                    leave_out(word, str(error))
                del quantities[quantity]
    if not quantities:
        raise InputError(
            "These frames permit no analysis; save velocities, energies or more frames."
        )
    outcomes = {
        word: quantity.outcome(word) for quantity, words in quantities.items() for word in words
    }
    return outcomes, left_out


def _with_progress(frames: Sequence[int]) -> Iterator[int]:
    """The frames, with a bar on a terminal, else with a line in the log each minute."""
    bar = tqdm(frames, "analyse", unit="frame", disable=None)
    if not bar.disable:
        yield from bar
        return
    began = last_line = time.monotonic()
    for done, index in enumerate(frames):
        if (now := time.monotonic()) - last_line >= _BETWEEN_LINES:
            left = (now - began) / done * (len(frames) - done) / 60.0
            logger.info("%d of %d frames, about %.2g min left.", done, len(frames), left)
            last_line = now
        yield index


def _about(
    sources: Sequence[Path], source: FrameSource, end: Frame, options: AnalysisOptions
) -> dict[str, Any]:
    part = source.part()
    spacing = source.interval * source.timestep
    return {
        "mdgraph": __version__,
        "trajectories": [str(path) for path in sources],
        "atoms": len(part),
        "formula": formula(part),
        "selection": options.select,
        "frames": source.frames,
        "time_ps": [1e-3 * source.start.time_fs, 1e-3 * end.time_fs],
        "interval_fs": spacing or None,
    }


def _page(
    runs: Sequence[Path],
    about: dict[str, Any],
    outcomes: dict[str, Outcome],
    left_out: dict[str, str],
) -> str:
    names = ", ".join(path.name or str(path.resolve().name) for path in runs)
    start, end = about["time_ps"]
    selection = about["selection"]
    interval = about["interval_fs"]
    rows = [
        ["trajectory", ", ".join(about["trajectories"])],
        ["atoms", f"{about['atoms']} ({about['formula']})"],
        *([["selection", selection]] if selection is not None else []),
        *([["too short for", ", ".join(about["too_short"])]] if about["too_short"] else []),
        ["frames", f"{about['frames']}, from {start:.6g} to {end:.6g} ps"],
        ["between frames", f"{interval:.6g} fs" if interval else "not even"],
        ["tables", "CSV files beside this page; the numbers below are in analysis.json"],
        ["made by", f"mdgraph {about['mdgraph']}"],
    ]
    parts = [html_table(rows, header=False)]
    for outcome in outcomes.values():
        parts.append(f"<h2>{outcome.title}</h2>")
        if len(outcome.rows) > 1:
            parts.append(html_table(outcome.rows))
        if _is_too_short(outcome):
            parts.append(f"<p><strong>{_shortness(outcome)}</strong></p>")
        if outcome.note:
            parts.append(f"<p>{outcome.note}</p>")
        parts += [
            f"<p>{html_image(figure, words)}</p>" for words, figure in outcome.figures.items()
        ]
    if left_out:
        parts.append("<h2>Left out</h2>")
        parts.append(
            html_table([[word, reason] for word, reason in left_out.items()], header=False)
        )
    title = f"Analysis of {names}: {about['formula']}, {end - start:.4g} ps"
    return html_page(printable(title, 200), parts)


def _is_too_short(outcome: Outcome) -> bool:
    return outcome.independent < FEWEST_INDEPENDENT


def _shortness(outcome: Outcome) -> str:
    """How far a run is too short for a result."""
    factor = math.ceil(FEWEST_INDEPENDENT / outcome.independent)
    return (
        f"The run is too short: it has about {outcome.independent:.2g} independent samples of "
        f"this, where {FEWEST_INDEPENDENT} are few. Run {factor} times longer."
    )
