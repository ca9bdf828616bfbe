"""StochasticVelocityRescaling: canonical dynamics by one random factor for all velocities."""

from typing import ClassVar

import torch
from torch import Tensor

from mdgraph.arguments import checked, renamed_keywords
from mdgraph.engine.integrators.base import Evaluate, Integrator
from mdgraph.engine.kinetics import energy_of_end, kinetic_energy
from mdgraph.engine.random import THERMOSTAT, TRIES, chi_squared, gaussians
from mdgraph.engine.schedules import Value
from mdgraph.state import State
from mdgraph.units import ACCELERATION, BOLTZMANN


class StochasticVelocityRescaling(Integrator):
    """Canonical dynamics that conserves momentum and hardly changes diffusion.

    v <- v + dt f(x) / m
    x <- x + dt/2 v
    v <- alpha v
    x <- x + dt/2 v

    alpha^2 = c + (1 - c) (R^2 + S) kT / 2K + 2 R sqrt(c (1 - c) kT / 2K)
    sign of alpha = sign of R + sqrt(2 K c / ((1 - c) kT))

    The factor solves dK = (N_f kT/2 - K) dt / tau + 2 sqrt(K kT / (2 tau)) dW exactly, for a
    time step of any length. It acts in the middle of the step, like the noise of
    LangevinMiddle. At the end of a step `state.velocities` are those of its middle, where they
    have their canonical averages; positions of harmonic oscillators are sampled exactly.
    K + U - sum of (alpha^2 - 1) K is conserved as the energy is by VelocityVerlet: the sum
    is the heat that the bath has supplied, with K before each factor, and the first K is that
    of the end of the step.

    =========  ==================
    dt         `timestep`, fs
    x, v, f    `state.positions`, A; `state.velocities`, A/fs; `state.forces`, eV/A
    m          `state.masses`, amu
    kT         thermal energy at `temperature`, K
    tau        `tau`, fs
    c          exp(-dt / tau), `decay`
    K, U       kinetic energy and `state.energy`, eV
    N_f        degrees of freedom, `state.degrees`
    R          `normal`, a normal number of (seed, step, replica)
    S          `rest`, the sum of N_f - 1 squared normal numbers
    alpha      `factor`
    =========  ==================

    DOI 10.1063/1.2408420; in the middle of the step, DOI 10.1021/acs.jpca.9b02771.
    """

    name: ClassVar[str] = "stochastic velocity rescaling"
    has_kernels: ClassVar[bool] = True

    @renamed_keywords(relaxation="tau")
    @checked
    def __init__(self, timestep: float, temperature: Value, tau: Value = 100.0) -> None:
        super().__init__(timestep=timestep, temperature=temperature, tau=tau)

    def allocate(self, state: State) -> None:
        """See Integrator."""
        super().allocate(state)
        self._heat = torch.zeros_like(state.energy)
        self._now = torch.zeros_like(state.step)

    def coefficients(self, steps: Tensor, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """See Integrator."""
        state = self._state
        # Draws of the sum of squares count from 0 on.
        draw = torch.full_like(state.replica, TRIES)
        normal = gaussians(state.seed, steps, state.replica, draw, THERMOSTAT)[..., 0]
        rest = chi_squared(state.degrees - 1.0, state.seed, steps, state.replica, THERMOSTAT)
        return {
            "kick": ACCELERATION * values["timestep"],
            "drift": 0.5 * values["timestep"],
            "decay": torch.exp(-values["timestep"] / values["tau"]),
            "thermal": BOLTZMANN * values["temperature"],
            "normal": normal,
            "rest": rest,
        }

    def step_(self, state: State, evaluate: Evaluate) -> None:
        """See Integrator."""
        if self.by_kernels:
            self.move_by_kernels_(state)
            evaluate()
            return
        now = self.now()
        kick, drift = state.of_atoms(now["kick"]), state.of_atoms(now["drift"])
        state.velocities.addcmul_(kick * state.inverse_masses[:, None], state.forces)
        state.positions.addcmul_(drift, state.velocities)
        self.couple_(state, now)
        state.positions.addcmul_(drift, state.velocities)
        evaluate()
        state.step += 1

    def move_by_kernels_(self, state: State) -> None:
        """A step up to its evaluation, by kernels; does not sync."""
        from mdgraph.engine.kernels.thermostats import rescaling_step_

        rescaling_step_(state, self._schedules, self._heat, self._now)

    def couple_(self, state: State, now: dict[str, Tensor]) -> None:
        """Couples to the bath in the middle of a step: scales velocities, sums the heat."""
        kinetic = kinetic_energy(state)
        factor = rescaling_factor(
            kinetic, now["thermal"], now["decay"], now["normal"], now["rest"], state.degrees
        )
        state.velocities *= state.of_atoms(factor)
        self._heat += factor.square() * kinetic - kinetic

    def conserved_energy(self) -> Tensor | None:
        """See Integrator."""
        return energy_of_end(self._state, self.values()["timestep"]) - self._heat

    def tensors(self) -> dict[str, Tensor]:
        """See Integrator."""
        return super().tensors() | {"heat": self._heat}


def rescaling_factor(
    kinetic: Tensor,
    thermal: Tensor,
    decay: Tensor,
    normal: Tensor,
    rest: Tensor,
    degrees: Tensor,
) -> Tensor:
    """The factor alpha (S,) of StochasticVelocityRescaling; 1 without motion. Does not sync.

    Args:
        kinetic: K, eV.
        thermal: kT, eV.
        decay: c.
        normal: R.
        rest: S.
        degrees: N_f.
    """
    moving = (kinetic > 0.0) & (degrees > 0.0)
    ratio = 0.5 * thermal / torch.where(moving, kinetic, 1.0)
    root = torch.sqrt(decay) + normal * torch.sqrt((1.0 - decay) * ratio)
    square = root.square() + (1.0 - decay) * ratio * rest
    factor = torch.copysign(torch.sqrt(square), root)
    return torch.where(moving, factor, 1.0)
