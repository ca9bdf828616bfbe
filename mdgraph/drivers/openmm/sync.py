"""ContextSync: keeps an OpenMM Context and the engine the same; and their checkpoints."""

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

from mdgraph.drivers.lock import EVALUATION_LOCK
from mdgraph.drivers.openmm.dynamics import Dynamics
from mdgraph.drivers.openmm.topology import (
    FORCE,
    Array,
    Particles,
    check_unit,
    reduced,
)
from mdgraph.engine import Simulation
from mdgraph.engine.calculation import host_array
from mdgraph.engine.kinetics import remove_momentum_
from mdgraph.engine.multiple_time_steps import checked_multiple
from mdgraph.engine.restart import load_restart_, save_restart
from mdgraph.errors import FileError, InputError
from mdgraph.evaluators import Evaluator
from mdgraph.state import places_of
from mdgraph.system import System, make_whole
from mdgraph.units import KILOJOULE_PER_MOLE, NANOMETRE, NANOMETRE_PER_PICOSECOND, PICOSECOND

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """The user's options; see `mdgraph.engine.Simulation`."""

    device: str | torch.device
    precision: str
    charge: float | None
    seed: int | None
    skin: float | None
    graph: str
    check: bool
    inner_potential: Any = None
    inner_steps: int = 1


class EngineFactory:
    """Makes simulations of the engine for the same atoms, all with the same random numbers.

    Attributes:
        particles: the atoms.
        dynamics: their integrator.
    """

    def __init__(
        self, particles: Particles, dynamics: Dynamics, evaluator: Evaluator, options: Options
    ) -> None:
        self.particles, self.dynamics = particles, dynamics
        self._evaluator, self._options = evaluator, options
        self._seed = dynamics.seed() if options.seed is None else options.seed
        self._unchecked = options.check

    @property
    def together(self) -> int:
        """Steps from one evaluation of the potential to the next."""
        return 1 if self._options.inner_potential is None else self._options.inner_steps

    def make(self, positions: Array, box: Array, values: dict[str, float]) -> Simulation:
        """A simulation with velocities of 0 and molecules in one piece; evaluates, and syncs.

        Args:
            positions: (N, 3) A.
            box: (3, 3) A; ignored if the topology has no box.
            values: parameters of the integrator; see `Dynamics.values`.

        Raises:
            InputError: see `Simulation`.
        """
        particles, options = self.particles, self._options
        inner: dict[str, Any] = {}
        if options.inner_potential is not None:
            inner = {
                "inner_potential": options.inner_potential,
                "inner_steps": options.inner_steps,
            }
        if particles.box is not None and len(particles.bonds):
            positions = make_whole(positions, box, particles.bonds)
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
            # A CMMotionRemover of OpenMM acts at every step unless it is told otherwise.
            remove_momentum=-(-particles.remove_momentum // self.together) * self.together,
            **inner,
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
    """Moves the atoms to positions (N, 3) in A and evaluates; syncs.

    Returns:
        Whether a list grew; the engine must then `resume` before it runs again.

    Raises:
        InputError: positions that are not finite, two atoms at one place.
    """
    if not np.isfinite(positions).all():
        raise InputError("The positions are not finite; repair the structure.")
    before = [pairs.index for pairs in engine.calculation.lists]
    engine.state.place_(torch.tensor(positions))
    engine.calculation.compute(graphed=engine.graphed)
    engine.calculation.check_coincident()
    now = [pairs.index for pairs in engine.calculation.lists]
    return any(old is not new for old, new in zip(before, now, strict=True))


def checkpoint(engine: Simulation) -> bytes:
    """A restart file as bytes, from which a run goes on with the same bits; syncs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        save_restart(engine, path)
        return path.read_bytes()


def structure_in(content: bytes, atoms: int) -> tuple[Array, Array]:
    """Positions (N, 3) and cell (3, 3) in a checkpoint, A.

    Raises:
        FileError: the bytes are not a checkpoint of mdgraph.
        InputError: the checkpoint has another number of atoms.
    """
    try:
        tensors = load(content)
        first = torch.zeros(len(tensors["positions"]), dtype=torch.int64)
        positions, cell = host_array(places_of(tensors, first)), host_array(tensors["cell"][0])
    except (SafetensorError, KeyError, IndexError, TypeError, ValueError, RuntimeError):
        raise FileError(
            "This is not a checkpoint of mdgraph, which reads none of other Contexts; give one "
            "that this kind of Simulation wrote, or a State."
        ) from None
    if len(positions) != atoms:
        raise InputError(
            f"The checkpoint holds {len(positions)} atoms, the topology {atoms}; resume with the "
            "system it was made of."
        )
    return positions, cell


def resume_(engine: Simulation, content: bytes) -> None:
    """Loads a checkpoint into an engine of the same system; raises as `load_restart_`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        path.write_bytes(content)
        try:
            load_restart_(engine, path)
        except (FileError, InputError) as error:
            raise type(error)(str(error).replace(str(path), "The checkpoint")) from None


class ContextSync:
    """Keeps the states of the engine and of a Context the same, and copies as late as possible.

    Steps are pending until they fill a chunk or the state is read. The engine is made when the
    Context has positions, and made again for another box.

    Attributes:
        context: the Context; this class calls it without the overrides of EngineContext.
        edits: changes of the Context since `update_context` that the engine does not have yet:
            `box`, `positions`, `moved` (positions, by a minimiser), `velocities`, `clock`.
        periodic: whether the topology has a box.
    """

    def __init__(self, factory: EngineFactory) -> None:
        self.context: Any = None
        self._factory = factory
        self._engine: Simulation | None = None
        self._values: dict[str, float] = {}
        self._pending = 0
        self._context_stale = False
        self._lists_grew = False
        self.edits: set[str] = set()
        self._positions: Array = np.zeros((0, 3))  # nm, of the Context
        self._box = np.zeros((3, 3))  # nm, of the Context
        self._rotation = np.eye(3)
        self.periodic = factory.particles.box is not None

    @property
    def timestep(self) -> float:
        """The time step, fs."""
        if self._engine is not None and self._factory.dynamics.native:
            return self._engine.timestep
        return self._factory.dynamics.timestep

    @property
    def together(self) -> int:
        """Steps from one evaluation of the potential to the next."""
        return self._factory.together

    @property
    def step(self) -> int:
        """Steps done and pending."""
        if self._engine is None or "clock" in self.edits:
            return int(openmm.Context.getStepCount(self.context))
        return self._engine.step + self._pending

    def advance(self, steps: int) -> None:
        """Adds pending steps, and runs those that fill a chunk.

        Raises:
            InputError: steps were read that two potentials have not taken together.
            SimulationError: see `Simulation.run`; the state is the last good one.
        """
        with EVALUATION_LOCK:
            engine = self.engine()
            values = self._parameters()
            if values != self._values:
                self.run_pending()
                engine.set(**values)
                self._values = values
            self._pending += steps
            self.run_pending(self._pending % engine.chunk)

    def run_pending(self, left: int = 0) -> None:
        """Runs pending steps, leaving `left`; an error drops all of them."""
        with EVALUATION_LOCK:
            if self._pending > left:
                steps, self._pending, self._context_stale = self._pending - left, 0, True
                self.engine().run(steps)
                self._pending = left

    def update_context(self) -> None:
        """Brings the Context up to the engine; syncs if the engine has moved."""
        with EVALUATION_LOCK:
            self.run_pending()
            if not self._context_stale or self._engine is None:
                return
            state, context = self._engine.state, self.context
            positions, velocities = host_array(state.places()), host_array(state.velocities)
            if self.periodic:
                box, self._rotation = reduced(host_array(state.cell[0]))
                self._box = box / NANOMETRE
                openmm.Context.setPeriodicBoxVectors(context, *self._box)
            self._positions = positions @ self._rotation / NANOMETRE
            openmm.Context.setPositions(context, self._positions)
            openmm.Context.setVelocities(
                context, velocities @ self._rotation / NANOMETRE_PER_PICOSECOND
            )
            openmm.Context.setTime(context, self._engine.time / PICOSECOND)
            openmm.Context.setStepCount(context, self._engine.step)
            self._context_stale = False

    def evaluate(self, state: Any) -> tuple[float, Array]:
        """Energy, kJ/mol, and forces (N, 3), kJ/mol/nm, for the force of the Context; syncs.

        Raises:
            InputError: the engine is ahead of the Context, or the box is another one.
        """
        with EVALUATION_LOCK:
            if self._engine is None or self._pending or self._context_stale:
                raise InputError(
                    "The Context is older than the engine; go through the Simulation, as with "
                    "simulation.minimizeEnergy()."
                )
            if self.periodic:
                box = state.getPeriodicBoxVectors(asNumpy=True)._value
                if not np.array_equal(box, self._box):
                    self._context_stale = True  # the next reader gets the engine's box again
                    raise InputError(
                        "The engine tries no other boxes, as computeCurrentPressure would; take "
                        "simulation.engine.observables().pressure."
                    )
            positions = state.getPositions(asNumpy=True)._value
            if not np.array_equal(positions, self._positions):
                self._positions = positions.copy()
                self.edits.add("moved")
                self._place(self._engine, positions)
            own = self._engine.state
            evaluator = self._engine.calculation.evaluator
            forces = host_array(evaluator.forces(own)) @ self._rotation / FORCE
            return float(own.energy[0]) / KILOJOULE_PER_MOLE, forces

    def engine(self) -> Simulation:
        """The engine, brought up to the Context; raises InputError without positions."""
        with EVALUATION_LOCK:
            return self._update_engine() if self._engine is None or self.edits else self._engine

    def checkpoint(self) -> bytes:
        """A restart file of the engine as bytes; syncs."""
        with EVALUATION_LOCK:
            self.run_pending()
            return checkpoint(self.engine())

    def resume(self, content: bytes) -> None:
        """Loads a checkpoint; raises as `structure_in` and `resume_`.

        The parameters stay those of the integrator and the Context, as in OpenMM.
        """
        with EVALUATION_LOCK:
            positions, cell = structure_in(content, len(self._factory.particles.numbers))
            engine = self._factory.make(positions, cell, self._parameters())
            resume_(engine, content)
            self._engine, self._values, self._pending, self._context_stale = engine, {}, 0, True
            self.edits.clear()
            self.update_context()

    def _parameters(self) -> dict[str, float]:
        barostat = self._factory.particles.barostat
        parameters = {} if barostat is None else dict(openmm.Context.getParameters(self.context))
        return self._factory.dynamics.values(parameters)

    def _update_engine(self) -> Simulation:
        """Brings the engine up to the Context."""
        if self._engine is None and "positions" not in self.edits:
            raise InputError("There are no positions yet; give them to context.setPositions.")
        state = openmm.Context.getState(self.context, positions=True, velocities=True)
        positions = state.getPositions(asNumpy=True)._value.copy()
        vectors = state.getPeriodicBoxVectors(asNumpy=True)._value.copy()
        box = vectors * NANOMETRE
        if self.edits & {"positions", "box"}:
            self._factory.check_unit(positions * NANOMETRE, box)
        engine = self._engine
        changed = self.periodic and not np.allclose(vectors, self._box, rtol=0.0, atol=1e-10)
        if engine is None or ("box" in self.edits and changed):
            engine = self._new_engine(positions * NANOMETRE, box)
        elif self.edits & {"positions", "moved"}:
            self._place(engine, positions)
        self._positions, self._box = positions, vectors
        if "velocities" in self.edits:
            velocities = (
                state.getVelocities(asNumpy=True)._value
                * NANOMETRE_PER_PICOSECOND
                @ self._rotation.T
            )
            engine.state.velocities.copy_(torch.tensor(velocities))
            if self._factory.particles.fixed:
                engine.state.fix_(self._factory.particles.fixed)
                self._context_stale = True
            if engine.remove_momentum:
                remove_momentum_(engine.state)
                self._context_stale = True
            engine.count_degrees_of_freedom()
            logger.info("Degrees of freedom: %s", engine.degrees_text)
        if self._lists_grew or "clock" in self.edits:
            self._resume(engine)
        self.edits.clear()
        return engine

    def _place(self, engine: Simulation, positions: Array) -> None:
        """Evaluates at positions (N, 3) of the Context, nm."""
        self._lists_grew |= place_(engine, positions * NANOMETRE @ self._rotation.T)

    def _resume(self, engine: Simulation) -> None:
        """Resumes with lists that grew, or at the time and step of the Context."""
        snapshot = engine.snapshot()
        if "clock" in self.edits:
            step = int(openmm.Context.getStepCount(self.context))
            checked_multiple(step, 0, "The step count", engine.together)
            time = openmm.Context.getTime(self.context)._value * PICOSECOND
            snapshot |= {"step": step, "clock": (step, time, engine.timestep)}
            snapshot["state"]["step"].fill_(step)
        engine.resume(snapshot, engine.degrees_of_freedom)
        self._lists_grew = False

    def _new_engine(self, positions: Array, box: Array) -> Simulation:
        """A new engine, which goes on from the one with another box, if there was one."""
        values = self._parameters()
        engine, before = self._factory.make(positions, box, values), self._engine
        self._engine, self._rotation = engine, np.eye(3)
        self._context_stale = True  # molecules may have been made whole
        self.edits.add("velocities")
        if before is None:
            self._values = values
            self.edits.add("clock")
            return engine
        # The snapshot brings the old parameters; `advance` sets those that changed.
        earlier, snapshot = before.snapshot(), engine.snapshot()
        snapshot |= {name: earlier[name] for name in ("step", "clock", "integrator")}
        snapshot["state"]["step"].fill_(before.step)
        engine.resume(snapshot, engine.degrees_of_freedom)
        return engine
