"""Whether a state is good, and what went wrong in one sentence that names the atoms."""

import torch

from mdgraph.engine.calculation import Calculation
from mdgraph.engine.kinetics import kinetic_energy, temperature
from mdgraph.errors import SimulationError, name_some
from mdgraph.state import State


def look(calculation: Calculation, maximum_temperature: float) -> tuple[bool, bool]:
    """The one host read of a chunk: are the lists complete, is the state good."""
    state = calculation.state
    finite = torch.isfinite(state.forces).all() & torch.isfinite(state.cell).all()
    kelvin = temperature(kinetic_energy(state), state.degrees)
    good = finite & (kelvin <= maximum_temperature).all()
    sticky = calculation.sticky()
    *numbers, fine = torch.cat([sticky.flatten(), good.to(torch.int64)[None]]).tolist()
    rows = [numbers[start : start + 3] for start in range(0, len(numbers), 3)]
    lists = zip(calculation.lists, rows, strict=True)
    return all(one.status_of(*row).complete for one, row in lists), bool(fine)


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
