"""Coupling: ASE's Atoms and the simulation that moves them, compared and brought together."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase import units as ase_units

from mdgraph.drivers.ase.calculator import MDGraphCalculator
from mdgraph.drivers.ase.choice import calculator_of
from mdgraph.drivers.ase.constraints import Held, held_by
from mdgraph.drivers.ase.results import results_of, volume_of
from mdgraph.drivers.ase.seen import Array, Seen
from mdgraph.drivers.turns import EVALUATING
from mdgraph.engine import Integrator, Simulation
from mdgraph.engine.lengths import check_lengths
from mdgraph.errors import SimulationError
from mdgraph.io.atoms import from_ase
from mdgraph.system import System


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
        self._seen: Seen | None = None
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

    def held(self) -> Held:
        """What stays where it is; raises InputError for constraints that cannot be."""
        found = held_by(self.atoms)
        return Held((), centre=True) if self.centre and not found.fixed else found

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
        with EVALUATING:
            simulation = self.take()
            try:
                simulation.choose(of, [steps])
                return simulation.run(steps)
            except (SimulationError, KeyboardInterrupt):
                self.write()
                raise

    def take(self) -> Simulation:
        """The simulation, at what the atoms hold now. It evaluates only if they were changed."""
        with EVALUATING:
            calculator, integrator, held = (
                calculator_of(self.atoms),
                self._integrator(),
                self.held(),
            )
            now, before = Seen.of(self.atoms, held), self._seen
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
        self._seen = Seen.of(atoms, self.held())

    def _system(self, held: Held) -> System:
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
        self, calculator: MDGraphCalculator, integrator: Integrator, held: Held, same: bool
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

    def _move(self, simulation: Simulation, before: Seen, now: Seen, held: Held) -> None:
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
