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
from mdgraph.arguments import checked, whole_number
from mdgraph.drivers.ase.calculator import MDGraphCalculator, held_by, named, volume_of
from mdgraph.drivers.ase.dynamics import (
    Coupling,
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
    with EVALUATION_LOCK:
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


@dataclass(frozen=True)
class CellChange:
    """How a cell may change in a relaxation.

    Attributes:
        ways: `isotropic`, `axes` or `full`, see `mdgraph.engine.kinetics`; None keeps it.
        axes: which cell vectors may, for `axes`.
        pressure: eV/A^3, on a cell that changes.
    """

    ways: str | None = None
    axes: tuple[bool, ...] | None = None
    pressure: float = 0.0


def cell_change(atoms: Atoms | UnitCellFilter) -> tuple[Atoms, CellChange]:
    """The atoms behind a filter, and how it lets the cell change.

    Raises:
        InputError: another filter, a mask of shears or of directions along which no cell
            vector lies, or a volume that is to stay.
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


_THEIRS: Final = {
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
"""Arguments of ASE's FIRE that the engine's has at ASE's defaults alone."""


class FIRE(KnownArguments, Optimizer):
    """Relaxes atoms, and with a cell filter of ASE their cell; see `mdgraph.engine.FIRE`.

    The host looks every `loginterval` steps, and at those that an observer asks for. Then the
    atoms are written, with energy, forces and stress; the log gets a line, and the relaxation
    ends if no force on an atom exceeds `fmax` and, with a cell that changes, no stress differs
    from the pressure by more than `smax`. Atoms that rest earlier wait there.

    Attributes:
        smax: eV/A^3.
        maxstep: A, longest step of an atom.
    """

    also_known = _THEIRS.keys()

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
        """Takes what ASE's optimizers take.

        Args:
            atoms: Atoms with an MDGraphCalculator, or FrechetCellFilter, UnitCellFilter or
                ExpCellFilter of them.
            restart: None; the engine keeps no file.
            logfile: name or file; see ASE.
            trajectory: name or writer; see ASE.
            maxstep: A; 0.2 unless given.
            smax: eV/A^3, 1e-4 being 160 bar.
            loginterval: steps from one look to the next.
            potential: see EngineDynamics.
            options: `append_trajectory` and whatever else ASE's optimizers take; of ASE's own
                FIRE `dt`, `dtmax`, `Nmin`, `finc` and the rest at its defaults.

        Raises:
            InputError: anything above that cannot be, an argument that is not known, or
                constraints that the engine cannot keep.
        """
        theirs = {name: options.pop(name) for name in _THEIRS if name in options}
        _check_defaults(theirs | {"restart": restart})
        check_outputs(logfile=logfile, trajectory=trajectory)
        checked_steps(loginterval, 1, "loginterval")
        own, self._cell = cell_change(atoms)
        self.smax = smax
        self.maxstep = 0.2 if maxstep is None else maxstep
        self._tolerance = 0.05
        # It refuses numbers now, not at the first step.
        self._integrator()
        self._coupling = Coupling(own, self._integrator, seed=0)
        give_potential(own, potential)
        self._interval = loginterval
        super().__init__(atoms, None, logfile, trajectory, loginterval=loginterval, **options)  # type: ignore[arg-type]

    def _integrator(self) -> engine.FIRE:
        return engine.FIRE(
            self._tolerance,
            largest_step=self.maxstep,
            ways=self._cell.ways,
            axes=self._cell.axes,
            pressure=self._cell.pressure,
            stress_tolerance=self.smax,
        )

    def irun(  # type: ignore[override]
        self, fmax: float = 0.05, steps: int = DEFAULT_MAX_STEPS
    ) -> Iterator[bool]:
        """Yields at each look whether the atoms rest; see `run`."""
        self.fmax = fmax  # type: ignore[assignment]
        self._tolerance = fmax
        self.max_steps = self.nsteps + steps
        # Tolerances are part of a captured step.
        self._coupling.forget()
        self._coupling.take()
        self._coupling.write()
        if self.nsteps == 0:
            self.log(self.optimizable.get_gradient())
            if self.trajectory is None or self._traj_is_empty():
                self.call_observers()
        yield self.converged()
        while not self.converged() and self.nsteps < self.max_steps:
            look = min(self.max_steps, (self.nsteps // self._interval + 1) * self._interval)
            before = self._coupling.step
            wanted = steps_to_next_call(self.observers, self.nsteps, look)
            try:
                self._coupling.advance(wanted, of=wanted)
            finally:
                self.nsteps += self._coupling.step - before
            self._coupling.write()
            if self.nsteps == look:
                self.log(self.optimizable.get_gradient())
            self.call_observers()
            yield self.converged()

    @checked
    def run(  # type: ignore[override]
        self, fmax: float = 0.05, steps: int = DEFAULT_MAX_STEPS
    ) -> bool:
        """Relaxes, and returns whether the atoms rest.

        Args:
            fmax: eV/A, above zero.
            steps: it stops after as many.

        Raises:
            InputError: atoms or calculator that cannot be.
            SimulationError: forces that are not finite; the atoms are the last good ones.
        """
        return list(self.irun(fmax, steps))[-1]

    def converged(self, forces: Any = None, *, gradient: Any = None) -> bool:
        """Whether the atoms rest, by their own forces and stress; reads the device."""
        fire = self._coupling.take().integrator
        assert isinstance(fire, engine.FIRE)
        return bool(fire.converged().all())

    def step(self) -> None:
        """One step; the atoms are written at once."""
        self._coupling.advance(1, of=1)
        self._coupling.write()


def _is_default(value: Any, default: Any) -> bool:
    return value is default or (isinstance(value, Real) and bool(value == default))


def _check_defaults(theirs: Mapping[str, Any]) -> None:
    """Raises InputError for values of ASE's arguments that the engine's FIRE does not have."""
    other = [
        f"{name} other than {_THEIRS[name]}"
        for name in theirs
        if not _is_default(theirs[name], _THEIRS[name])
    ]
    if other:
        raise InputError(f"The engine's FIRE does not take {name_some(other)}; leave that out.")
