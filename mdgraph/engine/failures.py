"""What a run stops for, and what went wrong in one sentence that names the atoms."""

import math

import torch

from mdgraph.arguments import real_number
from mdgraph.engine.parameters import Schedule
from mdgraph.errors import SimulationError, name_some
from mdgraph.state import State


def temperature_limit(given: float | None, bath: Schedule | None) -> float:
    """K beyond which a run stops: as given, else 10,000 K or twenty times the bath.

    Raises:
        InputError: a limit that is not above zero.
    """
    if given is None:
        return max(1e4, 20.0 * bath.largest if bath else 0.0)
    if given == math.inf:
        return math.inf
    return real_number(given, "The maximum temperature", "K", above=0.0)


def failure(state: State, step: int, maximum_temperature: float) -> SimulationError:
    """The error for a state that stopped being good at a step; reads the device."""
    atoms = (~torch.isfinite(state.forces)).any(-1).nonzero()[:, 0].tolist()
    if atoms:
        what = f"The forces on atoms {name_some(atoms)} are not finite"
    elif bool((~torch.isfinite(state.cell)).any()):
        what = "A cell is no longer finite"
    else:
        energy = state.masses * state.velocities.square().sum(-1)
        atoms = energy.argsort(descending=True)[:8].tolist()
        what = (
            f"The temperature ran beyond {maximum_temperature:g} K, led by atoms {name_some(atoms)}"
        )
    if step == 0:
        return SimulationError(f"{what} at the start; check the structure.", step, atoms)
    return SimulationError(
        f"{what} at step {step}; the state before it is kept. Take a shorter time step, "
        "minimise the start, or check that the potential knows such structures.",
        step,
        atoms,
    )


def collapse(step: int) -> SimulationError:
    """The error for a step in which a cell shrinks further than lists can be planned for."""
    return SimulationError(
        f"A cell shrank to less than half its width at step {step}; the state before it is "
        "kept. Take a shorter time step, or slow the barostat down.",
        step,
        [],
    )
