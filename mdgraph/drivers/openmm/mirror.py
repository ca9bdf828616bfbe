"""Mirror: an OpenMM Context and the engine, brought together when somebody looks."""

import logging
import threading
from typing import Any

import numpy as np
import openmm
import torch

from mdgraph.drivers.openmm.boxes import Array, reduced
from mdgraph.drivers.openmm.checkpoints import checkpoint, resume_, start_of
from mdgraph.drivers.openmm.making import EngineMaker, host, place_
from mdgraph.drivers.openmm.units import FORCE, KILOJOULE_PER_MOLE, NANOMETRE, PICOSECOND, SPEED
from mdgraph.engine import Simulation
from mdgraph.engine.kinetics import remove_momentum_
from mdgraph.errors import InputError

logger = logging.getLogger(__name__)


class Mirror:
    """Keeps the engine's state and that of a Context the same, copying as late as it can.

    Steps that were asked for are owed until a chunk of them has come together or somebody
    looks. The engine is made when positions are there, and again for another box.

    Attributes:
        lock: held while anything moves; threads wait for each other.
        context: the Context; this class calls it without the overrides of EngineContext.
    """

    def __init__(self, maker: EngineMaker) -> None:
        self.lock = threading.RLock()
        self.context: Any = None
        self._maker = maker
        self._engine: Simulation | None = None
        self._values: dict[str, float] = {}
        self._owed = 0
        self._behind = False
        self._grown = False
        # What the Context holds and the engine has not yet: box, positions given or moved by a
        # minimiser, velocities, clock.
        self._edits: set[str] = set()
        self._shown: Array | None = None
        self._rotation = np.eye(3)
        self._periodic = maker.particles.box is not None

    @property
    def step(self) -> int:
        """Steps done and owed."""
        if self._engine is None or "clock" in self._edits:
            return int(openmm.Context.getStepCount(self.context))
        return self._engine.step + self._owed

    def advance(self, steps: int) -> None:
        """Takes steps upon itself, and runs them once they make a chunk.

        Raises:
            SimulationError: see `Simulation.run`; the state is the last good one.
        """
        with self.lock:
            engine = self.engine()
            values = self._parameters()
            if values != self._values:
                self.catch_up()
                engine.set(**values)
                self._values = values
            self._owed += steps
            if self._owed >= engine.chunk:
                self.catch_up()

    def catch_up(self) -> None:
        """Runs the steps that are owed."""
        with self.lock:
            if self._owed:
                steps, self._owed, self._behind = self._owed, 0, True
                self.engine().run(steps)

    def show(self) -> None:
        """Brings the Context up to the engine; reads the device if the engine has moved."""
        with self.lock:
            self.catch_up()
            if not self._behind or self._engine is None:
                return
            state, context = self._engine.state, self.context
            positions, velocities = host(state.positions), host(state.velocities)
            if self._periodic:
                box, self._rotation = reduced(host(state.cell[0]))
                openmm.Context.setPeriodicBoxVectors(context, *(box / NANOMETRE))
            self._shown = positions @ self._rotation / NANOMETRE
            openmm.Context.setPositions(context, self._shown)
            openmm.Context.setVelocities(context, velocities @ self._rotation / SPEED)
            openmm.Context.setTime(context, self._engine.time / PICOSECOND)
            openmm.Context.setStepCount(context, self._engine.step)
            self._behind = False

    def edited(self, *names: str) -> None:
        """Notes what was written into the Context; call `show` before it is written."""
        self._edits.update(names)

    def evaluate(self, state: Any) -> tuple[float, Array]:
        """What the force in the Context calls: kJ/mol, and (N, 3) kJ/mol/nm; reads the device."""
        with self.lock:
            if self._engine is None or self._owed or self._behind:
                raise InputError(
                    "The Context is older than the engine; go through the Simulation, as with "
                    "simulation.minimizeEnergy()."
                )
            positions = state.getPositions(asNumpy=True)._value
            if self._shown is None or not np.array_equal(positions, self._shown):
                self._shown = positions.copy()
                self._edits.add("moved")
                self._place(self._engine, positions)
            own = self._engine.state
            forces = host(own.forces) @ self._rotation / FORCE
            return float(own.energy[0]) / KILOJOULE_PER_MOLE, forces

    def engine(self) -> Simulation:
        """The engine with everything that was written into the Context."""
        with self.lock:
            if self._engine is None or self._edits:
                return self._take()
            return self._engine

    def checkpoint(self) -> bytes:
        """See `checkpoints.checkpoint`."""
        with self.lock:
            self.catch_up()
            return checkpoint(self.engine())

    def resume(self, content: bytes) -> None:
        """Goes on from a checkpoint; raises as `start_of` and `resume_`.

        Parameters are those of the integrator and the Context, as in OpenMM.
        """
        with self.lock:
            positions, cell = start_of(content, len(self._maker.particles.numbers))
            engine = self._maker.make(positions, cell, self._parameters())
            resume_(engine, content)
            self._engine, self._values, self._owed, self._behind = engine, {}, 0, True
            self._edits.clear()
            self.show()

    def _parameters(self) -> dict[str, float]:
        barostat = self._maker.particles.barostat
        known = {} if barostat is None else dict(openmm.Context.getParameters(self.context))
        return self._maker.dynamics.values(known)

    def _take(self) -> Simulation:
        """Brings the engine up to the Context."""
        if self._engine is None and "positions" not in self._edits:
            raise InputError("There are no positions yet; give them to context.setPositions.")
        seen = openmm.Context.getState(self.context, positions=True, velocities=True)
        positions = seen.getPositions(asNumpy=True)._value.copy()
        box = seen.getPeriodicBoxVectors(asNumpy=True)._value * NANOMETRE
        if "positions" in self._edits:
            self._maker.check_bonds(positions * NANOMETRE, box)
        engine = self._engine
        if engine is None or ("box" in self._edits and self._differs(engine, box)):
            engine = self._make(positions * NANOMETRE, box)
        elif self._edits & {"positions", "moved"}:
            self._place(engine, positions)
        self._shown = positions
        if "velocities" in self._edits:
            velocities = seen.getVelocities(asNumpy=True)._value * SPEED @ self._rotation.T
            engine.state.velocities.copy_(torch.tensor(velocities))
            if self._maker.particles.fixed:
                engine.state.fix_(self._maker.particles.fixed)
                self._behind = True
            if engine.remove_momentum:
                remove_momentum_(engine.state)
                self._behind = True
            engine.count_degrees_of_freedom()
            logger.info("Degrees of freedom: %s", engine.degrees_text)
        if self._grown or "clock" in self._edits:
            self._resume(engine)
        self._edits.clear()
        return engine

    def _place(self, engine: Simulation, positions: Array) -> None:
        """Evaluates at positions (N, 3) of the Context, nm."""
        self._grown |= place_(engine, positions * NANOMETRE @ self._rotation.T)

    def _resume(self, engine: Simulation) -> None:
        """Goes on with lists that grew, or at the time and step of the Context."""
        snapshot = engine.snapshot()
        if "clock" in self._edits:
            step = int(openmm.Context.getStepCount(self.context))
            time = openmm.Context.getTime(self.context)._value * PICOSECOND
            snapshot |= {"step": step, "clock": (step, time, engine.timestep)}
            snapshot["state"]["step"].fill_(step)
        engine.resume(snapshot, engine.degrees_of_freedom)
        self._grown = False

    def _make(self, positions: Array, box: Array) -> Simulation:
        """An engine that goes on where one with another box was."""
        self._values = self._parameters()
        engine, before = self._maker.make(positions, box, self._values), self._engine
        self._engine, self._rotation = engine, np.eye(3)
        self._behind = True  # molecules may have been made whole
        self._edits.add("velocities")
        if before is None:
            self._edits.add("clock")
            return engine
        earlier, snapshot = before.snapshot(), engine.snapshot()
        snapshot |= {name: earlier[name] for name in ("step", "clock", "integrator")}
        snapshot["state"]["step"].fill_(before.step)
        engine.resume(snapshot, engine.degrees_of_freedom)
        return engine

    def _differs(self, engine: Simulation, box: Array) -> bool:
        """Whether a box in A is another one than the engine's."""
        own = reduced(host(engine.state.cell[0]))[0] if self._periodic else box
        return not np.allclose(own, box, rtol=0.0, atol=1e-9)
