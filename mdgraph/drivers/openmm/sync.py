"""Synchronisation of an OpenMM Context with the engine, and its checkpoints."""

import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openmm
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from mdgraph.drivers.lock import EVALUATION_LOCK
from mdgraph.drivers.openmm.dynamics import Dynamics
from mdgraph.drivers.openmm.topology import (
    FORCE,
    KILOJOULE_PER_MOLE,
    NANOMETRE,
    PICOSECOND,
    SPEED,
    Array,
    Particles,
    check_unit,
    reduced,
    whole,
)
from mdgraph.engine import Simulation
from mdgraph.engine.kinetics import remove_momentum_
from mdgraph.engine.restart import load_restart_, save_restart
from mdgraph.errors import FileError, InputError
from mdgraph.evaluators import Evaluator
from mdgraph.state import places_of
from mdgraph.system import System


@dataclass(frozen=True)
class Options:
    """How the engine computes; see `mdgraph.engine.Simulation`."""

    device: str | torch.device
    precision: str
    charge: float | None
    seed: int | None
    skin: float | None
    graph: str
    check: bool


class EngineMaker:
    """Makes engines for the same atoms, all with the same random numbers.

    Attributes:
        particles: the atoms.
        dynamics: the integrator.
    """

    def __init__(
        self, particles: Particles, dynamics: Dynamics, evaluator: Evaluator, options: Options
    ) -> None:
        self.particles, self.dynamics = particles, dynamics
        self._evaluator, self._options = evaluator, options
        self._seed = dynamics.seed() if options.seed is None else options.seed
        self._unchecked = options.check

    def make(self, positions: Array, box: Array, values: dict[str, float]) -> Simulation:
        """An engine at rest, with molecules in one piece; evaluates, and reads the device.

        Args:
            positions: (N, 3) A.
            box: (3, 3) A; counts where the topology is periodic.
            values: parameters of the integrator.

        Raises:
            InputError: see `Simulation`.
        """
        particles, options = self.particles, self._options
        if particles.box is not None and len(particles.bonds):
            positions = whole(positions, box, particles.bonds)
        engine = Simulation(
            self._structure(positions, box),
            self._evaluator,
            self.dynamics.integrator(values),
            device=options.device,
            precision=options.precision,
            seed=self._seed,
            skin=options.skin,
            graph=options.graph,
            check=self._unchecked,
            fixed=particles.fixed,
            remove_momentum=particles.remove_momentum,
        )
        self._unchecked = False
        return engine

    def _structure(self, positions: Array, box: Array) -> System:
        particles = self.particles
        periodic = particles.box is not None
        return System(
            numbers=particles.numbers,
            positions=positions,
            cell=box if periodic else np.zeros((3, 3)),
            pbc=np.full(3, periodic),
            masses=particles.masses,
            velocities=np.zeros_like(positions),
            charge=self._options.charge,
        )

    def check_unit(self, positions: Array, box: Array) -> None:
        """Raises InputError for positions (N, 3) or a box (3, 3) that are not in A."""
        check_unit(self._structure(positions, box), self.particles.bonds)


def place_(engine: Simulation, positions: Array) -> bool:
    """Evaluates at other positions (N, 3) in A; reads the device.

    Returns:
        Whether a list grew, so that the engine must `resume` before it runs again.

    Raises:
        InputError: positions that are not finite, two atoms at one place.
    """
    if not np.isfinite(positions).all():
        raise InputError("The positions are not finite; repair the structure.")
    before = [one.index for one in engine.calculation.lists]
    engine.state.place_(torch.tensor(positions))
    engine.calculation.compute(graphed=engine.graphed)
    engine.calculation.check_coincident()
    now = [one.index for one in engine.calculation.lists]
    return any(one is not other for one, other in zip(before, now, strict=True))


def host(tensor: Tensor) -> Array:
    """A copy on the host in float64; reads the device."""
    array: Array = tensor.to("cpu", torch.float64, copy=True).numpy()
    return array


def checkpoint(engine: Simulation) -> bytes:
    """Everything from which a run goes on with the same bits; reads the device."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        save_restart(engine, path)
        return path.read_bytes()


def start_of(content: bytes, atoms: int) -> tuple[Array, Array]:
    """Positions (N, 3) and cell (3, 3) of a checkpoint, A.

    Raises:
        FileError: not a checkpoint of mdgraph.
        InputError: it holds another number of atoms.
    """
    try:
        tensors = load(content)
        first = torch.zeros(len(tensors["positions"]), dtype=torch.int64)
        positions, cell = host(places_of(tensors, first)), host(tensors["cell"][0])
    except (SafetensorError, KeyError, IndexError, TypeError, ValueError, RuntimeError):
        raise FileError(
            "This is no checkpoint of mdgraph, as those of other Contexts are none; give one "
            "that this kind of Simulation wrote, or a State."
        ) from None
    if len(positions) != atoms:
        raise InputError(
            f"The checkpoint holds {len(positions)} atoms, the topology {atoms}; resume with the "
            "system it was made of."
        )
    return positions, cell


def resume_(engine: Simulation, content: bytes) -> None:
    """Continues an engine of the same system; raises as `load_restart_`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        path.write_bytes(content)
        try:
            load_restart_(engine, path)
        except (FileError, InputError) as error:
            raise type(error)(str(error).replace(str(path), "The checkpoint")) from None


logger = logging.getLogger(__name__)


class ContextSync:
    """Keeps the engine's state and that of a Context the same, copying as late as it can.

    Steps that were asked for are owed until a chunk of them has come together or somebody
    looks. The engine is made when positions are there, and again for another box.

    Attributes:
        context: the Context; this class calls it without the overrides of EngineContext.
        edits: what was written there after a `show` and the engine has not yet: box,
            positions given or moved by a minimiser, velocities, clock.
        periodic: whether the topology has a box.
    """

    def __init__(self, maker: EngineMaker) -> None:
        self.context: Any = None
        self._maker = maker
        self._engine: Simulation | None = None
        self._values: dict[str, float] = {}
        self._owed = 0
        self._behind = False
        self._grown = False
        self.edits: set[str] = set()
        self._shown: Array = np.zeros((0, 3))
        self._box = np.zeros((3, 3))  # nm, as the Context shows it
        self._rotation = np.eye(3)
        self.periodic = maker.particles.box is not None

    @property
    def timestep(self) -> float:
        """Of the next step, fs."""
        if self._engine is not None and self._maker.dynamics.own:
            return self._engine.timestep
        return self._maker.dynamics.timestep

    @property
    def step(self) -> int:
        """Steps done and owed."""
        if self._engine is None or "clock" in self.edits:
            return int(openmm.Context.getStepCount(self.context))
        return self._engine.step + self._owed

    def advance(self, steps: int) -> None:
        """Takes steps upon itself, and runs them once they make a chunk.

        Raises:
            SimulationError: see `Simulation.run`; the state is the last good one.
        """
        with EVALUATION_LOCK:
            engine = self.engine()
            values = self._parameters()
            if values != self._values:
                self.catch_up()
                engine.set(**values)
                self._values = values
            self._owed += steps
            self.catch_up(self._owed % engine.chunk)

    def catch_up(self, left: int = 0) -> None:
        """Runs the steps that are owed, but for so many; none are owed where that fails."""
        with EVALUATION_LOCK:
            if self._owed > left:
                steps, self._owed, self._behind = self._owed - left, 0, True
                self.engine().run(steps)
                self._owed = left

    def show(self) -> None:
        """Brings the Context up to the engine; reads the device if the engine has moved."""
        with EVALUATION_LOCK:
            self.catch_up()
            if not self._behind or self._engine is None:
                return
            state, context = self._engine.state, self.context
            positions, velocities = host(state.places()), host(state.velocities)
            if self.periodic:
                box, self._rotation = reduced(host(state.cell[0]))
                self._box = box / NANOMETRE
                openmm.Context.setPeriodicBoxVectors(context, *self._box)
            self._shown = positions @ self._rotation / NANOMETRE
            openmm.Context.setPositions(context, self._shown)
            openmm.Context.setVelocities(context, velocities @ self._rotation / SPEED)
            openmm.Context.setTime(context, self._engine.time / PICOSECOND)
            openmm.Context.setStepCount(context, self._engine.step)
            self._behind = False

    def evaluate(self, state: Any) -> tuple[float, Array]:
        """What the force in the Context calls: kJ/mol, and (N, 3) kJ/mol/nm; reads the device."""
        with EVALUATION_LOCK:
            if self._engine is None or self._owed or self._behind:
                raise InputError(
                    "The Context is older than the engine; go through the Simulation, as with "
                    "simulation.minimizeEnergy()."
                )
            if self.periodic:
                box = state.getPeriodicBoxVectors(asNumpy=True)._value
                if not np.array_equal(box, self._box):
                    self._behind = True  # whoever looks next finds the engine's box again
                    raise InputError(
                        "The engine tries no other boxes, as computeCurrentPressure would; take "
                        "simulation.engine.observables().pressure."
                    )
            positions = state.getPositions(asNumpy=True)._value
            if not np.array_equal(positions, self._shown):
                self._shown = positions.copy()
                self.edits.add("moved")
                self._place(self._engine, positions)
            own = self._engine.state
            forces = host(own.forces) @ self._rotation / FORCE
            return float(own.energy[0]) / KILOJOULE_PER_MOLE, forces

    def engine(self) -> Simulation:
        """The engine with everything that was written into the Context."""
        with EVALUATION_LOCK:
            return self._take() if self._engine is None or self.edits else self._engine

    def checkpoint(self) -> bytes:
        """See `checkpoints.checkpoint`."""
        with EVALUATION_LOCK:
            self.catch_up()
            return checkpoint(self.engine())

    def resume(self, content: bytes) -> None:
        """Goes on from a checkpoint; raises as `start_of` and `resume_`.

        Parameters are those of the integrator and the Context, as in OpenMM.
        """
        with EVALUATION_LOCK:
            positions, cell = start_of(content, len(self._maker.particles.numbers))
            engine = self._maker.make(positions, cell, self._parameters())
            resume_(engine, content)
            self._engine, self._values, self._owed, self._behind = engine, {}, 0, True
            self.edits.clear()
            self.show()

    def _parameters(self) -> dict[str, float]:
        barostat = self._maker.particles.barostat
        known = {} if barostat is None else dict(openmm.Context.getParameters(self.context))
        return self._maker.dynamics.values(known)

    def _take(self) -> Simulation:
        """Brings the engine up to the Context."""
        if self._engine is None and "positions" not in self.edits:
            raise InputError("There are no positions yet; give them to context.setPositions.")
        seen = openmm.Context.getState(self.context, positions=True, velocities=True)
        positions = seen.getPositions(asNumpy=True)._value.copy()
        given = seen.getPeriodicBoxVectors(asNumpy=True)._value.copy()
        box = given * NANOMETRE
        if self.edits & {"positions", "box"}:
            self._maker.check_unit(positions * NANOMETRE, box)
        engine = self._engine
        changed = self.periodic and not np.allclose(given, self._box, rtol=0.0, atol=1e-10)
        if engine is None or ("box" in self.edits and changed):
            engine = self._make(positions * NANOMETRE, box)
        elif self.edits & {"positions", "moved"}:
            self._place(engine, positions)
        self._shown, self._box = positions, given
        if "velocities" in self.edits:
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
        if self._grown or "clock" in self.edits:
            self._resume(engine)
        self.edits.clear()
        return engine

    def _place(self, engine: Simulation, positions: Array) -> None:
        """Evaluates at positions (N, 3) of the Context, nm."""
        self._grown |= place_(engine, positions * NANOMETRE @ self._rotation.T)

    def _resume(self, engine: Simulation) -> None:
        """Goes on with lists that grew, or at the time and step of the Context."""
        snapshot = engine.snapshot()
        if "clock" in self.edits:
            step = int(openmm.Context.getStepCount(self.context))
            time = openmm.Context.getTime(self.context)._value * PICOSECOND
            snapshot |= {"step": step, "clock": (step, time, engine.timestep)}
            snapshot["state"]["step"].fill_(step)
        engine.resume(snapshot, engine.degrees_of_freedom)
        self._grown = False

    def _make(self, positions: Array, box: Array) -> Simulation:
        """An engine that goes on where one with another box was."""
        values = self._parameters()
        engine, before = self._maker.make(positions, box, values), self._engine
        self._engine, self._rotation = engine, np.eye(3)
        self._behind = True  # molecules may have been made whole
        self.edits.add("velocities")
        if before is None:
            self._values = values
            self.edits.add("clock")
            return engine
        # Parameters come along with the rest, and `advance` sees whether they have changed.
        earlier, snapshot = before.snapshot(), engine.snapshot()
        snapshot |= {name: earlier[name] for name in ("step", "clock", "integrator")}
        snapshot["state"]["step"].fill_(before.step)
        engine.resume(snapshot, engine.degrees_of_freedom)
        return engine
