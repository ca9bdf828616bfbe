"""`mdgraph bench`: time and memory of each execution mode, a profile, and errors by precision."""

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from mdgraph.analysis.plots import speed_figure
from mdgraph.devices import device_named
from mdgraph.engine import Calculation, LangevinMiddle, Simulation
from mdgraph.engine.simulation import WORTHWHILE
from mdgraph.engine.step_graphs import StepGraphs
from mdgraph.errors import CapacityError, InputError, MDGraphError
from mdgraph.fused.agreement import SMALLEST_FORCE, Agreement, compare
from mdgraph.fused.evaluator import why_not_fused
from mdgraph.gpu.graphs import captured
from mdgraph.host_memory import check_fits
from mdgraph.io.files import refuse_existing, write_atomically
from mdgraph.io.structures import read_system
from mdgraph.memory import Workload, available_memory, estimated_memory, memory_failures
from mdgraph.neighbors.list import default_skin
from mdgraph.precision import PRECISIONS
from mdgraph.runs.config import BenchConfig
from mdgraph.runs.folder import environment, evaluator_name, formula
from mdgraph.runs.potential import Source, log_neutral, read_potential, with_charge
from mdgraph.system import System

Repeated = Callable[[int], object]
"""Repeats something as many times as its argument says."""

_BATCHES: Final = 5
_SELF: Final = Path("/proc/self")


def milliseconds(repeated: Repeated, device: torch.device, seconds: float, whole: int = 1) -> float:
    """Wall-clock time of one repetition, ms: the median of five batches; syncs the GPU.

    Args:
        repeated: may compile or capture in its first call.
        device: where it runs.
        seconds: rough limit of the timing after the first two calls; one batch is always timed.
        whole: longer batches are multiples of this number.
    """

    def seconds_each(count: int) -> float:
        begin = time.perf_counter()
        repeated(count)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - begin) / count

    seconds_each(1)
    first = seconds_each(1)
    if 3.0 * first > seconds:
        return 1e3 * first
    count = max(1, math.floor(seconds / ((_BATCHES + 1) * first)))
    count -= count % whole if count > whole else 0
    seconds_each(count)  # captures graphs of this length and fills caches
    first = seconds_each(count)
    rest = min(_BATCHES - 1, math.floor(seconds / (count * first)))
    return 1e3 * float(np.median([first, *(seconds_each(count) for _ in range(rest))]))


def repeating(once: Callable[[], object]) -> Repeated:
    """A function that calls `once` as many times as its argument says."""

    def repeated(count: int) -> None:
        for _ in range(count):
            once()

    return repeated


def begin_peak(device: torch.device) -> None:
    """Resets the peak that `peak_memory` reads."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    elif (_SELF / "clear_refs").exists():
        with suppress(OSError):  # some containers forbid it
            (_SELF / "clear_refs").write_text("5", encoding="ascii")


def peak_memory(device: torch.device) -> int | None:
    """Peak memory since `begin_peak`, bytes; None where the system does not report it.

    CUDA: of torch's allocator. CPU: of the whole process with its libraries.
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
"""Positions of O, H and H, A."""

_VOLUME: Final = 29.9
"""Volume of a molecule in liquid water at 300 K, A^3."""


def water(atoms: int, *, periodic: bool = True, seed: int = 1) -> System:
    """Randomly oriented water molecules on a jittered grid, at the density of the liquid.

    The structure is not relaxed: dynamics from it heats up by some hundred kelvin.

    Args:
        atoms: a multiple of three.
        periodic: a cubic box if True, a cluster without a cell if False.
        seed: of positions and orientations.

    Raises:
        InputError: `atoms` is no multiple of three.
    """
    if atoms < 3 or atoms % 3:
        raise InputError(
            f"Water has three atoms a molecule, and {atoms} is not a multiple of that; "
            f"ask for {3 * max(1, round(atoms / 3))}."
        )
    generator = np.random.default_rng(seed)
    molecules = atoms // 3
    edge = (molecules * _VOLUME) ** (1 / 3)
    points = int(np.ceil(molecules ** (1 / 3) - 1e-9))
    # If the grid has more points than molecules, a box spreads the empty points over the grid.
    occupied = np.arange(molecules) * (points**3 if periodic else molecules) // molecules
    grid = np.stack(np.unravel_index(occupied, [points] * 3), axis=-1)
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


_ATOMS: Final = {"cpu": 192, "cuda": 648}
"""Default number of atoms in a box of water."""

_LEAST_BYTES: Final = 4000
"""A lower bound of the memory per atom, which every potential exceeds."""


@dataclass(frozen=True, eq=False)
class Case:
    """A potential, a structure and a device.

    Attributes:
        source: the potential.
        system: the structure.
        device: where it runs.
        synthetic: whether `water` made the structure, so that it must relax before steps are timed.
    """

    source: Source
    system: System
    device: torch.device
    synthetic: bool

    def about(self) -> dict[str, Any]:
        """Potential, structure, versions and hardware, for every report."""
        return {
            "potential": self.source.name,
            "atoms": len(self.system),
            "formula": formula(self.system),
            "device": str(self.device),
            "environment": environment(self.device),
        }


def read_case(configuration: BenchConfig) -> Case:
    """Loads the potential, and reads the structure or makes a box of water.

    Without a structure file and a number of atoms, a potential that the configuration names
    uses its own start structure, and the default potential a box of water.

    Raises:
        MDGraphError: the potential or the structure cannot be used.
    """
    device = device_named(configuration.device)
    source = read_potential(configuration)
    atoms, named = configuration.atoms, "potential" in configuration.model_fields_set
    synthetic = configuration.structure is None and not (named and atoms is None)
    if configuration.structure is not None:
        system = read_system(configuration.structure)
    elif synthetic:
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
    log_neutral(system.charge is None, configuration, source)
    return Case(source, with_charge(system, configuration, source), device, synthetic)


def title(about: Mapping[str, Any]) -> str:
    """`Case.about` in one line."""
    machine = about["environment"]
    threads = machine["threads"]
    processor = f"{machine['processor']}, {threads} thread{'s' * (threads != 1)}"
    hardware = machine["gpu"] or processor
    return f"{about['potential']}, {about['formula']} ({about['atoms']:,} atoms), {hardware}"


class ModeError(MDGraphError):
    """A mode does not run here; the message says why."""


@dataclass(frozen=True)
class Mode:
    """A way to run steps.

    Attributes:
        name: printed after the name of the evaluator.
        evaluator: `fused` or `reference`; None for the one that `mdgraph md` uses.
        prepare: sets up a simulation and returns the function that runs steps.
    """

    name: str
    evaluator: str | None
    prepare: Callable[[Simulation], Repeated]

    def title(self, evaluator: str) -> str:
        """Names of evaluator and mode; `evaluator` stands in where the mode has none."""
        return f"{self.evaluator or evaluator}, {self.name}"


def modes(device: torch.device) -> tuple[Mode, ...]:
    """All modes of a device, the slowest first; the last one is the mode of `mdgraph md`.

    The others build the neighbor list at every step.
    """
    if device.type == "cuda":
        return (
            Mode("eager", "reference", _eager),
            Mode("whole step in a graph", "reference", _one_graph_a_step),
            Mode("eager", "fused", _eager),
            Mode("graph and skin as measured", None, _as_measured),
        )
    skin = default_skin(device)
    return (
        Mode("list every step", "reference", _eager),
        Mode("list every step", "fused", _eager),
        Mode(f"skin of {skin:g} A", None, _with_skin(skin)),
    )


def _with_skin(skin: float) -> Callable[[Simulation], Repeated]:
    def prepare(simulation: Simulation) -> Repeated:
        simulation.set_skin(skin)
        return simulation.run

    return prepare


def _eager(simulation: Simulation) -> Repeated:
    simulation.step_graphs.graphed = False
    return _with_skin(0.0)(simulation)


def _one_graph_a_step(simulation: Simulation) -> Repeated:
    simulation.step_graphs.graphed, simulation.step_graphs.longest = True, 1
    run = _with_skin(0.0)(simulation)
    with simulation.unchanged():
        run(1)
    if not simulation.graphed:
        raise ModeError("no CUDA graph could be captured; the log says why")
    return run


def _as_measured(simulation: Simulation) -> Repeated:
    simulation.choose(WORTHWHILE)
    return simulation.run


PARTS: Final = ("model", "neighbor list", "integrator")

_IN_A_GRAPH: Final = 16


def profile(simulation: Simulation, interval: float, seconds: float) -> dict[str, float]:
    """Times each of `PARTS` alone, ms a step; syncs the GPU.

    Parts are captured as graphs if steps are. Their sum differs from the time of a step: host
    checks and gaps between launches belong to no part, and work that overlaps within a step
    counts twice.

    Args:
        simulation: unchanged afterwards.
        interval: steps between builds of the neighbor list.
        seconds: rough time limit.
    """
    calculation, state, device = simulation.calculation, simulation.state, simulation.state.device
    lists = calculation.lists

    def update_lists() -> None:
        for neighbors in lists:
            neighbors.update_(state.positions, state.cell)

    def build_lists() -> None:
        for neighbors in lists:
            neighbors.rebuild_(state.positions, state.cell)

    def time_of(function: Callable[[], None]) -> float:
        graph = captured(function, device, calls=_IN_A_GRAPH) if simulation.graphed else None
        once = function if graph is None else graph.replay
        with torch.no_grad():
            time_ms = milliseconds(repeating(once), device, seconds / 4.0)
        return time_ms if graph is None else time_ms / _IN_A_GRAPH

    with simulation.unchanged():
        model = time_of(lambda: calculation.evaluator.evaluate_(state, lists))
        # Atoms do not move here, so an update only checks whether the list must be built.
        listing = time_of(update_lists) + time_of(build_lists) / interval
        integrator = milliseconds(_integrator_steps(simulation), device, seconds / 4.0)
    return dict(zip(PARTS, (model, listing, integrator), strict=True))


def _integrator_steps(simulation: Simulation) -> Repeated:
    """Runs steps of the integrator alone, without neighbor lists and forces."""

    def step(number: int | None) -> None:
        with torch.no_grad():
            simulation.integrator.step_(simulation.state, lambda: None)

    device = simulation.calculation.device
    graphs = StepGraphs(step, simulation.integrator, simulation.unchanged, device)
    graphs.graphed, graphs.longest = simulation.graphed, simulation.step_graphs.longest

    def advance(count: int) -> None:
        graphs.advance_(simulation.step, count)
        simulation.step += count

    return advance


def accuracy(configuration: BenchConfig) -> dict[str, Any]:
    """Errors of energy, forces and stress in every precision, against `double`; syncs the GPU.

    Compares all atoms at the positions of the file, which `single` rounds.

    Raises:
        MDGraphError: the configuration, potential or structure cannot be used; CapacityError where
            `double` does not fit in memory.
    """
    if "precision" in configuration.model_fields_set:
        raise InputError("--verify looks at every precision; leave --precision out.")
    if configuration.picture is not None:
        raise InputError("--picture draws times; leave it or --verify out.")
    case = read_case(configuration)
    source, system, device = case.source, case.system, case.device

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
                rounded = calculated(precision, configuration.evaluator)
                agreement = compare(rounded.state, exact, np.arange(len(system)), "all")
                errors[precision] = _errors(agreement, system) | {
                    "evaluator": evaluator_name(rounded.evaluator)
                }
    force = float(exact.forces.square().mean().sqrt())
    return case.about() | {"force_rms_eV_per_A": force, "errors": errors}


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
    atoms = calculation.state.grouping.atoms
    needed = _reference_memory(source, calculation)
    free = available_memory(calculation.device)
    if needed > free:
        raise CapacityError(
            f"The reference in float64 needs about {needed / 1e9:.1f} GB for {atoms:,} atoms, and "
            f"{calculation.device} has {free / 1e9:.1f} GB free; give a smaller structure."
        )


def _reference_memory(source: Source, calculation: Calculation) -> int:
    """Estimated memory of the reference evaluator, bytes."""
    capacities = [neighbors.capacity for neighbors in calculation.lists]
    atoms = calculation.state.grouping.atoms
    return estimated_memory(
        Workload(source.potential, atoms, capacities, calculation.precision, calculation.device)
    )


def accuracy_table(result: Mapping[str, Any]) -> str:
    """Formats the result of `accuracy` as a table."""
    lines = [
        f"{title(result)}; RMS force {result['force_rms_eV_per_A']:.3g} eV/A",
        f"Errors against double; in brackets over the RMS force ({SMALLEST_FORCE:g} eV/A at least)",
        f"{'':<10}{'energy':>10}{'force, RMS':>22}{'force, worst':>22}{'atom':>8}{'stress':>10}",
        f"{'':<10}{'eV/atom':>10}{'eV/A':>22}{'eV/A':>22}{'':>8}{'eV/A^3':>10}",
    ]
    for precision, error in result["errors"].items():
        rms, worst = (
            f"{error[f'force_{norm}_eV_per_A']:.1e} ({error[f'force_{norm}_relative']:.1e})"
            for norm in ("rms", "worst")
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
"""Temperature (K) and friction (1/ps) of the timed steps."""

_SETTLING: Final = 100.0
_SETTLING_STEPS: Final = 200
"""Friction (1/ps) and largest number of steps that cool the box of water."""

_SECONDS_PER_BYTE: Final = {"cpu": 1e-9, "cuda": 4e-12}
"""A lower bound of the reference evaluator's time per byte of its memory, s."""


class Benchmark:
    """Times the modes of a device, from the fastest to the slowest.

    Every mode runs whole steps of Langevin dynamics from the same state. The times exclude
    compilation and capture.
    """

    def __init__(self, case: Case, configuration: BenchConfig) -> None:
        """Makes the simulation of the fastest mode; raises what `Simulation` raises."""
        self._case, self._configuration = case, configuration
        self._modes = modes(case.device)
        # The profile gets the same time as a mode.
        self._seconds = configuration.seconds / (len(self._modes) + 1)
        self._simulation: Simulation | None = None
        simulation = self._simulation_with(None)
        self._evaluator = evaluator_name(simulation.calculation.evaluator)
        if case.synthetic:
            self._settle(simulation)

    def measure(self) -> dict[str, Any]:
        """Times all modes and profiles the fastest one; syncs the GPU.

        Returns:
            The row of the fastest mode with its skin and parts; `ladder` has all rows, the
            slowest first.

        Raises:
            MDGraphError: the structure falls apart within the timed steps.
            torch.OutOfMemoryError: not even the last mode fits.
        """
        *lower, last = self._modes
        simulation = self._simulation_with(self._evaluator)
        top, interval = self._time_mode(last, simulation)
        about = {
            "evaluator": self._evaluator,
            "captured_as_cuda_graph": simulation.graphed,
            "steps_per_replay": simulation.step_graphs.longest if simulation.graphed else None,
            "skin_A": simulation.calculation.skin,
            "list_interval": interval,
            "parts": _shares(profile(simulation, interval or torch.inf, self._seconds), top),
        }
        del simulation
        rows = [*reversed([self._row(mode) for mode in reversed(lower)]), top]
        return top | about | {"ladder": _with_gains(rows)}

    def _row(self, mode: Mode) -> dict[str, Any]:
        """The times of a mode, or the reason why it cannot run."""
        evaluator = mode.evaluator or self._evaluator
        reason = self._obstacle(evaluator)
        if reason is None:
            try:
                return self._time_mode(mode, self._simulation_with(evaluator))[0]
            except ModeError as error:
                reason = str(error)
            except torch.OutOfMemoryError:
                reason = f"{self._case.device} ran out of memory"
                self._simulation = None
        return {"name": mode.title(self._evaluator), "reason": reason}

    def _time_mode(self, mode: Mode, simulation: Simulation) -> tuple[dict[str, Any], float | None]:
        """A row, and steps between builds of the neighbor list (None without a build)."""
        device, timestep = self._case.device, self._configuration.timestep_fs
        begin_peak(device)
        with simulation.unchanged():
            repeated = mode.prepare(simulation)
            first = simulation.step, self._builds(simulation)
            step = milliseconds(repeated, device, self._seconds, simulation.chunk)
            steps, builds = simulation.step - first[0], self._builds(simulation) - first[1]
        row = {
            "name": mode.title(self._evaluator),
            "step_ms": step,
            "ns_per_day": timestep * 1e-6 * 86400e3 / step,
            "atom_steps_per_s": 1e3 * len(self._case.system) / step,
            "peak_memory_bytes": peak_memory(device),
        }
        return row, steps / builds if builds else None

    @staticmethod
    def _builds(simulation: Simulation) -> int:
        lists = simulation.calculation.lists
        return int(lists[0].rebuilds) if lists else 0

    def _simulation_with(self, evaluator: str | None) -> Simulation:
        """The simulation with an evaluator; frees that of another evaluator first."""
        simulation = self._simulation
        if simulation is None or evaluator not in (
            None,
            evaluator_name(simulation.calculation.evaluator),
        ):
            self._simulation = simulation = None
            gc.collect()
            begin_peak(self._case.device)
            # Only the fastest mode tunes skin and graphs.
            lower = evaluator is not None
            self._simulation = simulation = Simulation(
                self._case.system,
                self._case.source.potential,
                LangevinMiddle(self._configuration.timestep_fs, _TEMPERATURE, _FRICTION),
                device=self._case.device,
                precision=self._configuration.precision,
                evaluator=evaluator or self._configuration.evaluator,
                check=False,
                skin=0.0 if lower else None,
                steps_per_replay=1 if lower else None,
            )
        return simulation

    def _settle(self, simulation: Simulation) -> None:
        """Cools the box of water within a tenth of the time; all modes start from its end."""
        with simulation.unchanged():
            step = milliseconds(simulation.run, self._case.device, 0.0)
        simulation.set(friction=_SETTLING)
        simulation.run(min(_SETTLING_STEPS, int(100.0 * self._configuration.seconds / step)))
        simulation.set(friction=_FRICTION)
        state = simulation.state
        system = self._case.system.replace(
            positions=state.places().cpu().double().numpy(),
            velocities=state.velocities.cpu().double().numpy(),
        )
        self._case = replace(self._case, system=system)

    def _obstacle(self, evaluator: str) -> str | None:
        """Why a mode with this evaluator cannot be timed; None if it can."""
        if evaluator == "fused":
            if self._evaluator == "fused":
                return None
            if self._configuration.evaluator == "reference":
                return "--evaluator reference leaves it out"
            if self._configuration.precision == "double":
                return "double evaluates the network itself"
            config = self._case.source.potential.config
            return why_not_fused(config) or "no tables; the log says why"
        if self._evaluator == "reference" or self._simulation is None:
            return None
        device = self._case.device
        needed = _reference_memory(self._case.source, self._simulation.calculation)
        free = available_memory(device)
        if needed > free:
            return f"it needs about {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
        seconds = _SECONDS_PER_BYTE[device.type] * needed
        if seconds > 0.25 * self._configuration.seconds:
            return f"a step takes {seconds:.0f} s or more; give more --seconds"
        return None


def _shares(times: Mapping[str, float], row: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Time and share of each part of a step; `rest` is the time outside all parts."""
    rest = max(0.0, row["step_ms"] - sum(times.values()))
    every = {name: times[name] for name in PARTS} | {"rest": rest}
    total = sum(every.values())
    return {name: {"ms": value, "share": value / total} for name, value in every.items()}


def _with_gains(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Adds to each timed row its speed relative to the row before and to the first row."""
    timed = [row["step_ms"] for row in rows if "step_ms" in row]
    gains = []
    before = timed[0]
    for row in rows:
        gain: dict[str, Any] = {}
        if "step_ms" in row:
            step = row["step_ms"]
            gain = {"gain": before / step, "speedup": timed[0] / step, "reason": None}
            before = step
        gains.append(row | gain)
    return gains


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
    """Times a step in every mode and its parts in the fastest; may draw a picture; syncs the GPU.

    Raises:
        MDGraphError: the configuration, potential or structure cannot be used, or the structure
            falls apart within the timed steps.
    """
    picture = configuration.picture
    if picture is not None:
        if Path(picture).suffix not in _PICTURES:
            raise InputError(f"Pictures are {', '.join(_PICTURES)} files, not '{picture}'.")
        if not Path(picture).absolute().parent.is_dir():
            raise InputError(f"There is no folder for the picture {picture}; make it first.")
        refuse_existing(Path(picture), overwrite=configuration.overwrite, option=True)
    case = read_case(configuration)
    with memory_failures(case.device):
        times = Benchmark(case, configuration).measure()
    result = case.about() | {
        "precision": configuration.precision,
        "timestep_fs": configuration.timestep_fs,
        **times,
    }
    if picture is not None:
        figure = speed_figure(result, title(result))
        write_atomically(picture, figure.savefig, new=not configuration.overwrite)
    return result


def speed_text(result: Mapping[str, Any]) -> str:
    """Formats the result of `speed` as a table."""
    rows = result["ladder"]
    width = 2 + max(len(row["name"]) for row in rows)
    lines = [
        f"{title(result)}; {result['precision']}, time step {result['timestep_fs']:g} fs",
        " " * width + "".join(f"{head:>13}" for head, *_ in _COLUMNS),
    ]
    for row in rows:
        cells = "".join(_cell(row, key, form, factor) for _, key, form, factor in _COLUMNS)
        lines.append(
            f"{row['name']:<{width}}{cells if not row['reason'] else '  ' + row['reason']}"
        )
    shares = ", ".join(
        f"{name} {part['ms']:.3g} ms ({100 * part['share']:.0f} %)"
        for name, part in result["parts"].items()
    )
    return "\n".join([*lines, f"A step of the last row: {shares}", _execution(result)])


def _cell(row: Mapping[str, Any], key: str, form: str, factor: float) -> str:
    value = row.get(key)
    return f"{'-' if value is None else format(factor * value, form):>13}"


def _execution(result: Mapping[str, Any]) -> str:
    steps, interval = result["steps_per_replay"], result["list_interval"]
    way = "eagerly" if steps is None else f"as CUDA graphs of up to {steps} steps"
    built = "was not built" if interval is None else f"was built every {interval:.3g} steps"
    return f"It runs {way}, with a skin of {result['skin_A']:g} A; the neighbor list {built}."
