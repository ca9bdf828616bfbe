"""EngineDynamics: what ASE calls dynamics, with the engine as its inner loop."""

import logging
from typing import Any, Final

import numpy as np
from ase import Atoms, units
from ase.md.md import MolecularDynamics

from mdgraph.arguments import checked
from mdgraph.drivers.ase.arguments import KnownArguments, check_outputs
from mdgraph.drivers.ase.choice import give_potential
from mdgraph.drivers.ase.coupling import Coupling
from mdgraph.drivers.ase.observers import steps_to_next_call
from mdgraph.engine import Integrator, Simulation
from mdgraph.engine.parameters import checked_steps
from mdgraph.errors import InputError

logger = logging.getLogger(__name__)

_LONG: Final = 4.0
"""fs; atoms of molecules move too far in such a step, which is less than half of ASE's unit."""


class EngineDynamics(KnownArguments, MolecularDynamics):
    """Base of the dynamics here.

    Observers, loggers and trajectories are ASE's own and are called at the steps at which ASE
    calls them. From one call to the next the engine runs without the atoms; then positions,
    momenta, cell, energy, forces and stress are written to the atoms and their calculator,
    which therefore evaluates nothing. What an observer, or the caller between two runs, changes
    in the atoms holds from the next step on. `irun` stops, and writes, at every step.

    The potential is that of `atoms.calc`, an MDGraphCalculator, or of `potential`.

    Attributes:
        seed: key of the random numbers.
        fixcm: whether the centre of mass is held.
    """

    @checked
    def __init__(
        self,
        atoms: Atoms,
        timestep: float,
        trajectory: Any = None,
        logfile: Any = None,
        loginterval: int = 1,
        *,
        potential: Any = None,
        seed: int = 0,
        fixcm: bool = False,
        **options: Any,
    ) -> None:
        """Takes what ASE's dynamics take, and a potential.

        Args:
            atoms: to be moved.
            timestep: in ASE's unit of time.
            trajectory: name or writer; see ASE.
            logfile: name or file; see ASE.
            loginterval: steps from one line of the log, and one frame, to the next.
            potential: path, name of a shipped potential, Potential or Evaluator, for atoms
                without a calculator.
            seed: key of the random numbers.
            fixcm: whether the centre of mass is held as by FixCom, unless atoms are fixed.
            options: `append_trajectory` and whatever else ASE's dynamics take.

        Raises:
            InputError: anything above that cannot be, an argument that is not known, or
                constraints that the engine cannot keep.
        """
        if not isinstance(atoms, Atoms):
            raise InputError(
                f"Dynamics here move Atoms, and {type(atoms).__name__} is none; "
                "give the atoms themselves."
            )
        check_outputs(trajectory=trajectory, logfile=logfile)
        checked_steps(loginterval, 1, "loginterval")
        self.seed = seed
        self.fixcm = fixcm
        self.dt = timestep
        # It refuses parameters now, not at the first step.
        self._integrator()
        self._coupling = Coupling(atoms, self._integrator, seed, fixcm)
        give_potential(atoms, potential)
        super().__init__(atoms, timestep, trajectory, logfile, loginterval, **options)
        if timestep > _LONG * units.fs:
            logger.warning(
                "The time step of %g is %.3g fs, because ASE's unit of time is %.3g fs; "
                "%g fs would be %g * ase.units.fs.",
                timestep,
                timestep / units.fs,
                1.0 / units.fs,
                timestep,
                timestep,
            )

    def _integrator(self) -> Integrator:
        """The engine's integrator at the parameters of the moment."""
        raise NotImplementedError

    @property
    def simulation(self) -> Simulation:
        """The engine's simulation, at what the atoms hold now; made at the first call."""
        return self._coupling.take()

    @checked
    def run(self, steps: int = 50) -> bool:
        """Runs and returns whether all steps were done; see ASE.

        Raises:
            InputError: atoms, calculator or changed parameters that cannot be.
            SimulationError: forces that are not finite, or a temperature that ran away. The
                atoms are those of the last good state.
        """
        if steps < 0:
            raise InputError(f"{steps} steps cannot be run; give a number that is not negative.")
        self.max_steps = self.nsteps + steps
        if self.nsteps == 0:
            self._look()
        while self.nsteps < self.max_steps:
            before = self._coupling.step
            wanted = steps_to_next_call(self.observers, self.nsteps, self.max_steps)
            try:
                done = self._coupling.advance(wanted, self.max_steps - self.nsteps)
            finally:
                self.nsteps += self._coupling.step - before
            self._look()
            if done < wanted:
                break
        return bool(self.nsteps >= self.max_steps)

    def step(self) -> None:
        """One step; the atoms follow when somebody looks."""
        self._coupling.advance(1, self.max_steps - self.nsteps)

    @checked
    def set_timestep(self, timestep: float) -> None:
        """Takes another time step, in ASE's unit of time, from the next step on."""
        self.dt = timestep

    def get_timestep(self) -> float:
        """The time step, in ASE's unit of time."""
        return self.dt

    def get_conserved_energy(self) -> float:
        """eV, what exact dynamics keep; NaN for dynamics that keep nothing. Reads the device."""
        return float(self.simulation.observables().conserved_energy[0])

    def todict(self) -> dict[str, Any]:
        """What ASE writes into the head of a trajectory."""
        return super().todict() | {"engine": "mdgraph", "seed": self.seed}

    def _look(self) -> None:
        self._refresh_properties()
        self.log()
        self.call_observers()

    def _refresh_properties(self) -> None:
        """ASE calls this before somebody looks."""
        self._coupling.take()
        self._coupling.write()


def drawn_seed(seed: int | None, rng: Any) -> int:
    """The seed given, or one from NumPy's global generator, which ASE's dynamics draw from too.

    So scripts that call `np.random.seed` repeat, and others do not. Raises InputError for a
    generator, which a device cannot ask.
    """
    if rng is not None:
        raise InputError(
            "The engine draws its random numbers on the device and cannot ask rng; "
            "give a whole number as seed instead."
        )
    if seed is not None:
        return seed
    return int(np.random.randint(2**31))  # noqa: NPY002
