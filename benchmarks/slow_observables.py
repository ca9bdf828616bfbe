"""What two time steps do to diffusion and to the profile of a dihedral, beside plain steps.

    python benchmarks/slow_observables.py LARGE SMALL --steps 0.5 1.5x4 --start FILE --out FILE
    python benchmarks/slow_observables.py LARGE SMALL --steps 1 2 1.5x4 --structure FILE \\
        --dihedral 6 8 14 16 --without 4 6 8 14 0 130 --out FILE

LARGE and SMALL are potentials by name or path; the first of --steps, plain ones, is the reference.
All rows have the same masses. --replicas systems run at a time. A row is written to FILE.json with
its seed when it is done, and kept when the same command is given again; --join takes such files
instead of making rows, and pools all their seeds.

**Diffusion** of the most common heavy element: a bath (stochastic velocity rescaling) with the
steps of the row, then constant energy from its last positions and velocities. D is a sixth of the
slope of the mean squared displacement between --lags. Energies differ between replicas, and D with
them, so D is told at the temperature of the bath: by a line through D and mean kinetic temperature
of all replicas, whose slope all rows share. With --one-bath all rows of a seed begin at constant
energy where a bath with the steps of the reference ends: replicas differ far more in D than two
runs from one place and one set of velocities, so differences and errors are those of pairs, and
what is compared is the dynamics alone, not the bath. Both of a pair begin with one energy, and the
one that is colder by chance, with more potential energy, moves faster: by 4 to 9 % a kelvin in
water at 300 K, while D of replicas of many energies rises with temperature. So a line through
differences in D and in temperature of the pairs tells the one where temperatures differ by no more
than what a row gains makes: half of the gain over kT a degree of freedom, the heat capacity of
springs. Limit: 8 %. A replica whose total energy changes by more than 1 eV has run away: it is left
out, with its partner in pairs, the others go on, and a row of two time steps that has one fails.
What the others gain is told in meV a replica and in kT/ns a degree of freedom: resonance, which no
thermostat hides here. --against OTHER compares OTHER with LARGE, both with the first of --steps.

**A dihedral**, four indices of atoms from 0 on: Langevin dynamics, -kT ln p of bins of --bins
degrees. --without has another dihedral and two angles: samples in which it lies between them do not
count, and their share is told. --spring has a centre, degrees, and a stiffness, kT/rad^2, of a
spring on the dihedral in all rows, whose energy comes off the profile again: near the top of a
barrier it lets basins exchange more often. Limit: 0.1 kT, in every bin that holds --least of the
samples of the reference.

Errors come from the scatter of the replicas; two are told. A check passes if the difference and two
errors lie within the limit, fails if they lie beyond it, and is too short (?) otherwise.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from cases import conditions, device_argument, run_script
from multiple_time_steps import TAU, Array, Steps, Verdict, hardware, steps_named
from replica_frames import (
    Frames,
    angles_of,
    diffusion_of,
    displacements,
    moving,
    total_energies,
)

from mdgraph.analysis.rdf import most_common_heavy_element
from mdgraph.biases import Dihedral, HarmonicBias
from mdgraph.engine import (
    Integrator,
    LangevinMiddle,
    Simulation,
    StochasticVelocityRescaling,
    VelocityVerlet,
    repartitioned,
)
from mdgraph.errors import InputError, SimulationError
from mdgraph.io.files import write_atomically
from mdgraph.io.structures import read_systems
from mdgraph.precision import PRECISIONS
from mdgraph.system import System
from mdgraph.units import BOLTZMANN

DIFFUSION: Final = 8.0
"""Limit in percent."""

PROFILE: Final = 0.1
"""Limit in kT."""

EQUILIBRATION: Final = 0.1
"""Share of a row of a dihedral that is left out."""

DEADLINE_STEPS: Final = 4096
"""Steps between two looks at the clock."""

RUNAWAY: Final = 1.0
"""eV; a change of total energy that no step makes in a replica that holds."""

OTHER: Final = ", other"
"""End of the name of a row by the potential of --against."""


class Bench:
    """The runs of one structure."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.deadline = time.monotonic() + 60.0 * options.minutes
        self.file = Path(f"{options.out}.json")
        self.about: dict[str, Any] = {
            "large": options.large,
            "small": options.small,
            "replicas": options.replicas,
            "ps": options.ps,
            "temperature_K": options.temperature,
            "hydrogen_mass_amu": options.hydrogen_mass,
            **self.more_about(),
        }
        self.record: dict[str, Any] = {"about": self.about, "rows": {}}
        if self.file.exists():
            self.record = json.loads(self.file.read_text(encoding="utf-8"))
            if self.record["about"] != self.about:
                raise InputError(f"{self.file} was made with other options; give another --out.")
        self.bathed: list[System] | None = None
        self.large = options.large
        systems = read_systems(options.start or options.structure)
        systems = [systems[place % len(systems)] for place in range(options.replicas)]
        self.start = [repartitioned(one, options.hydrogen_mass) for one in systems]

    def more_about(self) -> dict[str, Any]:
        """What rows of one file have in common beside the rest."""
        options = self.options
        return {
            "lags_ps": options.lags,
            "one_bath": options.one_bath,
            "against": options.against,
            "dihedral": options.dihedral,
            "without": options.without,
            "spring": options.spring,
            "friction_per_ps": options.friction if options.dihedral else None,
        }

    def texts(self) -> list[str]:
        """Names of the rows."""
        steps: list[str] = self.options.steps
        return [steps[0], steps[0] + OTHER] if self.options.against else steps

    def run(self) -> None:
        """Makes the rows that are missing, in time."""
        for text in self.texts():
            seeds = self.record["rows"].setdefault(text, {})
            if str(self.options.seed) in seeds or self.left() < 0.0:
                continue
            if text.endswith(OTHER):
                self.large = self.options.against
            made = self.made(steps_of(text))
            if made is not None:
                seeds[str(self.options.seed)] = made
            self.write()

    def write(self) -> None:
        content = json.dumps(self.record) + "\n"
        write_atomically(self.file, content)

    def made(self, steps: Steps) -> dict[str, Any] | None:
        """A run of a row; None if its time was too short."""
        options, began = self.options, time.perf_counter()
        try:
            frames = self.dihedral(steps) if options.dihedral else self.constant_energy(steps)
        except SimulationError as error:
            return {"failed": str(error)}
        if not frames.places:
            return None
        places, spacing = np.array(frames.places), 1e-3 * frames.interval * steps.timestep
        row = {
            "conditions": conditions(options.device, options.precision),
            "atoms": len(self.start[0]),
            "ps": len(places) * spacing,
            "kelvin": frames.of_all(np.mean(frames.kelvin, 0)),
        }
        if options.dihedral:
            angles = angles_of(places[:, :, :4])
            kept = np.ones(angles.shape, dtype=bool)
            if options.without:
                other, (low, high) = angles_of(places[:, :, 4:]), options.without[4:]
                kept = (other < low) | (other > high)
            edges = np.arange(-180.0, 181.0)
            row["counts"] = [
                np.histogram(own[inside], edges)[0].tolist()
                for own, inside in zip(angles.T, kept.T, strict=True)
            ]
            row["left_out"] = 1.0 - float(kept.mean())
        else:
            squares = displacements(places, math.floor(options.lags[1] / spacing))
            row["D"] = frames.of_all(diffusion_of(squares, spacing, options.lags))
            row["squares"] = squares.tolist()
            quarters = np.array_split(np.array(frames.kelvin), 4)
            row["rise"] = frames.of_all(quarters[3].mean(0) - quarters[0].mean(0))
            assert frames.change is not None
            row["gain"] = frames.of_all(frames.change)
        row["seconds"] = time.perf_counter() - began
        print(f"{steps.text()} fs: {row['ps']:.4g} ps in {row['seconds']:.0f} s", flush=True)
        return row

    def constant_energy(self, steps: Steps) -> Frames:
        """Frames at constant energy after a bath."""
        if self.options.one_bath:
            self.bathed = self.bathed or self.after_bath(steps_of(self.options.steps[0]))
        systems = self.bathed or self.after_bath(steps)
        elements = self.start[0].numbers
        atoms = np.flatnonzero(elements == most_common_heavy_element(elements)).tolist()
        frames = Frames(self.every(steps), atoms, held=np.ones(len(systems), dtype=bool))
        return self.of_those_that_hold(systems, frames, steps)

    def of_those_that_hold(self, systems: list[System], frames: Frames, steps: Steps) -> Frames:
        """Frames of the replicas whose total energy stays what it was."""
        every, size = self.every(steps), len(systems[0])
        left = count = self.count(self.options.ps, steps)
        some = max(1, DEADLINE_STEPS // every) * every
        energies: Array | None = None
        assert frames.held is not None
        while left and systems and self.left() > 0.0:
            simulation = self.simulation(systems, VelocityVerlet(steps.timestep), steps)
            simulation.reporters.append(frames)
            if energies is None:
                energies = total_energies(simulation)
            change = np.zeros(len(systems))
            lost = np.zeros(len(systems), dtype=bool)
            while left and self.left() > 0.0 and not lost.any():
                known = len(frames.places)
                part = min(some, left)
                try:
                    simulation.run(part)
                except SimulationError as error:
                    del frames.places[known:], frames.kelvin[known:]
                    lost[
                        [atom // size for atom in error.atoms] or [int(np.abs(change).argmax())]
                    ] = True
                    break
                left -= part
                systems = moving(simulation)
                change = total_energies(simulation) - energies
                lost = np.abs(change) > RUNAWAY
            if lost.any():
                print(f"{int(lost.sum())} ran away with {left} steps to go.", flush=True)
            frames.held[np.flatnonzero(frames.held)[lost]] = False
            frames.keep(~lost)
            systems = [system for system, gone in zip(systems, lost, strict=True) if not gone]
            energies, frames.change = energies[~lost], change[~lost]
        if not systems or left > count // 2:
            print(f"No time was left for {steps.text()} fs.", flush=True)
            frames.places.clear()
        return frames

    def after_bath(self, steps: Steps) -> list[System]:
        """Where a bath ends, with velocities."""
        options = self.options
        integrator = StochasticVelocityRescaling(steps.timestep, options.temperature, tau=TAU)
        bath = self.simulation(self.start, integrator, steps)
        self.advance(bath, self.count(options.equilibrate_ps, steps))
        return moving(bath)

    def dihedral(self, steps: Steps) -> Frames:
        """Frames of the points of the dihedrals."""
        options = self.options
        bath = LangevinMiddle(steps.timestep, options.temperature, options.friction)
        more: dict[str, Any] = {}
        if options.spring:
            centre, stiffness = math.radians(options.spring[0]), options.spring[1]
            stiffness *= BOLTZMANN * options.temperature
            spring = HarmonicBias("dihedral", centre=centre, stiffness=stiffness)
            more = {"variables": {"dihedral": Dihedral(options.dihedral)}, "biases": [spring]}
        simulation = self.simulation(self.start, bath, steps, **more)
        skipped = round(EQUILIBRATION * self.count(options.ps, steps))
        atoms = [*options.dihedral, *(options.without or [])[:4]]
        return self.recorded(simulation, Frames(self.every(steps), atoms, skipped), steps)

    def recorded(self, simulation: Simulation, frames: Frames, steps: Steps) -> Frames:
        simulation.reporters.append(frames)
        count = self.count(self.options.ps, steps)
        if self.advance(simulation, count) < count // 2:
            print(f"No time was left for {steps.text()} fs.", flush=True)
            frames.places.clear()
        return frames

    def advance(self, simulation: Simulation, count: int) -> int:
        """Runs until the count or the deadline; the number of steps that were done."""
        some = max(1, DEADLINE_STEPS // simulation.together) * simulation.together
        while simulation.step < count and self.left() > 0.0:
            simulation.run(min(some, count - simulation.step))
        return int(simulation.step)

    def count(self, picoseconds: float, steps: Steps) -> int:
        every = self.every(steps)
        return max(1, round(picoseconds * 1e3 / (every * steps.timestep))) * every

    def every(self, steps: Steps) -> int:
        return max(1, round(self.options.every_fs / steps.outer)) * steps.inner

    def left(self) -> float:
        return float(self.deadline - time.monotonic())

    def simulation(
        self, systems: list[System], integrator: Integrator, steps: Steps, **more: Any
    ) -> Simulation:
        options = self.options
        if steps.inner > 1:
            more |= {"inner_potential": options.small, "inner_steps": steps.inner}
        return Simulation(
            systems,
            self.large,
            integrator,
            temperature=options.temperature,
            device=options.device,
            precision=options.precision,
            seed=options.seed,
            check=None,
            **more,
        )


def steps_of(text: str) -> Steps:
    text = text.removesuffix(OTHER)
    return steps_named(text) if "x" in text else Steps(float(text))


@dataclass(frozen=True)
class Pooled:
    """All replicas of all seeds of a row."""

    steps: Steps
    runs: list[Mapping[str, Any]]
    name: str = ""

    @property
    def failed(self) -> bool:
        return any("failed" in run for run in self.runs)

    @property
    def ps(self) -> float:
        """Of all replicas."""
        return float(sum(run["ps"] * len(run["kelvin"]) for run in self.runs))

    def values(self, name: str) -> Array:
        return np.concatenate([np.array(run[name], dtype=float) for run in self.runs])

    def gains(self, bath: float) -> Array:
        """kT/ns a degree of freedom that the replicas gain at constant energy."""
        units = [1e-3 * run["ps"] * (3 * run["atoms"] - 3) * BOLTZMANN * bath for run in self.runs]
        rates = [
            np.array(run["gain"], dtype=float) / unit
            for run, unit in zip(self.runs, units, strict=True)
        ]
        return np.concatenate(rates)

    def warming(self) -> Array:
        """K by which the replicas are hotter for what they gain, in the mean over the run."""
        degrees = [3 * run["atoms"] - 3 for run in self.runs]
        heats = [
            0.5 * np.array(run["gain"], dtype=float) / (own * BOLTZMANN)
            for run, own in zip(self.runs, degrees, strict=True)
        ]
        return np.concatenate(heats)


def difference_of_pairs(change: Array, apart: Array) -> tuple[float, float]:
    """Where a line through changes of pairs and what their temperatures differ by meets zero."""
    spread, count = apart - apart.mean(), len(apart)
    moment = float(spread @ spread)
    slope = float(spread @ change) / moment if moment else 0.0
    rest = change - change.mean() - slope * spread
    lever = float(apart.mean()) ** 2 / moment if moment else 0.0
    variance = float(rest @ rest) / (count - 2)
    value = float(change.mean() - slope * apart.mean())
    return value, math.sqrt(variance * (1.0 / count + lever))


def diffusion_table(rows: Sequence[Pooled], bath: float, paired: bool = False) -> list[str]:
    """The lines of the rows, of which the first is the reference, with pairs of replicas or not."""
    held = [np.isfinite(row.values("D")) for row in rows]
    lost = [int((~own).sum()) for own in held]
    if paired:
        held = [np.logical_and.reduce(held)] * len(rows)
    kelvin, own, rise, gain = (
        [row.values(name)[inside] for row, inside in zip(rows, held, strict=True)]
        for name in ("kelvin", "D", "rise", "gain")
    )
    rates = [row.gains(bath)[inside] for row, inside in zip(rows, held, strict=True)]
    warming = [row.warming()[inside] for row, inside in zip(rows, held, strict=True)]
    around = [one - one.mean() for one in kelvin]
    moment = sum(float(one @ one) for one in around)
    slope = sum(float(one @ two) for one, two in zip(around, own, strict=True)) / moment
    rest = [two - two.mean() - slope * one for one, two in zip(around, own, strict=True)]
    variance = [float(one @ one) / (len(one) - 2) / len(one) for one in rest]
    means = [
        float(two.mean() - slope * (one.mean() - bath))
        for one, two in zip(kelvin, own, strict=True)
    ]
    scatter = sum(float(one @ one) for one in rest) / (sum(map(len, rest)) - len(rest) - 1)
    titles = (
        "step, fs | outer, fs | ps | ran away | gain, meV | kT/ns a degree | T, K | rise, K | "
        "D, Å²/ns | at the bath's T | difference, %"
    )
    lines = [f"| {titles} |", "|" + " --- |" * 11]
    for index, row in enumerate(rows):
        apart = kelvin[index].mean() - kelvin[0].mean()
        change = variance[index] + variance[0]
        error = math.sqrt(change + apart**2 * scatter / moment)
        difference, unit = means[index] - means[0], 100.0 / means[0]
        if paired and index:
            unit = 100.0 / float(own[0].mean())
            heat = warming[index] - warming[0]
            apart_by = kelvin[index] - kelvin[0] - heat
            difference, error = difference_of_pairs(own[index] - own[0], apart_by)
        verdict = Verdict(unit * difference, 2.0 * unit * error, DIFFUSION)
        size = math.sqrt(len(own[index]))
        runs_away = " **runs away**" if lost[index] and row.steps.inner > 1 else ""
        cells = [
            row.name or row.steps.text(),
            f"{row.steps.outer:g}",
            f"{row.ps:.0f}",
            f"{lost[index]}",
            f"{1e3 * gain[index].mean():+.1f} ± {2e3 * gain[index].std(ddof=1) / size:.1f}",
            f"{rates[index].mean():+.3f} ± {2.0 * rates[index].std(ddof=1) / size:.3f}",
            f"{kelvin[index].mean():.1f} ± {2.0 * kelvin[index].std(ddof=1) / size:.1f}",
            f"{rise[index].mean():+.1f} ± {2.0 * rise[index].std(ddof=1) / size:.1f}",
            f"{1e3 * own[index].mean():.1f} ± {2e3 * own[index].std(ddof=1) / size:.1f}",
            f"{1e3 * means[index]:.1f} ± {2e3 * math.sqrt(variance[index]):.1f}",
            verdict.text("+.1f") + runs_away if index else "reference",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, "", f"D rises by {100.0 * slope / means[0]:.2f} % a kelvin."]


def profile_of(
    row: Pooled, width: int, spring: Sequence[float] | None = None
) -> tuple[Array, Array]:
    """Shares of bins, without a spring that all samples had, and their standard errors."""
    counts = row.values("counts")
    if spring:
        centre, stiffness = spring
        apart = np.radians((np.arange(-179.5, 180.0) - centre + 180.0) % 360.0 - 180.0)
        counts = counts * np.exp(0.5 * stiffness * apart**2)
    counts = counts.reshape(len(counts), -1, width).sum(2)
    total = counts.sum()
    shares = counts.sum(0) / total
    # Of a ratio: replicas have different numbers of samples.
    rest = counts - counts.sum(1, keepdims=True) * shares
    size = len(counts)
    error = np.sqrt((rest**2).sum(0) * size / max(1, size - 1)) / total
    return shares, error


def profile_table(
    rows: Sequence[Pooled], width: int, least: float, spring: Sequence[float] | None = None
) -> list[str]:
    """The lines of the rows, of which the first is the reference, and of the bins."""
    profiles = [profile_of(row, width, spring) for row in rows]
    shares, errors = map(np.array, zip(*profiles, strict=True))
    kept = np.flatnonzero((shares[0] >= least) & (shares[0] > 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        change, relative = -np.log(shares / shares[0]), errors / shares
    lines = [
        "| step, fs | outer, fs | ps | left out | RMS, kT | worst bin, ° | its difference, kT |"
    ]
    lines.append("|" + " --- |" * 7)
    for index, row in enumerate(rows):
        twice = 2.0 * np.hypot(relative[index], relative[0])[kept]
        worst = int(np.argmax(np.abs(change[index, kept]) + twice))
        verdict = Verdict(float(change[index, kept[worst]]), float(twice[worst]), PROFILE)
        cells = [
            row.steps.text(),
            f"{row.steps.outer:g}",
            f"{row.ps:.0f}",
            f"{max(run['left_out'] for run in row.runs):.2g}",
            f"{np.sqrt((change[index, kept] ** 2).mean()):.3f}" if index else "-",
            f"{-180 + width * kept[worst]} to {-180 + width * (kept[worst] + 1)}",
            verdict.text("+.3f") if index else "reference",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "| from, ° | " + " | ".join(row.steps.text() for row in rows) + " |"]
    lines.append("|" + " --- |" * (len(rows) + 1))
    for place in kept:
        cells = [f"{-180 + width * place}"]
        cells.append(f"{-np.log(shares[0, place]):.3f} ± {2.0 * relative[0, place]:.3f}")
        for index in range(1, len(rows)):
            error = 2.0 * math.hypot(relative[index, place], relative[0, place])
            cells.append(f"{change[index, place]:+.3f} ± {error:.3f}")
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, "", f"{len(kept)} bins of {width}° hold {100 * shares[0, kept].sum():.1f} %."]


def only_pairs(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record without the seeds that some of its rows lack."""
    rows = record["rows"]
    first, *others = rows.values()
    common = [seed for seed in first if all(seed in seeds for seeds in others)]
    kept = {text: {seed: seeds[seed] for seed in common} for text, seeds in rows.items()}
    return {**record, "rows": kept}


def table_of(records: Sequence[Mapping[str, Any]], width: int, least: float) -> str:
    """All rows of records with equal conditions, and who failed."""
    about = records[0]["about"]
    if about.get("one_bath"):
        records = [only_pairs(record) for record in records]
    rows = {
        text: Pooled(
            steps_of(text),
            [run for record in records for run in record["rows"].get(text, {}).values()],
            text if text.endswith(OTHER) else "",
        )
        for text in dict.fromkeys(text for record in records for text in record["rows"])
    }
    done = [row for row in rows.values() if row.runs and not row.failed]
    failed = [f"{text} fs fails." for text, row in rows.items() if row.failed]
    if len(done) < 2:
        return "\n".join([*failed, "Two rows are needed.", ""])
    if about["dihedral"]:
        lines = profile_table(done, width, least, about.get("spring"))
    else:
        lines = diffusion_table(done, about["temperature_K"], bool(about.get("one_bath")))
    told = ", ".join(f"{name} {value}" for name, value in about.items() if value is not None)
    where = hardware([run["conditions"] for row in done for run in row.runs])
    return "\n".join([f"{told}. {where}.", "", *lines, *failed, ""])


def parser_of(description: str) -> argparse.ArgumentParser:
    """The arguments of all scripts that run rows of replicas by a Bench."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("large", help="potential whose dynamics these are")
    parser.add_argument("small", help="inner potential")
    parser.add_argument("--out", default="slow", help="files, without .json")
    parser.add_argument("--steps", nargs="+", default=["0.5", "1.5x4"], help="the reference first")
    parser.add_argument("--start", type=Path, help="structures, one of each replica")
    parser.add_argument("--structure", type=Path, help="of all replicas")
    parser.add_argument("--hydrogen-mass", type=float, default=3.024, help="amu")
    parser.add_argument("--replicas", type=int, default=32, help="systems at a time")
    parser.add_argument("--ps", type=float, default=16.0, help="of each replica in a row")
    parser.add_argument("--every-fs", type=float, default=48.0, help="between samples")
    parser.add_argument("--equilibrate-ps", type=float, default=2.0, help="of the bath before it")
    parser.add_argument("--friction", type=float, default=5.0, help="1/ps, of Langevin dynamics")
    parser.add_argument("--temperature", type=float, default=300.0, help="K")
    parser.add_argument("--minutes", type=float, default=math.inf, help="then it stops")
    parser.add_argument("--precision", default="mixed", choices=PRECISIONS)
    parser.add_argument("--device", type=device_argument, default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--join", type=Path, nargs="+", help="files to join, with their .json")
    return parser


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the program where arguments of all scripts do not fit."""
    if not options.join and (options.start is None) == (options.structure is None):
        parser.error("give either --start or --structure")
    if options.replicas < 3:
        parser.error("errors come from the scatter of three --replicas or more")


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__.splitlines()[0])
    parser.add_argument("--lags", type=float, nargs=2, default=[1.5, 6.0], help="ps, of D")
    parser.add_argument("--against", help="a potential to compare with LARGE, by plain steps")
    parser.add_argument("--one-bath", action="store_true", help="by the reference, for all rows")
    parser.add_argument("--dihedral", type=int, nargs=4, help="atoms of its profile")
    parser.add_argument("--without", type=int, nargs=6, help="another, and what it may not be")
    parser.add_argument("--spring", type=float, nargs=2, help="on it: degrees, kT/rad^2")
    parser.add_argument("--bins", type=int, default=15, help="degrees")
    parser.add_argument("--least", type=float, default=0.02, help="share of a bin that counts")
    options = parser.parse_args()
    check(parser, options)
    if options.against and (options.one_bath or options.dihedral):
        parser.error("--against has a bath of each potential, and no dihedral")
    return options


def print_table(
    bench: type[Bench],
    options: argparse.Namespace,
    table: Callable[[Sequence[Mapping[str, Any]]], str],
) -> None:
    """Makes the rows that are missing unless files are joined; prints their table and writes it."""
    if options.join:
        records = [json.loads(path.read_text(encoding="utf-8")) for path in options.join]
    else:
        work = bench(options)
        work.run()
        records = [work.record]
    text = table(records)
    Path(f"{options.out}.md").write_text(text, encoding="utf-8")
    print(text)


def main() -> None:
    """Makes the rows that are missing, and prints the table."""
    options = arguments()
    print_table(Bench, options, lambda records: table_of(records, options.bins, options.least))


if __name__ == "__main__":
    run_script(main)
