"""Minimisation: running FIRE until every system rests."""

import logging
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from mdgraph.arguments import checked
from mdgraph.engine.integrators import FIRE
from mdgraph.engine.kinetics import volume
from mdgraph.engine.simulation import Simulation
from mdgraph.errors import InputError, SimulationError

logger = logging.getLogger(__name__)

DENSEST: Final = 1.5
"""A^3 an atom; hydrogen has as much at some 400 GPa, diamond 5.7 at rest."""


@dataclass(frozen=True)
class Minimum:
    """How a minimisation ended, on the host.

    Attributes:
        steps: taken.
        converged: (S,) bool.
        energy: (S,) eV.
        largest_force: (S,) eV/A.
    """

    steps: int
    converged: Tensor
    energy: Tensor
    largest_force: Tensor


def check_cells(simulation: Simulation) -> None:
    """Ends a minimisation whose cell collapses, which takes ever longer; syncs.

    Raises:
        SimulationError: a cell that varies has less than `DENSEST` A^3 an atom.
    """
    state = simulation.state
    if not simulation.integrator.cell_varies:
        return
    each = (volume(state) / state.grouping.counts).cpu()
    if bool((each < DENSEST).any()):
        raise SimulationError(
            f"The cell collapsed to {float(each.min()):.2g} A^3 an atom at step {simulation.step}, "
            "denser than any matter that a potential was trained on; lower the pressure, or check "
            "the structure.",
            simulation.step,
            [],
        )


@checked
def minimize(simulation: Simulation, steps: int) -> Minimum:
    """Runs until all systems of a simulation with FIRE rest, and says how it went.

    Args:
        simulation: its state ends at the minimum; its velocities stay.
        steps: it stops after as many, give or take what is left of a chunk.

    Raises:
        InputError: another integrator.
        SimulationError: forces that are not finite, or see `check_cells`.
    """
    fire = simulation.integrator
    if not isinstance(fire, FIRE):
        raise InputError(f"{fire.name} finds no minimum; give the simulation FIRE.")
    before, first = simulation.state.energy.clone(), simulation.step
    while not bool(fire.converged().all()) and simulation.step - first < steps:
        left = steps - (simulation.step - first)
        if simulation.run(min(left, simulation.chunk)) == 0:
            break
        check_cells(simulation)
    found = Minimum(
        simulation.step - first,
        fire.converged().cpu(),
        simulation.state.energy.cpu(),
        fire.largest_force().cpu(),
    )
    logger.log(
        logging.INFO if bool(found.converged.all()) else logging.WARNING,
        "%d of %d systems minimised after %d steps: energies fell by up to %.4g eV, and the "
        "largest force is %.3g eV/A",
        int(found.converged.sum()),
        len(found.converged),
        found.steps,
        float((before - simulation.state.energy).max()),
        float(found.largest_force.max()),
    )
    return found
