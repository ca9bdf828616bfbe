"""Builds the simulation of a configuration: initial structures, integrator, atom selections."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mdgraph.engine import (
    FIRE,
    DomainMonitor,
    Integrator,
    PositionRestraints,
    Ramp,
    Simulation,
    minimize,
    repartitioned,
)
from mdgraph.engine.replicas import ALONE, Ranks, replica_simulation
from mdgraph.ensembles import ENSEMBLES, cell_dof_and_axes
from mdgraph.errors import FileError, InputError, printable
from mdgraph.io.formats import read_trajectory
from mdgraph.io.structures import read_systems
from mdgraph.models import check_species
from mdgraph.runs.config import Descent, MDConfig, MinimizeConfig, RunConfig
from mdgraph.runs.config_fields import ends
from mdgraph.runs.folder import Run, charge_of, evaluator_name, formula, measured_before
from mdgraph.runs.observe import domain_monitors, observables_of
from mdgraph.runs.potential import Source, reference_of, say_neutral, with_charge
from mdgraph.runs.replicas import temperatures
from mdgraph.system import System
from mdgraph.units import BAR, SYMBOLS


def integrator_of(configuration: RunConfig) -> Integrator:
    """The integrator that a configuration names; raises InputError for numbers it refuses."""
    if isinstance(configuration, MDConfig):
        return _dynamics(configuration)
    assert isinstance(configuration, MinimizeConfig)
    return descent(configuration)


def descent(configuration: Descent) -> FIRE:
    """The minimiser that a configuration describes."""
    coupling = configuration.coupling
    cell_dof, axes = (None, None) if coupling is None else cell_dof_and_axes(coupling)
    return FIRE(
        configuration.force_tolerance_eV_per_A,
        largest_step=configuration.largest_step_A,
        cell_dof=cell_dof,
        axes=axes,
        pressure=(configuration.pressure_bar or 0.0) * BAR,
        stress_tolerance=configuration.stress_tolerance_bar * BAR,
    )


def _dynamics(configuration: MDConfig) -> Integrator:
    ensemble = ENSEMBLES[configuration.ensemble]
    arguments: dict[str, Any] = {"timestep": configuration.timestep_fs}
    if ensemble.bath:
        if configuration.temperatures_K is None:
            arguments["temperature"] = _value(configuration, configuration.temperature_K)
        else:
            arguments["temperature"] = temperatures(configuration)
    for option in ensemble.options:
        value = configuration.ensemble_options[option.name]
        if option.text is None:
            value = _value(configuration, value, option.convert)
        else:
            value = option.convert(value)
        arguments |= option.arguments(value)
    integrator: Integrator = ensemble.load_integrator()(**arguments)
    return integrator


def _value(
    configuration: MDConfig, value: float | str, convert: Callable[[float], float] = float
) -> float | Ramp:
    """A number or a ramp of a configuration, in the integrator's unit."""
    start, end = ends(value)
    if start == end:
        return convert(start)
    steps = configuration.ramp_steps or max(configuration.total_steps, 1)
    return Ramp(convert(start), convert(end), steps)


def selected_atoms(text: str, system: System) -> list[int]:
    """Indices of the atoms that a text such as `0,4,9-20,O` names, in order, each once.

    Args:
        text: indices from 0 on, ranges with both ends, and elements, parted by commas.
        system: where they are.

    Raises:
        InputError: a word that is none of these, or no atom of that name.
    """
    chosen: set[int] = set()
    for word in filter(None, re.split(r"[,\s]+", text)):
        span = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", word)
        if span is not None:
            first, last = int(span[1]), int(span[2] or span[1])
            if not first <= last < len(system):
                raise InputError(
                    f"There are no atoms {word}; atoms are counted from 0 to {len(system) - 1}."
                )
            chosen.update(range(first, last + 1))
        elif word in SYMBOLS[1:]:
            found = np.flatnonzero(system.numbers == SYMBOLS.index(word)).tolist()
            if not found:
                raise InputError(f"The structure has no {word} to choose; see its elements.")
            chosen.update(found)
        else:
            raise InputError(
                f"'{printable(word, 60)}' names no atoms; give indices from 0 on, ranges such as "
                "3-8, or elements."
            )
    if not chosen:
        raise InputError(
            f"'{printable(text, 60)}' names no atoms; give some, or leave the option out."
        )
    return sorted(chosen)


def read_starts(configuration: RunConfig) -> list[System]:
    """The structures that a configuration names, none where it names none.

    Raises:
        FileError, InputError: see `read_systems`.
    """
    every = isinstance(configuration, MDConfig) and configuration.every_frame
    frames: int | slice = slice(None) if every else -1
    return [one for path in configuration.structure or () for one in read_systems(path, frames)]


def recorded_starts(run: Run, record: Mapping[str, Any]) -> list[System]:
    """The initial structures of a run that is resumed, those of all ranks; raises FileError."""
    about = record["structure"]
    descriptions = about.get("replicas", [about])
    parts = run.all_parts
    if len(descriptions) != len(parts):
        raise FileError(f"{run.folder.record} is damaged; put back the original.")
    systems = []
    for number, (part, description) in enumerate(zip(parts, descriptions, strict=True)):
        with read_trajectory(part.start) as trajectory:
            system = trajectory.system(0) if len(trajectory) == 1 else None
        if system is None or formula(system) != description["formula"]:
            raise FileError(
                f"{part.start} does not hold the one frame of {description['formula']} that "
                "the run began from; put back the original."
            )
        systems.append(system.replace(charge=charge_of(record, number)))
    return systems


def counted(configuration: RunConfig, starts: Sequence[System]) -> RunConfig:
    """The configuration with as many replicas as there are starts, where it does not say."""
    if not isinstance(configuration, MDConfig) or configuration.replicas is not None:
        return configuration
    if len(starts) == 1 and not configuration.every_frame:
        return configuration
    return configuration.model_copy(update={"replicas": len(starts) or None})


def prepared_structures(
    configuration: RunConfig, source: Source, starts: Sequence[System]
) -> list[System]:
    """What every replica of all ranks begins from, with the charge and the masses that count.

    Args:
        configuration: of the run.
        source: its potential, which may bring a structure.
        starts: taken in turn; none takes that of the potential.

    Returns:
        One system for each replica, the same object for copies, or one for a run without.

    Raises:
        FileError, InputError: it cannot be read, or does not suit the potential or ensemble.
    """
    given = list(starts or [source.start()])
    say_neutral(given, configuration, source)
    prepared = []
    for number, one in enumerate(given, 1):
        with _named(number, len(given)):
            check_species(source.potential.species, one.numbers.tolist())
            prepared.append(with_charge(_dynamic(one, configuration), configuration, source))
    count = configuration.system_count
    if count % len(prepared):
        raise InputError(
            f"There are {count} replicas for {len(prepared)} structures; give as many, a "
            "multiple, or leave --replicas out."
        )
    if count > len(prepared):  # copies draw velocities of their own
        prepared = [one.replace(velocities=None) for one in prepared]
    if isinstance(configuration, MDConfig) and configuration.exchange:
        _check_alike(configuration, prepared)
    return [prepared[number % len(prepared)] for number in range(count)]


@contextmanager
def _named(number: int, count: int) -> Iterator[None]:
    """Puts the place of a structure, if there are several, before what is wrong with it."""
    try:
        yield
    except InputError as error:
        if count == 1:
            raise
        raise type(error)(f"Structure {number} of {count}: {error}") from error


def _dynamic(system: System, configuration: RunConfig) -> System:
    """A start with the velocities and masses that it keeps."""
    # A minimum is at rest, and dynamics that begin at rest draw their velocities.
    if system.velocities is not None and not system.velocities.any():
        system = system.replace(velocities=None)
    if isinstance(configuration, MinimizeConfig):
        system = system.replace(velocities=None)
    if isinstance(configuration, MDConfig):
        if ENSEMBLES[configuration.ensemble].cell_varies and not system.pbc.any():
            raise InputError(
                f"{configuration.ensemble} needs a periodic cell and the structure has none; give "
                "one with a cell, or choose nve or an nvt ensemble."
            )
        if configuration.new_velocities:
            system = system.replace(velocities=None)
        if configuration.hydrogen_mass_amu is not None:
            system = repartitioned(system, configuration.hydrogen_mass_amu)
    return system


def distinct(systems: Sequence[System]) -> list[System]:
    """Systems without the copies of one object."""
    return list({id(one): one for one in systems}.values())


def _check_alike(configuration: MDConfig, starts: Sequence[System]) -> None:
    """Raises InputError unless all replicas have one energy as a function of positions."""

    def energy(one: System) -> tuple[Any, ...]:
        return one.numbers, one.masses, one.cell, one.pbc, np.array(one.charge)

    first = energy(starts[0])
    for one in starts[1:]:
        if not all(map(np.array_equal, first, energy(one))):
            raise InputError(
                "Only replicas of one system exchange temperatures; give structures with the "
                "same atoms, cell and charge, or leave --exchange out."
            )
    if len(starts) > 1 and (configuration.fix or configuration.restrain):
        raise InputError(
            "Replicas that exchange temperatures are held at the same places; with --fix or "
            "--restrain give one structure, or leave --exchange out."
        )


def atoms_of_all(text: str, systems: Sequence[System]) -> list[int]:
    """Atoms that a text chooses in each system, counted among all; see `selected_atoms`."""
    chosen: list[int] = []
    begin, count = 0, len(distinct(systems))
    for number, system in enumerate(systems, 1):
        with _named(number, count):
            chosen += [begin + atom for atom in selected_atoms(text, system)]
        begin += len(system)
    return chosen


_STIFFNESS = 1.0
"""eV/A^2, unless given."""


def prepared_simulation(
    configuration: RunConfig,
    source: Source,
    systems: Sequence[System],
    device: torch.device,
    record: Mapping[str, Any] | None = None,
    ranks: Ranks = ALONE,
) -> Simulation:
    """The simulation at its start; raises InputError and SelfCheckError as Simulation does.

    Args:
        configuration: of the run.
        source: its potential.
        systems: one, or what each replica of all ranks begins from.
        device: where.
        record: of a run that goes on, whose choices are taken where its GPU was one too.
        ranks: that share the replicas.
    """
    restraints = None
    if configuration.restrain is not None:
        stiffness = configuration.stiffness_eV_per_A2 or _STIFFNESS
        atoms = atoms_of_all(configuration.restrain, systems)
        restraints = PositionRestraints(atoms, stiffness)
    if isinstance(configuration, MDConfig):
        own: dict[str, Any] = {
            "temperature": _kelvins(configuration),
            "exact_temperature": configuration.exact_temperature,
            "seed": configuration.seed,
            "maximum_temperature": configuration.maximum_temperature_K,
            "remove_momentum": configuration.remove_momentum,
            "observe": [*observables_of(configuration), *domain_monitors(configuration, source)],
        }
    else:
        own = {}
    begin: Callable[..., Simulation] = partial(Simulation, systems)
    if configuration.has_replicas:
        begin = partial(replica_simulation, systems, ranks=ranks)
    return begin(
        source.potential,
        integrator_of(configuration),
        restraints=restraints,
        skin=configuration.skin_A,
        chunk=configuration.chunk,
        check=configuration.check,
        **own,
        **(_common(configuration, systems, device) | measured_before(record, device)),
    )


def minimized(
    configuration: MDConfig, source: Source, systems: Sequence[System], device: torch.device
) -> list[System]:
    """Copies with atoms moved downhill by FIRE, each with its velocities and cell as they were."""
    starts = distinct(systems)
    # The run to come checks the evaluator, where forces are no longer those of a clash.
    still = [one.replace(velocities=None) for one in starts]
    options = _common(configuration, still, device)
    plan = MinimizeConfig()
    downhill = Simulation(still, source.potential, integrator_of(plan), check=None, **options)
    minimize(downhill, plan.total_steps)
    sizes = downhill.state.grouping.sizes
    found = {
        id(one): one.replace(positions=positions.numpy())
        for one, positions in zip(starts, downhill.state.places().cpu().split(sizes), strict=True)
    }
    return [found[id(one)] for one in systems]


def _common(
    configuration: RunConfig, systems: Sequence[System], device: torch.device
) -> dict[str, Any]:
    fixed = [] if configuration.fix is None else atoms_of_all(configuration.fix, systems)
    return {
        "device": device,
        "precision": configuration.precision,
        "evaluator": configuration.evaluator,
        "graph": configuration.graph,
        "steps_per_replay": configuration.steps_per_replay,
        "fixed": fixed,
    }


def _kelvins(configuration: MDConfig) -> float | list[float]:
    """Of initial velocities."""
    if configuration.temperatures_K is not None:
        return temperatures(configuration)
    return ends(configuration.temperature_K)[0]


def resolved(
    configuration: RunConfig, source: Source, simulation: Simulation, systems: Sequence[System]
) -> RunConfig:
    """The configuration with nothing left to choose, from which a run is resumed."""
    files, charges = configuration.structure, {one.charge for one in systems}
    found: dict[str, Any] = {
        "structure": files and tuple(str(Path(one).resolve()) for one in files),
        "potential": source.reference,
        "charge": charges.pop() if len(charges) == 1 else None,
        "steps": configuration.total_steps,
        "device": str(simulation.calculation.device),
        "evaluator": evaluator_name(simulation.calculation.evaluator),
        "skin_A": simulation.calculation.skin,
        "chunk": simulation.chunk,
        **{f"{name}_interval": one for name, one in configuration.intervals._asdict().items()},
    }
    if configuration.restrain is not None:
        found["stiffness_eV_per_A2"] = configuration.stiffness_eV_per_A2 or _STIFFNESS
    if isinstance(configuration, MDConfig):
        found |= {"time_ps": None, "maximum_temperature_K": simulation.maximum_temperature}
        found["monitor_domain"] = any(isinstance(one, DomainMonitor) for one in simulation.online)
        members = configuration.committee
        found["committee"] = members and tuple(map(reference_of, members))
        if configuration.ramped:
            found["ramp_steps"] = configuration.ramp_steps or max(configuration.total_steps, 1)
    return configuration.model_copy(update=found)
