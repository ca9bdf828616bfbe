"""EngineDynamics: base of the ASE dynamics classes, which the engine advances between observers."""

import inspect
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any, ClassVar, Final, Self

import numpy as np
import torch
from ase import Atoms, units
from ase.md.md import MolecularDynamics, process_temperature

from mdgraph.arguments import checked, real_number, shown
from mdgraph.checkpoints import load
from mdgraph.drivers.arguments import check_known
from mdgraph.drivers.ase.calculator import (
    Array,
    AtomsSnapshot,
    Constraints,
    MDGraphCalculator,
    checked_results,
    volume_of,
)
from mdgraph.drivers.lock import EVALUATION_LOCK
from mdgraph.engine import Integrator, Simulation
from mdgraph.engine.calculation import host_array
from mdgraph.engine.checks import check_lengths
from mdgraph.engine.multiple_time_steps import checked_inner_steps, checked_multiple
from mdgraph.errors import InputError, SimulationError
from mdgraph.io.structures import from_ase
from mdgraph.system import System

logger = logging.getLogger(__name__)


def calculator_of(atoms: Atoms) -> MDGraphCalculator:
    """The calculator of the atoms; raises InputError where it is not an MDGraphCalculator."""
    if not isinstance(atoms.calc, MDGraphCalculator):
        have = "no calculator" if atoms.calc is None else f"{type(atoms.calc).__name__}"
        raise InputError(
            f"The atoms have {have}, and these dynamics run on mdgraph's potentials alone; set "
            "atoms.calc to an MDGraphCalculator, or give potential=."
        )
    return atoms.calc


def give_potential(atoms: Atoms, potential: Any) -> None:
    """Gives the atoms a calculator for `potential`; raises InputError where they have one.

    Nothing happens where `potential` is None.
    """
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
        also_known: arguments that are known beside those of the signatures.
    """

    also_known: ClassVar[Collection[str]] = ()

    def __new__(cls, *arguments: Any, **named: Any) -> Self:
        """Raises InputError for an argument that no constructor of the class and its bases has."""
        check_known(cls.__name__, named, {*cls.also_known, *_in_signatures(cls)})
        return super().__new__(cls)


def _in_signatures(cls: type) -> Iterator[str]:
    for base in cls.__mro__[:-1]:
        if "__init__" in vars(base):
            _, *parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
            for parameter in parameters:
                if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                    yield parameter.name


def kelvin(temperature: float | None, temperature_K: float | None, unit: str) -> float:
    """The temperature in K from ASE's two arguments; raises InputError for both or neither.

    Args:
        temperature: in `unit`; ASE has deprecated it.
        temperature_K: K.
        unit: `K` or `eV`.
    """
    if (temperature is None) == (temperature_K is None):
        times = "nowhere" if temperature is None else "twice"
        raise InputError(f"The temperature is given {times}; give temperature_K alone.")
    return float(process_temperature(temperature, temperature_K, unit))


def check_outputs(**outputs: Any) -> None:
    """Raises InputError for a log or trajectory that is neither a path nor an open file."""
    for name, value in outputs.items():
        is_path = isinstance(value, str | PurePath) and str(value) not in ("", ".")
        if value is not None and not is_path and not callable(getattr(value, "write", None)):
            raise InputError(
                f"The {name} is {shown(value)}; give the name of a file, or one that is open."
            )


def in_fs(time: float, name: str) -> float:
    """Converts a time from ASE's unit to fs; raises InputError for what is not a number."""
    return real_number(time, f"The {name}", "ASE's unit of time") / units.fs


def steps_to_next_call(observers: Sequence[tuple[Any, ...]], now: int, end: int) -> int:
    """Steps from `now` to the next one at which ASE calls an observer, or to the end.

    ASE calls an observer of interval n > 0 at each multiple of n, one of -n at step n alone.
    """
    due = [end]
    for _, interval, *_ in observers:
        step = (now // interval + 1) * interval if interval > 0 else -interval
        due += [step] if step > now else []
    return min(due) - now


class AtomsSync:
    """Keeps ASE's Atoms and the engine's simulation the same, whenever either is read.

    Between `update_simulation` and `update_atoms` the simulation runs ahead. Whatever changed
    in the atoms since the last `update_atoms` goes into the simulation: positions, momenta, and
    a cell that varies go into its buffers; any other change makes a new simulation, which goes
    on at the same step and with the same thermostat.

    Attributes:
        atoms: of the user, with an MDGraphCalculator.
        centre: whether the centre of mass does not move, whatever the constraints are.
    """

    def __init__(
        self,
        atoms: Atoms,
        integrator: Callable[[], Integrator],
        seed: int,
        centre: bool = False,
        inner_potential: Any = None,
        inner_steps: int = 1,
    ) -> None:
        self.atoms = atoms
        self.centre = centre
        self._inner: dict[str, Any] = {}
        if inner_potential is not None:
            self._inner = {"inner_potential": inner_potential, "inner_steps": inner_steps}
        self._together = inner_steps
        self._integrator = integrator
        self._seed = seed
        self._simulation: Simulation | None = None
        # A snapshot, degrees of freedom and skin of the simulation before.
        self._resume_from: tuple[dict[str, Any], tuple[int, ...], float] | None = None
        self._snapshot: AtomsSnapshot | None = None
        self._calculator: MDGraphCalculator | None = None
        self._parameters: dict[str, float] = {}
        self._centre: Array | None = None
        self.constraints()

    def __getstate__(self) -> dict[str, Any]:
        # A captured graph cannot be copied, but the state to resume from can.
        resume_from = (
            self._resume_from if self._simulation is None else _resumable(self._simulation)
        )
        return {**self.__dict__, "_simulation": None, "_resume_from": resume_from}

    @property
    def step(self) -> int:
        """Steps done."""
        if self._simulation is not None:
            return self._simulation.step
        return 0 if self._resume_from is None else int(self._resume_from[0]["step"])

    def constraints(self) -> Constraints:
        """The constraints of the moment; raises InputError for those the engine lacks."""
        constraints = Constraints.of(self.atoms)
        if self.centre and not constraints.fixed:
            return Constraints((), centre=True)
        return constraints

    def reset(self) -> None:
        """Makes a new simulation at the next `update_simulation`, with a new thermostat."""
        self._simulation = self._resume_from = self._snapshot = None

    def advance(self, steps: int, of: int) -> int:
        """Runs ahead and returns the steps done; the atoms are updated if the run has to stop.

        Args:
            steps: number of steps, up to the next observer; no graph holds more.
            of: steps that follow each other, these included; the simulation measures what
                pays off over so many.

        Raises:
            InputError: invalid atoms or calculator.
            SimulationError: see Simulation; the atoms are those of the last good state.
        """
        with EVALUATION_LOCK:
            simulation = self.update_simulation()
            try:
                simulation.choose(of, [steps])
                return simulation.run(steps)
            except (SimulationError, KeyboardInterrupt):
                self.update_atoms()
                raise

    def update_simulation(self) -> Simulation:
        """The simulation, brought up to the atoms; it evaluates only if they changed."""
        with EVALUATION_LOCK:
            calculator = calculator_of(self.atoms)
            integrator, constraints = self._integrator(), self.constraints()
            now, before = AtomsSnapshot.of(self.atoms, constraints), self._snapshot
            fits = before is not None and before.rest == now.rest
            fits = fits and calculator is self._calculator
            if before is not None and not integrator.cell_varies:
                fits = fits and np.array_equal(before.cell, now.cell)
            simulation = self._simulation
            if simulation is None or not fits:
                simulation = self._new_simulation(calculator, integrator, constraints, fits)
            if before is not None and fits:
                self._move(simulation, before, now, constraints)
            parameters = _start_values(integrator)
            changed = {
                name: value for name, value in parameters.items() if value != self._parameters[name]
            }
            if changed:
                simulation.set(**changed)
            self._simulation, self._resume_from = simulation, None
            self._calculator, self._snapshot, self._parameters = calculator, now, parameters
            return simulation

    def update_atoms(self) -> None:
        """Brings the atoms and the results of their calculator up to the simulation; syncs."""
        simulation, atoms = self._simulation, self.atoms
        if simulation is None or self._calculator is None:
            return
        state, masses = simulation.state, atoms.get_masses()[:, None]
        positions = host_array(state.places())
        if self._centre is not None:
            positions += self._centre - _centre(masses, positions)
        atoms.positions[:] = positions
        velocities = host_array(state.velocities)
        atoms.set_momenta(masses * velocities / units.fs, apply_constraint=False)
        if simulation.integrator.cell_varies:
            atoms.cell[:] = host_array(state.cell[0])
        calculation = simulation.calculation
        results = checked_results(calculation, calculation.answer(), volume_of(atoms))
        self._calculator.store(atoms, results)
        self._snapshot = AtomsSnapshot.of(atoms, self.constraints())

    def _system(self, constraints: Constraints) -> System:
        system = from_ase(self.atoms)
        self._centre = None
        if not constraints.centre:
            return system
        masses = system.masses[:, None]
        self._centre = _centre(masses, system.positions)
        if system.velocities is None:
            return system
        drift = _centre(masses, system.velocities)
        return system.replace(velocities=system.velocities - drift)

    def _new_simulation(
        self,
        calculator: MDGraphCalculator,
        integrator: Integrator,
        constraints: Constraints,
        same: bool,
    ) -> Simulation:
        """A new simulation, which goes on from the one before, if there was one.

        Args:
            calculator: of the potential.
            integrator: advances the simulation.
            constraints: of the atoms.
            same: whether the one before had the same atoms; its whole state is kept then.
        """
        if self._simulation is not None:
            # Both may not fit, so the old one goes first.
            self._resume_from = _resumable(self._simulation)
            self._simulation = None
        centre = self._centre
        simulation = calculator.simulation(
            [self._system(constraints)],
            integrator,
            seed=self._seed,
            # An integrator that conserves momentum keeps the zero of the start.
            remove_momentum=self._together
            * int(constraints.centre and not integrator.conserves_momentum),
            **self._inner,
        )
        if self._resume_from is None:
            self._parameters = _start_values(integrator)
            return simulation
        snapshot, degrees, skin = self._resume_from
        if same:
            self._centre = centre
            simulation.set_skin(skin)
        else:
            now, degrees = simulation.snapshot(), simulation.degrees_of_freedom
            now["state"]["step"] = snapshot["state"]["step"]
            snapshot = now | {name: snapshot[name] for name in ("step", "clock", "integrator")}
        simulation.resume(snapshot, degrees)
        return simulation

    def _move(
        self,
        simulation: Simulation,
        before: AtomsSnapshot,
        now: AtomsSnapshot,
        constraints: Constraints,
    ) -> None:
        """Writes positions, momenta and cell that changed in the atoms into the buffers."""
        changed = now.changes_since(before)
        if not changed:
            return
        system, state = self._system(constraints), simulation.state
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
            check_lengths([system])
            # Resuming grows the lists and drops the captured graph that holds the old ones.
            simulation.resume(simulation.snapshot(), simulation.degrees_of_freedom)
            calculation.compute()
        calculation.check_coincident()


def _resumable(simulation: Simulation) -> tuple[dict[str, Any], tuple[int, ...], float]:
    return simulation.snapshot(), simulation.degrees_of_freedom, simulation.calculation.skin


def _start_values(integrator: Integrator) -> dict[str, float]:
    return {name: value.start[0] for name, value in integrator.parameters.items()}


def _centre(masses: Array, vectors: Array) -> Array:
    return (masses * vectors).sum(axis=0) / masses.sum()


_LONG: Final = 4.0
"""fs; a longer step is too long for molecules, and often a number of fs without its unit."""


class EngineDynamics(KnownArguments, MolecularDynamics):
    """Base of the ASE dynamics classes; times, momenta and energies are in ASE's units.

    Observers, loggers and trajectories are ASE's own and are called at the steps at which ASE
    calls them. From one call to the next the engine runs on the device alone. Then it writes
    positions, momenta, cell, energy, forces and stress to the atoms and their calculator, so
    that observers read them without a new evaluation; each such write syncs. Changes to the
    atoms, by an observer or between two runs, take effect from the next step on. `irun` stops,
    and writes, at every step.

    The potential is the one of `atoms.calc`, an MDGraphCalculator, or `potential`. With an
    `inner_potential` it acts every `inner_steps`, of which all numbers of steps and intervals of
    observers are multiples; energies, forces and stress are those of the potential.

    Attributes:
        seed: key of the random numbers.
        fixcm: whether the centre of mass does not move.
    """

    @checked
    def __init__(
        self,
        atoms: Atoms,
        timestep: float,
        trajectory: Any = None,
        logfile: Any = None,
        loginterval: int | None = None,
        *,
        potential: Any = None,
        inner_potential: Any = None,
        inner_steps: int | None = None,
        seed: int = 0,
        fixcm: bool = False,
        **options: Any,
    ) -> None:
        """Takes the arguments of ASE's dynamics, and a potential.

        Args:
            atoms: the engine moves them.
            timestep: in ASE's unit of time.
            trajectory: path or writer; see ASE.
            logfile: path or open file; see ASE.
            loginterval: steps from one line of the log, and one frame, to the next; None takes
                every step at which the potential acts.
            potential: path, name of a shipped potential, Potential or Evaluator, for atoms
                without a calculator.
            inner_potential: small potential that drives the steps between, with `timestep`; see
                `mdgraph.engine.Simulation`.
            inner_steps: 2, 3, 4, 6, 8, 12, 16, 24 or 32; None takes the most whose outer step is
                at most 2 fs, or 3 fs with hydrogens of 3 amu.
            seed: key of the random numbers.
            fixcm: whether the centre of mass does not move, as with FixCom; has no effect
                where atoms are fixed.
            options: `append_trajectory` and the other arguments of ASE's dynamics.

        Raises:
            InputError: an invalid or unknown argument, or constraints that the engine does
                not have.
        """
        if not isinstance(atoms, Atoms):
            raise InputError(
                f"Dynamics here move Atoms, and {type(atoms).__name__} is none; "
                "give the atoms themselves."
            )
        check_outputs(trajectory=trajectory, logfile=logfile)
        self._together = checked_inner_steps(
            inner_steps, inner_potential, timestep / units.fs, atoms.get_masses()
        )
        if isinstance(inner_potential, str | Path):
            inner_potential = load(inner_potential)
        loginterval = self._together if loginterval is None else loginterval
        checked_multiple(loginterval, 1, "loginterval", self._together)
        self.seed = seed
        self.fixcm = fixcm
        self.dt = timestep
        # Invalid parameters raise here, not at the first step.
        self._integrator()
        self._sync = AtomsSync(
            atoms, self._integrator, seed, fixcm, inner_potential, self._together
        )
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
        """The engine's integrator with the current parameters."""
        raise NotImplementedError

    @property
    def simulation(self) -> Simulation:
        """The engine's simulation, brought up to the atoms; the first call makes it."""
        return self._sync.update_simulation()

    @checked
    def run(self, steps: int = 50) -> bool:
        """Runs and returns whether all steps were done; syncs at the steps of observers.

        Args:
            steps: number of steps, not negative.

        Raises:
            InputError: invalid atoms, calculator or parameters.
            SimulationError: forces that are not finite, or a temperature that ran away. The
                atoms are those of the last good state.
        """
        if steps < 0:
            raise InputError(f"{steps} steps cannot be run; give a number that is not negative.")
        checked_multiple(steps, 0, "The run", self._together)
        for _, interval, *_ in self.observers:
            checked_multiple(abs(interval), 0, "The interval of an observer", self._together)
        self.max_steps = self.nsteps + steps
        if self.nsteps == 0:
            self._report()
        while self.nsteps < self.max_steps:
            before = self._sync.step
            stretch = steps_to_next_call(self.observers, self.nsteps, self.max_steps)
            try:
                done = self._sync.advance(stretch, self.max_steps - self.nsteps)
            finally:
                self.nsteps += self._sync.step - before
            self._report()
            if done < stretch:
                break
        return bool(self.nsteps >= self.max_steps)

    def step(self) -> None:
        """Advances by one step; the atoms are updated when an observer reads them.

        Raises:
            InputError: two potentials, which take several steps together.
        """
        if self._together > 1:
            raise InputError(
                f"The potential acts every {self._together} steps, and irun and step stop at each; "
                "call run with an observer, or leave inner_potential out."
            )
        self._sync.advance(1, self.max_steps - self.nsteps)

    @checked
    def set_timestep(self, timestep: float) -> None:
        """Sets the time step, in ASE's unit of time, from the next step on."""
        self.dt = timestep

    def get_timestep(self) -> float:
        """The time step, in ASE's unit of time."""
        return self.dt

    def get_conserved_energy(self) -> float:
        """The conserved quantity, eV; NaN for dynamics without one. Syncs."""
        return float(self.simulation.observables().conserved_energy[0])

    def todict(self) -> dict[str, Any]:
        """The entries that ASE writes into the head of a trajectory."""
        return super().todict() | {"engine": "mdgraph", "seed": self.seed}

    def _report(self) -> None:
        self._refresh_properties()
        self.log()
        self.call_observers()

    def _refresh_properties(self) -> None:
        """ASE calls this before observers read the atoms."""
        self._sync.update_simulation()
        self._sync.update_atoms()


def choose_seed(seed: int | None, rng: Any) -> int:
    """The seed, or one drawn from NumPy's global generator, as ASE's dynamics draw theirs.

    So a script that calls `np.random.seed` repeats. Raises InputError for a generator, which
    the device cannot use.
    """
    if rng is not None:
        raise InputError(
            "The engine draws its random numbers on the device and cannot ask rng; "
            "give a whole number as seed instead."
        )
    if seed is not None:
        return seed
    return int(np.random.randint(2**31))  # noqa: NPY002
