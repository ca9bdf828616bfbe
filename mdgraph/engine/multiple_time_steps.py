"""Two time steps: a small potential drives the steps between evaluations of the large one."""

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from mdgraph.engine.calculation import as_evaluator
from mdgraph.engine.integrators import Integrator
from mdgraph.engine.schedules import checked_steps
from mdgraph.errors import InputError, name_some
from mdgraph.evaluators import Evaluator, MultipleTimeStepEvaluator
from mdgraph.models import check_species
from mdgraph.precision import Precision
from mdgraph.state import State
from mdgraph.system import System

logger = logging.getLogger(__name__)

STEPS: Final = (2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Steps of the small potential to one of the large."""

_UNDAMPED: Final = 3.0
"""Fs between impulses on hydrogen of 3 amu without friction: at 4 fs and 4.2 fs water gained 0.1 to
0.6 kT/ns a degree of freedom (docs/multiple_time_steps.md), and between is nothing measured."""

INNER_STEPS_ALONE: Final = "inner_steps belongs to a small potential; name it by inner_potential."


def longest_outer_step(mass: float, timestep: float) -> float:
    """Fs between impulses, beyond which atoms of this mass (amu) or more may gain energy from them.

    An O-H bond vibrates in 9 fs. Impulses at half of that time heat it, whatever the friction
    (resonance, DOI 10.1103/PhysRevLett.93.150201), and as bonds are not harmonic those at a third
    of it do so slowly (DOI 10.1137/S1064827501399833). At constant energy water gained energy at
    3.0 fs and none at 2.6, with hydrogen of 3 amu at 4.5 fs and hardly any at 4.2; with a friction
    of 5/ps it ran away at 5 fs by one small potential and held by another
    (docs/multiple_time_steps.md). Bonds of heavier atoms vibrate in times that go as the root of
    the mass. Inner steps of dt make a bond of period T faster, by (pi dt/T) / asin(pi dt/T): 4.2 fs
    held in three of 1.4 fs, and ran away in two of 2.1.

    Args:
        mass: amu.
        timestep: dt, fs.
    """
    phase = min(math.pi * timestep / _by_mass(mass, 9.0, 15.6), 1.0)
    return _by_mass(mass, 2.7, 4.3) * phase / math.asin(phase)


def _by_mass(mass: float, of_hydrogen: float, of_three: float) -> float:
    """One of two times, for hydrogen and hydrogen of 3 amu, or that of heavier atoms."""
    if mass < 2.9:
        return of_hydrogen
    return of_three if mass < 4.0 else of_hydrogen * mass**0.5


def checked_inner_steps(
    steps: int | None, potential: object, timestep: float, masses: NDArray[np.float64]
) -> int:
    """Steps of the small potential to one of the large; 1 without a small potential.

    Args:
        steps: as given; None takes those of `default_steps`.
        potential: the small potential, or None.
        timestep: of the small potential, fs.
        masses: of all atoms, amu; 0 of fixed ones.

    Raises:
        InputError: steps without a potential, or a number that graphs cannot hold.
    """
    if potential is None:
        if steps is not None:
            raise InputError(INNER_STEPS_ALONE)
        return 1
    if steps is None:
        steps = default_steps(timestep, lightest_hydrogen(masses))
    if steps not in STEPS:
        raise InputError(f"inner_steps is {steps}; choose among {name_some(STEPS)}.")
    return int(steps)  # 4.0 and a number of NumPy too


def lightest_hydrogen(masses: NDArray[np.float64]) -> float:
    """The least of masses above 0 and below 4 amu; that of hydrogen where there is none."""
    light = masses[(masses > 0.0) & (masses < 4.0)]
    return float(light.min()) if len(light) else 1.008


def check_inner_species(small: Evaluator, numbers: list[int]) -> None:
    """Raises UnknownSpeciesError with the elements and atoms that an inner potential lacks."""
    try:
        check_species(small.species, numbers)
    except InputError as error:
        raise type(error)(f"The inner potential: {error}") from error


def default_steps(timestep: float, hydrogen_mass: float) -> int:
    """The most of `STEPS` whose outer step is at most 2 fs, or 3 fs with hydrogen of 3 amu.

    The fewest where there is none. That is half of where runs are known to fail or were not tried
    (see `longest_outer_step`): nearer to it a run holds only with a small potential that is near to
    the large one.

    Args:
        timestep: of the small potential, fs.
        hydrogen_mass: of the lightest atoms, amu.
    """
    longest = _by_mass(hydrogen_mass, 2.0, 3.0) * (1.0 + 1e-9)
    return max((steps for steps in STEPS if steps * timestep <= longest), default=STEPS[0])


def outer_step_(
    evaluator: MultipleTimeStepEvaluator,
    state: State,
    inner_step_: Callable[[Callable[[], None], int | None], None],
    large_: Callable[[], None],
    small_: Callable[[], None],
    *,
    moves_cell: bool,
    number: int | None = None,
) -> None:
    """Steps by the small potential, between impulses of the large one; does not sync.

    Args:
        evaluator: of both.
        state: that it evaluates.
        inner_step_: takes a step by what brings forces up to date; also gets the steps done then.
        large_: brings the forces of both up to date.
        small_: those of the small one.
        moves_cell: whether cells vary.
        number: steps done after it; None within a captured step.
    """

    def update_() -> None:
        large_()
        if moves_cell:
            evaluator.start_impulse_(state)

    if moves_cell:
        evaluator.start_impulse_(state)
    for left in range(evaluator.steps - 1, 0, -1):
        inner_step_(small_, None if number is None else number - left)
    inner_step_(update_, number)
    if moves_cell:
        evaluator.end_impulse_(state)


def evaluator_of_energy(evaluator: Evaluator) -> Evaluator:
    """The evaluator whose energy and forces are reported: of two potentials the large one."""
    return evaluator.large if isinstance(evaluator, MultipleTimeStepEvaluator) else evaluator


def steps_together(evaluator: Evaluator) -> int:
    """Steps from one evaluation of the potential to the next, of which intervals are multiples.

    It is 1 unless a small potential drives the steps between.
    """
    return evaluator.steps if isinstance(evaluator, MultipleTimeStepEvaluator) else 1


def checked_multiple(number: float, least: int, name: str, together: int) -> int:
    """A number of steps that are taken together; raises InputError for another one."""
    steps = checked_steps(number, least, name)
    if steps % together:
        raise InputError(
            f"{name} is {steps} steps, but the large potential is evaluated every {together} "
            f"steps; give a multiple of {together}."
        )
    return steps


def two_potentials(
    systems: Sequence[System],
    potentials: tuple[Any, Any],
    steps: int | None,
    integrator: Integrator,
    precision: Precision,
    device: torch.device,
    evaluator: str,
) -> MultipleTimeStepEvaluator:
    """The evaluator of a run with two time steps; warns of resonance.

    Args:
        systems: that will run.
        potentials: the large one and the small one: paths, names, Potentials or Evaluators.
        steps: of the small potential to one of the large; see `checked_inner_steps`.
        integrator: with the time step of the small potential.
        precision: of both.
        device: of both.
        evaluator: `auto`, `fused` or `reference`, for each potential that is no evaluator.

    Raises:
        InputError: other numbers of steps, an integrator without a time step, or elements that
            the small potential lacks.
    """
    if "timestep" not in integrator.parameters:
        raise InputError(
            f"{integrator.name} has no time step that two potentials could share; leave "
            "inner_potential out."
        )
    timestep = max(integrator.parameters["timestep"].start)
    masses = np.concatenate([system.masses for system in systems])
    number = checked_inner_steps(steps, potentials[1], timestep, masses)
    large, small = (
        potential
        if isinstance(potential, Evaluator)
        else as_evaluator(potential, precision, device, evaluator)
        for potential in potentials
    )
    for system in systems:
        check_inner_species(small, system.numbers.tolist())
    _warn_of_resonance(systems, number, timestep, damped="friction" in integrator.parameters)
    return MultipleTimeStepEvaluator(large, small, number, virials=integrator.cell_varies)


def _warn_of_resonance(
    systems: Sequence[System], steps: int, timestep: float, *, damped: bool
) -> None:
    outer = steps * timestep
    lightest = min(float(np.min(system.masses)) for system in systems)
    limit = longest_outer_step(lightest, timestep)
    if outer <= limit:
        if not damped and 2.9 <= lightest < 4.0 and outer > _UNDAMPED * (1.0 + 1e-9):
            logger.warning(
                "The large potential acts every %g fs, and without friction atoms of %.3g amu may "
                "gain energy from it beyond some %.3g fs; take fewer inner_steps, or Langevin "
                "dynamics with a friction of 5/ps.",
                outer,
                lightest,
                _UNDAMPED,
            )
        return
    logger.warning(
        "The large potential acts every %g fs, and atoms of %.3g amu vibrate fast enough to gain "
        "energy from it beyond some %.3g fs; take fewer inner_steps, a shorter time step, or "
        "heavier hydrogens.",
        outer,
        lightest,
        limit,
    )
