"""Builds the simulation of a configuration: initial structures, integrator, atoms of options."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mdgraph.checkpoints import describe
from mdgraph.checkpoints.location import locate
from mdgraph.decomposition import divided_parts, grid_of
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
from mdgraph.engine.replicas import replica_simulation
from mdgraph.engine.replicas.ranks import ALONE, Ranks
from mdgraph.ensembles import ENSEMBLES, cell_dof_and_axes
from mdgraph.errors import FileError, InputError, prefix_errors, printable
from mdgraph.io.formats import read_trajectory
from mdgraph.io.structures import read_system, read_systems, split_frame
from mdgraph.models import SumPotential, check_species
from mdgraph.models.terms import potential_of
from mdgraph.runs.biased.config import (
    BiasConfig,
    MetadynamicsConfig,
    definitions,
    large_angles,
    late_hills,
)
from mdgraph.runs.config import Descent, MDConfig, MinimizeConfig, RunConfig
from mdgraph.runs.config_fields import ends, join_words, replicas_text
from mdgraph.runs.folder import (
    Run,
    RunDirectory,
    charge_of,
    evaluator_name,
    formula,
    tuning_of_record,
)
from mdgraph.runs.observe import domain_monitors, observables_of
from mdgraph.runs.potential import Source, log_neutral, with_charge
from mdgraph.selection import select_atoms, spans_text
from mdgraph.shipped import shipped_potentials
from mdgraph.system import System
from mdgraph.units import BAR, SYMBOLS

logger = logging.getLogger(__name__)


def integrator_of(configuration: RunConfig) -> Integrator:
    """The integrator of a configuration; raises InputError for invalid numbers."""
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
            arguments["temperature"] = configuration.replica_temperatures
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


def read_starts(configuration: RunConfig) -> list[System]:
    """The structures that a configuration names, if any.

    Raises:
        FileError, InputError: see `read_systems`.
    """
    every = isinstance(configuration, MDConfig) and configuration.every_frame
    frames: int | slice = slice(None) if every else -1
    return [
        system for path in configuration.structure or () for system in read_systems(path, frames)
    ]


def log_frames(configuration: RunConfig, starts: Sequence[System]) -> None:
    """Logs which frames of which files a run begins from, where their names have a frame.

    Args:
        configuration: of the run.
        starts: what `read_starts` returned.
    """
    paths = configuration.structure or ()
    if len(paths) != len(starts):
        return  # every frame of some files
    for path, system in zip(paths, starts, strict=True):
        file, frame = split_frame(path)
        if frame is None:
            continue
        text = f"The run starts from {'the last frame' if frame == -1 else f'frame {frame}'}"
        text += f" of {file}"
        if isinstance(configuration, MDConfig):
            copies = configuration.system_count > len(starts)
            keeps = _moves(system, configuration) and not copies
            text += f", with {'its' if keeps else 'new'} velocities"
        logger.info("%s.", text)


def log_loose(configuration: RunConfig, starts: Sequence[System]) -> None:
    """Warns where a start is a frame of a run that held atoms, which move now.

    Args:
        configuration: of the run.
        starts: what `read_starts` returned.
    """
    paths = configuration.structure or ()
    if configuration.fix is not None or len(paths) != len(starts):
        return
    for path, system in zip(paths, starts, strict=True):
        folder = split_frame(path)[0].parent
        place = folder if RunDirectory(folder).record.is_file() else folder.parent
        try:
            about = RunDirectory(place).read_record()["structure"]
        except FileError:
            continue  # no folder of a run
        fixed = {one.get("fix") for one in about.get("replicas", [about])} - {None}
        if len(fixed) == 1 and (text := fixed.pop()) != spans_text(system.fixed_atoms):
            logger.warning(
                "The run in %s fixed the atoms %s, and they are free in %s; fix them by --fix %s, "
                "or continue by --from %s",
                place,
                text,
                path,
                text,
                place,
            )


def read_initial_structures(run: Run, record: Mapping[str, Any]) -> list[System]:
    """The initial structures of a resumed run, of all ranks; raises FileError."""
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
        system = system.replace(charge=charge_of(record, number))
        systems.append(with_topology(system, part))
    return systems


def with_topology(system: System, folder: RunDirectory) -> System:
    """The system with the names that the folder of its run has for its atoms, if any."""
    path = folder.all_atoms if folder.all_atoms.exists() else folder.topology
    return system.replace(topology=read_system(path).topology) if path.exists() else system


def with_replica_count(configuration: RunConfig, starts: Sequence[System]) -> RunConfig:
    """The configuration with a replica for each start, if it does not give their number."""
    if not isinstance(configuration, MDConfig) or configuration.replicas is not None:
        return configuration
    if len(starts) == 1 and not configuration.every_frame:
        return configuration
    return configuration.model_copy(update={"replicas": len(starts) or None})


def make_structures(
    configuration: RunConfig, source: Source, starts: Sequence[System]
) -> list[System]:
    """The initial structure of every replica of all ranks, with charge and masses.

    Args:
        configuration: of the run.
        source: its potential, which may have a start structure.
        starts: repeated for the replicas; if empty, the start structure of the potential.

    Returns:
        One system for each replica, the same object for copies; one for a run without replicas.

    Raises:
        FileError, InputError: a structure cannot be read, or does not suit potential or ensemble.
    """
    structures = list(starts or [source.start()])
    log_neutral(any(one.charge is None for one in structures), configuration, source)
    systems = []
    for number, structure in enumerate(structures, 1):
        if len(structure.fixed_atoms):
            name = _number_text(number, len(structures)) or "The structure"
            logger.info("%s fixes the atoms %s.", name, spans_text(structure.fixed_atoms))
        with prefix_errors(_number_text(number, len(structures))):
            _check_species(configuration, source, structure)
            if source.inner is not None:
                with prefix_errors("The inner potential"):
                    check_species(source.inner.potential.species, structure.numbers.tolist())
            systems.append(with_charge(_dynamic(structure, configuration), configuration, source))
    count = configuration.system_count
    if count % len(systems):
        raise InputError(
            f"There are {replicas_text(count)} for {len(systems)} structures; give as many, a "
            "multiple, or leave --replicas out."
        )
    if count > len(systems):  # each copy draws its own velocities
        systems = [structure.replace(velocities=None) for structure in systems]
    if isinstance(configuration, MDConfig) and configuration.exchange:
        _check_alike(configuration, systems)
    return [systems[number % len(systems)] for number in range(count)]


def _check_species(configuration: RunConfig, source: Source, system: System) -> None:
    """Raises UnknownSpeciesError with shipped potentials that know all elements, if any."""
    species, numbers = source.potential.species, system.numbers.tolist()
    if species is None or set(numbers) <= set(species):
        return
    whole = source.potential
    if isinstance(whole, SumPotential):
        parts = [
            (name, part.species) for name, part in zip(whole.term_names(), whole.parts, strict=True)
        ]
        own = source.own_terms
        if all(set(numbers) <= set(known) for _, known in parts[:own]):
            advice = "leave it out, or add one that knows them"
            for name, known in parts[own:]:
                check_species(known, numbers, f"The added term {printable(name, 200)}", advice)
    symbols = {SYMBOLS[number] for number in numbers}
    others = [name for name in shipped_potentials() if symbols <= {*describe(name)["species"]}]
    advice = "choose another potential or change the structure"
    if others:
        advice = f"give another, such as --potential {join_words(others, 'or')}"
    name = f"The potential {printable(configuration.potential, 200)}"
    check_species(species, numbers, name, advice)


def _number_text(number: int, count: int) -> str:
    """The number of a structure, if there are several."""
    return f"Structure {number} of {count}" if count > 1 else ""


def _dynamic(system: System, configuration: RunConfig) -> System:
    """A start with the velocities and masses of the configuration."""
    if not _moves(system, configuration):
        system = system.replace(velocities=None)
    if isinstance(configuration, MDConfig):
        if ENSEMBLES[configuration.ensemble].cell_varies and not system.pbc.any():
            raise InputError(
                f"{configuration.ensemble} needs a periodic cell and the structure has none; give "
                "one with a cell, or choose nve or an nvt ensemble."
            )
        if not configuration.fix and not system.fixed_atoms:
            _check_directions(configuration, system)
        if configuration.hydrogen_mass_amu is not None:
            system = repartitioned(system, configuration.hydrogen_mass_amu)
    return system


def _check_directions(configuration: MDConfig, system: System) -> None:
    """Raises InputError where a cell would vary along a direction that is not periodic."""
    options = configuration.ensemble_options
    coupling = options.get("coupling", "isotropic")
    varies_all = coupling in ("isotropic", "semiisotropic", "full")
    if not ENSEMBLES[configuration.ensemble].cell_varies or system.pbc.all() or not varies_all:
        return
    axes = ",".join(axis for axis, periodic in zip("xyz", system.pbc, strict=True) if periodic)
    advice = f"--coupling {axes}"
    by_axes = configuration.ensemble == "npt"
    if axes == "x,y" and (coupling == "semiisotropic" or not by_axes):
        advice = "--coupling semiisotropic-fixed-z"
    elif not by_axes:
        advice = f"--ensemble npt and {advice}"
    raise InputError(
        f"{configuration.ensemble} varies the whole cell, and the structure is periodic along "
        f"{axes} alone; give {advice}, or choose nve or an nvt ensemble."
    )


def _moves(system: System, configuration: RunConfig) -> bool:
    """Whether a run starts with the velocities of a structure; one at rest draws them."""
    moving = system.velocities is not None and bool(system.velocities.any())
    return moving and isinstance(configuration, MDConfig) and not configuration.new_velocities


def distinct(systems: Sequence[System]) -> list[System]:
    """The distinct objects among systems."""
    return list({id(system): system for system in systems}.values())


def _check_alike(configuration: MDConfig, starts: Sequence[System]) -> None:
    """Raises InputError unless all replicas have the same energy function."""

    def energy(system: System) -> tuple[Any, ...]:
        return system.numbers, system.masses, system.cell, system.pbc, np.array(system.charge)

    first = energy(starts[0])
    for system in starts[1:]:
        if not all(map(np.array_equal, first, energy(system))):
            raise InputError(
                "Only replicas of one system take part in an exchange; give structures with the "
                "same atoms, cell and charge, or leave --exchange out."
            )
    holds = configuration.fix or any(system.fixed is not None for system in starts)
    if len(starts) > 1 and (holds or configuration.restrain):
        raise InputError(
            "Replicas that take part in an exchange are held at the same places; with --fix or "
            "--restrain give one structure, or leave --exchange out."
        )


def selections_of(
    configuration: RunConfig, systems: Sequence[System], record: Mapping[str, Any] | None = None
) -> dict[str, list[list[int]]]:
    """Atoms of `fix`, `restrain` and `save_select` in each system, by the name of the option.

    Those of `fix` are beside the ones that the structures hold.

    Args:
        configuration: of the run.
        systems: its initial structures, of all ranks.
        record: of a resumed run, which goes on with the atoms that its start selected.

    Raises:
        InputError: see `select_atoms`; names the structure.
    """
    descriptions: list[Mapping[str, Any]] = [{}] * len(systems)
    if record is not None:
        descriptions = record["structure"].get("replicas", [record["structure"]])
    count = len(distinct(systems))
    selections: dict[str, list[list[int]]] = {}
    for name in ("fix", "restrain", "save_select"):
        option = getattr(configuration, name)
        if option is None:
            continue
        known: dict[tuple[int, str], list[int]] = {}
        selections[name] = []
        for number, (system, description) in enumerate(zip(systems, descriptions, strict=True), 1):
            # Records of earlier releases have no atoms; their options need no coordinates.
            key = id(system), str(description.get(name, option))
            with prefix_errors(_number_text(number, count)):
                atoms = known[key] = known.get(key) or select_atoms(key[1], system)
            selections[name].append(atoms)
    fixed = [system.fixed_atoms for system in systems]
    if any(fixed):
        pairs = zip(selections.get("fix", [[]] * len(systems)), fixed, strict=True)
        selections["fix"] = [sorted({*chosen, *own}) for chosen, own in pairs]
    return selections


def _over_all(atoms: Sequence[Sequence[int]], systems: Sequence[System]) -> list[int]:
    """Indices over all systems, from indices within each."""
    begins = np.cumsum([0, *map(len, systems)]).tolist()
    return [begin + atom for begin, own in zip(begins, atoms, strict=False) for atom in own]


_STIFFNESS = 1.0
"""Default stiffness of restraints, eV/A^2."""


def make_simulation(
    configuration: RunConfig,
    source: Source,
    systems: Sequence[System],
    device: torch.device,
    record: Mapping[str, Any] | None = None,
    ranks: Ranks = ALONE,
    selections: Mapping[str, Sequence[Sequence[int]]] | None = None,
) -> Simulation:
    """The simulation at its start; raises InputError and SelfCheckError as Simulation does.

    Args:
        configuration: of the run.
        source: its potential.
        systems: initial structures of the replicas of all ranks, or the only one.
        device: of the simulation.
        record: of a resumed run, whose tuning is kept between GPUs; None for a new run.
        ranks: share the replicas.
        selections: see `selections_of`; None selects the atoms here.
    """
    if selections is None:
        selections = selections_of(configuration, systems, record)
    restraints = None
    if "restrain" in selections:
        stiffness = configuration.stiffness_eV_per_A2 or _STIFFNESS
        restraints = PositionRestraints(_over_all(selections["restrain"], systems), stiffness)
    if isinstance(configuration, MDConfig):
        own: dict[str, Any] = {
            "temperature": _kelvins(configuration),
            "exact_temperature": configuration.exact_temperature,
            "seed": configuration.seed,
            "maximum_temperature": configuration.maximum_temperature_K,
            "remove_momentum": configuration.remove_momentum,
            "observe": [*observables_of(configuration), *domain_monitors(configuration, source)],
        }
        if configuration.variables is not None:
            own["variables"], own["biases"] = definitions(
                configuration.variables, configuration.biases, systems
            )
        if source.inner is not None:
            own["inner_potential"] = source.inner.potential
            own["inner_steps"] = configuration.steps_together
    else:
        own = {}
    begin: Callable[..., Simulation] = partial(Simulation, systems)
    if configuration.has_replicas:
        begin = partial(replica_simulation, systems, ranks=ranks)
    simulation = begin(
        source.potential,
        integrator_of(configuration),
        restraints=restraints,
        skin=configuration.skin_A,
        chunk=configuration.chunk,
        check=configuration.check,
        **own,
        fixed=_over_all(selections.get("fix", ()), systems),
        **(_common(configuration, device) | tuning_of_record(record, device)),
    )
    biases = simulation.calculation.biases
    if record is None and biases is not None:
        sentences = biases.far_springs()
        if isinstance(configuration, MDConfig):
            sentences += large_angles(configuration.variables, configuration.biases)
            sentences += late_hills(configuration.biases, configuration.total_steps)
        for sentence in sentences:
            logger.warning("%s", sentence)
    return simulation


def minimize_structures(
    configuration: MDConfig,
    source: Source,
    systems: Sequence[System],
    device: torch.device,
    selections: Mapping[str, Sequence[Sequence[int]]],
) -> list[System]:
    """Minimised copies of systems, which keep velocities, cells and places of fixed atoms."""
    starts = distinct(systems)
    # The run itself checks the evaluator, after clashes of atoms are gone.
    resting = [system.replace(velocities=None) for system in starts]
    fixed = {
        id(system): atoms for system, atoms in zip(systems, selections.get("fix", ()), strict=False)
    }
    plan = MinimizeConfig()
    downhill = Simulation(
        resting,
        source.potential,
        integrator_of(plan),
        check=None,
        fixed=_over_all([fixed.get(id(system), []) for system in starts], starts),
        **_common(configuration, device),
    )
    minimize(downhill, plan.total_steps)
    sizes = downhill.state.grouping.sizes
    minima = {
        id(system): system.replace(positions=positions.numpy())
        for system, positions in zip(
            starts, downhill.state.places().cpu().split(sizes), strict=True
        )
    }
    return [minima[id(system)] for system in systems]


def _common(configuration: RunConfig, device: torch.device) -> dict[str, Any]:
    return {
        "device": device,
        "precision": configuration.precision,
        "evaluator": configuration.evaluator,
        "graph": configuration.graph,
        "steps_per_replay": configuration.steps_per_replay,
        "domains": configuration.domains,
    }


def _kelvins(configuration: MDConfig) -> float | list[float]:
    """Temperature of initial velocities, K."""
    if configuration.temperatures_K is not None:
        return configuration.replica_temperatures
    return ends(configuration.temperature_K)[0]


def record_fields(configuration: RunConfig) -> dict[str, Any]:
    """Options in the words of run.json that need no simulation: whole paths, intervals in steps."""
    files, intervals = configuration.structure, configuration.intervals._asdict()
    fields: dict[str, Any] = {
        "structure": files and tuple(str(Path(value).resolve()) for value in files),
        "terms": configuration.terms and tuple(map(_with_reference, configuration.terms)),
        **{f"{name}_interval": value for name, value in intervals.items()},
    }
    if isinstance(configuration, MDConfig):
        members = configuration.committee
        fields["committee"] = members and tuple(locate(member).reference for member in members)
        inner = configuration.inner_potential
        fields["inner_potential"] = inner and locate(inner).reference
        fields |= dict.fromkeys(f"{name}_interval_ps" for name in intervals)
        if configuration.variables is not None:
            fields["colvar_interval"] = configuration.colvar_steps
            fields["variables"] = {
                name: variable.with_full_paths()
                for name, variable in configuration.variables.items()
            }
        if configuration.biases is not None:
            fields["biases"] = _at_temperature(configuration.biases, configuration)
    return fields


def _with_reference(text: str) -> str:
    """A term, with the whole path of another potential."""
    text = text.strip()
    other = potential_of(text)
    return text if other is None else text.removesuffix(other) + locate(other).reference


def _at_temperature(biases: Sequence[BiasConfig], configuration: MDConfig) -> list[BiasConfig]:
    """Biases with the temperature of a bath that is the same for all replicas."""
    if not ENSEMBLES[configuration.ensemble].bath or configuration.temperatures_K is not None:
        return list(biases)
    kelvin = ends(configuration.temperature_K)[0]
    return [
        bias.model_copy(update={"temperature_K": kelvin})
        if isinstance(bias, MetadynamicsConfig) and bias.bias_factor and not bias.temperature_K
        else bias
        for bias in biases
    ]


def resolve_configuration(
    configuration: RunConfig, source: Source, simulation: Simulation, systems: Sequence[System]
) -> RunConfig:
    """The configuration with all defaults resolved, from which a run is resumed."""
    charges = {value.charge for value in systems}
    fields: dict[str, Any] = {
        **record_fields(configuration),
        "potential": source.reference,
        "charge": charges.pop() if len(charges) == 1 else None,
        "steps": configuration.total_steps,
        "device": str(simulation.calculation.device),
        "evaluator": evaluator_name(simulation.calculation.evaluator),
        "skin_A": simulation.calculation.skin,
        "chunk": simulation.chunk,
    }
    parts = divided_parts(simulation.calculation.evaluator)
    # Where one GPU is faster the number stays, as a run that goes on may choose again.
    if configuration.domains is not None and (not parts or parts[0].divides):
        reach = max(simulation.calculation.evaluator.cutoffs)
        fields["domains"] = str(grid_of(configuration.domains, systems[0], reach))
    if configuration.restrain is not None:
        fields["stiffness_eV_per_A2"] = configuration.stiffness_eV_per_A2 or _STIFFNESS
    if isinstance(configuration, MDConfig):
        fields["time_ps"] = None
        fields["maximum_temperature_K"] = simulation.maximum_temperature
        fields["monitor_domain"] = any(
            isinstance(value, DomainMonitor) for value in simulation.online
        )
        if configuration.ramped:
            fields["ramp_steps"] = configuration.ramp_steps or max(configuration.total_steps, 1)
    return configuration.model_copy(update=fields)


def options_for_record(configuration: RunConfig, resolved: RunConfig) -> dict[str, Any]:
    """Options of a run that are set and not what its ensemble has anyway, for run.json.

    Args:
        configuration: as it was given.
        resolved: with whole paths of potentials.
    """
    values = configuration.model_dump(mode="json", include=configuration.model_fields_set)
    usual: Mapping[str, Any] = {}
    if isinstance(configuration, MDConfig):
        usual = ENSEMBLES[configuration.ensemble].defaults
    paths = {"potential", "inner_potential", "committee", "variables", "terms"} & values.keys()
    values |= resolved.model_dump(mode="json", include=paths)
    return {
        name: value
        for name, value in values.items()
        if value is not None and (name not in usual or value != usual[name])
    }
