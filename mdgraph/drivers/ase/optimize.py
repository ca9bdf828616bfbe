"""Relaxation from ASE: FIRE as an ASE optimizer, and `relax` for many structures at once."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Final

import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.filters import ExpCellFilter, FrechetCellFilter, UnitCellFilter
from ase.optimize.optimize import DEFAULT_MAX_STEPS, Optimizer
from numpy.typing import NDArray

from mdgraph import engine
from mdgraph.arguments import checked, renamed_keywords, whole_number
from mdgraph.drivers.ase.calculator import (
    Constraints,
    MDGraphCalculator,
    ase_results,
    volume_of,
)
from mdgraph.drivers.ase.dynamics import (
    AtomsSync,
    KnownArguments,
    calculator_of,
    check_outputs,
    give_potential,
    steps_to_next_call,
)
from mdgraph.drivers.lock import EVALUATION_LOCK
from mdgraph.engine import integrators
from mdgraph.engine.relaxation import Relaxed
from mdgraph.engine.schedules import checked_steps
from mdgraph.errors import InputError, name_some
from mdgraph.io.structures import from_ase


@renamed_keywords(ways="cell_dof")
@checked
def relax(
    structures: Atoms | Sequence[Atoms],
    potential: Any = None,
    *,
    fmax: float = 0.05,
    steps: int = 500,
    cell_dof: str | None = None,
    pressure_au: float = 0.0,
    smax: float = 1e-4,
    maxstep: float = 0.2,
    atoms_at_once: int | None = None,
) -> NDArray[np.bool_]:
    """Relaxes many structures together, in batches, by FIRE; see `mdgraph.engine.FIRE`.

    It moves the positions and cells of the structures to their minima, and gives each a
    SinglePointCalculator with its energy, its forces and, where the cell has a volume, its
    stress. Each batch syncs every few steps.

    Args:
        structures: one or several, with periodic directions of their own.
        potential: an MDGraphCalculator, or a path, name, Potential or Evaluator; None takes
            the MDGraphCalculator of the structures.
        fmax: eV/A; at a minimum no force on an atom is larger.
        steps: most steps for each structure.
        cell_dof: how cells may change: `isotropic`, `semiisotropic`, `semiisotropic-fixed-z`,
            `axes`, `full`; None keeps them.
        pressure_au: eV/A^3, on cells that change.
        smax: eV/A^3; at a minimum no stress differs more from the pressure.
        maxstep: A, longest step of an atom.
        atoms_at_once: most atoms of a batch; None chooses by the free memory.

    Returns:
        (S,) bool, whether each structure converged; a warning is logged if not all did.

    Raises:
        InputError: invalid structures, constraints or options.
        SimulationError: forces that are not finite; it names the structure by its place.
            Structures that converged before keep their minima.
    """
    structures = (
        [structures] if isinstance(structures, Atoms) else list(_check_iterable(structures))
    )
    for place, atoms in enumerate(structures):
        if not isinstance(atoms, Atoms):
            raise InputError(f"Structure {place} is {type(atoms).__name__}; relax takes Atoms.")
    if atoms_at_once is not None:
        atoms_at_once = whole_number(atoms_at_once, "atoms_at_once", 1)
    calculator = _calculator(structures, potential)
    fire = integrators.FIRE(
        fmax, largest_step=maxstep, cell_dof=cell_dof, pressure=pressure_au, stress_tolerance=smax
    )
    centres = [Constraints.of(atoms).centre for atoms in structures]
    converged = np.zeros(len(structures), dtype=bool)
    with EVALUATION_LOCK:
        minima = calculator.relax_systems(
            [from_ase(atoms) for atoms in structures],
            [f"structure {place}" for place in range(len(structures))],
            fire,
            steps,
            atoms=atoms_at_once,
        )
        for place, minimum in minima:
            converged[place] = minimum.converged
            _write(structures[place], centres[place], minimum)
    return converged


def _check_iterable(structures: Any) -> Iterable[Any]:
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
    calculators = [calculator_of(atoms) for atoms in structures]
    if not calculators:
        raise InputError("There are no structures to relax; give at least one.")
    if any(calculator is not calculators[0] for calculator in calculators):
        raise InputError(
            "The structures have several calculators, and one potential relaxes them; "
            "give them one, or give potential=."
        )
    return calculators[0]


def _write(atoms: Atoms, keep_centre: bool, minimum: Relaxed) -> None:
    """Moves a structure to its minimum; `keep_centre` leaves its centre of mass in place."""
    centre = atoms.get_center_of_mass()
    atoms.positions[:] = minimum.system.positions
    if keep_centre:
        atoms.positions += centre - atoms.get_center_of_mass()
    atoms.cell[:] = minimum.system.cell
    atoms.calc = SinglePointCalculator(atoms, **ase_results(minimum.result, volume_of(atoms)))


@dataclass(frozen=True)
class CellChange:
    """How a cell may change in a relaxation.

    Attributes:
        cell_dof: a word of `mdgraph.engine.kinetics.CELL_DOF`; None keeps the cell.
        axes: which cell vectors may change their length, for `axes`.
        pressure: eV/A^3, on a cell that changes.
    """

    cell_dof: str | None = None
    axes: tuple[bool, ...] | None = None
    pressure: float = 0.0


def cell_change(atoms: Atoms | UnitCellFilter) -> tuple[Atoms, CellChange]:
    """The atoms behind an ASE cell filter, and the change of the cell that it allows.

    Raises:
        InputError: another filter, a mask of shears or of directions along which no cell
            vector lies, or a constant volume.
    """
    if isinstance(atoms, Atoms):
        return atoms, CellChange()
    if type(atoms) not in (FrechetCellFilter, UnitCellFilter, ExpCellFilter):
        raise InputError(
            f"mdgraph cannot relax {type(atoms).__name__}; give Atoms or FrechetCellFilter(atoms)."
        )
    if atoms.constant_volume:
        raise InputError("A cell cannot change at constant volume here; leave constant_volume out.")
    own: Atoms = atoms.atoms
    pressure = float(atoms.scalar_pressure)
    mask = np.asarray(atoms.mask, dtype=bool)
    if atoms.hydrostatic_strain and mask.all():
        return own, CellChange("isotropic", None, pressure)
    if mask.all():
        return own, CellChange("full", None, pressure)
    cell = own.cell.array
    upright = np.array_equal(cell, np.diag(np.diag(cell)))
    if atoms.hydrostatic_strain or not upright or (mask & ~np.eye(3, dtype=bool)).any():
        raise InputError(
            "A mask of the cell may name lengths of vectors along x, y and z alone; leave the "
            "mask out, or give one like [True, True, False, False, False, False]."
        )
    axes = tuple(bool(axis) for axis in np.diag(mask))
    return own, CellChange("axes", axes, pressure) if any(axes) else CellChange()


_ASE_DEFAULTS: Final = {
    "restart": None,
    "dt": 0.1,
    "maxmove": None,
    "dtmax": 1.0,
    "Nmin": 5,
    "finc": 1.1,
    "fdec": 0.5,
    "astart": 0.1,
    "fa": 0.99,
    "a": 0.1,
    "downhill_check": False,
    "position_reset_callback": None,
}
"""Arguments of ASE's FIRE that the engine takes at ASE's defaults alone."""


class FIRE(KnownArguments, Optimizer):
    """Relaxes atoms, and with a cell filter of ASE their cell; see `mdgraph.engine.FIRE`.

    Every `loginterval` steps, and at the steps of observers, the driver syncs: it writes the
    atoms with energy, forces and stress, adds a line to the log, and checks convergence. The
    relaxation has converged if no force on an atom exceeds `fmax` and, with a cell that changes,
    no stress differs from the pressure by more than `smax`. Once that holds, no atom moves any
    more, even before the next check.

    Attributes:
        smax: eV/A^3.
        maxstep: A, longest step of an atom.
    """

    also_known = _ASE_DEFAULTS.keys()

    @checked
    def __init__(
        self,
        atoms: Atoms | UnitCellFilter,
        restart: None = None,
        logfile: Any = "-",
        trajectory: Any = None,
        *,
        maxstep: float | None = None,
        smax: float = 1e-4,
        loginterval: int = 10,
        potential: Any = None,
        **options: Any,
    ) -> None:
        """Takes the arguments of ASE's optimizers.

        Args:
            atoms: Atoms with an MDGraphCalculator, or FrechetCellFilter, UnitCellFilter or
                ExpCellFilter of them.
            restart: None; the engine writes no restart file.
            logfile: path or open file; see ASE.
            trajectory: path or writer; see ASE.
            maxstep: A; 0.2 unless given.
            smax: eV/A^3; 1e-4 is 160 bar.
            loginterval: steps from one check of convergence to the next.
            potential: see EngineDynamics.
            options: `append_trajectory` and the other arguments of ASE's optimizers; those of
                ASE's FIRE alone, such as `dt` and `dtmax`, at ASE's defaults.

        Raises:
            InputError: an invalid or unknown argument, or constraints that the engine does
                not have.
        """
        ase_only = {name: options.pop(name) for name in _ASE_DEFAULTS if name in options}
        _check_defaults(ase_only | {"restart": restart})
        check_outputs(logfile=logfile, trajectory=trajectory)
        checked_steps(loginterval, 1, "loginterval")
        own, self._cell = cell_change(atoms)
        self.smax = smax
        self.maxstep = 0.2 if maxstep is None else maxstep
        self._tolerance = 0.05
        # Invalid numbers raise here, not at the first step.
        self._integrator()
        self._sync = AtomsSync(own, self._integrator, seed=0)
        give_potential(own, potential)
        self._interval = loginterval
        super().__init__(atoms, None, logfile, trajectory, loginterval=loginterval, **options)  # type: ignore[arg-type]

    def _integrator(self) -> engine.FIRE:
        return engine.FIRE(
            self._tolerance,
            largest_step=self.maxstep,
            cell_dof=self._cell.cell_dof,
            axes=self._cell.axes,
            pressure=self._cell.pressure,
            stress_tolerance=self.smax,
        )

    def irun(  # type: ignore[override]
        self, fmax: float = 0.05, steps: int = DEFAULT_MAX_STEPS
    ) -> Iterator[bool]:
        """Yields at each check whether the atoms have converged; see `run`."""
        self.fmax = fmax  # type: ignore[assignment]
        self._tolerance = fmax
        self.max_steps = self.nsteps + steps
        # Tolerances are part of a captured step.
        self._sync.reset()
        self._sync.update_simulation()
        self._sync.update_atoms()
        if self.nsteps == 0:
            self.log(self.optimizable.get_gradient())
            if self.trajectory is None or self._traj_is_empty():
                self.call_observers()
        yield self.converged()
        while not self.converged() and self.nsteps < self.max_steps:
            check = min(self.max_steps, (self.nsteps // self._interval + 1) * self._interval)
            before = self._sync.step
            stretch = steps_to_next_call(self.observers, self.nsteps, check)
            try:
                self._sync.advance(stretch, of=stretch)
            finally:
                self.nsteps += self._sync.step - before
            self._sync.update_atoms()
            if self.nsteps == check:
                self.log(self.optimizable.get_gradient())
            self.call_observers()
            yield self.converged()

    @checked
    def run(  # type: ignore[override]
        self, fmax: float = 0.05, steps: int = DEFAULT_MAX_STEPS
    ) -> bool:
        """Relaxes, and returns whether the atoms have converged.

        Args:
            fmax: eV/A, above zero; no force on a converged atom is larger.
            steps: most steps.

        Raises:
            InputError: invalid atoms or calculator.
            SimulationError: forces that are not finite; the atoms are those of the last good
                state.
        """
        return list(self.irun(fmax, steps))[-1]

    def converged(self, forces: Any = None, *, gradient: Any = None) -> bool:
        """Whether the atoms have converged, by their own forces and stress; syncs."""
        fire = self._sync.update_simulation().integrator
        assert isinstance(fire, engine.FIRE)
        return bool(fire.converged().all())

    def step(self) -> None:
        """Advances by one step and updates the atoms; syncs."""
        self._sync.advance(1, of=1)
        self._sync.update_atoms()


def _is_default(value: Any, default: Any) -> bool:
    return value is default or (isinstance(value, Real) and bool(value == default))


def _check_defaults(arguments: Mapping[str, Any]) -> None:
    """Raises InputError for arguments of ASE's FIRE that are not at ASE's defaults."""
    other = [
        f"{name} other than {_ASE_DEFAULTS[name]}"
        for name, value in arguments.items()
        if not _is_default(value, _ASE_DEFAULTS[name])
    ]
    if other:
        raise InputError(f"The engine's FIRE does not take {name_some(other)}; leave that out.")
