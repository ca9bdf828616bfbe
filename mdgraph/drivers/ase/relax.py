"""relax: many structures side by side, each to its own minimum."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.stress import full_3x3_to_voigt_6_stress
from numpy.typing import NDArray

from mdgraph.drivers.ase.calculator import MDGraphCalculator
from mdgraph.drivers.ase.choice import calculator_of
from mdgraph.drivers.ase.held import Held, held_by
from mdgraph.drivers.ase.results import volume_of
from mdgraph.drivers.turns import EVALUATING
from mdgraph.engine import FIRE, Simulation, minimize
from mdgraph.errors import InputError
from mdgraph.io.structures import from_ase


def relax(
    structures: Sequence[Atoms],
    potential: Any = None,
    *,
    fmax: float = 0.05,
    steps: int = 500,
    ways: str | None = None,
    pressure_au: float = 0.0,
    smax: float = 1e-4,
    maxstep: float = 0.2,
    atoms_at_once: int = 50_000,
) -> NDArray[np.bool_]:
    """Relaxes structures, as many at once as go together, by FIRE; see `mdgraph.engine.FIRE`.

    Positions and cells of the structures end at their minima. Each gets a
    SinglePointCalculator with the energy, forces and, where it has a volume, stress of its own.

    Args:
        structures: any mixture, in one, two, three or no periodic directions.
        potential: an MDGraphCalculator, or a path, name, Potential or Evaluator; that of the
            structures' own MDGraphCalculator unless given.
        fmax: eV/A, of the largest force on an atom of a minimum.
        steps: for each structure at most.
        ways: how cells may change: `isotropic`, `axes`, `full`; None keeps them.
        pressure_au: eV/A^3, on cells that change.
        smax: eV/A^3, of the largest difference of a stress from the pressure at a minimum.
        maxstep: A, longest step of an atom.
        atoms_at_once: atoms that go together at most; memory grows with them.

    Returns:
        Whether each structure rests; a warning is logged if not all do.

    Raises:
        InputError: structures, constraints or options that cannot be.
        SimulationError: forces that are not finite; structures relaxed before are written.
    """
    if isinstance(structures, Atoms):
        raise InputError("relax takes a list of structures; give [atoms] for a single one.")
    calculator = _calculator(structures, potential)
    fire = FIRE(fmax, largest_step=maxstep, ways=ways, pressure=pressure_au, stress_tolerance=smax)
    held = [held_by(atoms) for atoms in structures]
    rests: list[bool] = []
    for group in _groups([len(atoms) for atoms in structures], atoms_at_once):
        some = structures[group]
        with EVALUATING:
            systems = [from_ase(atoms) for atoms in some]
            simulation = calculator.simulation(systems, fire, fixed=_fixed(some, held[group]))
            rests += minimize(simulation, steps).converged.tolist()
            _write(some, held[group], simulation)
    return np.array(rests, dtype=bool)


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


def _groups(sizes: Sequence[int], most: int) -> Iterator[slice]:
    """Consecutive structures with no more atoms than that together, or one structure."""
    start = total = 0
    for place, size in enumerate(sizes):
        if place > start and total + size > most:
            yield slice(start, place)
            start, total = place, 0
        total += size
    if sizes:
        yield slice(start, len(sizes))


def _fixed(structures: Sequence[Atoms], held: Sequence[Held]) -> list[int]:
    starts = np.cumsum([0, *[len(atoms) for atoms in structures]]).tolist()
    return [start + atom for start, one in zip(starts, held, strict=False) for atom in one.fixed]


def _write(structures: Sequence[Atoms], held: Sequence[Held], simulation: Simulation) -> None:
    """Brings the structures to their places in the batch; reads the device."""
    state = simulation.state
    positions, forces, energies, cells, virials, energy = (
        tensor.double().cpu().numpy()
        for tensor in (
            state.positions,
            state.forces,
            state.energies,
            state.cell,
            state.virial,
            state.energy,
        )
    )
    start = 0
    for place, atoms in enumerate(structures):
        own = slice(start, start + len(atoms))
        start += len(atoms)
        centre = atoms.get_center_of_mass()
        atoms.positions[:] = positions[own]
        if held[place].centre:
            atoms.positions += centre - atoms.get_center_of_mass()
        if simulation.integrator.cell_varies:
            atoms.cell[:] = cells[place]
        volume = volume_of(atoms)
        stress = full_3x3_to_voigt_6_stress(-virials[place] / volume) if volume > 0.0 else None
        atoms.calc = SinglePointCalculator(
            atoms,
            energy=float(energy[place]),
            free_energy=float(energy[place]),
            energies=energies[own],
            forces=forces[own],
            stress=stress,
        )
