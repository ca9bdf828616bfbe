"""OpenMM's Simulation, Context and State, advanced by the engine."""

from pathlib import Path
from typing import Any, Final

import openmm
import torch
from openmm import app, unit

from mdgraph.arguments import checked
from mdgraph.devices import device_named
from mdgraph.drivers.arguments import without_domains
from mdgraph.drivers.lock import EVALUATION_LOCK
from mdgraph.drivers.openmm.dynamics import Dynamics
from mdgraph.drivers.openmm.sync import ContextSync, EngineFactory, Options, logger
from mdgraph.drivers.openmm.topology import add_molecules, check_no_box, particles_of
from mdgraph.engine import Simulation as Engine
from mdgraph.engine.calculation import (
    as_evaluator,
    check_charge,
)
from mdgraph.engine.multiple_time_steps import (
    check_inner_species,
    checked_inner_steps,
    checked_multiple,
)
from mdgraph.errors import FileError, InputError, name_some
from mdgraph.evaluators import Evaluator
from mdgraph.io.files import read_file
from mdgraph.models import Potential, check_coulomb_range, check_species
from mdgraph.precision import Precision, precision_named

_ENERGIES = ("energy", "forces", "getEnergy", "getForces")


class EngineForce:
    """The callable of the Context's PythonForce; it belongs to one process and Simulation."""

    def __init__(self) -> None:
        self.sync: ContextSync | None = None

    def __call__(self, state: Any) -> tuple[float, Any]:
        """Energy in kJ/mol and forces (N, 3) in kJ/mol/nm; syncs."""
        if self.sync is None:
            raise InputError("The Simulation is not complete yet; make it first.")
        return self.sync.evaluate(state)

    def __reduce__(self) -> Any:
        raise TypeError("The engine's force cannot be stored; make another Simulation.")


class EngineIntegrator(openmm.CustomIntegrator):
    """The integrator of the Context, which advances the engine.

    Parameters stay on the user's integrator: setting them here or there is the same, and takes
    effect from the next step on. Velocities belong to the time of the positions, and those of
    Langevin dynamics to the middle of the step before; OpenMM's VerletIntegrator would show
    those of half a step earlier.
    """

    def __init__(self, dynamics: Dynamics) -> None:
        super().__init__(dynamics.timestep * unit.femtoseconds)
        self.dynamics = dynamics
        self.sync: ContextSync | None = None

    def __getattr__(self, name: str) -> Any:
        """Getters and setters of the user's integrator."""
        if name.startswith(("get", "set")) and not self.dynamics.native:
            return getattr(self.dynamics.source, name)
        raise AttributeError(f"the engine's integrator has no {name}")

    def step(self, steps: int) -> None:
        """Advances by a number of steps; see ContextSync.advance."""
        assert self.sync is not None
        self.sync.advance(steps)

    def getStepSize(self) -> Any:
        """The time step, as a Quantity."""
        assert self.sync is not None
        return self.sync.timestep * 1e-3 * unit.picoseconds

    def setStepSize(self, size: Any) -> None:
        """Sets the time step from the next step on; InputError for an integrator of the engine."""
        self._openmm("step size").setStepSize(size)

    def setIntegrationForceGroups(self, groups: Any) -> None:
        """Raises InputError: the engine has one force."""
        raise InputError(
            "The engine has one force, which is always integrated; leave "
            "setIntegrationForceGroups out."
        )

    def getRandomNumberSeed(self) -> int:
        """The seed of the user's integrator."""
        return int(self._openmm("seed").getRandomNumberSeed())

    def setRandomNumberSeed(self, seed: int) -> None:
        """Sets the seed of Simulations that are made later, as in OpenMM."""
        self._openmm("seed").setRandomNumberSeed(seed)

    def computeSystemTemperature(self) -> Any:
        """The temperature, by the engine's degrees of freedom, as a Quantity; syncs."""
        assert self.sync is not None
        self.sync.run_pending()
        return float(self.sync.engine().observables().temperature[0]) * unit.kelvin

    def _openmm(self, what: str) -> Any:
        if self.dynamics.native:
            raise InputError(f"The {what} is set on the engine; see Simulation.engine.")
        return self.dynamics.source


class EngineContext(openmm.Context):
    """A Context that shows the engine's state; what is written into it goes to the engine."""

    sync: ContextSync

    def getState(self, *args: Any, **kwargs: Any) -> Any:
        """See Context; syncs if the engine has moved."""
        with EVALUATION_LOCK:
            self.sync.run_pending()
            if any(args[2:4]) or any(kwargs.get(name) for name in _ENERGIES):
                self.sync.engine()
            self.sync.update_context()
            return super().getState(*args, **kwargs)

    def getStepCount(self) -> int:
        """See Context."""
        return self.sync.step

    def getTime(self) -> Any:
        """See Context."""
        self.sync.update_context()
        return super().getTime()

    def setStepCount(self, count: int) -> None:
        """See Context; the random numbers are those of this step from now on."""
        self._write("clock", super().setStepCount, count)

    def setTime(self, time: Any) -> None:
        """See Context."""
        self._write("clock", super().setTime, time)

    def setPositions(self, positions: Any) -> None:
        """See Context."""
        self._write("positions", super().setPositions, positions)

    def setVelocities(self, velocities: Any) -> None:
        """See Context: at the time of the positions, also for Verlet."""
        self._write("velocities", super().setVelocities, velocities)

    def setVelocitiesToTemperature(self, *args: Any) -> None:
        """See Context."""
        self._write("velocities", super().setVelocitiesToTemperature, *args)

    def setPeriodicBoxVectors(self, a: Any, b: Any, c: Any) -> None:
        """See Context; makes a new engine, and raises InputError if the topology has no box."""
        if not self.sync.periodic:
            system = openmm.System()
            system.setDefaultPeriodicBoxVectors(a, b, c)
            check_no_box(system)
        self._write("box", super().setPeriodicBoxVectors, a, b, c)

    def setState(self, state: Any) -> None:
        """See Context; parameters that this Context does not have are left out, and logged."""
        types = state.getDataTypes()
        self.setPeriodicBoxVectors(*state.getPeriodicBoxVectors())
        if types & state.Positions:
            self.setPositions(state.getPositions(asNumpy=True))
        if types & state.Velocities:
            self.setVelocities(state.getVelocities(asNumpy=True))
        if types & state.Parameters:
            parameters, known = dict(state.getParameters()), dict(self.getParameters())
            for name in parameters.keys() & known:
                self.setParameter(name, parameters[name])
            if others := sorted(parameters.keys() - known):
                logger.info("Nothing here has the State's parameters %s", name_some(others))
        self.setTime(state.getTime())
        self.setStepCount(state.getStepCount())

    def createCheckpoint(self) -> bytes:
        """A restart file of the engine, as bytes; syncs."""
        return self.sync.checkpoint()

    def loadCheckpoint(self, checkpoint: bytes) -> None:
        """Loads a checkpoint of `createCheckpoint`; raises FileError or InputError for others."""
        self.sync.resume(checkpoint)

    def reinitialize(self, preserveState: bool = False) -> None:
        """Raises InputError: the engine reads the System once, in the constructor."""
        raise InputError(
            "A System cannot change under the engine; make another Simulation, and give it the "
            "State of this one."
        )

    def _write(self, what: str, write: Any, *args: Any) -> None:
        """Writes into a Context that shows the engine's last state."""
        with EVALUATION_LOCK:
            self.sync.update_context()
            write(*args)
            self.sync.edits.add(what)


_LARGEST_BYTES: Final = 1 << 34
"""Of a State in XML: a hundred million atoms."""


def state_of(file: Any) -> Any:
    """Reads a State from a path or an open file.

    Raises:
        FileError: the file cannot be read, or is not a State.
    """
    try:
        text = (
            read_file(file, "a State", _LARGEST_BYTES).decode(errors="replace")
            if isinstance(file, str | Path)
            else file.read()
        )
        state = openmm.XmlSerializer.deserialize(text)
    except (ValueError, TypeError, openmm.OpenMMException):
        state = None
    if not isinstance(state, openmm.State):
        name = file if isinstance(file, str | Path) else getattr(file, "name", "The file")
        raise FileError(f"{name} holds no State of OpenMM; give one that saveState wrote.")
    return state


class Simulation(app.Simulation):
    """`openmm.app.Simulation`, advanced by the engine.

    Reporters, states, checkpoints and minimisation are OpenMM's own, in OpenMM's units. The
    Context is on the host. Reading it syncs and brings it up to the engine; the steps in between
    run as fast as in `mdgraph.engine`.

    Attributes:
        topology, system, integrator, context, reporters: see OpenMM. The System is a copy with
            the engine's force added.
    """

    @without_domains
    @checked
    def __init__(
        self,
        topology: app.Topology,
        potential: str | Path | Potential | Evaluator,
        integrator: Any,
        system: Any = None,
        platform: Any = None,
        platformProperties: Any = None,
        *,
        device: str | torch.device = "auto",
        precision: str | Precision = "mixed",
        charge: float | None = None,
        seed: int | None = None,
        skin: float | None = None,
        graph: str = "auto",
        evaluator: str = "auto",
        check: bool = True,
        state: str | None = None,
        inner_potential: str | Path | Potential | Evaluator | None = None,
        inner_steps: int | None = None,
    ) -> None:
        """Loads the potential and checks everything that needs no positions.

        Args:
            topology: gives the elements; its bonds tell which molecules are kept in one
                piece, and its box makes the system periodic.
            potential: path, name of a shipped potential, Potential or Evaluator.
            integrator: OpenMM's VerletIntegrator, LangevinMiddleIntegrator or
                NoseHooverIntegrator, or one of `mdgraph.engine`.
            system: None takes standard masses. A System gives masses, 0 for fixed atoms, and
                may have a CMMotionRemover and a MonteCarloBarostat, or one for membranes, which
                becomes stochastic cell rescaling at the same pressure; any other force is
                refused.
            platform: refused; the engine runs on `device`.
            platformProperties: refused.
            device: `auto`, `cpu`, `cuda` or `cuda:N`.
            precision: `mixed`, `single`, `double` or `fast`; see `PRECISIONS`.
            charge: total charge, e.
            seed: of the random numbers; None takes the seed of the integrator or of the
                barostat, or draws one.
            skin: A, of the neighbor lists; None chooses.
            graph: `auto`, `on` or `off`; see `mdgraph.engine.Simulation`.
            evaluator: `auto`, `fused` or `reference`.
            check: compare a fast evaluator with the reference at the start, in about 5 s.
            state: path of a State in XML to start from.
            inner_potential: a small potential that drives the steps between every
                `inner_steps`-th one, at which `potential` acts; see
                `mdgraph.engine.Simulation`. Numbers of steps, and intervals of reporters, are
                multiples of `inner_steps`. Energies and forces are those of `potential`.
            inner_steps: 2, 3, 4, 6, 8, 12, 16, 24 or 32; None takes the most whose outer step is
                at most 2 fs, or 3 fs with hydrogens of 3 amu.

        Raises:
            FileError: the potential cannot be read.
            CheckpointError: it is not a potential.
            InputError: an invalid argument, or one that the engine does not apply.
        """
        if not hasattr(openmm, "PythonForce"):
            raise InputError("This needs OpenMM 8.5 or later; update it with pip.")
        _check_order(potential, system, platformProperties if platform is None else platform)
        particles = particles_of(topology, system)
        dynamics = Dynamics(integrator, particles.barostat)
        precision = precision_named(precision)
        evaluate = as_evaluator(potential, precision, device_named(device), evaluator)
        check_species(evaluate.species, particles.numbers.tolist())
        check_charge(evaluate, charge or 0.0)
        periodic = particles.box is not None
        advice = "mdgraph.load(path).with_coulomb_cutoff(12.0)"
        check_coulomb_range(evaluate.cutoffs, periodic, advice)
        if charge is None and evaluate.uses_charge:
            logger.info("No charge is given; the total charge is taken as 0.")
        inner = None
        together = checked_inner_steps(
            inner_steps, inner_potential, dynamics.timestep, particles.masses
        )
        if inner_potential is not None:
            inner = as_evaluator(inner_potential, precision, device_named(device), evaluator)
            check_inner_species(inner, particles.numbers.tolist())
            check_coulomb_range(inner.cutoffs, periodic, advice)
        options = Options(device, precision.name, charge, seed, skin, graph, check, inner, together)
        sync = ContextSync(EngineFactory(particles, dynamics, evaluate, options))
        force = EngineForce()
        _add_forces(particles.system, force, particles.bonds.tolist(), periodic)
        engine_integrator = EngineIntegrator(dynamics)
        platform = openmm.Platform.getPlatformByName("Reference")
        super().__init__(topology, particles.system, engine_integrator, platform)
        # OpenMM makes the Context; EngineContext adds methods and no data of C++.
        self.context.__class__ = EngineContext
        sync.context = self.context
        self.context.sync = engine_integrator.sync = force.sync = sync
        if state is not None:
            self.loadState(state)

    @property
    def engine(self) -> Engine:
        """The engine's simulation, brought up to the Context; InputError without positions."""
        self.context.sync.run_pending()
        engine: Engine = self.context.sync.engine()
        return engine

    def step(self, steps: int) -> None:
        """Advances by a number of steps; reporters are called in between.

        Raises:
            InputError: with an inner potential, steps or intervals of reporters that are no
                multiples of `inner_steps`.
            SimulationError: see `mdgraph.engine.Simulation.run`; the state is the last good one.
        """
        checked_multiple(steps, 0, "The run", self.context.sync.together)
        super().step(steps)
        self.context.sync.run_pending()

    def loadState(self, file: Any) -> None:
        """Loads a State in XML from a path or an open file; FileError for other files."""
        self.context.setState(state_of(file))

    def minimizeEnergy(self, *args: Any, **kwargs: Any) -> None:
        """See OpenMM, whose minimiser takes energies and forces from the engine."""
        sync = self.context.sync
        with EVALUATION_LOCK:
            sync.run_pending()
            sync.engine()
            sync.update_context()
            super().minimizeEnergy(*args, **kwargs)
            sync.edits.add("moved")


def _check_order(potential: Any, system: Any, platform: Any) -> None:
    """Raises InputError for arguments in the order of OpenMM's own Simulation."""
    if isinstance(potential, openmm.System):
        raise InputError(
            "The second argument is a System, and the potential comes there: give "
            "Simulation(topology, potential, integrator, system)."
        )
    if platform is not None or isinstance(system, openmm.Platform):
        raise InputError(
            "The engine runs on no Platform of OpenMM; leave it out and give device='cuda', "
            "or 'cpu'."
        )
    if system is not None and not isinstance(system, openmm.System):
        raise InputError(
            f"The fourth argument is of type {type(system).__name__}, no System; give "
            "Simulation(topology, potential, integrator, system)."
        )


def _add_forces(system: Any, evaluate: Any, bonds: list[list[int]], periodic: bool) -> None:
    """Adds the engine's force, and the bonds by which OpenMM knows molecules."""
    force = openmm.PythonForce(evaluate)
    force.setUsesPeriodicBoundaryConditions(periodic)
    system.addForce(force)
    add_molecules(system, bonds, periodic)
    if periodic and not bonds:
        logger.info(
            "The topology has no bonds, so each atom is wrapped by itself; "
            "topology.createStandardBonds() makes those of known residues"
        )
