"""From a configuration to a simulation that is ready to run."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mdgraph.engine import PositionRestraints, Simulation, minimize, repartitioned
from mdgraph.engine.replicas import replica_simulation
from mdgraph.errors import InputError
from mdgraph.io.structures import read_system
from mdgraph.runs.configuration import MDConfig, MinimizeConfig, RunConfig
from mdgraph.runs.ensembles import ends
from mdgraph.runs.integrators import integrator_of
from mdgraph.runs.potential import Source, say_neutral, with_charge
from mdgraph.runs.record import evaluator_name, measured_before
from mdgraph.runs.replicas import ranks_of, replicas_of, temperatures
from mdgraph.runs.selection import selected_atoms
from mdgraph.system import System

_STIFFNESS = 1.0
"""eV/A^2, unless given."""


def prepared_structure(
    configuration: RunConfig, source: Source, system: System | None = None
) -> System:
    """What a run begins from, with the charge and the masses that count.

    Args:
        configuration: of the run.
        source: its potential, which may bring a structure.
        system: instead of the structure that the configuration names.

    Raises:
        FileError, InputError: it cannot be read, or does not suit the potential or ensemble.
    """
    if system is None and configuration.structure is None:
        system = source.start()
    elif system is None:
        system = read_system(str(configuration.structure))
    # A minimum is at rest, and dynamics that begin at rest draw their velocities.
    if system.velocities is not None and not system.velocities.any():
        system = system.replace(velocities=None)
    if isinstance(configuration, MinimizeConfig):
        system = system.replace(velocities=None)
    if isinstance(configuration, MDConfig):
        if configuration.pressure_bar is not None and not system.pbc.any():
            raise InputError(
                f"{configuration.ensemble} needs a periodic cell and the structure has none; give "
                "one with a cell, or choose nve or an nvt ensemble."
            )
        if configuration.new_velocities:
            system = system.replace(velocities=None)
        if configuration.hydrogen_mass_amu is not None:
            system = repartitioned(system, configuration.hydrogen_mass_amu)
    say_neutral([system], configuration, source)
    return with_charge(system, configuration, source)


def prepared_simulation(
    configuration: RunConfig,
    source: Source,
    system: System,
    device: torch.device,
    record: Mapping[str, Any] | None = None,
) -> Simulation:
    """The simulation at its start; raises InputError and SelfCheckError as Simulation does.

    Args:
        configuration: of the run.
        source: its potential.
        system: what is simulated.
        device: where.
        record: of a run that goes on, whose choices are taken where its GPU was one too.
    """
    restraints = None
    if configuration.restrain is not None:
        stiffness = configuration.stiffness_eV_per_A2 or _STIFFNESS
        atoms = selected_atoms(configuration.restrain, system)
        restraints = PositionRestraints(atoms, stiffness)
    if isinstance(configuration, MDConfig):
        own: dict[str, Any] = {
            "temperature": _kelvins(configuration),
            "exact_temperature": configuration.exact_temperature,
            "seed": configuration.seed,
            "maximum_temperature": configuration.maximum_temperature_K,
            "remove_momentum": configuration.remove_momentum,
        }
    else:
        own = {}
    copies = replicas_of(configuration)
    begin: Callable[..., Simulation] = partial(Simulation, system)
    if copies is not None:
        # Each draws velocities of its own.
        still = system.replace(velocities=None)
        begin = partial(replica_simulation, [still] * copies, ranks=ranks_of(configuration))
    return begin(
        source.potential,
        integrator_of(configuration),
        restraints=restraints,
        skin=configuration.skin_A,
        chunk=configuration.chunk,
        check=configuration.check,
        **own,
        **(_common(configuration, system, device) | measured_before(record, device)),
    )


def minimized(
    configuration: MDConfig, source: Source, system: System, device: torch.device
) -> System:
    """A copy with its atoms moved downhill by FIRE, its velocities and cell as they were."""
    # The run to come checks the evaluator, where forces are no longer those of a clash.
    still = system.replace(velocities=None)
    options = _common(configuration, still, device)
    plan = MinimizeConfig()
    downhill = Simulation(still, source.potential, integrator_of(plan), check=False, **options)
    minimize(downhill, plan.total_steps)
    return system.replace(positions=downhill.state.positions.double().cpu().numpy())


def _common(configuration: RunConfig, system: System, device: torch.device) -> dict[str, Any]:
    fixed = [] if configuration.fix is None else selected_atoms(configuration.fix, system)
    return {
        "device": device,
        "precision": configuration.precision,
        "evaluator": configuration.evaluator,
        "graph": "off" if configuration.eager else "auto",
        "fixed": fixed,
    }


def _kelvins(configuration: MDConfig) -> float | list[float]:
    """Of initial velocities."""
    return temperatures(configuration) or ends(configuration.temperature_K)[0]


def resolved(
    configuration: RunConfig, source: Source, simulation: Simulation, system: System
) -> RunConfig:
    """The configuration with nothing left to choose, from which a run is resumed."""
    structure = configuration.structure
    found: dict[str, Any] = {
        "structure": None if structure is None else str(Path(structure).resolve()),
        "potential": source.reference,
        "charge": system.charge,
        "steps": configuration.total_steps,
        "device": str(simulation.calculation.device),
        "evaluator": evaluator_name(simulation.calculation.evaluator),
        "skin_A": simulation.calculation.skin,
        "chunk": simulation.chunk,
    }
    if configuration.restrain is not None:
        found["stiffness_eV_per_A2"] = configuration.stiffness_eV_per_A2 or _STIFFNESS
    if isinstance(configuration, MDConfig):
        found |= {"time_ps": None, "maximum_temperature_K": simulation.maximum_temperature}
        if configuration.ramped:
            found["ramp_steps"] = configuration.ramp_steps or max(configuration.total_steps, 1)
    return configuration.model_copy(update=found)
