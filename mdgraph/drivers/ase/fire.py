"""FIRE: relaxation with the interface of ASE's optimizers, run by the engine."""

from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any, Final

from ase import Atoms
from ase.filters import UnitCellFilter
from ase.optimize.optimize import DEFAULT_MAX_STEPS, Optimizer

from mdgraph import engine
from mdgraph.arguments import checked
from mdgraph.drivers.ase.arguments import KnownArguments, check_outputs
from mdgraph.drivers.ase.cells import cell_change
from mdgraph.drivers.ase.choice import give_potential
from mdgraph.drivers.ase.coupling import Coupling
from mdgraph.drivers.ase.observers import steps_to_next_call
from mdgraph.engine.parameters import checked_steps
from mdgraph.errors import InputError, name_some

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
