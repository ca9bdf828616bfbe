"""`mdgraph bench`: time and memory of each execution mode, a profile, and errors by precision."""

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from mdgraph.analysis.plots import speed_figure
from mdgraph.devices import device_named
from mdgraph.engine import Calculation, LangevinMiddle, Simulation
from mdgraph.engine.dynamics import LONGEST, StepGraphs
from mdgraph.engine.simulation import WORTHWHILE
from mdgraph.errors import CapacityError, InputError, MDGraphError
from mdgraph.fused.agreement import SMALLEST_FORCE, Agreement, compare
from mdgraph.fused.evaluator import obstacle
from mdgraph.gpu.graphs import captured
from mdgraph.host_memory import check_fits
from mdgraph.io.files import refuse_existing, write_atomically
from mdgraph.io.structures import read_system
from mdgraph.memory import Workload, available_memory, estimated_memory, memory_failures
from mdgraph.neighbors.list import default_skin
from mdgraph.precision import PRECISIONS, precision_named
from mdgraph.runs.config import BenchConfig
from mdgraph.runs.potential import Source, read_potential, say_neutral, with_charge
from mdgraph.runs.record import environment, evaluator_name, formula
from mdgraph.system import System

Repeated = Callable[[int], object]
"""Does something so many times."""

_BATCHES: Final = 5
_SELF: Final = Path("/proc/self")


def milliseconds(repeated: Repeated, device: torch.device, seconds: float, whole: int = 1) -> float:
    """Time of one of many, by the host's clock: the median of five batches; syncs.

    Args:
        repeated: compiles or captures when it is first called.
        device: what it runs on.
        seconds: to be spent once it is warm, roughly; at least one more is timed.
        whole: a batch longer than this is a multiple of it.
    """

    def timed(count: int) -> float:
        begin = time.perf_counter()
        repeated(count)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - begin) / count

    timed(1)
    one = timed(1)
    if 3.0 * one > seconds:
        return 1e3 * one
    count = max(1, math.floor(seconds / ((_BATCHES + 1) * one)))
    count -= count % whole if count > whole else 0
    timed(count)  # graphs of other lengths, and caches
    one = timed(count)
    rest = min(_BATCHES - 1, math.floor(seconds / (count * one)))
    return 1e3 * float(np.median([one, *(timed(count) for _ in range(rest))]))


def repeating(once: Callable[[], object]) -> Repeated:
    """What calls a function so many times."""

    def repeated(count: int) -> None:
        for _ in range(count):
            once()

    return repeated


def begin_peak(device: torch.device) -> None:
    """Begins to look for the highest use of memory."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    elif (_SELF / "clear_refs").exists():
        with suppress(OSError):  # some containers forbid it
            (_SELF / "clear_refs").write_text("5", encoding="ascii")


def peak_memory(device: torch.device) -> int | None:
    """Bytes in use at most since `begin_peak`; None where the system does not tell.

    On CUDA what torch held, on a CPU the whole process with its libraries.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = _SELF / "status"
    if not status.exists():
        return None
    lines = status.read_text(encoding="ascii").splitlines()
    (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return 1024 * int(peak)


_MOLECULE: Final = np.array([[0.0, 0.0, 0.0], [0.757, 0.586, 0.0], [-0.757, 0.586, 0.0]])
"""A, oxygen first."""

_VOLUME: Final = 29.9
"""A^3 a molecule, liquid water at 300 K."""


def water(atoms: int, *, periodic: bool = True, seed: int = 1) -> System:
    """Randomly turned molecules on a jittered grid, with the density of the liquid.

    They are not at rest: relaxing heats them by some hundred kelvin.

    Args:
        atoms: a multiple of three.
        periodic: a cubic box; else a cluster without a cell.
        seed: of places and turns.

    Raises:
        InputError: a number of atoms that makes no molecules.
    """
    if atoms < 3 or atoms % 3:
        raise InputError(
            f"Water has three atoms a molecule, and {atoms} is no multiple of that; "
            f"ask for {3 * max(1, round(atoms / 3))}."
        )
    generator = np.random.default_rng(seed)
    molecules = atoms // 3
    edge = (molecules * _VOLUME) ** (1 / 3)
    points = int(np.ceil(molecules ** (1 / 3) - 1e-9))
    # Where the grid has more points than molecules, those of a box leave gaps all over it.
    taken = np.arange(molecules) * (points**3 if periodic else molecules) // molecules
    grid = np.stack(np.unravel_index(taken, [points] * 3), axis=-1)
    centres = (grid + 0.5) * edge / points
    centres = centres + generator.normal(scale=0.05, size=centres.shape)
    turns, _ = np.linalg.qr(generator.normal(size=(molecules, 3, 3)))
    positions = centres[:, None] + _MOLECULE @ turns
    return System(
        numbers=np.tile([8, 1, 1], molecules),
        positions=positions.reshape(-1, 3),
        cell=np.eye(3) * edge if periodic else np.zeros((3, 3)),
        pbc=np.full(3, periodic),
    )


NO_GRAPH: Final = "no CUDA graph could be captured; the log says why"


class MissingError(MDGraphError):
    """A rung is not there; the message says why."""


@dataclass(frozen=True)
class Rung:
    """A way to take a step.

    Attributes:
        name: what people call it; the evaluator comes before it.
        evaluator: `fused` or `reference`, or None for the one that was chosen.
        threads: of a CPU, or None for all.
        prepared: readies a simulation and returns what takes so many steps.
    """

    name: str
    evaluator: str | None
    prepared: Callable[[Simulation], Repeated]
    threads: int | None = None

    def named(self, evaluator: str) -> str:
        """The name with that of the evaluator."""
        return f"{self.evaluator or evaluator}, {self.name}"


def rungs_of(device: torch.device) -> tuple[Rung, ...]:
    """All rungs of a device, the slowest first; the last is how `mdgraph md` runs."""
    if device.type == "cuda":
        return (
            Rung("eager", "reference", _eager),
            Rung("list and forces in a graph", "reference", _forces_in_a_graph),
            Rung("eager", "fused", _eager),
            Rung("list and forces in a graph", "fused", _forces_in_a_graph),
            Rung("whole step in a graph", None, _in_graphs_of(1)),
            Rung(f"{LONGEST} steps in a graph", None, _in_graphs_of(LONGEST)),
            Rung("graph and skin as measured", None, _as_measured),
        )
    threads = torch.get_num_threads()
    several = f"{threads} threads" if threads > 1 else "1 thread"
    every = "list every step"
    skin = default_skin(device)
    more = (Rung(f"{several}, {every}", "fused", _with_skin(0.0)),) if threads > 1 else ()
    return (
        Rung(f"{several}, {every}", "reference", _with_skin(0.0)),
        Rung(f"1 thread, {every}", "fused", _with_skin(0.0), threads=1),
        *more,
        Rung(f"{several}, skin of {skin:g} A", None, _with_skin(skin)),
    )


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Lets torch, and the kernels, use so many threads within the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _with_skin(skin: float) -> Callable[[Simulation], Repeated]:
    def prepared(simulation: Simulation) -> Repeated:
        simulation.set_skin(skin)
        return simulation.run

    return prepared


def _eager(simulation: Simulation) -> Repeated:
    simulation.stepping.graphed = False
    return _with_skin(0.0)(simulation)


def _forces_in_a_graph(simulation: Simulation) -> Repeated:
    """A graph of list, energy, forces and virial; the integrator stays outside."""
    simulation.set_skin(0.0)
    with simulation.unchanged():
        graph = captured(simulation.calculation.update_, simulation.calculation.device)
    if graph is None:
        raise MissingError(NO_GRAPH)
    return advancing(simulation, graph.replay, graphed=False)


def _in_graphs_of(length: int) -> Callable[[Simulation], Repeated]:
    def prepared(simulation: Simulation) -> Repeated:
        simulation.stepping.graphed, simulation.stepping.longest = True, length
        run = _with_skin(0.0)(simulation)
        with simulation.unchanged():
            run(1)
        if not simulation.graphed:
            raise MissingError(NO_GRAPH)
        return run

    return prepared


def _as_measured(simulation: Simulation) -> Repeated:
    simulation.choose(WORTHWHILE)
    return simulation.run


def advancing(simulation: Simulation, update: Callable[[], None], graphed: bool) -> Repeated:
    """What takes steps in which something else stands for lists and forces, unwatched."""

    def step(number: int | None) -> None:
        with torch.no_grad():
            simulation.integrator.step_(simulation.state, update)

    now = simulation
    stepping = StepGraphs(step, now.integrator, now.unchanged, now.calculation.device)
    stepping.graphed, stepping.longest = graphed, now.stepping.longest

    def advance(count: int) -> None:
        stepping.advance_(now.step, count)
        now.step += count

    return advance


_ATOMS: Final = {"cpu": 192, "cuda": 648}
"""Of a box of water where nobody gave a size."""

_LEAST_BYTES: Final = 4000
"""An atom, that any potential takes to be evaluated."""


@dataclass(frozen=True, eq=False)
class Subject:
    """What was asked for.

    Attributes:
        source: the potential.
        system: the structure.
        device: where it runs.
        made: whether the structure was made on the spot, and has to settle.
    """

    source: Source
    system: System
    device: torch.device
    made: bool

    def moved(self, positions: Tensor, velocities: Tensor) -> "Subject":
        """The same with the atoms elsewhere; reads the device."""
        there = self.system.replace(
            positions=positions.cpu().double().numpy(), velocities=velocities.cpu().double().numpy()
        )
        return replace(self, system=there)

    def about(self) -> dict[str, Any]:
        """For programs, with versions and hardware."""
        return {
            "potential": self.source.name,
            "atoms": len(self.system),
            "formula": formula(self.system),
            "device": str(self.device),
            "environment": environment(self.device),
        }


def read_subject(configuration: BenchConfig) -> Subject:
    """Loads the potential, and reads the structure or makes a box of water.

    Without any size and file, that box comes with the potential that is the default, and the
    start beside its file with a potential that was named.

    Raises:
        MDGraphError: anything that cannot be.
    """
    device = device_named(configuration.device)
    source = read_potential(configuration)
    atoms, named = configuration.atoms, "potential" in configuration.model_fields_set
    made = configuration.structure is None and not (named and atoms is None)
    if configuration.structure is not None:
        system = read_system(configuration.structure)
    elif made:
        count = atoms or _ATOMS[device.type]
        check_fits(
            _LEAST_BYTES * count,
            available_memory(device),
            f"A box of {count:,} atoms",
            "ask for less",
        )
        system = water(count)
    else:
        system = source.start()
    say_neutral([system], configuration, source)
    return Subject(source, with_charge(system, configuration, source), device, made)


def title(about: Mapping[str, Any]) -> str:
    """What `Subject.about` tells, in a line."""
    machine = about["environment"]
    threads = machine["threads"]
    processor = f"{machine['processor']}, {threads} thread{'s' * (threads != 1)}"
    hardware = machine["gpu"] or processor
    return f"{about['potential']}, {about['formula']} ({about['atoms']:,} atoms), {hardware}"


PARTS: Final = ("model", "neighbor list", "integrator")

_IN_A_GRAPH: Final = 16


def parts(simulation: Simulation, interval: float, seconds: float) -> dict[str, float]:
    """Times of each of `PARTS` in a step, ms, each by itself, as graphs where steps are; syncs.

    Looks of the host and gaps between launches belong to none of them, and what runs side by
    side within a step counts twice, so they need not add up to a step.

    Args:
        simulation: left as it is.
        interval: steps from one build of the list to the next.
        seconds: to be spent, roughly.
    """
    calculation, state, device = simulation.calculation, simulation.state, simulation.state.device
    lists = calculation.lists

    def update_lists() -> None:
        for one in lists:
            one.update_(state.positions, state.cell)

    def build_lists() -> None:
        for one in lists:
            one.rebuild_(state.positions, state.cell)

    def timed(function: Callable[[], None]) -> float:
        graph = captured(function, device, calls=_IN_A_GRAPH) if simulation.graphed else None
        once = function if graph is None else graph.replay
        with torch.no_grad():
            taken = milliseconds(repeating(once), device, seconds / 4.0)
        return taken if graph is None else taken / _IN_A_GRAPH

    with simulation.unchanged():
        model = timed(lambda: calculation.evaluator.evaluate_(state, lists))
        # Atoms that rest need no new list, so an update only looks whether they do.
        neighbors = timed(update_lists) + timed(build_lists) / interval
        moved = advancing(simulation, lambda: None, simulation.graphed)
        integrator = milliseconds(moved, device, seconds / 4.0)
    return dict(zip(PARTS, (model, neighbors, integrator), strict=True))


def accuracy(configuration: BenchConfig) -> dict[str, Any]:
    """Errors of energy, forces and stress in every precision, against `double`.

    All atoms are compared, at the positions of the file: `single` also rounds those.

    Raises:
        MDGraphError: anything that cannot be; CapacityError where `double` does not fit in
            memory.
    """
    if "precision" in configuration.model_fields_set:
        raise InputError("--verify looks at every precision; leave --precision out.")
    if configuration.picture is not None:
        raise InputError("--picture draws times; leave it or --verify out.")
    subject = read_subject(configuration)
    source, system, device = subject.source, subject.system, subject.device

    def calculated(precision: str, evaluator: str) -> Calculation:
        calculation = Calculation(
            [system],
            source.potential,
            device=device,
            precision=precision,
            skin=0.0,
            evaluator=evaluator,
        )
        if precision == "double":
            _check_memory(source, calculation)
        calculation.compute()
        return calculation

    errors = {}
    with memory_failures(device):
        exact = calculated("double", "reference").state
        for precision in PRECISIONS:
            if precision != "double":
                found = calculated(precision, configuration.evaluator)
                agreement = compare(found.state, exact, np.arange(len(system)), "all")
                errors[precision] = _errors(agreement, system) | {
                    "evaluator": evaluator_name(found.evaluator)
                }
    force = float(exact.forces.square().mean().sqrt())
    return subject.about() | {"force_rms_eV_per_A": force, "errors": errors}


def _errors(agreement: Agreement, system: System) -> dict[str, Any]:
    volume = system.volume
    return {
        "energy_eV_per_atom": agreement.energy,
        "force_rms_eV_per_A": agreement.force_rms,
        "force_rms_relative": agreement.relative_rms,
        "force_worst_eV_per_A": agreement.force_worst,
        "force_worst_relative": agreement.relative_worst,
        "force_worst_atom": agreement.force_atom,
        "stress_eV_per_A3": agreement.virial * len(system) / volume if volume > 0.0 else None,
    }


def _check_memory(source: Source, calculation: Calculation) -> None:
    capacities = [one.capacity for one in calculation.lists]
    atoms = calculation.state.grouping.atoms
    needed = estimated_memory(
        Workload(source.potential, atoms, capacities, calculation.precision, calculation.device)
    )
    free = available_memory(calculation.device)
    if needed > free:
        raise CapacityError(
            f"The reference in float64 needs about {needed / 1e9:.1f} GB for {atoms:,} atoms, and "
            f"{calculation.device} has {free / 1e9:.1f} GB free; give a smaller structure."
        )


def accuracy_table(found: Mapping[str, Any]) -> str:
    """What `accuracy` found, to be read by people."""
    lines = [
        f"{title(found)}; RMS force {found['force_rms_eV_per_A']:.3g} eV/A",
        f"Errors against double; in brackets over the RMS force ({SMALLEST_FORCE:g} eV/A at least)",
        f"{'':<10}{'energy':>10}{'force, RMS':>22}{'force, worst':>22}{'atom':>8}{'stress':>10}",
        f"{'':<10}{'eV/atom':>10}{'eV/A':>22}{'eV/A':>22}{'':>8}{'eV/A^3':>10}",
    ]
    for precision, error in found["errors"].items():
        rms, worst = (
            f"{error[f'force_{kind}_eV_per_A']:.1e} ({error[f'force_{kind}_relative']:.1e})"
            for kind in ("rms", "worst")
        )
        stress = error["stress_eV_per_A3"]
        lines.append(
            f"{precision:<10}{error['energy_eV_per_atom']:>10.1e}{rms:>22}{worst:>22}"
            f"{error['force_worst_atom']:>8}{'-' if stress is None else f'{stress:.1e}':>10}"
            f"  {error['evaluator']}"
        )
    return "\n".join(lines)


_TEMPERATURE: Final = 300.0
_FRICTION: Final = 1.0
"""K and 1/ps of the steps that are timed."""

_SETTLING: Final = 100.0
_SETTLING_STEPS: Final = 200
"""1/ps, and steps at most, that take the heat out of a structure made on the spot."""

_SECONDS_PER_BYTE: Final = {"cpu": 1e-9, "cuda": 4e-12}
"""Time of the reference for each byte it keeps, at best."""


class Ladder:
    """Times the rungs of a device, from the fastest down.

    Every rung takes whole steps of Langevin dynamics from the same state, so their times
    compare. What compiles and captures is not timed.
    """

    def __init__(self, subject: Subject, configuration: BenchConfig) -> None:
        """Readies the fastest way to run; see `Simulation` for what it raises."""
        self._subject, self._configuration = subject, configuration
        self._rungs = rungs_of(subject.device)
        # One share for the parts of a step.
        self._seconds = configuration.seconds / (len(self._rungs) + 1)
        self._simulation: Simulation | None = None
        self._chosen = evaluator_name(self._turned_to(None).calculation.evaluator)
        if subject.made:
            self._settle(self._turned_to(None))

    def measured(self) -> dict[str, Any]:
        """All rungs, the slowest first, with how the last one runs and its parts; syncs.

        Raises:
            MDGraphError: the structure falls apart while stepping.
            torch.OutOfMemoryError: not even the last rung fits.
        """
        *lower, last = self._rungs
        simulation = self._turned_to(self._chosen)
        top, interval = self._timed(last, simulation)
        about = {
            "evaluator": self._chosen,
            "captured_as_cuda_graph": simulation.graphed,
            "steps_per_replay": simulation.stepping.longest if simulation.graphed else None,
            "skin_A": simulation.calculation.skin,
            "list_interval": interval,
            "parts": _shares(parts(simulation, interval or torch.inf, self._seconds), top),
        }
        del simulation
        rows = [*reversed([self._row(rung) for rung in reversed(lower)]), top]
        return top | about | {"ladder": _with_gains(rows)}

    def _row(self, rung: Rung) -> dict[str, Any]:
        """Times a rung, or says why not."""
        wanted = rung.evaluator or self._chosen
        reason = self._missing(wanted)
        if reason is None:
            try:
                return self._timed(rung, self._turned_to(wanted))[0]
            except MissingError as error:
                reason = str(error)
            except torch.OutOfMemoryError:
                reason = f"{self._subject.device} ran out of memory"
                self._simulation = None
        return {"name": rung.named(self._chosen), "reason": reason}

    def _timed(self, rung: Rung, simulation: Simulation) -> tuple[dict[str, Any], float | None]:
        """A row, and steps from one build of the list to the next, None where none was seen."""
        device, timestep = self._subject.device, self._configuration.timestep_fs
        begin_peak(device)
        with threads(rung.threads), simulation.unchanged():
            repeated = rung.prepared(simulation)
            first = simulation.step, self._builds(simulation)
            step = milliseconds(repeated, device, self._seconds, simulation.chunk)
            steps, builds = simulation.step - first[0], self._builds(simulation) - first[1]
        row = {
            "name": rung.named(self._chosen),
            "step_ms": step,
            "ns_per_day": timestep * 1e-6 * 86400e3 / step,
            "atom_steps_per_s": 1e3 * len(self._subject.system) / step,
            "peak_memory_bytes": peak_memory(device),
        }
        return row, steps / builds if builds else None

    @staticmethod
    def _builds(simulation: Simulation) -> int:
        lists = simulation.calculation.lists
        return int(lists[0].rebuilds) if lists else 0

    def _turned_to(self, evaluator: str | None) -> Simulation:
        """The simulation with an evaluator, which takes the place of the one before."""
        now = self._simulation
        if now is None or evaluator not in (None, evaluator_name(now.calculation.evaluator)):
            self._simulation = now = None
            gc.collect()
            begin_peak(self._subject.device)
            # Below the fastest way nothing is left open to measurement.
            lowest = evaluator is not None
            self._simulation = now = Simulation(
                self._subject.system,
                self._subject.source.potential,
                LangevinMiddle(self._configuration.timestep_fs, _TEMPERATURE, _FRICTION),
                device=self._subject.device,
                precision=self._configuration.precision,
                evaluator=evaluator or self._configuration.evaluator,
                check=False,
                skin=0.0 if lowest else None,
                steps_per_replay=1 if lowest else None,
            )
        return now

    def _settle(self, simulation: Simulation) -> None:
        """Cools what was made on the spot, in a tenth of the time; the others start there too."""
        fitting = int(100.0 * self._configuration.seconds / self._milliseconds_of(simulation))
        simulation.set(friction=_SETTLING)
        simulation.run(min(_SETTLING_STEPS, fitting))
        simulation.set(friction=_FRICTION)
        state = simulation.state
        self._subject = self._subject.moved(state.places(), state.velocities)

    def _milliseconds_of(self, simulation: Simulation) -> float:
        with simulation.unchanged():
            return milliseconds(simulation.run, self._subject.device, 0.0)

    def _missing(self, evaluator: str) -> str | None:
        """Why a rung with this evaluator is not there."""
        potential = self._subject.source.potential
        precision = precision_named(self._configuration.precision)
        if evaluator == "fused":
            if self._chosen == "fused":
                return None
            if self._configuration.evaluator == "reference":
                return "--evaluator reference leaves it out"
            if precision.name == "double":
                return "double evaluates the network itself"
            return obstacle(potential.config) or "no tables; the log says why"
        if self._chosen == "reference" or self._simulation is None:
            return None
        device, lists = self._subject.device, self._simulation.calculation.lists
        needed = estimated_memory(
            Workload(
                potential,
                len(self._subject.system),
                [one.capacity for one in lists],
                precision,
                device,
            )
        )
        free = available_memory(device)
        if needed > free:
            return f"it needs about {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
        seconds = _SECONDS_PER_BYTE[device.type] * needed
        if seconds > 0.25 * self._configuration.seconds:
            return f"a step takes {seconds:.0f} s or more; give more --seconds"
        return None


def _shares(taken: Mapping[str, float], row: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Time and share of each part of a step, and of what no part is: looks and gaps."""
    rest = max(0.0, row["step_ms"] - sum(taken.values()))
    every = {name: taken[name] for name in PARTS} | {"rest": rest}
    total = sum(every.values())
    return {name: {"ms": value, "share": value / total} for name, value in every.items()}


def _with_gains(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with their speed over the one before, and over the first, that were timed."""
    found: list[dict[str, Any]] = []
    timed = [row["step_ms"] for row in rows if "step_ms" in row]
    before = timed[0]
    for row in rows:
        more: dict[str, Any] = {}
        if "step_ms" in row:
            step = row["step_ms"]
            more = {"gain": before / step, "speedup": timed[0] / step, "reason": None}
            before = step
        found.append(row | more)
    return found


_PICTURES: Final = (".png", ".svg", ".pdf")

_COLUMNS: Final = (
    ("ms/step", "step_ms", ".4g", 1.0),
    ("ns/day", "ns_per_day", ".3g", 1.0),
    ("atom-steps/s", "atom_steps_per_s", ".2e", 1.0),
    ("memory, GB", "peak_memory_bytes", ".3f", 1e-9),
    ("gain", "gain", ".2f", 1.0),
    ("in all", "speedup", ".1f", 1.0),
)
"""Title, key in a row, format and factor."""


def speed(configuration: BenchConfig) -> dict[str, Any]:
    """Times of a step on every rung of the ladder, and of its parts on the fastest.

    Draws the picture that was asked for.

    Raises:
        MDGraphError: anything that cannot be, or a structure that falls apart while stepping.
    """
    picture = configuration.picture
    if picture is not None and Path(picture).suffix not in _PICTURES:
        raise InputError(f"Pictures are {', '.join(_PICTURES)} files, not '{picture}'.")
    if picture is not None and not Path(picture).absolute().parent.is_dir():
        raise InputError(f"There is no folder for the picture {picture}; make it first.")
    if picture is not None:
        refuse_existing(Path(picture), overwrite=configuration.overwrite, option=True)
    subject = read_subject(configuration)
    with memory_failures(subject.device):
        measured = Ladder(subject, configuration).measured()
    found = subject.about() | {
        "precision": configuration.precision,
        "timestep_fs": configuration.timestep_fs,
        **measured,
    }
    if picture is not None:
        figure = speed_figure(found, title(found))
        write_atomically(picture, figure.savefig, new=not configuration.overwrite)
    return found


def speed_text(found: Mapping[str, Any]) -> str:
    """What `speed` found, to be read by people."""
    ladder = found["ladder"]
    width = 2 + max(len(row["name"]) for row in ladder)
    lines = [
        f"{title(found)}; {found['precision']}, time step {found['timestep_fs']:g} fs",
        " " * width + "".join(f"{head:>13}" for head, *_ in _COLUMNS),
    ]
    for row in ladder:
        cells = "".join(_cell(row, key, form, factor) for _, key, form, factor in _COLUMNS)
        lines.append(
            f"{row['name']:<{width}}{cells if not row['reason'] else '  ' + row['reason']}"
        )
    shares = ", ".join(
        f"{name} {one['ms']:.3g} ms ({100 * one['share']:.0f} %)"
        for name, one in found["parts"].items()
    )
    lines += [f"A step of the last row: {shares}", f"It runs {_way(found)}."]
    return "\n".join(lines)


def _cell(row: Mapping[str, Any], key: str, form: str, factor: float) -> str:
    value = row.get(key)
    return f"{'-' if value is None else format(factor * value, form):>13}"


def _way(found: Mapping[str, Any]) -> str:
    steps = found["steps_per_replay"]
    way = "eagerly" if steps is None else f"as CUDA graphs of up to {steps} steps"
    interval = found["list_interval"]
    built = "was not built" if interval is None else f"was built every {interval:.3g} steps"
    return f"{way}, with a skin of {found['skin_A']:g} A; the neighbor list {built}"
