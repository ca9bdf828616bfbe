"""OpenMM's Simulation, Context and State, with the steps taken by the engine."""

from math import inf
from pathlib import Path
from typing import Any, Final

import openmm
import torch
from openmm import app, unit

from mdgraph.arguments import checked
from mdgraph.devices import device_named
from mdgraph.drivers.lock import EVALUATION_LOCK
from mdgraph.drivers.openmm.dynamics import Dynamics
from mdgraph.drivers.openmm.sync import ContextSync, EngineMaker, Options, logger
from mdgraph.drivers.openmm.topology import check_boxless, particles_of
from mdgraph.engine import Simulation as Engine
from mdgraph.engine.calculation import as_evaluator, check_charge, uses_charge
from mdgraph.errors import FileError, InputError, name_some
from mdgraph.evaluators import Evaluator
from mdgraph.io.files import read_file
from mdgraph.models import Potential, check_species
from mdgraph.precision import Precision, precision_named

_ENERGIES = ("energy", "forces", "getEnergy", "getForces")


class EngineForce:
    """What the PythonForce of the Context calls; it belongs to one process and Simulation."""

    def __init__(self) -> None:
        self.mirror: ContextSync | None = None

    def __call__(self, state: Any) -> tuple[float, Any]:
        """Energy in kJ/mol and forces (N, 3) in kJ/mol/nm; reads the device."""
        if self.mirror is None:
            raise InputError("The Simulation is not complete yet; make it first.")
        return self.mirror.evaluate(state)

    def __reduce__(self) -> Any:
        raise TypeError("The engine's force cannot be stored; make another Simulation.")


class EngineIntegrator(openmm.CustomIntegrator):
    """Takes steps by the engine.

    Parameters stay with the integrator that was given: setting them here or there is the
    same, and holds from the next step on. Velocities belong to the time of the positions,
    those of Langevin dynamics to the middle of the step before; OpenMM's VerletIntegrator
    would show those of half a step earlier.
    """

    def __init__(self, dynamics: Dynamics) -> None:
        super().__init__(dynamics.timestep * unit.femtoseconds)
        self.dynamics = dynamics
        self.mirror: ContextSync | None = None

    def __getattr__(self, name: str) -> Any:
        """Getters and setters of the integrator that was given."""
        if name.startswith(("get", "set")) and not self.dynamics.own:
            return getattr(self.dynamics.given, name)
        raise AttributeError(f"the engine's integrator has no {name}")

    def step(self, steps: int) -> None:
        """Advances by so many steps; see Mirror.advance."""
        assert self.mirror is not None
        self.mirror.advance(steps)

    def getStepSize(self) -> Any:
        """Of the next step."""
        assert self.mirror is not None
        return self.mirror.timestep * 1e-3 * unit.picoseconds

    def setStepSize(self, size: Any) -> None:
        """From the next step on; raises InputError for an integrator of the engine."""
        self._given("step size").setStepSize(size)

    def setIntegrationForceGroups(self, groups: Any) -> None:
        """Refused: the engine has one force."""
        raise InputError(
            "The engine has one force, which is always integrated; leave "
            "setIntegrationForceGroups out."
        )

    def getRandomNumberSeed(self) -> int:
        """As it was given."""
        return int(self._given("seed").getRandomNumberSeed())

    def setRandomNumberSeed(self, seed: int) -> None:
        """For Simulations that are made later, as in OpenMM."""
        self._given("seed").setRandomNumberSeed(seed)

    def computeSystemTemperature(self) -> Any:
        """From the degrees of freedom that the engine counts; reads the device."""
        assert self.mirror is not None
        self.mirror.catch_up()
        return float(self.mirror.engine().observables().temperature[0]) * unit.kelvin

    def _given(self, what: str) -> Any:
        if self.dynamics.own:
            raise InputError(f"The {what} is set on the engine; see Simulation.engine.")
        return self.dynamics.given


class EngineContext(openmm.Context):
    """A Context that shows the engine's state, and hands on what is written into it."""

    mirror: ContextSync

    def getState(self, *args: Any, **kwargs: Any) -> Any:
        """See Context; reads the device if the engine has moved."""
        with EVALUATION_LOCK:
            self.mirror.catch_up()
            if any(args[2:4]) or any(kwargs.get(name) for name in _ENERGIES):
                self.mirror.engine()
            self.mirror.show()
            return super().getState(*args, **kwargs)

    def getStepCount(self) -> int:
        """See Context."""
        return self.mirror.step

    def getTime(self) -> Any:
        """See Context."""
        self.mirror.show()
        return super().getTime()

    def setStepCount(self, count: int) -> None:
        """See Context; random numbers go on from there."""
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
        """See Context; the engine is made anew, and InputError raised where it has no box."""
        if not self.mirror.periodic:
            given = openmm.System()
            given.setDefaultPeriodicBoxVectors(a, b, c)
            check_boxless(given)
        self._write("box", super().setPeriodicBoxVectors, a, b, c)

    def setState(self, state: Any) -> None:
        """See Context; what an integrator or a Force that is not here keeps there is left."""
        kinds = state.getDataTypes()
        self.setPeriodicBoxVectors(*state.getPeriodicBoxVectors())
        if kinds & state.Positions:
            self.setPositions(state.getPositions(asNumpy=True))
        if kinds & state.Velocities:
            self.setVelocities(state.getVelocities(asNumpy=True))
        if kinds & state.Parameters:
            given, known = dict(state.getParameters()), dict(self.getParameters())
            for name in given.keys() & known:
                self.setParameter(name, given[name])
            if others := sorted(given.keys() - known):
                logger.info("Nothing here has the State's parameters %s", name_some(others))
        self.setTime(state.getTime())
        self.setStepCount(state.getStepCount())

    def createCheckpoint(self) -> bytes:
        """A restart file of the engine, as bytes; reads the device."""
        return self.mirror.checkpoint()

    def loadCheckpoint(self, checkpoint: bytes) -> None:
        """See Mirror.resume."""
        self.mirror.resume(checkpoint)

    def reinitialize(self, preserveState: bool = False) -> None:
        """Refused: the System was read when the Simulation was made."""
        raise InputError(
            "A System cannot change under the engine; make another Simulation, and give it the "
            "State of this one."
        )

    def _write(self, what: str, write: Any, *args: Any) -> None:
        """Writes into a Context that shows the engine's last state."""
        with EVALUATION_LOCK:
            self.mirror.show()
            write(*args)
            self.mirror.edits.add(what)


_LARGEST_BYTES: Final = 1 << 34
"""Of a State: a hundred million atoms."""


def state_of(file: Any) -> Any:
    """Reads a State from a path or an open file.

    Raises:
        FileError: the file cannot be read, or holds something else.
    """
    try:
        text = (
            read_file(file, "a State", _LARGEST_BYTES).decode(errors="replace")
            if isinstance(file, str | Path)
            else file.read()
        )
        found = openmm.XmlSerializer.deserialize(text)
    except (ValueError, TypeError, openmm.OpenMMException):
        found = None
    if not isinstance(found, openmm.State):
        name = file if isinstance(file, str | Path) else getattr(file, "name", "The file")
        raise FileError(f"{name} holds no State of OpenMM; give one that saveState wrote.")
    return found


class Simulation(app.Simulation):
    """`openmm.app.Simulation` whose steps are the engine's.

    Reporters, states, checkpoints and minimisation are OpenMM's own. The Context lies on the
    host and is brought up to date when somebody looks; steps in between cost what they cost
    in `mdgraph.engine`.

    Attributes:
        topology, system, integrator, context, reporters: see OpenMM. The System is a copy
            with the engine's force in it.
    """

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
    ) -> None:
        """Loads the potential and checks everything that needs no positions.

        Args:
            topology: its elements are the atoms, its bonds the molecules that are written
                whole, its box makes the system periodic.
            potential: path, name of a shipped potential, Potential or Evaluator.
            integrator: OpenMM's VerletIntegrator, LangevinMiddleIntegrator or
                NoseHooverIntegrator, or one of `mdgraph.engine`.
            system: masses, where they are not the standard ones, 0 for fixed atoms; a
                CMMotionRemover; a MonteCarloBarostat, which becomes stochastic cell
                rescaling at the same pressure. Anything else in it is refused.
            platform: refused; the engine runs where `device` says.
            platformProperties: refused.
            device: `auto`, `cpu`, `cuda` or `cuda:N`.
            precision: `mixed`, `single`, `double` or `fast`; see `PRECISIONS`.
            charge: total charge, e.
            seed: of random numbers; None takes the integrator's, or draws one.
            skin: A, of the neighbor lists; None chooses.
            graph: `auto`, `on` or `off`; see `mdgraph.engine.Simulation`.
            evaluator: `auto`, `fused` or `reference`.
            check: compare a fast evaluator with the reference at the start, in about 5 s.
            state: path of a State in XML to start from.

        Raises:
            FileError: the potential cannot be read.
            CheckpointError: it is not a potential.
            InputError: anything above that cannot be, or that the engine would not apply.
        """
        if not hasattr(openmm, "PythonForce"):
            raise InputError("This needs OpenMM 8.5 or later; update it with pip.")
        _check_order(potential, system, platformProperties if platform is None else platform)
        particles = particles_of(topology, system)
        dynamics = Dynamics(integrator, particles.barostat)
        wanted = precision_named(precision)
        compute = as_evaluator(potential, wanted, device_named(device), evaluator)
        model = getattr(compute, "potential", None)
        check_species(getattr(model, "species", None), particles.numbers.tolist())
        check_charge(compute, charge or 0.0)
        if particles.box is not None and inf in compute.cutoffs:
            raise InputError(
                "The potential's Coulomb energy runs over all pairs, which have no end in a "
                "periodic system; give mdgraph.load(path).with_coulomb_cutoff(12.0)."
            )
        if charge is None and uses_charge(compute):
            logger.info("No charge is given; the total charge is taken as 0.")
        options = Options(device, wanted.name, charge, seed, skin, graph, check)
        mirror = ContextSync(EngineMaker(particles, dynamics, compute, options))
        force = EngineForce()
        _add_forces(particles.system, force, particles.bonds.tolist(), particles.box is not None)
        stepping = EngineIntegrator(dynamics)
        platform = openmm.Platform.getPlatformByName("Reference")
        super().__init__(topology, particles.system, stepping, platform)
        # OpenMM makes the Context by itself; the class adds methods and no data of C++.
        self.context.__class__ = EngineContext
        mirror.context = self.context
        self.context.mirror = stepping.mirror = force.mirror = mirror
        if state is not None:
            self.loadState(state)

    @property
    def engine(self) -> Engine:
        """The engine, with everything that was set here; needs positions."""
        self.context.mirror.catch_up()
        engine: Engine = self.context.mirror.engine()
        return engine

    def step(self, steps: int) -> None:
        """Advances by so many steps, with reports in between."""
        super().step(steps)
        self.context.mirror.catch_up()

    def loadState(self, file: Any) -> None:
        """Goes on from a State in XML, a path or an open file; FileError for other files."""
        self.context.setState(state_of(file))

    def minimizeEnergy(self, *args: Any, **kwargs: Any) -> None:
        """See OpenMM, whose minimiser asks the engine for energies and forces."""
        mirror = self.context.mirror
        with EVALUATION_LOCK:
            mirror.catch_up()
            mirror.engine()
            mirror.show()
            super().minimizeEnergy(*args, **kwargs)
            mirror.edits.add("moved")


def _check_order(potential: Any, system: Any, platform: Any) -> None:
    """Raises InputError for arguments as OpenMM's own Simulation takes them."""
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


def _add_forces(system: Any, compute: Any, bonds: list[list[int]], periodic: bool) -> None:
    """The engine's force, and springs without strength that tell OpenMM what a molecule is."""
    force = openmm.PythonForce(compute)
    force.setUsesPeriodicBoundaryConditions(periodic)
    system.addForce(force)
    molecules = openmm.HarmonicBondForce()
    molecules.setUsesPeriodicBoundaryConditions(periodic)
    for first, second in bonds:
        molecules.addBond(first, second, 0.0, 0.0)
    if bonds:
        system.addForce(molecules)
    elif periodic:
        logger.info(
            "The topology has no bonds, so each atom is wrapped by itself; "
            "topology.createStandardBonds() makes those of known residues"
        )
