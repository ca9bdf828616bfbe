"""NoseHooverChains: deterministic canonical dynamics."""

from typing import ClassVar

import torch
from torch import Tensor

from mdgraph.arguments import checked, renamed_keywords
from mdgraph.engine.integrators.base import Chains, Evaluate, Integrator
from mdgraph.engine.kinetics import kinetic_energy
from mdgraph.engine.schedules import Value
from mdgraph.state import State
from mdgraph.units import ACCELERATION, BOLTZMANN


class NoseHooverChains(Integrator):
    """Canonical dynamics, deterministic and time reversible, with a conserved energy.

    x' = v
    v' = f / m - v_1 v
    with the equations of `Chains` for v_1, and n = N_f

    A step is half a step of the chain, a step of VelocityVerlet, and half a step of the chain.
    K + U + the energy of the chain is conserved. The chain only scales the total momentum, so
    a momentum of zero stays zero.

    =========  ==================
    dt         `timestep`, fs
    x, v, f    `state.positions`, A; `state.velocities`, A/fs; `state.forces`, eV/A
    m          `state.masses`, amu
    T          `temperature` of the chain, K
    tau        `tau` of the chain, fs; best near the periods of the system's own motion
    N_f        degrees of freedom, `state.degrees`
    v_1        velocity of the chain's first variable, 1/fs
    K, U       kinetic energy and `state.energy`, eV
    =========  ==================

    DOI 10.1063/1.463940, 10.1080/00268979600100761.
    """

    name: ClassVar[str] = "Nose-Hoover chains"
    warm: ClassVar[bool] = True
    has_kernels: ClassVar[bool] = True

    @renamed_keywords(relaxation="tau")
    @checked
    def __init__(self, timestep: float, temperature: Value, tau: Value = 50.0) -> None:
        super().__init__(timestep=timestep, temperature=temperature, tau=tau)

    def allocate(self, state: State) -> None:
        """See Integrator."""
        super().allocate(state)
        self._chains = Chains(state.grouping.systems, state.device)
        if self.by_kernels:
            # A kernel may not write what its other programs read, so the first half of a step
            # writes the chains to these buffers.
            self._scratch = torch.zeros_like(self._chains.positions).repeat(2, 1, 1)
            self._now = torch.zeros_like(state.step)

    def coefficients(self, steps: Tensor, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """See Integrator."""
        thermal = BOLTZMANN * values["temperature"]
        return {"timestep": values["timestep"], "thermal": thermal, "tau": values["tau"]}

    def step_(self, state: State, evaluate: Evaluate) -> None:
        """See Integrator."""
        if self.by_kernels:
            self._step_by_kernels_(state, evaluate)
            return
        now = self.now()
        drift = state.of_atoms(now["timestep"])
        kick = 0.5 * ACCELERATION * drift * state.inverse_masses[:, None]
        self._thermostat_(state, now)
        state.velocities.addcmul_(kick, state.forces)
        state.positions.addcmul_(drift, state.velocities)
        evaluate()
        state.velocities.addcmul_(kick, state.forces)
        self._thermostat_(state, now)
        state.step += 1

    def _step_by_kernels_(self, state: State, evaluate: Evaluate) -> None:
        from mdgraph.engine.kernels.atoms import kick_
        from mdgraph.engine.kernels.reductions import kinetic_parts
        from mdgraph.engine.kernels.thermostats import half_step_

        own, scratch = self._chains, (self._scratch[0], self._scratch[1])
        buffers = (own.positions, own.velocities)
        common = (self._schedules, own.weights, self._now)
        parts = kinetic_parts(state, state.velocities)
        half_step_(state, parts, *common, before=buffers, after=scratch, opens=True)
        evaluate()
        parts = kick_(state, self._schedules["timestep"], 0.5, self._now)
        half_step_(state, parts, *common, before=scratch, after=buffers, opens=False)

    def _thermostat_(self, state: State, now: dict[str, Tensor]) -> None:
        degrees = state.degrees.clamp(min=1.0)
        ratio = 2.0 * kinetic_energy(state) / (degrees * now["thermal"])
        factor = self._chains.advance_(ratio, degrees, now["tau"], 0.5 * now["timestep"])
        state.velocities *= state.of_atoms(factor)

    def conserved_energy(self) -> Tensor | None:
        """See Integrator."""
        state, values = self._state, self.values()
        thermal = BOLTZMANN * values["temperature"]
        chain = self._chains.energy(state.degrees.clamp(min=1.0), thermal, values["tau"])
        return state.energy + kinetic_energy(state) + chain

    def tensors(self) -> dict[str, Tensor]:
        """See Integrator."""
        return super().tensors() | self._chains.tensors()
