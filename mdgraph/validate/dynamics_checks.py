"""Checks of dynamics: failures per ps at the temperature of the data and at twice it, and drift.

Several replicas run as one batch: frames of the same atoms, or of a crystal a supercell at rest.
What counts as a failure is said in `mdgraph.validate.stability`. Runs of a liquid also record what
`mdgraph.validate.liquid_checks` judges, and drops, slabs and molecules are cut from it and run.
"""

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from ase import Atoms
from numpy.typing import NDArray

from mdgraph.data import LabelledFrame
from mdgraph.data.bonding import kind_of
from mdgraph.data.dataset import evenly_spaced
from mdgraph.engine import Simulation, VelocityVerlet
from mdgraph.engine.calculation import as_evaluator
from mdgraph.errors import InputError, MDGraphError, SimulationError
from mdgraph.evaluators import Evaluator
from mdgraph.models import Potential
from mdgraph.precision import precision_named
from mdgraph.system import System
from mdgraph.units import BOLTZMANN
from mdgraph.validate.bonds import REACH, BondGraph, NeighborGraph, cut, shortest_distances
from mdgraph.validate.crystals import (
    CrystalProbe,
    crystal_compounds,
    crystal_elements,
    phases_at_rest,
    reference_phase,
    supercell,
    wide,
)
from mdgraph.validate.liquid_checks import LiquidRecord, liquid_checks
from mdgraph.validate.stability import StabilityOptions, StabilityResult, stability
from mdgraph.validate.verdicts import Check, Curves, Verdict, worst

Array = NDArray[np.float64]

REPLICAS: Final = 8
"""Replicas; they are independent starts, and a batch of them costs little more than one."""

ATOMS: Final = 512
"""Most atoms of all replicas, of which there are at least two; two cores manage some hundred steps
a second of them."""

SUBJECTS: Final = 3
"""Most kinds of structures that run: those with the most frames."""

PICOSECONDS: Final = 10.0
"""ps of each replica at most: 8 of them then tell a failure in 27 ps from none."""

NVE_SHARE: Final = 0.4
"""Length of the runs at constant energy over that of the others."""

MINUTES: Final = (4.0, 0.35)
"""Wall time of all runs together, and with `quick`, after which they stop earlier."""

SHARES: Final = (0.4, 0.4, 0.2)
"""Of the time for the bath at the temperature of the data, at twice it and constant energy."""

PIECES: Final = ("drop", "slab", "molecule")
PIECE_SHARE: Final = 0.1
"""What is cut from a liquid, and how much of that time each piece takes beside it."""

WARM_UP: Final = 0.5
"""ps before temperatures count."""

FRICTION: Final = 4.0
"""1/ps: starts from frames or a crystal at rest come to the temperature within half a picosecond,
and 6 ps suffice to tell the mean temperature."""

CHECK_EVERY: Final = 20.0
"""fs from one look to the next, two periods of the fastest bond: a bond that is long at two looks
in a row is broken."""

TIMESTEPS: Final = (0.5, 1.0)
"""fs with hydrogen, whose bonds take 11 fs to swing, and without."""

TRANSFER_FRAMES: Final = 500
"""Frames in which a hydrogen is searched that goes from one heavy atom to another, as in
acetylacetone; where one does, it breaks no bond by doing so."""

BONDS_HOLD: Final = 1500.0
"""K up to which a broken bond fails. A bond of 3 eV breaks at 1e13 exp(-3 eV/kT)/s, which is once
in a millisecond there and once in 10 ns at 3000 K."""

FLUCTUATION: Final = (0.03, 0.06)
"""Standard deviation of the total energy, over that of the kinetic energy, at constant energy,
before it is looked at and before it is wrong. Verlet's steps leave (w dt)^2/8 = 0.01 of the fastest
bond; forces that are too large by a tenth leave 0.1."""

DRIFT: Final = (0.3, 3.0)
"""kT/ns a degree of freedom by which the total energy may drift beyond `ERRORS` standard errors,
before it is looked at and before it is wrong: the temperature doubles in 3 and in 0.3 ns."""

ERRORS: Final = 3.0
"""Standard errors of a drift; those of a few replicas scatter too."""

_SAMPLES: Final = 400
_FEWEST: Final = 20
"""Samples of the energy at constant energy, and the fewest, even where that takes longer."""


@dataclass(frozen=True, eq=False)
class Subject:
    """What runs: replicas of the same atoms.

    Attributes:
        name: chemical formula, with the phase of a crystal.
        starts: structures; velocities are drawn.
        bonds: which must stay.
        crystal: whether nearest neighbors take the place of bonds.
        liquid: frames of a liquid, else none.
    """

    name: str
    starts: list[System]
    bonds: BondGraph
    crystal: bool
    liquid: Sequence[LabelledFrame] = ()


def dynamics_checks(
    potential: str | Path | Potential | Evaluator,
    frames: Sequence[LabelledFrame],
    *,
    device: torch.device,
    temperature: float = 300.0,
    training: Sequence[LabelledFrame] | None = None,
    precision: str = "mixed",
    quick: bool = False,
    seed: int = 0,
    minutes: float | None = None,
    picoseconds: float | None = None,
    interval: float | None = None,
) -> Iterator[Check]:
    """Yields the checks of dynamics; syncs.

    Args:
        potential: path, shipped name, Potential or Evaluator.
        frames: structures to start from.
        device: of the runs.
        temperature: K, of the data.
        training: frames whose shortest distances no run may undercut by much; None takes `frames`.
        precision: see `mdgraph.precision`.
        quick: run a twelfth of the wall time, and one kind of structures.
        seed: of velocities and noise.
        minutes: wall time of all runs; None takes `MINUTES`.
        picoseconds: of each run in a bath, however long it takes; None takes `PICOSECONDS` at most.
        interval: fs from one frame to the next, if they are a trajectory.
    """
    rounding = precision_named(precision)
    evaluator = as_evaluator(potential, rounding, device)
    try:
        shortest = shortest_distances(training if training is not None else frames)
    except InputError:
        # No two atoms are that close, so that no run may come much closer.
        shortest = np.full((119, 119), REACH)
    probe = CrystalProbe(evaluator, device, precision)
    subjects = _subjects(frames, shortest, probe, device)[: 1 if quick else SUBJECTS]
    total = MINUTES[1 if quick else 0] if minutes is None else minutes
    if picoseconds is not None:
        total = math.inf
    else:
        picoseconds = PICOSECONDS
    for subject in subjects:
        bath, hot_bath, free = (total / len(subjects) * share for share in SHARES)
        options = StabilityOptions(
            temperature=temperature,
            ps=picoseconds,
            bath_ps=WARM_UP,
            timestep=_timestep(subject),
            friction=FRICTION,
            every_fs=CHECK_EVERY,
            precision=precision,
            seed=seed,
            minutes=bath,
        )
        record = None
        if subject.liquid:
            record = LiquidRecord(
                subject.starts[0], evaluator.cutoffs, options.timestep, options.bath_ps
            )
        check, ends = _bath_check(subject, evaluator, options, device, record=record)
        yield check
        if len(ends) > 1:
            options = replace(options, minutes=free)
            yield _energy_check(subject.name, ends, evaluator, options, device, record)
        if record is not None:
            yield from liquid_checks(
                subject.starts[0], subject.name, record, subject.liquid, interval
            )
            options = replace(options, minutes=total / len(subjects) * PIECE_SHARE)
            for piece in _pieces(subject, shortest, device):
                yield _bath_check(piece, evaluator, options, device)[0]
        options = replace(options, temperature=2.0 * temperature, minutes=hot_bath)
        yield _bath_check(subject, evaluator, options, device, hot=True)[0]


def _timestep(subject: Subject) -> float:
    return TIMESTEPS[0] if (subject.starts[0].numbers == 1).any() else TIMESTEPS[1]


def _replicas(atoms: int) -> int:
    return max(2, min(REPLICAS, ATOMS // atoms))


def _subjects(
    frames: Sequence[LabelledFrame], shortest: Array, probe: CrystalProbe, device: torch.device
) -> list[Subject]:
    """Crystals of elements and compounds, and groups of other frames with the same atoms."""
    crystals = {}
    for symbol in crystal_elements(frames):
        phases = phases_at_rest(symbol, probe)
        name = reference_phase(symbol)
        if phases and (name is None or name in phases):
            phase = phases[name] if name else min(phases.values(), key=lambda p: p.energy)
            crystals[f"{symbol} in {phase.name}"] = supercell(symbol, phase)
    for compound in crystal_compounds(frames):
        formula = Atoms(compound.numbers).get_chemical_formula(empirical=True)
        # What does not come to rest is wrong by crystal_checks already.
        with contextlib.suppress(MDGraphError):
            relaxed = probe.relax([compound], 0.05, 300)[0].system
            crystals[f"{formula} as a crystal"] = wide(relaxed)
    subjects = []
    for name, crystal in crystals.items():
        bonds = NeighborGraph(crystal, shortest, device)
        subjects.append(Subject(name, [crystal] * _replicas(len(crystal)), bonds, True))
    groups: dict[bytes, list[LabelledFrame]] = {}
    for frame in frames:
        cell = np.where(frame.pbc[:, None], frame.cell, 0.0)
        key = frame.numbers.tobytes() + frame.pbc.tobytes() + np.round(cell, 6).tobytes()
        groups.setdefault(key, []).append(frame)
    for group in sorted(groups.values(), key=len, reverse=True):
        frame = group[0]
        if len(frame) < 2 or kind_of(frame) == "crystal":
            continue
        places = np.linspace(0, len(group) - 1, _replicas(len(frame))).round().astype(int)
        starts = [group[place].system() for place in places]
        formula = Atoms(frame.numbers).get_chemical_formula()
        moving = hydrogens_move(group, device)
        graph = BondGraph(starts[0], shortest, device, transfer=moving)
        liquid = group if frame.pbc.all() and kind_of(frame) == "liquid" else ()
        subjects.append(Subject(formula, starts, graph, False, liquid))
        if len(subjects) >= SUBJECTS:
            break
    return subjects


def _pieces(subject: Subject, shortest: Array, device: torch.device) -> Iterator[Subject]:
    """Yields drops, slabs and molecules of a liquid, if it has molecules that can be cut out."""
    for shape in PIECES:
        # A liquid that is charged, or whose atoms hang together in some frame, has none.
        with contextlib.suppress(InputError):
            starts = [cut(start, shape) for start in subject.starts]
            same = [piece for piece in starts if np.array_equal(piece.numbers, starts[0].numbers)]
            graph = BondGraph(same[0], shortest, device)
            formula = Atoms(same[0].numbers).get_chemical_formula()
            yield Subject(f"a {shape} of {formula}", same, graph, False)


def hydrogens_move(frames: Sequence[LabelledFrame], device: torch.device) -> bool:
    """Whether the heavy atom nearest to a hydrogen is another one in some frame of the data.

    Args:
        frames: of the same atoms and cell, of which up to `TRANSFER_FRAMES` are looked at.
        device: of the distances.
    """
    hydrogen = torch.tensor(frames[0].numbers == 1, device=device)
    if not hydrogen.any() or hydrogen.all():
        return False
    graph = BondGraph(frames[0].system(), np.zeros((119, 119)), device)
    nearest = []
    for frame in evenly_spaced(frames, TRANSFER_FRAMES):
        distances = graph.distances(torch.tensor(frame.positions, device=device)[None])[0]
        nearest.append(distances[hydrogen][:, ~hydrogen].argmin(dim=1))
    return any(bool((row != nearest[0]).any()) for row in nearest)


# runs in a bath


def poisson_bound(events: int) -> float:
    """Upper bound, at 95 %, of the mean of a Poisson variable; 3.0 where nothing happened."""
    low, high = 0.0, 10.0 * (events + 3.0)
    for _ in range(60):
        mean = 0.5 * (low + high)
        terms = [
            math.exp(-mean + k * math.log(mean) - math.lgamma(k + 1)) for k in range(events + 1)
        ]
        low, high = (mean, high) if sum(terms) > 1.0 - 0.95 else (low, mean)
    return high


def _bath_check(
    subject: Subject,
    evaluator: Evaluator,
    options: StabilityOptions,
    device: torch.device,
    hot: bool = False,
    record: LiquidRecord | None = None,
) -> tuple[Check, list[System]]:
    """Runs in a bath, and how they end."""
    name = f"dynamics of {subject.name} at {'twice the temperature' if hot else 'the temperature'}"
    observe = [] if record is None or record.distributions is None else [record.distributions]
    reporters = [] if record is None or not observe else [record]
    try:
        result = stability(
            subject.starts,
            evaluator,
            subject.bonds,
            options,
            device,
            check=None,
            observe=observe,
            reporters=reporters,
        )
    except MDGraphError as error:
        return Check(name, Verdict.WRONG, f"It could not start: {error}"), []
    check = bath_verdict(name, result, options.temperature, subject.crystal, hot)
    return check, result.ends


def bath_verdict(
    name: str, result: StabilityResult, temperature: float, crystal: bool, hot: bool
) -> Check:
    """Judges runs in a bath.

    A bond that breaks is wrong up to `BONDS_HOLD`, neighbors that part in a crystal are wrong
    unless it is `hot`, since it may melt, and everything else is wrong always.

    Args:
        name: of the check.
        result: of the runs.
        temperature: K.
        crystal: whether bonds are nearest neighbors.
        hot: whether this is twice the temperature of the data.
    """
    bonds_may_break = hot if crystal else temperature > BONDS_HOLD
    failed = [start for start in result.starts if start.failures]
    time_run = sum(min([result.ps, *start.failures.values()]) for start in result.starts)
    kinds = {kind for start in failed for kind in start.failures}
    wrong = kinds - ({"bonds"} if bonds_may_break else set())
    verdict = Verdict.WRONG if wrong else Verdict.LOOK if kinds else Verdict.OK
    count, replicas = len(failed), len(result.starts)
    bound = poisson_bound(count) / time_run if time_run > 0.0 else math.inf
    evaporated = sum(start.evaporated for start in result.starts)
    closest = min(start.closest for start in result.starts)
    sentence = f"{replicas} replicas ran {result.ps:.3g} ps each at {temperature:g} K"
    if not count:
        sentence += f" without a failure, which means at most {bound:.2g} a ps (95 %)"
    else:
        words = {
            "bonds": "neighbors parted" if crystal else "bonds broke",
            "contact": "atoms came too close",
            "stopped": "the run stopped",
            "temperature": "the temperature is off",
        }
        counts = [
            f"{words[kind]} in {sum(kind in start.failures for start in failed)}"
            for kind in sorted(kinds)
        ]
        sentence += (
            f" and {count} failed ({', '.join(counts)}): {count / max(time_run, 1e-9):.2g} a ps, "
            f"at most {bound:.2g} (95 %)"
        )
    if evaporated:
        sentence += f"; {evaporated} molecules evaporated"
    numbers: dict[str, Any] = {
        "temperature_K": temperature,
        "replicas": replicas,
        "ps_each": round(result.ps, 4),
        "failed": count,
        "failures": [dict(start.failures) for start in failed],
        "failures_per_ps": count / time_run if time_run > 0.0 else None,
        "failures_per_ps_at_most": bound if math.isfinite(bound) else None,
        "evaporated": evaporated,
        "closest_over_shortest": closest if math.isfinite(closest) else None,
    }
    return Check(name, verdict, sentence + ".", numbers)


# runs at constant energy


class _Energies:
    """Reporter of total and kinetic energies, eV, of each replica at some steps."""

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self.time: list[float] = []
        self.total: list[Array] = []
        self.kinetic: list[Array] = []

    def report(self, simulation: Simulation) -> None:
        """Reads the device; see `mdgraph.engine.Reporter`."""
        thermo = simulation.observables()
        self.time.append(simulation.time)
        self.total.append((thermo.potential_energy + thermo.kinetic_energy).numpy())
        self.kinetic.append(thermo.kinetic_energy.numpy())


def _energy_check(
    subject: str,
    starts: Sequence[System],
    evaluator: Evaluator,
    options: StabilityOptions,
    device: torch.device,
    record: LiquidRecord | None,
) -> Check:
    """Goes on from starts with velocities, without the bath, for a share of the time in it."""
    name = f"energy of {subject} at constant energy"
    steps = max(_FEWEST, round(1e3 * NVE_SHARE * options.ps / options.timestep))
    interval = max(1, steps // _SAMPLES)
    energies = _Energies(interval)
    try:
        simulation = Simulation(
            list(starts),
            evaluator,
            VelocityVerlet(options.timestep),
            device=device,
            precision=options.precision,
            check=None,
            observe=[] if record is None else [record.displacements, record.velocities],
        )
        simulation.reporters.append(energies)
        simulation.choose(steps)
        deadline = time.monotonic() + 60.0 * options.minutes
        while simulation.step < steps and (
            len(energies.time) < _FEWEST or time.monotonic() < deadline
        ):
            simulation.run(interval)
    except SimulationError as error:
        return Check(name, Verdict.WRONG, f"The run stopped: {error}")
    degrees = float(simulation.state.degrees.double().mean())
    total, kinetic = np.array(energies.total), np.array(energies.kinetic)
    return energy_verdict(
        name, np.array(energies.time), total, kinetic, degrees, options.temperature
    )


def energy_verdict(
    name: str, times: Array, total: Array, kinetic: Array, degrees: float, temperature: float
) -> Check:
    """Judges runs at constant energy by drift and noise of their total energy.

    Args:
        name: of the check.
        times: (T,) fs.
        total: (T, S) eV, of S replicas.
        kinetic: (T, S) eV.
        degrees: of freedom of each replica.
        temperature: K.
    """
    spread = kinetic.std(0)
    if not (spread > 0.0).any():
        return Check(name, Verdict.LOOK, "Kinetic energies do not change: no force acts.")
    unit = BOLTZMANN * temperature * degrees * 1e-6
    slopes, starts = np.polyfit(times, total - total[0], 1)
    rest = total - total[0] - starts - slopes * times[:, None]
    fluctuation = float(np.median(rest.std(0)[spread > 0.0] / spread[spread > 0.0]))
    drift = float(slopes.mean() / unit)
    # Residuals of one oscillation are correlated, the scatter of replicas is not.
    error = float(slopes.std(ddof=1) / math.sqrt(len(slopes)) / unit)
    beyond = abs(drift) - ERRORS * error
    verdicts = [Verdict.by_limits(beyond, DRIFT), Verdict.by_limits(fluctuation, FLUCTUATION)]
    sentence = (
        f"In {1e-3 * (times[-1] - times[0]):.2g} ps the total energy drifts by {drift:.2g} +- "
        f"{error:.1g} kT/ns a degree of freedom and scatters by {fluctuation:.2%} of the kinetic "
        "one."
    )
    numbers = {
        "drift_kT_per_ns": drift,
        "drift_standard_error": error,
        "scatter_over_kinetic": fluctuation,
    }
    curves = Curves(
        1e-3 * times,
        {f"replica {n + 1}": 1e3 * row for n, row in enumerate((total - total[0]).T)},
        "time (ps)",
        "change of the total energy (meV)",
    )
    return Check(name, worst(verdicts), sentence, numbers, curves)
