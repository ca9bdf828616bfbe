"""What a run logs before it begins, and the picture at its end."""

import logging
import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from mdgraph.analysis.rdf import most_common_heavy_element, radial_distribution, smallest_height
from mdgraph.decomposition import atoms_here
from mdgraph.engine import Simulation
from mdgraph.engine.checks import check_duplicates, check_lengths, seems_in_bohr
from mdgraph.engine.replicas import ExchangeRecord
from mdgraph.engine.resonance import force_difference, worth_measuring
from mdgraph.ensembles import ENSEMBLES
from mdgraph.errors import SimulationError, name_some
from mdgraph.fused.evaluator import compiles_kernels, is_fused
from mdgraph.fused.verification import check_memory
from mdgraph.host_memory import check_fits
from mdgraph.io.files import write_atomically
from mdgraph.io.formats import read_trajectory
from mdgraph.io.log import read_log
from mdgraph.io.trajectories import TrajectoryReader
from mdgraph.memory import Workload, available_memory, run_memory
from mdgraph.models import SumPotential, TensorNetConfig
from mdgraph.neighbors import NeighborList
from mdgraph.neighbors.list import default_skin
from mdgraph.precision import precision_named
from mdgraph.runs.config import MDConfig, RunConfig
from mdgraph.runs.config_fields import ends, replicas_text
from mdgraph.runs.folder import Run, formula
from mdgraph.runs.potential import Source
from mdgraph.runs.setup import distinct
from mdgraph.state import State
from mdgraph.system import System
from mdgraph.units import BAR, DENSITY, SYMBOLS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mdgraph.analysis.plots import PairDistribution

logger = logging.getLogger(__name__)

_OF_WATER: Final = 4.5e-5
"""1/bar, the compressibility of an ensemble without one."""

_LARGE_STRAIN: Final = 0.25
"""Change of a volume, by its compressibility, before which a start should be minimised."""

_FLUCTUATION: Final = 5.0 * 50_000.0
"""bar, times 1 / sqrt(atoms): five times what the pressure of water fluctuates by at 300 K."""

_TOO_MUCH: Final = 1.5
"""A run is refused if its estimated memory exceeds the free memory by this factor."""


def log_plans(
    configuration: RunConfig, source: Source, systems: Sequence[System], device: torch.device
) -> None:
    """Logs the systems of this rank, the potential and the estimated memory.

    Raises:
        CapacityError: the estimate is far beyond the free memory.
    """
    config = source.potential.config
    logger.info(
        "%s, with %s (%s).",
        _contents(systems),
        source.name,
        config.level_of_theory or "level of theory not stated",
    )
    log_ramp(configuration)
    log_two_time_steps(configuration, source)
    structures = distinct(systems)
    # Coinciding atoms or positions in nm would make neighbor lists huge, so check first.
    check_duplicates(structures)
    check_lengths(structures)
    if any(map(seems_in_bohr, structures)):
        logger.warning(
            "No atom is as near to another as bonds are long, which are taken in A: convert the "
            "positions if they are in bohr."
        )
    skin = default_skin(device) if configuration.skin_A is None else configuration.skin_A
    state = State(structures, device)
    precision = precision_named(configuration.precision)
    potentials = [source.potential, *([] if source.inner is None else [source.inner.potential])]
    atoms = sum(map(len, systems))
    if configuration.domains is not None:
        reach = max(cutoff for potential in potentials for cutoff in potential.cutoffs)
        atoms = atoms_here(configuration.domains, systems[0], reach)
    needed = 0
    works = []
    for potential in potentials:
        capacities = [
            NeighborList(state, cutoff, skin, cell_varies=False).capacity
            for cutoff in potential.cutoffs
        ]
        works += Workload(potential, atoms, capacities, precision, device).terms()
    for work in works:
        term = work.potential.config
        fused = is_fused(term, precision, configuration.evaluator)
        check = configuration.check and fused and isinstance(term, TensorNetConfig)
        needed += run_memory(
            work,
            fused=fused,
            check=check_memory(work.potential, atoms, work.capacities, device) if check else 0,
            compiles=fused and device.type == "cpu" and compiles_kernels(term, precision),
        )
    free = available_memory(device)
    if needed > _TOO_MUCH * free:
        what = f"{atoms:,} atoms" if len(systems) == 1 else f"{len(systems):,} systems"
        advice = "simulate fewer, give a smaller --skin-A, or choose a larger device"
        check_fits(needed, free, what, advice)
    logger.log(
        logging.WARNING if needed > free else logging.INFO,
        "About %s MB of memory are needed, and %s has %s MB free.",
        f"{math.ceil(needed / 1e6):,}",
        device,
        f"{free / 1e6:,.0f}",
    )
    if device.type == "cuda" and configuration.graph != "off":
        logger.info("The step is captured as a CUDA graph first, which takes some seconds.")


def log_pressure(configuration: RunConfig, simulation: Simulation) -> None:
    """Warns where the pressure of a start will change its cell by much; reads the device."""
    if not isinstance(configuration, MDConfig) or not ENSEMBLES[configuration.ensemble].cell_varies:
        return
    options = configuration.ensemble_options
    target = ends(options["pressure_bar"])[0]
    compressibility = ends(options.get("compressibility_per_bar") or _OF_WATER)[0]
    thermo, state = simulation.observables(), simulation.state
    pressures = [value / BAR for value in thermo.pressure.flatten().tolist()]
    number = max(range(len(pressures)), key=lambda place: abs(pressures[place] - target))
    worst, sizes = pressures[number], state.grouping.sizes
    atoms = min(sizes)
    if abs(worst - target) > max(_LARGE_STRAIN / compressibility, _FLUCTUATION / math.sqrt(atoms)):
        density = ""
        if bool(state.pbc[number].all()):
            mass = float(state.masses.double().split(sizes)[number].sum())
            density = f" at {DENSITY * mass / float(thermo.volume[number]):.3g} g/cm3"
        own = configuration.potential
        option = "" if own == MDConfig().potential else f" --potential {shlex.quote(own)}"
        logger.warning(
            "The start has a pressure of %s bar%s, and %g bar are asked for, so the cell will "
            "change fast; minimise atoms and cell first (mdgraph minimise STRUCTURE --coupling "
            "isotropic%s, then mdgraph md --from its folder), or check the density",
            *(f"{worst:,.0f}", density, target, option),
        )


_AT_REST: Final = 0.1
"""eV/A; no atom of a minimum feels more, and atoms at 300 K feel several times as much."""


def log_cooling(
    configuration: RunConfig, systems: Sequence[System], simulation: Simulation
) -> None:
    """Logs that a start in a minimum cools to half of its drawn temperature; reads the device.

    Args:
        configuration: of the run.
        systems: initial structures of this rank; those without velocities drew them.
        simulation: at its start.
    """
    if not isinstance(configuration, MDConfig):
        return
    state = simulation.state
    forces = state.forces.norm(dim=1).masked_fill(state.fixed, 0.0).split(state.grouping.sizes)
    kelvins = simulation.observables().temperature.tolist()
    for number, (system, kelvin) in enumerate(zip(systems, kelvins, strict=True)):
        # Atoms without neighbors feel nothing, and colder ones that move feel less.
        most = _AT_REST * math.sqrt(kelvin / 300.0)
        if system.velocities is not None or not 0.0 < float(forces[number].max()) < most:
            continue
        start = "The start" if len(systems) == 1 else f"The start of replica {number}"
        after = "until the bath has warmed it again; leave that part out of averages."
        if not ENSEMBLES[configuration.ensemble].bath:
            drawn = ends(configuration.temperature_K)[0]
            after = (
                f"and stays there, as {configuration.ensemble} has no bath; for {drawn:g} K begin "
                f"at twice that, --temperature-K {2.0 * drawn:g}, or run nvt-langevin first."
            )
        logger.info(
            "%s is at a minimum of the energy: half of its kinetic energy becomes potential energy "
            "within the first vibrations, so the temperature falls from %.0f to about %.0f K, %s",
            *(start, kelvin, 0.5 * kelvin, after),
        )
        return


def log_isolated(simulation: Simulation) -> None:
    """Warns where no atom has a neighbor, as with lengths in another unit; reads the device."""
    atoms = simulation.state.grouping.sizes
    lists = simulation.calculation.lists
    if max(atoms) > 1 and not any(bool(neighbors.count.any()) for neighbors in lists):
        logger.warning(
            "No atom has another one within the cutoff of %g A; check that lengths are in A",
            max(neighbors.cutoff for neighbors in lists),
        )


def log_all_fixed(simulation: Simulation) -> None:
    """Warns where every atom is fixed, so that a run moves none; reads the device."""
    if bool(simulation.state.fixed.all()):
        logger.warning("All atoms are fixed, so nothing moves; fix fewer by --fix")


def log_without_forces(simulation: Simulation, source: Source) -> None:
    """Warns where the terms of a sum leave no force on any atom; reads the device."""
    whole = source.potential
    if not isinstance(whole, SumPotential) or whole.ramps is not None:
        return
    if min(whole.weights) <= 0.0 and not bool(simulation.state.forces.any()):
        logger.warning(
            "The sum of the terms leaves no force on any atom at the start; check their weights"
        )


def switching(source: Source) -> dict[str, Any] | None:
    """What run.json says of weights that change; None where all rest."""
    whole = source.potential
    if not isinstance(whole, SumPotential) or whole.ramps is None:
        return None
    names = whole.term_names()
    terms = [
        {"term": names[number], "weight": [whole.weights[number], whole.ramps.ends[number]]}
        for number in whole.changing
    ]
    return {"equilibrium": False, "steps": whole.ramps.steps, "terms": terms}


def log_switching(source: Source) -> None:
    """Logs that a run whose weights change is not at equilibrium."""
    about = switching(source)
    if about is not None:
        texts = [
            "{} from {:g} to {:g}".format(one["term"], *one["weight"]) for one in about["terms"]
        ]
        logger.warning(
            "Weights change in %s steps (%s): until then the run is not at equilibrium. Its work "
            "is switching_work_eV in log.csv.",
            *(f"{about['steps']:,}", name_some(texts)),
        )


def log_ramp(configuration: RunConfig) -> None:
    """Logs that the bath of every replica changes, for `first:last` is also how ladders look."""
    if not isinstance(configuration, MDConfig) or configuration.system_count == 1:
        return
    start, end = ends(configuration.temperature_K)
    if start != end:
        steps = configuration.ramp_steps
        logger.info(
            "All %d replicas go from %g to %g K over the %s; for a temperature of each give "
            "--temperatures-K %g:%g.",
            *(configuration.system_count, start, end),
            *("run" if steps is None else f"first {steps:,} steps", start, end),
        )


def log_two_time_steps(configuration: RunConfig, source: Source) -> None:
    """Logs which potential acts how often, if there are two; warns where that saves nothing."""
    if not isinstance(configuration, MDConfig) or source.inner is None:
        return
    logger.info(
        "Two time steps (reversible RESPA): %s acts every %g fs, and %s every %d steps, an outer "
        "step of %g fs. Energies, forces and pressures are those of %s.",
        source.inner.name,
        configuration.timestep_fs,
        source.name,
        configuration.steps_together,
        configuration.outer_step_fs,
        source.name,
    )
    weights, inner = source.potential.parameter_count, source.inner.potential.parameter_count
    if source.sha256 == source.inner.sha256 and not configuration.terms:
        logger.warning(
            "The inner potential is the potential itself, so the run is a plain one of short steps "
            "that costs more; leave --inner-potential out, or give a smaller one."
        )
    elif inner > weights:
        logger.warning(
            "The inner potential has %s weights, more than the %s of the potential, so that two "
            "time steps cost more than plain ones; if the two are exchanged, exchange them again.",
            f"{inner:,}",
            f"{weights:,}",
        )


def log_resonance(
    configuration: RunConfig,
    source: Source,
    systems: Sequence[System],
    device: torch.device,
    selections: Mapping[str, Sequence[Sequence[int]]],
) -> None:
    """Logs how two potentials differ where bonds vibrate; warns if the outer step resonates.

    It is measured on the smallest system of a run that is far longer than the measurement, unless
    checks are off.
    """
    if not isinstance(configuration, MDConfig) or source.inner is None or not configuration.check:
        return
    outer_steps = configuration.total_steps // configuration.steps_together
    if not worth_measuring(outer_steps, configuration.timestep_fs):
        return
    number = min(range(len(systems)), key=lambda place: len(systems[place]))
    try:
        difference = force_difference(
            systems[number],
            source.potential,
            source.inner.potential,
            configuration.timestep_fs,
            temperature=ends(configuration.temperature_K)[0],
            device=device,
            precision=configuration.precision,
            evaluator=configuration.evaluator,
            fixed=selections["fix"][number] if "fix" in selections else (),
        )
    except SimulationError:
        return  # the run itself will say what is wrong with its start
    resonates, text = difference.text(configuration.outer_step_fs)
    logger.log(logging.WARNING if resonates else logging.INFO, "%s", text)


def _contents(systems: Sequence[System]) -> str:
    """Formulas and charges with their counts."""
    counts = Counter((formula(system), system.charge or 0.0) for system in systems)
    phrases = [
        f"{f'{count} times ' if count > 1 else ''}{text}, charge {charge:g} e"
        for (text, charge), count in counts.items()
    ]
    more = f" and {len(phrases) - 3} more" if len(phrases) > 3 else ""
    return "; ".join(phrases[:3]) + more


def log_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Warns if hardware or versions differ from those at the beginning of the run."""
    differences = [
        f"{key} {before.get(key)} then, {now[key]} now"
        for key in now
        if before.get(key) != now[key]
    ]
    if differences:
        logger.warning(
            "Not as when the run began, so the last bits may differ: %s.", "; ".join(differences)
        )


_MOST_FRAMES = 1000
_MOST_PAIRS = 3e7
"""Limits of frames and of pairs over all frames in g(r), which keep it to a few seconds."""


def draw_picture(run: Run, systems: Sequence[System], source: Source) -> None:
    """Writes picture.png of a run of dynamics: the log, and g(r) of a periodic system.

    Of replicas it shows temperatures and energies of all that this rank has, and exchanges. A log
    with fewer than two rows is not drawn.

    Raises:
        FileError: the log or the trajectory cannot be read, or the disk refuses.
    """
    logs = [read_log(part.log) for part in run.parts]
    if len(logs[0]["step"]) < 2:
        return
    draw = _replicas_figure if run.configuration.has_replicas else _system_figure
    figure = draw(run, logs, systems, source)
    write_atomically(run.folder.picture, figure.savefig)


def _system_figure(
    run: Run, logs: Sequence[Mapping[str, Any]], systems: Sequence[System], source: Source
) -> "Figure":
    from mdgraph.analysis.plots import run_figure

    configuration, (log,), (system,) = run.configuration, logs, systems
    assert isinstance(configuration, MDConfig)
    kelvin = log["temperature_K"]
    with read_trajectory(run.folder.trajectory(configuration.trajectory)) as trajectory:
        return run_figure(
            log,
            title=_title(configuration, source),
            subtitle=f"{formula(system)}, {_time_steps(configuration)}, "
            f"mean temperature {kelvin.mean():.0f} K",
            atoms=len(system),
            bath_temperature=_bath_temperature(configuration),
            pairs=_distribution(trajectory, system, source),
        )


def _replicas_figure(
    run: Run, logs: Sequence[Mapping[str, Any]], systems: Sequence[System], source: Source
) -> "Figure":
    from mdgraph.analysis.plots import Ladder, replicas_figure

    configuration = run.configuration
    assert isinstance(configuration, MDConfig)
    ladder = None
    if run.exchange:
        table = read_log(run.folder.exchanges)
        time_ps = 1e-3 * configuration.timestep_fs * table.pop("step")
        record = ExchangeRecord.read(run.folder.exchanges, run.exchange)
        places = np.stack([*table.values()], axis=1).astype(np.int64)
        if configuration.exchanges_umbrellas:
            windows = [str(place) for place in range(configuration.system_count)]
            ladder = Ladder(time_ps, places, record.rates(), windows, "window", "windows")
        else:
            kelvins = [f"{kelvin:.0f}" for kelvin in sorted(configuration.replica_temperatures)]
            ladder = Ladder(time_ps, places, record.rates(), kelvins)
    count, numbers = configuration.system_count, run.numbers
    which = "" if len(numbers) == count else f", {numbers[0]} to {numbers[-1]} of them here"
    formulas = {formula(system) for system in systems}
    contents = formulas.pop() if len(formulas) == 1 else f"{len(formulas)} different systems"
    return replicas_figure(
        logs,
        title=_title(configuration, source),
        subtitle=f"{replicas_text(count)}{which}, {contents}, {_time_steps(configuration)}",
        atoms=[*map(len, systems)],
        first=numbers[0],
        bath_temperature=_bath_temperature(configuration),
        ladder=ladder,
    )


def _bath_temperature(configuration: MDConfig) -> float | None:
    """The one temperature of all baths, K; None if there are others or it changes."""
    start, end = ends(configuration.temperature_K)
    has_bath = ENSEMBLES[configuration.ensemble].bath and configuration.temperatures_K is None
    return start if has_bath and start == end else None


def _time_steps(configuration: MDConfig) -> str:
    if configuration.inner_potential is None:
        return f"time step {configuration.timestep_fs:g} fs"
    return f"time steps {configuration.timestep_fs:g} and {configuration.outer_step_fs:g} fs"


def _title(configuration: MDConfig, source: Source) -> str:
    picoseconds = 1e-3 * configuration.total_steps * configuration.timestep_fs
    return f"{source.name}: {picoseconds:.4g} ps simulated {_conditions(configuration)}"


def _conditions(configuration: MDConfig) -> str:
    if not ENSEMBLES[configuration.ensemble].bath:
        return "at constant energy" if not configuration.switches else "without a bath"

    def words(value: float | str, unit: str) -> str:
        start, end = ends(value)
        return f"{start:g} {unit}" if start == end else f"{start:g} to {end:g} {unit}"

    if configuration.temperatures_K is not None:
        kelvins = configuration.replica_temperatures
        text = f"at {min(kelvins):.4g} to {max(kelvins):.4g} K"
    else:
        text = f"at {words(configuration.temperature_K, 'K')}"
    pressure = configuration.ensemble_options.get("pressure_bar")
    if pressure is not None:
        text += f" and {words(pressure, 'bar')}"
    return text + ", not at equilibrium" * configuration.switches


def _distribution(
    trajectory: TrajectoryReader, system: System, source: Source
) -> "PairDistribution | None":
    """g(r) of the most common heavy element; None without three periodic directions.

    None also if the trajectory leaves out some of its atoms.
    """
    number = most_common_heavy_element(system.numbers)
    atoms = np.flatnonzero(trajectory.numbers == number)
    some_are_missing = len(atoms) < np.count_nonzero(system.numbers == number)
    if not system.pbc.all() or len(atoms) < 2 or some_are_missing:
        return None
    affordable = min(_MOST_FRAMES, int(_MOST_PAIRS / len(atoms) ** 2))
    count = max(1, min(len(trajectory), affordable))
    indices = np.unique(np.linspace(0, len(trajectory) - 1, count).astype(int))
    # The smallest cell limits the range for all frames.
    reach = min(0.5 * smallest_height(trajectory[int(index)].cell) for index in indices)
    frames = (trajectory[int(index)] for index in indices)
    pair = f"{SYMBOLS[number]}-{SYMBOLS[number]}"
    simulated = radial_distribution(
        ((frame.positions, frame.cell) for frame in frames), atoms, atoms, maximum=reach
    )
    from mdgraph.analysis.plots import PairDistribution

    return PairDistribution(pair, simulated, source.training_distribution(pair))
