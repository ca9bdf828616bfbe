"""The Context and the Integrator that a Simulation shows, whose steps the engine takes."""

from typing import Any

import openmm
from openmm import unit

from mdgraph.drivers.openmm.dynamics import Dynamics
from mdgraph.drivers.openmm.mirror import Mirror, logger
from mdgraph.drivers.openmm.particles import check_boxless
from mdgraph.drivers.turns import EVALUATING
from mdgraph.errors import InputError, name_some

_ENERGIES = ("energy", "forces", "getEnergy", "getForces")


class EngineForce:
    """What the PythonForce of the Context calls; it belongs to one process and Simulation."""

    def __init__(self) -> None:
        self.mirror: Mirror | None = None

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
        self.mirror: Mirror | None = None

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

    mirror: Mirror

    def getState(self, *args: Any, **kwargs: Any) -> Any:
        """See Context; reads the device if the engine has moved."""
        with EVALUATING:
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
        with EVALUATING:
            self.mirror.show()
            write(*args)
            self.mirror.edits.add(what)
