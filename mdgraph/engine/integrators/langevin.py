"""LangevinMiddle: canonical dynamics with friction and noise on every atom."""

from typing import ClassVar

import torch
from torch import Tensor

from mdgraph.arguments import checked
from mdgraph.engine.integrators.base import BLOCK, Evaluate, Integrator
from mdgraph.engine.kinetics import energy_of_end, remove_momentum_
from mdgraph.engine.random import DYNAMICS, gaussians
from mdgraph.engine.schedules import Value
from mdgraph.state import State
from mdgraph.units import ACCELERATION, BOLTZMANN, KINETIC_ENERGY


class LangevinMiddle(Integrator):
    """Canonical dynamics by the middle scheme (leapfrog form of BAOAB).

    v       <- v + dt f(x) / m
    x       <- x + dt/2 v
    v       <- a v + sqrt(kT (1 - a^2) / m) R,   a = exp(-gamma dt)
    x       <- x + dt/2 v

    At the end of a step `state.velocities` are those of its middle, where kinetic energy and
    pressure have their canonical averages; positions are sampled as by BAOAB.
    K + U - sum of (K' - K'') is conserved as the energy is by VelocityVerlet (the effective
    energy, DOI 10.1103/PhysRevE.75.056707): K'' and K' are before and after friction and noise,
    the sum is the heat of the bath, and the first K is that of the end of the step.

    =========  ==================
    dt         `timestep`, fs
    x, v, f    `state.positions`, A; `state.velocities`, A/fs; `state.forces`, eV/A
    m          `state.masses`, amu
    gamma      `friction`, 1/ps
    kT         thermal energy at `temperature`, K
    R          normal numbers of (seed, step, replica, atom)
    a          `decay`, from 0 to 1
    K, U       kinetic energy and `state.energy`, eV
    =========  ==================

    DOI 10.1021/acs.jpca.9b02771.
    """

    name: ClassVar[str] = "Langevin middle"
    conserves_momentum: ClassVar[bool] = False
    has_kernels: ClassVar[bool] = True

    @checked
    def __init__(self, timestep: float, temperature: Value, friction: Value = 1.0) -> None:
        super().__init__(timestep=timestep, temperature=temperature, friction=friction)

    def allocate(self, state: State) -> None:
        """See Integrator."""
        super().allocate(state)
        self._heat = state.positions.new_zeros(len(state.positions), dtype=torch.float64)
        if self.by_kernels:
            self._arrived = torch.zeros((), dtype=torch.int32, device=state.device)
            return
        shape = (BLOCK, *state.positions.shape)
        self._noise = torch.zeros(shape, dtype=state.dtype, device=state.device)
        self._replica = state.replica[state.grouping.index]

    def coefficients(self, steps: Tensor, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """See Integrator."""
        timestep = values["timestep"]
        decay = torch.exp(-1e-3 * values["friction"] * timestep)
        return {"kick": ACCELERATION * timestep, "drift": 0.5 * timestep, "decay": decay}

    def prepare_block_(self, steps: Tensor) -> None:
        """Draws the noise of the block at its temperatures."""
        super().prepare_block_(steps)
        state, values = self._state, self._values(steps)
        decay = self.coefficients(steps, values)["decay"]
        width = torch.sqrt(BOLTZMANN * ACCELERATION * values["temperature"] * (1.0 - decay**2))
        noise = gaussians(state.seed, steps, self._replica, state.atom, DYNAMICS)
        noise *= width[:, state.grouping.index, None] * torch.sqrt(state.inverse_masses)[:, None]
        self._noise.copy_(noise)

    def step_(self, state: State, evaluate: Evaluate) -> None:
        """See Integrator."""
        if self.by_kernels:
            from mdgraph.engine.kernels.atoms import langevin_

            langevin_(state, self._schedules, self._heat, self._arrived)
            evaluate()
            return
        rows, noise = self.rows(self._table, self._noise)
        kick, drift, decay = (state.of_atoms(row) for row in rows)
        state.velocities.addcmul_(kick * state.inverse_masses[:, None], state.forces)
        state.positions.addcmul_(drift, state.velocities)
        before = state.velocities.double().square().sum(1)
        torch.addcmul(noise, decay, state.velocities, out=state.velocities)
        gained = state.velocities.double().square().sum(1) - before
        self._heat.addcmul_(state.masses.double(), gained, value=0.5 * KINETIC_ENERGY)
        state.positions.addcmul_(drift, state.velocities)
        evaluate()
        state.step += 1

    def remove_momentum_(self, state: State, due: Tensor) -> None:
        """See Integrator; what the bath gave to the centre of mass goes back to it."""
        remove_momentum_(state, due, self._heat)

    def conserved_energy(self) -> Tensor | None:
        """See Integrator."""
        state = self._state
        return energy_of_end(state, self.values()["timestep"]) - state.sum(self._heat)

    def tensors(self) -> dict[str, Tensor]:
        """See Integrator."""
        return super().tensors() | {"heat": self._heat}
