"""EngineDynamics: base of the ASE dynamics classes, with the engine as their inner loop."""

import inspect
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import PurePath
from typing import Any, ClassVar, Final, Self

import numpy as np
import torch
from ase import Atoms, units
from ase import units as ase_units
from ase.md.md import MolecularDynamics, process_temperature

from mdgraph.arguments import checked, real_number, shown
from mdgraph.drivers.arguments import check_known
from mdgraph.drivers.ase.calculator import (
    Array,
    AtomsSnapshot,
    Constraints,
    MDGraphCalculator,
    held_by,
    results_of,
    volume_of,
)
from mdgraph.drivers.lock import EVALUATION_LOCK
from mdgraph.engine import Integrator, Simulation
from mdgraph.engine.checks import check_lengths
from mdgraph.engine.schedules import checked_steps
from mdgraph.errors import InputError, SimulationError
from mdgraph.io.structures import from_ase
from mdgraph.system import System


def calculator_of(atoms: Atoms) -> MDGraphCalculator:
    """The calculator of the atoms; raises InputError where it is not one of mdgraph's."""
    if not isinstance(atoms.calc, MDGraphCalculator):
        have = "no calculator" if atoms.calc is None else f"{type(atoms.calc).__name__}"
        raise InputError(
            f"The atoms have {have}, and these dynamics run on mdgraph's potentials alone; set "
            "atoms.calc to an MDGraphCalculator, or give potential=."
        )
    return atoms.calc


def give_potential(atoms: Atoms, potential: Any) -> None:
    """Sets a calculator by what `potential=` names; raises InputError where one is there."""
    if potential is None:
        return
    if atoms.calc is not None:
        raise InputError(
            f"The atoms have {type(atoms.calc).__name__} as their calculator, and potential= "
            "names another one; leave one of them out."
        )
    atoms.calc = MDGraphCalculator(potential)


class KnownArguments:
    """Base of classes that refuse unknown arguments by name, before anything is made.

    Attributes:
        also_known: arguments that no signature names.
    """

    also_known: ClassVar[Collection[str]] = ()

    def __new__(cls, *arguments: Any, **named: Any) -> Self:
        """Raises InputError for an argument that no constructor of the class and its bases has."""
        check_known(cls.__name__, named, {*cls.also_known, *_in_signatures(cls)})
        return super().__new__(cls)


def _in_signatures(cls: type) -> Iterator[str]:
    own = [vars(one)["__init__"] for one in cls.__mro__[:-1] if "__init__" in vars(one)]
    for function in own:
        _, *parameters = inspect.signature(function).parameters.values()
        for one in parameters:
            if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
                yield one.name


def kelvin(temperature: float | None, temperature_K: float | None, unit: str) -> float:
    """The temperature in K, of ASE's two arguments; raises InputError for both or neither.

    Args:
        temperature: in `unit`, K or eV; ASE has deprecated it.
        temperature_K: K.
        unit: of the former.
    """
    if (temperature is None) == (temperature_K is None):
        times = "nowhere" if temperature is None else "twice"
        raise InputError(f"The temperature is given {times}; give temperature_K alone.")
    return float(process_temperature(temperature, temperature_K, unit))


def check_outputs(**outputs: Any) -> None:
    """Raises InputError for a log or trajectory that is neither a name nor open to write."""
    for name, value in outputs.items():
        named = isinstance(value, str | PurePath) and str(value) not in ("", ".")
        if value is not None and not named and not callable(getattr(value, "write", None)):
            raise InputError(
                f"The {name} is {shown(value)}; give the name of a file, or one that is open."
            )


def in_fs(time: float, name: str) -> float:
    """A time in ASE's unit as fs; raises InputError for one that is no number."""
    return real_number(time, f"The {name}", "ASE's unit of time") / units.fs


def steps_to_next_call(observers: Sequence[tuple[Any, ...]], now: int, end: int) -> int:
    """Steps from `now` to the next one at which ASE calls an observer, or to the end.

    An interval above zero means each multiple of it, another one that step alone.
    """
    due = [end]
    for _, interval, *_ in observers:
        at = (now // interval + 1) * interval if interval > 0 else -interval
        due += [at] if at > now else []
    return min(due) - now


class Coupling:
    """Keeps atoms and their simulation the same, at the moments when somebody looks.

    Between `take` and `write` the simulation runs ahead. Whatever was changed in the atoms
    since the last `write` goes into the simulation: positions, momenta, and a cell that
    varies into its buffers; anything else makes a new one, which goes on at the same step
    and with the same bath.

    Attributes:
        atoms: those of the user, with an MDGraphCalculator.
        centre: whether the centre of mass is held, whatever the constraints say.
    """

    def __init__(
        self, atoms: Atoms, integrator: Callable[[], Integrator], seed: int, centre: bool = False
    ) -> None:
        self.atoms = atoms
        self.centre = centre
        self._integrator = integrator
        self._seed = seed
        self._simulation: Simulation | None = None
        # A snapshot, degrees of freedom and skin to go on from.
        self._left: tuple[dict[str, Any], tuple[int, ...], float] | None = None
        self._seen: AtomsSnapshot | None = None
        self._calculator: MDGraphCalculator | None = None
        self._given: dict[str, float] = {}
        self._centre: Array | None = None
        self.held()

    def __getstate__(self) -> dict[str, Any]:
        # A captured graph cannot be copied; what it stands for can.
        left = self._left if self._simulation is None else _left_by(self._simulation)
        return {**self.__dict__, "_simulation": None, "_left": left}

    @property
    def step(self) -> int:
        """Steps done."""
        if self._simulation is not None:
            return self._simulation.step
        return 0 if self._left is None else int(self._left[0]["step"])

    def held(self) -> Constraints:
        """What stays where it is; raises InputError for constraints that cannot be."""
        found = held_by(self.atoms)
        return Constraints((), centre=True) if self.centre and not found.fixed else found

    def forget(self) -> None:
        """Begins anew at the next `take`, with a bath that remembers nothing."""
        self._simulation = self._left = self._seen = None

    def advance(self, steps: int, of: int) -> int:
        """Runs ahead and returns the steps done; the atoms are written if it has to stop.

        Args:
            steps: number of steps, up to the next look; no graph is to hold more.
            of: steps that are to follow each other, these included, by which the simulation
                judges what is worth measuring.

        Raises:
            InputError: atoms or calculator that cannot be.
            SimulationError: see Simulation; the atoms are those of the last good state.
        """
        with EVALUATION_LOCK:
            simulation = self.take()
            try:
                simulation.choose(of, [steps])
                return simulation.run(steps)
            except (SimulationError, KeyboardInterrupt):
                self.write()
                raise

    def take(self) -> Simulation:
        """The simulation, at what the atoms hold now. It evaluates only if they were changed."""
        with EVALUATION_LOCK:
            calculator, integrator, held = (
                calculator_of(self.atoms),
                self._integrator(),
                self.held(),
            )
            now, before = AtomsSnapshot.of(self.atoms, held), self._seen
            fits = before is not None and before.rest == now.rest
            fits = fits and calculator is self._calculator
            if before is not None and not integrator.cell_varies:
                fits = fits and np.array_equal(before.cell, now.cell)
            simulation = self._simulation
            if simulation is None or not fits:
                simulation = self._made(calculator, integrator, held, fits)
            if before is not None and fits:
                self._move(simulation, before, now, held)
            given = {name: value.start[0] for name, value in integrator.given.items()}
            changed = {name: one for name, one in given.items() if one != self._given[name]}
            if changed:
                simulation.set(**changed)
            self._simulation, self._left, self._calculator = simulation, None, calculator
            self._seen, self._given = now, given
            return simulation

    def write(self) -> None:
        """Brings the atoms to the simulation, results with them; reads the device."""
        simulation, atoms = self._simulation, self.atoms
        if simulation is None or self._calculator is None:
            return
        state, masses = simulation.state, atoms.get_masses()[:, None]
        positions = _host(state.places())
        if self._centre is not None:
            positions += self._centre - _centre(masses, positions)
        atoms.positions[:] = positions
        velocities = _host(state.velocities)
        atoms.set_momenta(masses * velocities / ase_units.fs, apply_constraint=False)
        if simulation.integrator.cell_varies:
            atoms.cell[:] = _host(state.cell[0])
        calculation = simulation.calculation
        results = results_of(calculation, calculation.answer(), volume_of(atoms))
        self._calculator.hold(atoms, results)
        self._seen = AtomsSnapshot.of(atoms, self.held())

    def _system(self, held: Constraints) -> System:
        system = from_ase(self.atoms)
        self._centre = None
        if not held.centre:
            return system
        masses = system.masses[:, None]
        self._centre = _centre(masses, system.positions)
        if system.velocities is None:
            return system
        drift = _centre(masses, system.velocities)
        return system.replace(velocities=system.velocities - drift)

    def _made(
        self, calculator: MDGraphCalculator, integrator: Integrator, held: Constraints, same: bool
    ) -> Simulation:
        """A new simulation, which goes on from the one before, if there was one.

        Args:
            calculator: of the potential.
            integrator: what advances it.
            held: what stays where it is.
            same: whether the one before had the same atoms, so that nothing of it is lost.
        """
        if self._simulation is not None:
            # Both may not fit, so the old one goes first.
            self._left = _left_by(self._simulation)
            self._simulation = None
        centre = self._centre
        made = calculator.simulation(
            [self._system(held)],
            integrator,
            seed=self._seed,
            fixed=held.fixed,
            # Where the integrator keeps the momentum, it was removed from the start for good.
            remove_momentum=int(held.centre and not integrator.conserves_momentum),
        )
        if self._left is None:
            self._given = {name: value.start[0] for name, value in integrator.given.items()}
            return made
        snapshot, degrees, skin = self._left
        if same:
            self._centre = centre
            made.set_skin(skin)
        else:
            now, degrees = made.snapshot(), made.degrees_of_freedom
            now["state"]["step"] = snapshot["state"]["step"]
            snapshot = now | {name: snapshot[name] for name in ("step", "clock", "integrator")}
        made.resume(snapshot, degrees)
        return made

    def _move(
        self, simulation: Simulation, before: AtomsSnapshot, now: AtomsSnapshot, held: Constraints
    ) -> None:
        """Writes what was changed in the atoms into the buffers."""
        changed = now.moved_since(before)
        if not changed:
            return
        system, state = self._system(held), simulation.state
        if "momenta" in changed and system.velocities is not None:
            state.velocities.copy_(torch.tensor(system.velocities))
            state.velocities.masked_fill_(state.fixed[:, None], 0.0)
            simulation.count_degrees_of_freedom()
        if changed == ["momenta"]:
            return
        state.cell.copy_(torch.tensor(system.cell)[None])
        state.place_(torch.tensor(system.positions))
        calculation = simulation.calculation
        calculation.update_()
        if not calculation.complete():
            check_lengths(system)
            # It grows the lists, and knows that a captured graph holds the old ones.
            simulation.resume(simulation.snapshot(), simulation.degrees_of_freedom)
            calculation.compute()
        calculation.check_coincident()


def _left_by(simulation: Simulation) -> tuple[dict[str, Any], tuple[int, ...], float]:
    return simulation.snapshot(), simulation.degrees_of_freedom, simulation.calculation.skin


def _host(tensor: torch.Tensor) -> Array:
    """A float64 copy; reads the device."""
    return tensor.detach().to("cpu", torch.float64, copy=True).numpy()


def _centre(masses: Array, vectors: Array) -> Array:
    return (masses * vectors).sum(axis=0) / masses.sum()


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
