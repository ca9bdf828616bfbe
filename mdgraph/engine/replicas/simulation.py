"""The simulation of the replicas of one rank."""

from collections.abc import Mapping, Sequence
from copy import copy
from itertools import accumulate
from typing import Any

import torch

from mdgraph.biases import Bias, CollectiveVariable
from mdgraph.biases.applied import check_variables, hold_systems
from mdgraph.biases.bias import check_names
from mdgraph.engine.integrators import Integrator
from mdgraph.engine.replicas.ranks import ALONE, Ranks, shared_hills
from mdgraph.engine.restraints import PositionRestraints, Springs
from mdgraph.engine.schedules import Schedule
from mdgraph.engine.simulation import Simulation, in_bath
from mdgraph.engine.velocities import Conserved, draw_velocities_
from mdgraph.errors import InputError, name_some
from mdgraph.selection import select_in_all
from mdgraph.state import State
from mdgraph.system import System


def replica_simulation(
    systems: Sequence[System],
    potential: Any,
    integrator: Integrator,
    ranks: Ranks = ALONE,
    *,
    seed: int = 0,
    temperature: float | Sequence[float] | None = None,
    exact_temperature: bool = False,
    fixed: Sequence[int] | str = (),
    restraints: PositionRestraints | None = None,
    variables: Mapping[str, CollectiveVariable] | None = None,
    biases: Sequence[Bias] = (),
    **options: Any,
) -> Simulation:
    """Makes the simulation of this rank's replicas, with random numbers as in a single process.

    Args:
        systems: all replicas, equal or different.
        potential: see Simulation.
        integrator: of all replicas; a parameter is one number, or one for each replica.
        ranks: the ranks that share the replicas.
        seed: key of all random numbers.
        temperature: K, of initial velocities; default: that of the bath.
        exact_temperature: scale initial velocities to exactly that temperature.
        fixed: see Simulation; indices count the atoms of all replicas.
        restraints: see Simulation; indices count the atoms of all replicas.
        variables: see Simulation; indices count the atoms of each replica.
        biases: see Simulation; rows of numbers are those of all replicas. Walkers that share their
            hills may be on several ranks: `SharedHills` of the simulation's `hill_reporters` add
            them.
        options: see Simulation.

    Raises:
        InputError: see Simulation; or fewer replicas than ranks.
    """
    share = ranks.share(len(systems))
    begins = [0, *accumulate(map(len, systems))]
    atoms = range(begins[share.start], begins[share.stop])
    if isinstance(fixed, str):
        fixed = select_in_all(fixed, systems)
    if restraints is not None:
        restraints = restraints.applied_to(systems)
    fixed, restraints = _within(atoms, begins[-1], fixed, restraints)
    local_integrator = copy(integrator)
    local_integrator.parameters = {
        name: _part(schedule, share) for name, schedule in integrator.parameters.items()
    }
    if temperature is None:
        bath = local_integrator.parameters.get("temperature")
        kelvin: float | Sequence[float] = bath.start if bath else 0.0
    else:
        kelvin = _part(Schedule("temperature", temperature), share).start
    own = [systems[number] for number in share]
    # Velocities are drawn on the host, so they do not depend on the number of ranks.
    state = State(own, "cpu", torch.float64, seed)
    state.replica += share.start
    state.fix_(fixed)
    steady = local_integrator.conserves_momentum
    springs = [False] * len(own)
    if restraints is not None:
        springs = Springs(restraints, state).restrained(state)
    held = [False] * len(own)
    if variables is not None or len(biases):
        variables = {} if variables is None else variables
        check_variables(variables)
        check_names(biases, variables)
        biases = [bias.of_systems(share, len(systems)) for bias in in_bath(biases, integrator)]
        held = hold_systems(variables, biases, own)
    has_spring = [spring or hold for spring, hold in zip(springs, held, strict=True)]
    conserved = Conserved(steady or options.get("remove_momentum", 0) > 0, steady, has_spring)
    keep = [system.velocities is not None for system in own]
    draw_velocities_(state, kelvin, exact_temperature, conserved, keep)
    velocities = state.velocities.split(state.grouping.sizes)
    own = [system.replace(velocities=v.numpy()) for system, v in zip(own, velocities, strict=True)]
    simulation = Simulation(
        own,
        potential,
        local_integrator,
        seed=seed,
        fixed=fixed,
        restraints=restraints,
        variables=variables,
        biases=biases,
        **options,
    )
    if share.start:
        simulation.state.replica += share.start
        simulation.integrator.allocate(simulation.state)
    simulation.hill_reporters += shared_hills(simulation, ranks)
    return simulation


def _within(
    atoms: range, count: int, fixed: Sequence[int], restraints: PositionRestraints | None
) -> tuple[list[int], PositionRestraints | None]:
    """Fixed atoms and restraints of one rank; raises InputError for an atom that does not exist."""
    indices = [*fixed, *([] if restraints is None else restraints.indices)]
    wrong = [atom for atom in indices if not 0 <= atom < count]
    if wrong:
        raise InputError(
            f"There are no atoms {name_some(wrong)} to fix or restrain; all replicas together "
            f"have the atoms from 0 to {count - 1}."
        )
    own = [atom - atoms.start for atom in fixed if atom in atoms]
    return own, None if restraints is None else restraints.within(atoms)


def _part(schedule: Schedule, share: range) -> Schedule:
    """The schedule of one rank's replicas."""
    part = copy(schedule)
    for name in ("start", "end"):
        numbers = getattr(schedule, name)
        setattr(part, name, numbers if len(numbers) == 1 else numbers[share.start : share.stop])
    return part
