"""The engine for what a Context holds."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mdgraph.drivers.openmm.boxes import Array, whole
from mdgraph.drivers.openmm.dynamics import Dynamics
from mdgraph.drivers.openmm.lengths import check_unit
from mdgraph.drivers.openmm.particles import Particles
from mdgraph.engine import Simulation
from mdgraph.errors import InputError
from mdgraph.evaluators import Evaluator
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
