"""From a configuration to a simulation that is ready to run."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mdgraph.engine import DomainWatch, PositionRestraints, Simulation, minimize
from mdgraph.engine.replicas import replica_simulation
from mdgraph.runs.configuration import MDConfig, MinimizeConfig, RunConfig
from mdgraph.runs.ensembles import ends
from mdgraph.runs.integrators import integrator_of
from mdgraph.runs.observing import observables_of
from mdgraph.runs.potential import Source, reference_of
from mdgraph.runs.record import evaluator_name, measured_before
from mdgraph.runs.replicas import distinct, ranks_of, replicas_of, temperatures
from mdgraph.runs.starts import atoms_of_all
from mdgraph.runs.watching import watches_of
from mdgraph.system import System

_STIFFNESS = 1.0
"""eV/A^2, unless given."""


def prepared_simulation(
    configuration: RunConfig,
    source: Source,
    systems: Sequence[System],
    device: torch.device,
    record: Mapping[str, Any] | None = None,
) -> Simulation:
    """The simulation at its start; raises InputError and SelfCheckError as Simulation does.

    Args:
        configuration: of the run.
        source: its potential.
        systems: one, or what each replica of all ranks begins from.
        device: where.
        record: of a run that goes on, whose choices are taken where its GPU was one too.
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
            "observe": [*observables_of(configuration), *watches_of(configuration, source)],
        }
    else:
        own = {}
    begin: Callable[..., Simulation] = partial(Simulation, systems)
    if replicas_of(configuration) is not None:
        begin = partial(replica_simulation, systems, ranks=ranks_of(configuration))
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
    return temperatures(configuration) or ends(configuration.temperature_K)[0]


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
        found["watch"] = any(isinstance(one, DomainWatch) for one in simulation.online)
        members = configuration.committee
        found["committee"] = members and tuple(map(reference_of, members))
        if configuration.ramped:
            found["ramp_steps"] = configuration.ramp_steps or max(configuration.total_steps, 1)
    return configuration.model_copy(update=found)
