"""VelocityVerlet: microcanonical dynamics."""

from typing import ClassVar

from torch import Tensor

from mdgraph.arguments import checked
from mdgraph.engine.integrators.base import Evaluate, Integrator
from mdgraph.engine.kinetics import kinetic_energy
from mdgraph.state import State
from mdgraph.units import ACCELERATION


class VelocityVerlet(Integrator):
    """Microcanonical dynamics, second order and time reversible.

    v(t + dt/2) = v(t) + dt/2 f(t) / m
    x(t + dt)   = x(t) + dt v(t + dt/2)
    v(t + dt)   = v(t + dt/2) + dt/2 f(t + dt) / m

    K + U is conserved.

    =========  ==================
    dt         `timestep`, fs
    x, v, f    `state.positions`, A; `state.velocities`, A/fs; `state.forces`, eV/A
    m          `state.masses`, amu
    K, U       kinetic energy and `state.energy`, eV
    =========  ==================

    DOI 10.1063/1.442716.
    """

    name: ClassVar[str] = "velocity Verlet"
    has_kernels: ClassVar[bool] = True

    @checked
    def __init__(self, timestep: float) -> None:
        super().__init__(timestep=timestep)

    def coefficients(self, steps: Tensor, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """See Integrator."""
        timestep = values["timestep"]
        return {"kick": 0.5 * ACCELERATION * timestep, "drift": timestep}

    def step_(self, state: State, evaluate: Evaluate) -> None:
        """See Integrator."""
        if self.by_kernels:
            from mdgraph.engine.kernels.atoms import verlet_

            verlet_(state, self._schedules, opens=True)
            evaluate()
            verlet_(state, self._schedules, opens=False)
            return
        kick, drift = (state.of_atoms(value) for value in self.now().values())
        kick = kick * state.inverse_masses[:, None]
        state.velocities.addcmul_(kick, state.forces)
        state.positions.addcmul_(drift, state.velocities)
        evaluate()
        state.velocities.addcmul_(kick, state.forces)
        state.step += 1

    def conserved_energy(self) -> Tensor:
        """See Integrator: the total energy."""
        return self._state.energy + kinetic_energy(self._state)
