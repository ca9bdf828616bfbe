"""Minimisation by FIRE: one batch, or many structures relaxed at once."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from mdgraph.arguments import checked
from mdgraph.engine.batches import affordable_atoms, by_key, packed
from mdgraph.engine.calculation import EvaluationResult
from mdgraph.engine.integrators import FIRE
from mdgraph.engine.kinetics import volume
from mdgraph.engine.simulation import Simulation
from mdgraph.errors import CapacityError, InputError, SimulationError
from mdgraph.evaluators import Evaluator
from mdgraph.neighbors.list import default_skin
from mdgraph.precision import Precision
from mdgraph.system import System

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
    """Stops a minimisation whose cell collapses; syncs.

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
def minimize(simulation: Simulation, steps: int, *, partial: bool = False) -> Minimum:
    """Runs a simulation with FIRE until all systems converge, and logs the outcome; syncs.

    Args:
        simulation: its state ends at the minimum; its velocities do not change.
        steps: largest number of steps.
        partial: no warning where they do not suffice.

    Raises:
        InputError: another integrator.
        SimulationError: forces that are not finite, or see `check_cells`.
    """
    fire = simulation.integrator
    if not isinstance(fire, FIRE):
        raise InputError(f"{fire.name} finds no minimum; give the simulation FIRE.")
    before, first = simulation.state.energy.clone(), simulation.step
    while not bool(fire.converged().all()) and simulation.step - first < steps:
        remaining = steps - (simulation.step - first)
        if simulation.run(min(remaining, simulation.chunk)) == 0:
            break
        check_cells(simulation)
    minimum = Minimum(
        simulation.step - first,
        fire.converged().cpu(),
        simulation.state.energy.cpu(),
        fire.largest_force().cpu(),
    )
    logger.log(
        logging.INFO if partial or bool(minimum.converged.all()) else logging.WARNING,
        "%d of %d systems minimised after %d steps: energies fell by up to %.4g eV, and the "
        "largest force is %.3g eV/A",
        int(minimum.converged.sum()),
        len(minimum.converged),
        minimum.steps,
        float((before - simulation.state.energy).max()),
        float(minimum.largest_force.max()),
    )
    return minimum


_STEPS_PER_REPLAY: Final = 8
"""Graph length without tuning, which would take longer than many batches."""


@dataclass(frozen=True, eq=False)
class Relaxed:
    """A structure after relaxation.

    Attributes:
        system: with its last positions and cell.
        result: its energy and forces.
        converged: whether forces and stresses are within the tolerances.
        largest_force: on an atom, eV/A.
    """

    system: System
    result: EvaluationResult
    converged: bool
    largest_force: float


def relax(
    systems: Sequence[System],
    names: Sequence[str],
    evaluator: Evaluator,
    fire: FIRE,
    steps: int,
    *,
    device: torch.device,
    precision: Precision,
    atoms: int | None = None,
    check: bool = False,
    partial: bool = False,
) -> Iterator[tuple[int, Relaxed]]:
    """Yields indices of structures with their relaxed structures, not in the order given.

    Structures with the same periodic directions are minimised in batches, each of which runs
    until its last structure converges; structures that converge earlier stop moving. On CUDA a
    batch captures some steps as one graph, without tuning.

    Args:
        systems: structures; velocities are left out, and their fixed atoms stay.
        names: of them, for errors.
        evaluator: computes energies and forces.
        fire: the minimiser; each batch uses a copy.
        steps: largest number of steps.
        device: of the state.
        precision: of the state.
        atoms: in a batch; None chooses.
        check: compare a fast evaluator with the reference at the first batch.
        partial: no warning where steps do not suffice.

    Raises:
        InputError, CapacityError, SimulationError: a structure that cannot be minimised, by
            its name.
        SelfCheckError: the fast evaluator does not agree with the reference.
    """
    limit = affordable_atoms(evaluator, device, precision) if atoms is None else atoms

    def minima(batch: Sequence[int]) -> list[Relaxed]:
        nonlocal check
        structures = [systems[place].replace(velocities=None) for place in batch]
        ends = np.cumsum([len(system) for system in structures]).tolist()
        run = Simulation(
            structures,
            evaluator,
            fire,
            device=device,
            precision=precision,
            skin=default_skin(device),
            steps_per_replay=_STEPS_PER_REPLAY,
            check=check or None,
        )
        check = False
        minimum = minimize(run, steps, partial=partial)
        results = run.calculation.answer().results(len(structures))
        cells = [system.cell for system in structures]
        if fire.cell_varies:
            cells = [*run.state.cell.double().cpu().numpy()]
        positions = run.state.places().cpu().numpy()
        return [
            Relaxed(
                system.replace(positions=places, cell=cell),
                result,
                bool(minimum.converged[number]),
                float(minimum.largest_force[number]),
            )
            for number, (system, places, cell, result) in enumerate(
                zip(structures, np.split(positions, ends[:-1]), cells, results, strict=True)
            )
        ]

    def alone(batch: Sequence[int], failure: Exception) -> Iterator[Relaxed]:
        for place in batch:
            try:
                if len(batch) == 1:
                    raise failure
                yield minima([place])[0]
            except SimulationError as error:
                text = f"{names[place]}: {error}"
                raise SimulationError(text, error.step, error.atoms) from error
            except (InputError, CapacityError) as error:
                raise type(error)(f"{names[place]}: {error}") from error

    for places in by_key(systems, evaluator.cutoffs).values():
        for batch, _ in packed(systems, places, limit):
            batch_minima: Iterable[Relaxed]
            try:
                batch_minima = minima(batch)
            except (InputError, CapacityError, SimulationError) as error:
                # One by one, so that the error names the structure.
                batch_minima = alone(batch, error)
            yield from zip(batch, batch_minima, strict=True)
