"""Replicas: systems that run side by side in one batch, spread over ranks."""

from collections.abc import Sequence
from copy import copy
from itertools import accumulate
from typing import Any

import torch

from mdgraph.engine.integrators import Integrator
from mdgraph.engine.parameters import Schedule
from mdgraph.engine.ranks import ALONE, Ranks
from mdgraph.engine.restraints import PositionRestraints, Springs
from mdgraph.engine.simulation import Simulation
from mdgraph.engine.velocities import Conserved, draw_velocities_
from mdgraph.errors import InputError, name_some
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
    fixed: Sequence[int] = (),
    restraints: PositionRestraints | None = None,
    **options: Any,
) -> Simulation:
    """The share of this rank of a batch of replicas, with the random numbers it has in the whole.

    Args:
        systems: all replicas, the same or different ones.
        potential: see Simulation.
        integrator: of all replicas; a parameter is one number, or one for each of them.
        ranks: who else has replicas.
        seed: key of all random numbers.
        temperature: K of initial velocities; the bath's unless given.
        exact_temperature: scale initial velocities to exactly that temperature.
        fixed: see Simulation; atoms are counted among those of all replicas.
        restraints: see Simulation; likewise.
        options: see Simulation.

    Raises:
        InputError: see Simulation; fewer replicas than ranks.
    """
    share = ranks.share(len(systems))
    begins = [0, *accumulate(map(len, systems))]
    atoms = range(begins[share.start], begins[share.stop])
    fixed, restraints = _within(atoms, begins[-1], fixed, restraints)
    mine = copy(integrator)
    mine.given = {name: _part(one, share) for name, one in integrator.given.items()}
    if temperature is None:
        bath = mine.given.get("temperature")
        kelvin: float | Sequence[float] = bath.start if bath else 0.0
    else:
        kelvin = _part(Schedule("temperature", temperature), share).start
    own = [systems[number] for number in share]
    # Drawn on the host, so that they do not depend on how many ranks there are.
    state = State(own, "cpu", torch.float64, seed)
    state.replica += share.start
    state.fix_(fixed)
    steady = mine.conserves_momentum
    held = () if restraints is None else Springs(restraints, state).restrained(state)
    conserved = Conserved(steady or options.get("remove_momentum", 0) > 0, steady, held)
    keep = [one.velocities is not None for one in own]
    draw_velocities_(state, kelvin, exact_temperature, conserved, keep)
    velocities = state.velocities.split(state.grouping.sizes)
    own = [one.replace(velocities=v.numpy()) for one, v in zip(own, velocities, strict=True)]
    simulation = Simulation(
        own, potential, mine, seed=seed, fixed=fixed, restraints=restraints, **options
    )
    if share.start:
        simulation.state.replica += share.start
        simulation.integrator.allocate(simulation.state)
    return simulation


def _within(
    atoms: range, count: int, fixed: Sequence[int], restraints: PositionRestraints | None
) -> tuple[list[int], PositionRestraints | None]:
    """What holds the atoms of one rank; raises InputError for an atom that no rank has."""
    named = [*fixed, *(() if restraints is None else restraints.atoms)]
    wrong = [atom for atom in named if not 0 <= atom < count]
    if wrong:
        raise InputError(
            f"There are no atoms {name_some(wrong)} to fix or restrain; all replicas together "
            f"have the atoms from 0 to {count - 1}."
        )
    own = [atom - atoms.start for atom in fixed if atom in atoms]
    return own, None if restraints is None else restraints.within(atoms)


def _part(schedule: Schedule, share: range) -> Schedule:
    """A schedule of the replicas of one rank."""
    part = copy(schedule)
    for name in ("start", "end"):
        numbers = getattr(schedule, name)
        setattr(part, name, numbers if len(numbers) == 1 else numbers[share.start : share.stop])
    return part
