"""relax: many structures side by side, each to its own minimum."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from numpy.typing import NDArray

from mdgraph.arguments import checked, whole_number
from mdgraph.drivers.ase.calculator import MDGraphCalculator
from mdgraph.drivers.ase.choice import calculator_of
from mdgraph.drivers.ase.constraints import held_by
from mdgraph.drivers.ase.results import named, volume_of
from mdgraph.drivers.turns import EVALUATING
from mdgraph.engine import integrators
from mdgraph.engine.relaxation import Relaxed
from mdgraph.errors import InputError
from mdgraph.io.atoms import from_ase


@checked
def relax(
    structures: Atoms | Sequence[Atoms],
    potential: Any = None,
    *,
    fmax: float = 0.05,
    steps: int = 500,
    ways: str | None = None,
    pressure_au: float = 0.0,
    smax: float = 1e-4,
    maxstep: float = 0.2,
    atoms_at_once: int | None = None,
) -> NDArray[np.bool_]:
    """Relaxes structures, as many at once as go together, by FIRE; see `mdgraph.engine.FIRE`.

    Positions and cells of the structures end at their minima. Each gets a
    SinglePointCalculator with the energy, forces and, where it has a volume, stress of its own.

    Args:
        structures: one, or any mixture, in one, two, three or no periodic directions.
        potential: an MDGraphCalculator, or a path, name, Potential or Evaluator; that of the
            structures' own MDGraphCalculator unless given.
        fmax: eV/A, of the largest force on an atom of a minimum.
        steps: for each structure at most.
        ways: how cells may change: `isotropic`, `axes`, `full`; None keeps them.
        pressure_au: eV/A^3, on cells that change.
        smax: eV/A^3, of the largest difference of a stress from the pressure at a minimum.
        maxstep: A, longest step of an atom.
        atoms_at_once: atoms that go together at most; None chooses, by the memory that is left.

    Returns:
        Whether each structure rests; a warning is logged if not all do.

    Raises:
        InputError: structures, constraints or options that cannot be.
        SimulationError: forces that are not finite, by the place of the structure; those
            relaxed before are written.
    """
    structures = [structures] if isinstance(structures, Atoms) else list(_iterated(structures))
    for place, atoms in enumerate(structures):
        if not isinstance(atoms, Atoms):
            raise InputError(f"Structure {place} is {type(atoms).__name__}; relax takes Atoms.")
    if atoms_at_once is not None:
        atoms_at_once = whole_number(atoms_at_once, "atoms_at_once", 1)
    calculator = _calculator(structures, potential)
    fire = integrators.FIRE(
        fmax, largest_step=maxstep, ways=ways, pressure=pressure_au, stress_tolerance=smax
    )
    held = [held_by(atoms) for atoms in structures]
    rests = np.zeros(len(structures), dtype=bool)
    with EVALUATING:
        found = calculator.relaxed(
            [from_ase(atoms) for atoms in structures],
            [f"structure {place}" for place in range(len(structures))],
            fire,
            steps,
            atoms=atoms_at_once,
            fixed=[one.fixed for one in held],
        )
        for place, one in found:
            rests[place] = one.converged
            _write(structures[place], held[place].centre, one)
    return rests


def _iterated(structures: Any) -> Iterable[Any]:
    if not isinstance(structures, Iterable):
        raise InputError(
            f"relax takes Atoms or a list of them; {type(structures).__name__} is neither."
        )
    return structures


def _calculator(structures: Sequence[Atoms], potential: Any) -> MDGraphCalculator:
    if isinstance(potential, MDGraphCalculator):
        return potential
    if potential is not None:
        return MDGraphCalculator(potential)
    found = [calculator_of(atoms) for atoms in structures]
    if not found:
        raise InputError("There are no structures to relax; give at least one.")
    if any(one is not found[0] for one in found):
        raise InputError(
            "The structures have several calculators, and one potential relaxes them; "
            "give them one, or give potential=."
        )
    return found[0]


def _write(atoms: Atoms, centred: bool, found: Relaxed) -> None:
    """Brings a structure to its minimum, with its centre of mass at rest where that is held."""
    centre = atoms.get_center_of_mass()
    atoms.positions[:] = found.system.positions
    if centred:
        atoms.positions += centre - atoms.get_center_of_mass()
    atoms.cell[:] = found.system.cell
    atoms.calc = SinglePointCalculator(atoms, **named(found.result, volume_of(atoms)))
