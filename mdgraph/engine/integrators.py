"""Integrators: advance a state by one time step in place, capturable.

At the start and the end of a step, `state.forces` belong to `state.positions`.
"""

import math
from collections.abc import Callable
from typing import Protocol

import torch

from mdgraph.engine.random import DYNAMICS, gaussians
from mdgraph.errors import InputError
from mdgraph.state import State
from mdgraph.units import ACCELERATION, BOLTZMANN

Evaluate = Callable[[], None]
"""Brings lists, energy, forces and virial up to the positions of the state."""


class Integrator(Protocol):
    """What a simulation needs of an integrator.

    A simulation works with a copy of its own, so one integrator may serve several, and
    attributes set after a simulation was made do not change it.

    Attributes:
        timestep: fs.
        temperature: K of the bath, or None without one.
        conserves_momentum: whether total momentum, and of an isolated molecule angular
            momentum, stay what they were.
    """

    timestep: float
    temperature: float | None
    conserves_momentum: bool

    def allocate(self, state: State) -> None:
        """Makes device buffers for this state; called once before the first step."""
        ...

    def prepare_(self, step: int) -> None:
        """Called before every step with its number; may refill buffers, does not sync."""
        ...

    def step_(self, state: State, evaluate: Evaluate) -> None:
        """One step; static shapes, does not sync."""
        ...

    def settings(self) -> dict[str, float | str]:
        """What goes into the record of a run."""
        ...


def checked_temperature(kelvin: float) -> float:
    """A temperature that can be; raises InputError for any other."""
    if not (math.isfinite(kelvin) and kelvin >= 0.0):
        raise InputError(f"The temperature is {kelvin} K; it must be a number not below zero.")
    return float(kelvin)


def _positive(value: float, name: str, unit: str) -> float:
    if not (math.isfinite(value) and value > 0.0):
        raise InputError(f"The {name} is {value} {unit}; it must be a number above zero.")
    return float(value)


class VelocityVerlet:
    """Microcanonical dynamics, second order and time reversible.

    v(t + dt/2) = v(t) + dt/2 f(t) / m
    x(t + dt)   = x(t) + dt v(t + dt/2)
    v(t + dt)   = v(t + dt/2) + dt/2 f(t + dt) / m

    =========  ==================
    dt         `timestep`, fs
    x, v, f    `state.positions`, `state.velocities`, `state.forces`
    m          `state.masses`
    =========  ==================

    DOI 10.1063/1.442716.
    """

    temperature: float | None = None
    conserves_momentum = True

    def __init__(self, timestep: float) -> None:
        self.timestep = _positive(timestep, "time step", "fs")

    def allocate(self, state: State) -> None:
        """See Integrator."""
        self._kick = (0.5 * self.timestep * ACCELERATION / state.masses)[:, None]

    def prepare_(self, step: int) -> None:
        """Nothing to prepare."""

    def step_(self, state: State, evaluate: Evaluate) -> None:
        """See Integrator."""
        state.velocities += self._kick * state.forces
        state.positions += self.timestep * state.velocities
        evaluate()
        state.velocities += self._kick * state.forces
        state.step += 1

    def settings(self) -> dict[str, float | str]:
        """See Integrator."""
        return {"integrator": "velocity Verlet", "timestep_fs": self.timestep}


class LangevinMiddle:
    """Canonical dynamics by the middle scheme (leapfrog form of BAOAB).

    v       <- v + dt f(x) / m
    x       <- x + dt/2 v
    v       <- a v + sqrt(kT (1 - a^2) / m) R,   a = exp(-gamma dt)
    x       <- x + dt/2 v

    Velocities belong to the middle of the step, where kinetic energy and pressure have
    their canonical averages; positions sample as BAOAB's do.

    =========  ==================
    dt         `timestep`, fs
    gamma      `friction`, 1/ps
    T          `temperature`, K
    R          normal numbers of (seed, step, replica, atom)
    a          `_decay`
    =========  ==================

    DOI 10.1021/acs.jpca.9b02771.
    """

    conserves_momentum = False
    _BLOCK = 32
    """Steps whose noise is drawn at once: many small kernels, shared by that many steps."""

    def __init__(self, timestep: float, temperature: float, friction: float = 1.0) -> None:
        self.timestep = _positive(timestep, "time step", "fs")
        self.friction = _positive(friction, "friction", "1/ps")
        self.temperature: float | None = checked_temperature(temperature)

    def allocate(self, state: State) -> None:
        """See Integrator."""
        assert self.temperature is not None
        self._state = state
        self._kick = (self.timestep * ACCELERATION / state.masses)[:, None]
        self._decay = math.exp(-self.friction * 1e-3 * self.timestep)
        spread = BOLTZMANN * self.temperature * ACCELERATION / state.masses
        self._width = torch.sqrt(spread * (1.0 - self._decay**2))[:, None]
        shape = (self._BLOCK, *state.positions.shape)
        self._noise = torch.zeros(shape, dtype=state.dtype, device=state.device)
        self._replica = state.replica[state.grouping.index]
        self._steps = torch.arange(self._BLOCK, device=state.device)[:, None]
        self._block: int | None = None

    def prepare_(self, step: int) -> None:
        """Draws the noise of the block of steps that this step lies in."""
        block = step // self._BLOCK
        if block != self._block:
            steps = self._steps + block * self._BLOCK
            state = self._state
            noise = gaussians(state.seed, steps, self._replica, state.atom, DYNAMICS)
            self._noise.copy_(noise)
            self._block = block

    def step_(self, state: State, evaluate: Evaluate) -> None:
        """See Integrator."""
        noise = self._noise.index_select(0, (state.step % self._BLOCK)[None])[0]
        state.velocities += self._kick * state.forces
        state.positions += 0.5 * self.timestep * state.velocities
        state.velocities.mul_(self._decay).add_(self._width * noise)
        state.positions += 0.5 * self.timestep * state.velocities
        evaluate()
        state.step += 1

    def settings(self) -> dict[str, float | str]:
        """See Integrator."""
        assert self.temperature is not None
        return {
            "integrator": "Langevin middle",
            "timestep_fs": self.timestep,
            "temperature_K": self.temperature,
            "friction_per_ps": self.friction,
        }
