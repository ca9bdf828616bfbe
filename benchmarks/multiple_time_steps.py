"""What two time steps gain and bias: outer steps against checks of sampling, ns/day beside them.

    python benchmarks/multiple_time_steps.py LARGE SMALL --out FILE [--minutes 9] [...]

LARGE and SMALL are potentials by name or path. Dynamics with a bath of a structure, by default the
shipped water repeated 2 x 2 x 4 times (3,072 atoms), in rows of equal simulated time: plain steps
of 0.25 fs as the reference, longer plain steps, and outer steps of several steps by SMALL. A row is
written to FILE.json and FILE.md when it is done. Rows that FILE.json has already are kept, so that
the same command goes on, and several such commands at a time share the rows. A row that --minutes
leaves no time for is not begun, and one that it cuts off in its second half is kept. One that fails
leaves its last structures in FILE.*.failed.extxyz. Rows of heavy hydrogens (--hydrogen-mass 3.024)
go into the same file: averages do not depend on masses. The bath is stochastic velocity rescaling,
which leaves the balance between elements alone and lets energies decorrelate fast; --bath langevin
takes friction. --pressure has the cell follow a pressure by stochastic cell rescaling.

--replicas 16 takes so many systems at a time, each with a start of its own, which all rows share;
errors come from their scatter. Averages do not depend on friction either, so --reference-friction
gives the reference another one, by which stiff bonds forget faster. --join takes rows of other
files instead of making any, such as those of several --seeds: of each start the mean over all its
runs, weighted by their length. --seconds 0 leaves timings to a later command, for a GPU that is
shared.

    T kin, T conf   kinetic and configurational temperature of each element (ElementTemperatures)
    U               mean potential energy, over half of kT a degree of freedom
    X-H             width of the distribution of the lengths of bonds to hydrogen
    g               RMS of the difference of g(r) of the most common heavy element with itself
    V, var V        volume of the cell and its variance
    T cell          -<(P_int - P)(V - <V>)> / k, which is the bath's temperature too: the
                    configurational temperature of the volume

are differences to the reference, in percent but for g, with two standard errors, and values where
no row is the reference. Both temperatures of an element are the bath's in a canonical ensemble,
whatever the potential (ElementTemperatures), so brackets have differences to that, without the
errors of the reference. A row passes a check if the difference and two errors lie within its limit
(1 %, 10 % of var V, and 0.02), fails if they lie beyond it, and is too short (?) otherwise. Gains
are over the longest plain step of the same masses that fails none. Speeds are those of runs that
record nothing. Effective samples are the variance of the potential energy over its blocked error,
squared; a second is one of bare steps where they were timed, else of the whole row.
"""

import argparse
import fcntl
import gc
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import ase.io
import numpy as np
import torch
from cases import conditions, counts_named, device_argument, repeated, run_script
from numpy.typing import NDArray
from torch import Tensor

from mdgraph.analysis.rdf import most_common_heavy_element, smallest_height
from mdgraph.checkpoints import shipped_potentials
from mdgraph.engine import (
    ElementTemperatures,
    Integrator,
    LangevinMiddle,
    Simulation,
    StochasticCellRescaling,
    StochasticVelocityRescaling,
    repartitioned,
)
from mdgraph.engine.multiple_time_steps import STEPS
from mdgraph.engine.observables.averages import BlockAverages
from mdgraph.errors import InputError, SimulationError
from mdgraph.io.files import write_atomically
from mdgraph.io.structures import read_system, read_systems, to_ase
from mdgraph.precision import PRECISIONS
from mdgraph.system import System
from mdgraph.units import BAR, BOLTZMANN, SYMBOLS

Array = NDArray[np.float64]

REFERENCE: Final = 0.25
"""fs, of plain steps with the masses of the structure."""

PLAIN: Final = {False: (0.5, 0.75, 1.0, 1.25, 1.5, 2.0), True: (1.0, 1.5, 2.0, 2.5, 3.0, 4.0)}
"""fs; of heavier hydrogens if true."""

TWO: Final = {
    False: ("0.5x2", "0.5x4", "0.75x4", "0.5x8", "0.75x8"),
    True: ("1x2", "1x4", "0.75x8", "1.5x4", "2x3", "1x8"),
}
"""Steps of the small potential, fs, and their number to one of the large."""

PERCENT: Final = 1.0
DISTANCE: Final = 0.02
"""Limits of the checks in percent, and of the RMS of g(r)."""

VARIANCE: Final = 10.0
"""Limit in percent of the variance of the volume."""

BOND: Final = 1.3
"""A, longest bond to hydrogen at the start."""

EQUILIBRATION: Final = 0.2
"""Share of a row that is left out before samples are taken."""

RANGE: Final = 6.0
WIDTH: Final = 0.1
"""A, of g(r), at most half of the cell, and of its bins."""

TAU: Final = 100.0
"""fs, of stochastic velocity rescaling."""

SPARE: Final = 1.3
"""Time of a row over that of its bare steps, without its samples."""

SAMPLE: Final = 4.0
"""Time of a sample over that of an outer step."""

FEWEST: Final = 5
"""Runs whose median is a speed: lists that grow take one or two of the first."""

PAIRS: Final = 1 << 20
"""Distances that are computed at a time."""


@dataclass(frozen=True)
class Steps:
    """Time steps of a row: of the potential that drives them, fs, and of inner steps, or 1."""

    timestep: float
    inner: int = 1

    @property
    def outer(self) -> float:
        return self.timestep * self.inner

    def text(self) -> str:
        return f"{self.timestep:g} x {self.inner}" if self.inner > 1 else f"{self.timestep:g}"


@dataclass
class Samples:
    """A Reporter of energies, widths and distributions of S equal systems, by step."""

    interval: int
    alike: NDArray[np.int64]
    bonds: tuple[NDArray[np.int64], NDArray[np.int64]]
    reach: float
    start: int
    cell_varies: bool = False
    energy: dict[int, Array] = field(default_factory=dict)
    volume: dict[int, Array] = field(default_factory=dict)
    virial: dict[int, Array] = field(default_factory=dict)
    width: dict[int, Array] = field(default_factory=dict)
    pairs: dict[int, Array] = field(default_factory=dict)

    def report(self, simulation: Simulation) -> None:
        """See Reporter."""
        if simulation.step <= self.start:
            return
        state = simulation.state
        cell = state.cell.double()
        places = state.places().view(len(cell), -1, 3)
        periodic = bool(state.pbc.all())
        self.energy[simulation.step] = state.energy.double().cpu().numpy()
        if self.cell_varies:
            self.volume[simulation.step] = torch.linalg.det(cell).abs().cpu().numpy()
            trace = state.virial.double().diagonal(dim1=-2, dim2=-1).sum(-1)
            self.virial[simulation.step] = trace.cpu().numpy()
        if len(self.bonds[0]):
            hydrogens, heavy = self.bonds
            lengths = distances(places[:, hydrogens], places[:, heavy], cell, periodic)
            self.width[simulation.step] = lengths.std(1, correction=0).cpu().numpy()
        if self.reach:
            self.pairs[simulation.step] = self._distribution(places[:, self.alike], cell)

    def _distribution(self, places: Tensor, cell: Tensor) -> Array:
        """g(r) (S, bins) of one frame."""
        systems, count = places.shape[:2]
        bins = round(self.reach / WIDTH)
        counts = torch.zeros(systems * (bins + 1), dtype=torch.int64, device=places.device)
        first = torch.arange(systems, device=places.device)[:, None, None] * (bins + 1)
        for rows in places.split(max(1, PAIRS // (systems * count)), 1):
            lengths = distances(rows[:, :, None], places[:, None], cell[:, None], True)
            each = first + (lengths / WIDTH).long().clamp(max=bins)
            counts += torch.bincount(each.flatten(), minlength=len(counts))
        counts = counts.view(systems, bins + 1)
        counts[:, 0] -= count  # an atom and itself
        edges = np.arange(bins + 1) * WIDTH
        shells = 4.0 / 3.0 * np.pi * np.diff(edges**3)
        volume = torch.linalg.det(cell).abs().cpu().numpy()[:, None]
        values: Array = counts[:, :-1].cpu().numpy() * volume / (count * (count - 1.0) * shells)
        return values


def distances(first: Tensor, second: Tensor, cell: Tensor, periodic: bool) -> Tensor:
    """Lengths (...) of the vectors between positions (..., 3), of nearest images by a cell."""
    vectors = second - first
    if periodic:
        vectors = vectors - (vectors @ torch.linalg.inv(cell)).round() @ cell
    return torch.linalg.vector_norm(vectors, dim=-1)


def samples_of(system: System, interval: int, start: int) -> Samples:
    """Bonds are those of the structure: of each hydrogen to the nearest heavy atom, if near."""
    hydrogens, heavy = np.flatnonzero(system.numbers == 1), np.flatnonzero(system.numbers != 1)
    places, cell = torch.tensor(system.positions), torch.tensor(system.cell)
    periodic = bool(system.pbc.all())
    bonds = np.zeros((2, 0), dtype=np.int64)
    if len(hydrogens) and len(heavy):
        nearest = [
            distances(part[:, None], places[heavy][None], cell, periodic).min(1)
            for part in places[hydrogens].split(max(1, PAIRS // len(heavy)))
        ]
        near = torch.cat([one.values for one in nearest]).numpy() < BOND
        partners = heavy[torch.cat([one.indices for one in nearest]).numpy()]
        bonds = np.stack([hydrogens[near], partners[near]])
    alike = np.flatnonzero(system.numbers == most_common_heavy_element(system.numbers))
    reach = 0.0
    if periodic and len(alike) > 1:
        reach = min(RANGE, math.floor(0.5 * smallest_height(system.cell) / WIDTH) * WIDTH)
    return Samples(interval, alike, (bonds[0], bonds[1]), reach, start)


def mean_of(series: Mapping[int, Array]) -> tuple[Array, Array, Array] | None:
    """Means (S,), blocked standard errors and variances of a series; None without two samples."""
    if len(series) < 2:
        return None
    values = torch.tensor(np.array(list(series.values())), dtype=torch.float64)
    averages, due = BlockAverages(values.shape[1:], torch.device("cpu")), torch.tensor(True)
    for count, value in enumerate(values):
        averages.add_(value, torch.tensor(count), due)
    blocked = averages.read(len(series))
    return blocked.mean, blocked.error, blocked.variance


def statistic(means: Array, errors: Array) -> dict[str, Any]:
    """Mean and standard error over S systems, and the mean of each where there are several."""
    if len(means) == 1:
        return {"value": float(means[0]), "error": float(errors[0])}
    error = means.std(ddof=1) / len(means) ** 0.5
    return {"value": float(means.mean()), "error": float(error), "systems": means.tolist()}


def volumes_of(samples: Samples, degrees: float, kelvin: float, pressure: float) -> dict[str, Any]:
    """Mean, variance and temperature of the volume, of a pressure in eV/A^3."""
    volumes, traces = (np.array(list(one.values())) for one in (samples.volume, samples.virial))
    apart = volumes - volumes.mean()
    inner = (degrees * BOLTZMANN * kelvin + traces) / (3.0 * volumes)
    series = {
        "V": volumes,
        "var V": apart**2,
        "T cell": (pressure - inner) * apart / BOLTZMANN,
    }
    means = {name: mean_of(dict(enumerate(own))) for name, own in series.items()}
    return {name: statistic(*own[:2]) for name, own in means.items() if own is not None}


def distribution_of(series: Sequence[Array]) -> dict[str, Any]:
    """Mean of rows (S, bins) and the variance of that mean: from the systems, or ten blocks."""
    rows = np.array(series)
    if rows.shape[1] > 1:
        blocks, more = rows.mean(0), {"systems": rows.mean(0).tolist()}
    else:
        blocks = np.array([part.mean((0, 1)) for part in np.array_split(rows, min(10, len(rows)))])
        more = {}
    variance = np.zeros(rows.shape[2])
    if len(blocks) > 1:
        variance = blocks.var(axis=0, ddof=1) / len(blocks)
    return {"value": rows.mean((0, 1)).tolist(), "variance": variance.tolist(), **more}


def key_of(mass: float | None, steps: Steps) -> str:
    """Name of a row."""
    return f"{steps.timestep:g}x{steps.inner}@{mass or 'own'}"


def bath_text(options: argparse.Namespace) -> str:
    """The bath of all rows, and that of the reference where it is another."""
    if options.pressure is not None:
        return f"stochastic cell rescaling, {options.pressure:g} bar"
    if options.bath != "langevin":
        return "bussi"
    own = options.reference_friction
    return f"langevin, {options.friction:g}/ps" + (f", reference {own:g}/ps" if own else "")


def is_done(row: Mapping[str, Any]) -> bool:
    """Whether a row has its samples, or why there are none."""
    return "means" in row or "failed" in row


class Bench:
    """The runs of one structure."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.deadline = time.monotonic() + 60.0 * options.minutes
        self.file, self.table = (Path(f"{options.out}.{end}") for end in ("json", "md"))
        self.about = {
            "large": options.large,
            "small": options.small,
            "structure": str(options.structure or "water-pbe0"),
            "repeat": "x".join(map(str, options.repeat)),
            "replicas": options.replicas,
            "ps": options.ps,
            "temperature_K": options.temperature,
            "bath": bath_text(options),
            "seed": options.seed,
        }
        self.record: dict[str, Any] = {"about": self.about, "rows": {}}
        self.read()
        path = options.structure or shipped_potentials()["water-pbe0"] / "start.extxyz"
        self.unit = read_system(path).replace(velocities=None)

    def run(self) -> bool:
        """Makes the rows that are missing; whether all are there."""
        heavy = self.options.hydrogen_mass is not None
        plain, two = self.options.plain, self.options.two_steps
        plain = [Steps(step) for step in (PLAIN[heavy] if plain is None else plain)]
        two = [steps_named(text) for text in (TWO[heavy] if two is None else two)]
        masses = self.options.hydrogen_mass
        jobs = [(masses, steps) for steps in (*plain, *two)]
        if not self.options.no_reference:
            jobs = [(None, Steps(REFERENCE)), *jobs]
        rows = [(mass, steps, self.row(mass, steps)["speeds"]) for mass, steps in jobs]
        for mass, steps, speeds in rows if self.options.seconds > 0.0 else []:
            sizes = [size for size in self.sizes() if size not in speeds]
            for size in sizes:
                if self.left() < 2.0 * self.options.seconds:
                    break
                speeds[size] = self.speed(mass, steps, size)
                self.write()
        self.write()
        if self.options.ps <= 0.0:
            return True
        start = self.start()
        if start is None:
            return False
        for mass, steps in jobs:
            with self.own(mass, steps) as mine:
                if mine and not is_done(self.row(mass, steps)):
                    self.make(start, mass, steps)
        self.write()
        return all(is_done(self.row(mass, steps)) for mass, steps in jobs)

    def make(self, start: list[System], mass: float | None, steps: Steps) -> None:
        """Makes a row if there is time."""
        row = self.row(mass, steps)
        speed = row["speeds"].get(self.about["repeat"])
        if speed and "failed" in speed:
            row |= {"failed": speed["failed"]}
            return
        if self.options.seconds > 0.0:
            seconds = self.seconds_of(row, speed) if speed else math.inf
            if seconds > self.left():
                print(f"{steps.text()} fs takes some {seconds:.0f} s, which are not left.")
                return
        row |= self.sampled(start, mass, steps)
        self.write()

    @contextmanager
    def own(self, mass: float | None, steps: Steps) -> Iterator[bool]:
        """Whether no other command is at a row, which is this one's from now on."""
        path = Path(f"{self.options.out}.{key_of(mass, steps)}.lock")
        with path.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            self.read()
            yield True

    def seconds_of(self, row: Mapping[str, Any], speed: Mapping[str, Any]) -> float:
        """A guess at the time of a row, from its speed."""
        options, outer = self.options, row["timestep"] * row["inner"]
        bare = options.ps / speed["ns_per_day"] * 86.4
        samples = options.ps * 1e3 / max(options.every_fs, outer)
        return float(SPARE * bare + SAMPLE * samples * 0.0864 * outer / speed["ns_per_day"])

    def left(self) -> float:
        return self.deadline - time.monotonic()

    def sizes(self) -> list[str]:
        more = ["x".join(map(str, counts)) for counts in self.options.speeds]
        return list(dict.fromkeys([self.about["repeat"], *more]))

    def row(self, mass: float | None, steps: Steps) -> dict[str, Any]:
        key = key_of(mass, steps)
        fresh = {"hydrogen_mass_amu": mass, **vars(steps), "speeds": {}}
        row: dict[str, Any] = self.record["rows"].setdefault(key, fresh)
        return row

    def read(self) -> None:
        """Takes what other commands have written meanwhile."""
        if not self.file.exists():
            return
        theirs = json.loads(self.file.read_text(encoding="utf-8"))
        if theirs["about"] != self.about:
            raise InputError(
                f"{self.file} was made with {theirs['about']}; give these options again "
                "or another --out."
            )
        for key, row in theirs["rows"].items():
            own = self.record["rows"].setdefault(key, row)
            for mine, other in ((own, row), (own["speeds"], row["speeds"])):
                mine.update({name: value for name, value in other.items() if name not in mine})

    def write(self) -> None:
        """Writes both files anew."""
        with Path(f"{self.options.out}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.read()
            text = json.dumps(self.record, indent=1)
            write_atomically(self.file, text + "\n")
            table = markdown(self.record)
            write_atomically(self.table, table)

    def simulation(
        self, systems: list[System], mass: float | None, steps: Steps, **more: Any
    ) -> Simulation:
        options = self.options
        if mass is not None:
            systems = [repartitioned(system, mass) for system in systems]
        bath: Integrator = StochasticVelocityRescaling(steps.timestep, options.temperature, tau=TAU)
        if options.bath == "langevin":
            friction = options.friction
            if mass is None and steps == Steps(REFERENCE):
                friction = options.reference_friction or friction
            bath = LangevinMiddle(steps.timestep, options.temperature, friction)
        if options.pressure is not None:
            bath = StochasticCellRescaling(
                steps.timestep, options.temperature, options.pressure * BAR, tau=TAU
            )
        gc.collect()  # graphs of the simulation before
        if steps.inner > 1:
            more |= {"inner_potential": options.small, "inner_steps": steps.inner}
        return Simulation(
            systems,
            options.large,
            bath,
            device=options.device,
            precision=options.precision,
            seed=options.seed,
            check=None,
            **more,
        )

    def speed(self, mass: float | None, steps: Steps, size: str) -> dict[str, Any]:
        """ns/day of steps that record nothing, and conditions."""
        system = repeated(self.unit, [int(part) for part in size.split("x")])
        systems = [system] * (self.options.replicas if size == self.about["repeat"] else 1)
        about = conditions(self.options.device, self.options.precision)
        about |= {"atoms": sum(map(len, systems))}
        simulation = self.simulation(systems, mass, steps)
        gpu = self.options.device.type == "cuda"
        some = (512 // steps.inner if gpu else 2) * steps.inner
        try:
            simulation.run(some)
            rates: list[float] = []
            until = time.monotonic() + self.options.seconds
            while len(rates) < FEWEST or time.monotonic() < until:
                began = time.perf_counter()
                simulation.run(some)
                if gpu:
                    torch.cuda.synchronize(self.options.device)
                rates.append(some * steps.timestep * 86400e-6 / (time.perf_counter() - began))
        except SimulationError as error:
            return about | {"failed": str(error)}
        value, graphs = float(np.median(rates)), simulation.step_graphs
        way = f"graphs of {graphs.longest}" if graphs.graphed else "eager"
        print(
            f"{size} {steps.text()} fs: {value:.4g} ns/day ({min(rates):.4g} to {max(rates):.4g} "
            f"in {len(rates)}; skin {simulation.calculation.skin:g} A, {way})",
            flush=True,
        )
        return about | {"ns_per_day": value}

    def start(self) -> list[System] | None:
        """The structures after a bath, from a file if there is one; None if time was short."""
        path = Path(f"{self.options.out}.start.extxyz")
        with Path(f"{self.options.out}.start.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists() and not self.equilibrate(path):
                return None
        return [system.replace(velocities=None) for system in read_systems(path)]

    def equilibrate(self, path: Path) -> bool:
        """Writes the structures after a bath; whether time was enough."""
        systems = [repeated(self.unit, self.options.repeat)] * self.options.replicas
        simulation = self.simulation(systems, None, Steps(0.5))
        count = max(1, round(self.options.equilibrate_ps * 1e3 / 0.5))
        some = 200
        while simulation.step < count and self.left() > 0.0:
            simulation.run(min(some, count - simulation.step))
        if simulation.step < count:
            print("No time was left for the bath; give the same command and more --minutes.")
            return False
        keep(path, simulation, systems)
        return True

    def frames_of(self, what: str, mass: float | None, steps: Steps) -> Path:
        """The file of a row's structures; an @ in its name would be an index for ASE."""
        key = key_of(mass, steps).replace("@", "-")
        return Path(f"{self.options.out}.{key}.{what}.extxyz")

    def sampled(self, start: list[System], mass: float | None, steps: Steps) -> dict[str, Any]:
        """What a row found, or why it has nothing."""
        options = self.options
        every = max(1, round(options.every_fs / steps.outer)) * steps.inner
        count = max(10, round(options.ps * 1e3 / (every * steps.timestep))) * every
        skipped = round(EQUILIBRATION * count / every) * every
        samples = samples_of(start[0], every, skipped)
        samples.cell_varies = options.pressure is not None
        temperatures = ElementTemperatures(every=every, start=skipped)
        simulation = self.simulation(start, mass, steps, observe=[temperatures])
        simulation.reporters.append(samples)
        began, some = time.perf_counter(), max(1, 4096 // every) * every
        try:
            while simulation.step < count:
                if self.left() < 0.0:
                    print(f"No time was left for the rest of {steps.text()} fs.", flush=True)
                    if simulation.step < count // 2:
                        return {}
                    break
                simulation.run(min(some, count - simulation.step))
        except SimulationError as error:
            keep(self.frames_of("failed", mass, steps), simulation, start)
            return {"failed": str(error)}
        if options.keep_last:
            keep(self.frames_of("last", mass, steps), simulation, start)
        energy = mean_of(samples.energy)
        assert energy is not None
        degrees = simulation.degrees_of_freedom[0]
        unit = 0.5 * BOLTZMANN * options.temperature * degrees
        found: dict[str, Any] = {"U": statistic(energy[0] / unit, energy[1] / unit)}
        width = mean_of(samples.width)
        if width is not None:
            found["X-H"] = statistic(*width[:2])
        result = temperatures.result()
        for element in result.elements:
            for short, name in (("kin", "kinetic"), ("conf", "configurational")):
                each = [result.of(element, name, system) for system in range(len(start))]
                found[f"T {short} {element}"] = statistic(*np.array(each).T)
        if samples.cell_varies:
            pressure = options.pressure * BAR
            found |= volumes_of(samples, float(degrees), options.temperature, pressure)
        if samples.pairs:
            found["g"] = distribution_of(list(samples.pairs.values()))
        seconds = time.perf_counter() - began
        picoseconds = (simulation.step - skipped) * steps.timestep * 1e-3
        with np.errstate(divide="ignore", invalid="ignore"):
            independent = float((energy[2] / energy[1] ** 2).sum())
        print(f"{steps.text()} fs: sampled in {seconds:.0f} s", flush=True)
        return {
            "conditions": conditions(options.device, options.precision),
            "atoms": len(start[0]),
            "samples": len(samples.energy),
            "ps": picoseconds,
            "seconds": seconds,
            "effective_per_ps": independent / picoseconds,
            "heavy": SYMBOLS[int(start[0].numbers[samples.alike[0]])],
            "means": found,
        }


def keep(path: Path, simulation: Simulation, systems: Sequence[System]) -> None:
    """Writes where the atoms of equal systems are, and their cells."""
    places = simulation.state.places().cpu().numpy().reshape(len(systems), -1, 3)
    cells = simulation.state.cell.double().cpu().numpy()
    frames = [
        to_ase(system.replace(positions=own, cell=cell, velocities=None))
        for system, own, cell in zip(systems, places, cells, strict=True)
    ]
    ase.io.write(path, frames)


@dataclass(frozen=True)
class Verdict:
    """A difference to the reference, its two standard errors, and its limit."""

    difference: float
    twice_error: float
    limit: float

    @property
    def word(self) -> str:
        """`ok`, `no` or `?`."""
        if not math.isfinite(self.difference + self.twice_error):
            return "?"
        if abs(self.difference) + self.twice_error <= self.limit:
            return "ok"
        return "no" if abs(self.difference) - self.twice_error > self.limit else "?"

    def text(self, form: str) -> str:
        mark = {"ok": "", "no": " **no**", "?": " ?"}[self.word]
        return f"{self.difference:{form}} ± {self.twice_error:{form[-3:]}}{mark}"


def verdicts(
    row: Mapping[str, Any], reference: Mapping[str, Any], bath: float | None = None
) -> dict[str, Verdict]:
    """Every check of a row, by its name; temperatures also with that of the bath, K."""
    checks = {}
    for name, own in row["means"].items():
        other = reference["means"].get(name)
        if other is None:
            continue
        if name == "g":
            checks[name] = distribution(own, other)
            continue
        unit = 100.0 if name == "U" else 100.0 / other["value"]
        error = math.hypot(own["error"], other["error"])
        difference = unit * (own["value"] - other["value"])
        limit = VARIANCE if name == "var V" else PERCENT
        checks[name] = Verdict(difference, abs(2.0 * unit * error), limit)
        if bath is not None and name.startswith("T "):
            unit = 100.0 / bath
            difference, error = unit * (own["value"] - bath), unit * own["error"]
            checks[f"{name} of the bath"] = Verdict(difference, 2.0 * error, PERCENT)
    return checks


def distribution(own: Mapping[str, Any], other: Mapping[str, Any]) -> Verdict:
    """The RMS beyond noise, and what noise adds to it."""
    size = min(len(own["value"]), len(other["value"]))
    change = np.subtract(own["value"][:size], other["value"][:size])
    noise = np.add(own["variance"][:size], other["variance"][:size]).mean()
    whole = float((change**2).mean() ** 0.5)
    beyond = float(max(0.0, (change**2).mean() - noise) ** 0.5)
    return Verdict(beyond, whole - beyond, DISTANCE)


def is_reference(row: Mapping[str, Any]) -> bool:
    """Whether others are compared with a row."""
    return (row["timestep"], row["inner"], row["hydrogen_mass_amu"]) == (REFERENCE, 1, None)


def state_of(
    row: Mapping[str, Any], reference: Mapping[str, Any], bath: float | None = None
) -> str:
    """`ok`, `?` or `no`: the worst of all checks; `-` without samples."""
    if "failed" in row:
        return "no"
    if "means" not in row or not reference.get("means"):
        return "-"
    words = [verdict.word for verdict in verdicts(row, reference, bath).values()]
    return "no" if "no" in words else "?" if "?" in words else "ok"


def baselines(
    rows: Sequence[Mapping[str, Any]], reference: Mapping[str, Any], bath: float | None = None
) -> dict[Any, Any]:
    """Of each mass, the longest plain step that fails no check."""
    longest: dict[Any, Any] = {}
    for row in sorted(rows, key=lambda one: float(one["timestep"])):
        if row["inner"] == 1 and state_of(row, reference, bath) in ("ok", "?"):
            longest[row["hydrogen_mass_amu"]] = row
    return longest


def markdown(record: Mapping[str, Any]) -> str:
    """The table, with its conditions."""
    rows = list(record["rows"].values())
    reference = next((row for row in rows if is_reference(row)), {"means": {}})
    first = next((row for row in rows if "means" in row), reference)
    names = list(reference.get("means", {})) or [
        name for name in first.get("means", {}) if name != "g"
    ]
    bath = record["about"]["temperature_K"]
    longest = baselines(rows, reference, bath)
    sizes = list(dict.fromkeys(size for row in rows for size in row["speeds"]))
    atoms = {size: own["atoms"] for row in rows for size, own in row["speeds"].items()}
    titles = ["H, amu", "step, fs", "outer, fs", *(f"{name}, %" for name in names if name != "g")]
    titles += [f"g {reference['heavy']}-{reference['heavy']}"] if "g" in names else []
    titles += ["ps", "checks"]
    for size in sizes:
        titles += [f"ns/day, {atoms[size]:,}", "gain"]
    titles += ["effective samples/s"]
    lines = ["| " + " | ".join(titles) + " |", "|" + " --- |" * len(titles)]
    lines += [
        "| " + " | ".join(cells(row, reference, bath, names, sizes, longest)) + " |"
        for row in sorted(rows, key=place_of)
    ]
    about = ", ".join(f"{name} {value}" for name, value in record["about"].items())
    sampled = [row["conditions"] for row in rows if "conditions" in row]
    timed = [one for row in rows for one in row["speeds"].values()]
    plain = [
        f"{mass or 'own masses'}: {row['timestep']:g} fs"
        + (
            ""
            if state_of(row, reference, bath) == "ok"
            else " (no check fails, some are too short)"
        )
        for mass, row in longest.items()
    ]
    return "\n".join(
        [
            f"{about}. Sampled: {hardware(sampled)}. Speeds: {hardware(timed)}.",
            "",
            f"Longest plain step that fails no check: {'; '.join(plain) or 'not known yet'}.",
            "",
            *lines,
            "",
        ]
    )


def joined(records: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> dict[str, Any]:
    """One record of several, whose rows have of each start the mean over all its runs.

    What records were made with may differ in the seed, the length and the bath, and is then told
    one after the other; `names` replaces the rest of it.
    """
    about: dict[str, Any] = {}
    for name in records[0]["about"]:
        values = list(dict.fromkeys(str(record["about"][name]) for record in records))
        about[name] = "; ".join(values) if len(values) > 1 else records[0]["about"][name]
    about |= names
    rows: dict[str, Any] = {}
    for record in records:
        for key, row in record["rows"].items():
            rows.setdefault(key, []).append(row)
    return {"about": about, "rows": {key: row_of(runs) for key, runs in rows.items()}}


def row_of(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A row of several runs: one that failed fails it."""
    row: dict[str, Any] = {}
    for run in reversed(runs):
        row |= run | {"speeds": row.get("speeds", {}) | run["speeds"]}
    sampled = [run for run in runs if "means" in run]
    if not sampled:
        return row
    lengths = np.array([run["ps"] for run in sampled])
    shares = lengths / lengths.sum()
    for name in ("ps", "samples", "seconds"):
        row[name] = sum(run[name] for run in sampled)
    row["effective_per_ps"] = float(shares @ [run["effective_per_ps"] for run in sampled])
    means: dict[str, Any] = {}
    for name in sampled[0]["means"]:
        values = np.array([run["means"][name]["systems"] for run in sampled])
        systems = np.tensordot(shares, values, 1)
        means[name] = distribution_of([systems]) if name == "g" else statistic(systems, systems)
    return row | {"means": means}


def hardware(conditions: Sequence[Mapping[str, Any]]) -> str:
    """Where, by what and when rows were made."""
    texts = {
        f"{one['hardware']}, torch {one['torch']}, triton {one['triton']}, "
        f"{one['precision']}, {one['date']}"
        for one in conditions
    }
    return "; ".join(sorted(texts)) or "not yet"


def place_of(row: Mapping[str, Any]) -> tuple[float, bool, float]:
    """Where a row stands in the table."""
    return row["hydrogen_mass_amu"] or 0.0, row["inner"] > 1, row["timestep"] * row["inner"]


def value_text(name: str, value: Any) -> str:
    """A value of the reference, of which others have differences."""
    if name == "g":
        return "0"
    unit, form = {
        "U": ("", ".3f"),
        "X-H": (" Å", ".4f"),
        "V": (" Å³", ".1f"),
        "var V": (" Å⁶", ".0f"),
    }.get(name, (" K", ".1f"))
    return f"{value['value']:{form}} ± {2.0 * value['error']:{form}}{unit}"


def cells(
    row: Mapping[str, Any],
    reference: Mapping[str, Any],
    bath: float,
    names: Sequence[str],
    sizes: Sequence[str],
    longest: Mapping[Any, Mapping[str, Any]],
) -> list[str]:
    """A row of the table."""
    steps = Steps(row["timestep"], row["inner"])
    mass = row["hydrogen_mass_amu"]
    texts = [f"{mass:g}" if mass else "own", steps.text(), f"{steps.outer:g}"]
    alone = not reference.get("means")
    checks = verdicts(row, row if alone else reference, bath) if "means" in row else {}
    for name in names:
        if name not in checks:
            texts.append("-")
            continue
        text = checks[name].text(".3f" if name == "g" else "+.2f")
        if alone or is_reference(row):
            text = value_text(name, row["means"][name])
        exact = checks.get(f"{name} of the bath")
        texts.append(text + (f" ({exact.text('+.2f')})" if exact else ""))
    word = "reference" if is_reference(row) else state_of(row, reference, bath)
    texts.append(f"{row['ps']:.3g}" if "ps" in row else "-")
    texts.append("failed" if "failed" in row else word)
    base = longest.get(mass)
    for size in sizes:
        speed = row["speeds"].get(size, {}).get("ns_per_day")
        other = base["speeds"].get(size, {}).get("ns_per_day") if base else None
        texts.append(f"{speed:.3g}" if speed else "-")
        texts.append(f"{speed / other:.2f}" if speed and other else "-")
    speed = row["speeds"].get(sizes[0], {}).get("ns_per_day") if sizes else None
    effective = row.get("effective_per_ps")
    rate = speed / 86.4 * effective if speed and effective else None
    if rate is None and effective:
        rate = effective * row["ps"] / row["seconds"]
    texts.append(f"{rate:.3g}" if rate is not None and math.isfinite(rate) else "-")
    return texts


def steps_named(text: str) -> Steps:
    """Steps of a text such as `0.5x8`."""
    timestep, _, inner = text.partition("x")
    try:
        steps = Steps(float(timestep), int(inner))
    except ValueError:
        raise InputError(f"Two time steps are told as 0.5x8, not '{text}'.") from None
    if steps.inner not in STEPS:
        raise InputError(f"{text} has {steps.inner} inner steps; choose among {STEPS}.")
    return steps


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("large", help="potential whose dynamics these are")
    parser.add_argument("small", help="inner potential")
    parser.add_argument("--out", default="multiple_time_steps", help="files, without .json")
    parser.add_argument("--structure", type=Path, help="without it, shipped water")
    parser.add_argument("--repeat", type=counts_named, default=[2, 2, 4], help="along the axes")
    parser.add_argument(
        "--speeds", type=counts_named, nargs="*", default=[], help="more sizes to time, as 5x5x5"
    )
    parser.add_argument("--hydrogen-mass", type=float, help="amu, by repartitioning")
    parser.add_argument("--plain", type=float, nargs="*", help="plain steps, fs")
    parser.add_argument("--two-steps", nargs="*", help="as 0.5x8: of SMALL, fs, and their number")
    parser.add_argument("--no-reference", action="store_true", help="which another file has")
    parser.add_argument("--ps", type=float, default=40.0, help="of each row; 0: timings alone")
    parser.add_argument("--every-fs", type=float, default=24.0, help="between samples")
    parser.add_argument("--equilibrate-ps", type=float, default=10.0, help="by LARGE, once")
    parser.add_argument("--temperature", type=float, default=300.0, help="K")
    parser.add_argument("--bath", default="bussi", choices=("bussi", "langevin"))
    parser.add_argument("--friction", type=float, default=1.0, help="1/ps, of langevin")
    parser.add_argument("--pressure", type=float, help="bar, that the cell follows")
    parser.add_argument("--reference-friction", type=float, help="1/ps, of the reference alone")
    parser.add_argument("--replicas", type=int, default=1, help="systems at a time")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a timing; 0: no timings")
    parser.add_argument("--minutes", type=float, default=math.inf, help="then it stops")
    parser.add_argument("--keep-last", action="store_true", help="structures of each row's end")
    parser.add_argument("--precision", default="mixed", choices=PRECISIONS)
    parser.add_argument("--device", type=device_argument, default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--join", type=Path, nargs="+", help="files to join, with their .json")
    options = parser.parse_args()
    if options.pressure is not None and options.bath == "langevin":
        parser.error("--pressure has the bath bussi")
    return options


def main() -> None:
    """Makes the rows that are missing, and prints the table."""
    options = arguments()
    if options.join:
        records = [json.loads(path.read_text(encoding="utf-8")) for path in options.join]
        table = markdown(joined(records, {"large": options.large, "small": options.small}))
        Path(f"{options.out}.md").write_text(table, encoding="utf-8")
        print(table)
        return
    bench = Bench(options)
    done = bench.run()
    print(bench.table.read_text(encoding="utf-8"))
    if not done:
        print("Not all rows are there; give the same command again.")


if __name__ == "__main__":
    run_script(main)
