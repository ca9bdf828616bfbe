"""Kernels of MartynaTobiasKlein: of each system, its chains, rate of strain and cell; atoms."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from collections.abc import Mapping
from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from mdgraph.engine.kernels.chains import advanced, store_chain
from mdgraph.engine.kernels.kicks import kick_
from mdgraph.engine.kernels.matrices import load_rows, store_rows, volume
from mdgraph.engine.kernels.schedules import value_at
from mdgraph.engine.kernels.sums import kinetic_parts, total
from mdgraph.engine.kernels.vectors import load_vectors, pushes, store_vectors
from mdgraph.neighbors.compilation import kernel
from mdgraph.neighbors.launching import launching_ahead, launching_on
from mdgraph.neighbors.succession import wait_for_previous
from mdgraph.neighbors.vectors import added, scaled
from mdgraph.state import State
from mdgraph.units import BOLTZMANN

_ATOMS: Final = 128
"""Atoms of a program."""

_BOLTZMANN = tl.constexpr(BOLTZMANN)


@triton.jit
def _sinhc(x):
    """sinh(x) / x, by its series."""
    square = x * x
    return 1.0 + square / 6.0 * (1.0 + square / 20.0 * (1.0 + square / 42.0))


@triton.jit
def _pushed(rate, twice, virial, cell, pressure, mass, time, system):
    """The rate of strain after half a step, and the vectors of the cell."""
    a, b, c = load_rows(cell, system)
    x, y, z = load_rows(virial, system)
    force = twice + x[0] + y[1] + z[2] - 3.0 * pressure * volume(a, b, c)
    return rate + 0.5 * time * force / mass, a, b, c


@kernel
def _system_kernel(
    parts,
    virial,
    cell,
    degrees_in,
    timestep,
    temperature,
    pressure_in,
    relaxation,
    cell_relaxation,
    weights,
    positions,
    velocities,
    rates,
    friction,
    factors,
    step,
    now,
    systems,
    OPENS: tl.constexpr,
    STAGES: tl.constexpr,
    PARTS: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """One program a system: half a step of chains and rate; then the cell, or the count.

    Writes `factors` (S, 3) for velocities and positions, and for the drift, and `friction`
    (S, 2) of `kick_`.
    """
    wait_for_previous(EARLY)
    system = tl.program_id(0)
    done = tl.load(step if OPENS else now)
    time = tl.load(timestep)
    thermal = value_at(temperature, system, systems, done) * _BOLTZMANN
    pressure = value_at(pressure_in, system, systems, done)
    cell_tau = value_at(cell_relaxation, system, systems, done)
    degrees = tl.maximum(tl.load(degrees_in + system), 1.0)
    coupling = 1.0 + 3.0 / degrees
    mass = (degrees + 3.0) * thermal * cell_tau * cell_tau
    twice = 2.0 * total(parts, system, 0, 1, PARTS)
    rate = tl.load(rates + system)
    if not OPENS:
        rate, a, b, c = _pushed(rate, coupling * twice, virial, cell, pressure, mass, time, system)
    # The chain of the atoms in one lane, that of the cell in the other.
    lane = tl.arange(0, 2)
    chain = system + lane * systems
    freedom = tl.where(lane == 0, degrees, 1.0)
    ratio = tl.where(lane == 0, twice, mass * rate * rate) / (freedom * thermal)
    tau = tl.where(lane == 0, value_at(relaxation, system, systems, done), cell_tau)
    x0, x1, x2, v0, v1, v2, scale = advanced(
        ratio, freedom, tau, 0.5 * time, weights, positions, velocities, chain, 2 * systems, STAGES
    )
    store_chain(positions, chain, 2 * systems, x0, x1, x2)
    store_chain(velocities, chain, 2 * systems, v0, v1, v2)
    factor = tl.sum(tl.where(lane == 0, scale, 0.0), 0)
    rate = rate * tl.sum(tl.where(lane == 1, scale, 0.0), 0)
    if OPENS:
        twice = coupling * twice * factor * factor
        rate, a, b, c = _pushed(rate, twice, virial, cell, pressure, mass, time, system)
        slowing = 0.25 * coupling * rate * time
        decay = tl.exp(-2.0 * slowing)
        tl.store(friction + 2 * system, decay)
        tl.store(friction + 2 * system + 1, tl.exp(-slowing) * _sinhc(slowing))
        factor = factor * decay
        stretch = tl.exp(rate * time)
        store_rows(cell, system, scaled(a, stretch), scaled(b, stretch), scaled(c, stretch))
        tl.store(factors + 3 * system + 1, stretch)
        half = 0.5 * (rate * time)
        tl.store(factors + 3 * system + 2, tl.exp(half) * _sinhc(half) * time)
    elif system == 0:
        tl.store(step, done + 1)
    tl.store(factors + 3 * system, factor)
    tl.store(rates + system, rate)


@kernel
def _move_kernel(
    positions,
    velocities,
    forces,
    inverse_masses,
    system,
    timestep,
    friction,
    factors,
    atoms,
    OPENS: tl.constexpr,
    ATOMS: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """Scales velocities; before the evaluation also kicks them, and stretches and drifts."""
    wait_for_previous(EARLY)
    atom = tl.program_id(0) * ATOMS + tl.arange(0, ATOMS)
    valid = atom < atoms
    own = tl.load(system + atom, mask=valid, other=0)
    u = scaled(load_vectors(velocities, atom, valid), tl.load(factors + 3 * own))
    if OPENS:
        time = 0.5 * tl.load(timestep) * tl.load(friction + 2 * own + 1)
        u = added(u, pushes(forces, inverse_masses, atom, valid, time))
        x = scaled(load_vectors(positions, atom, valid), tl.load(factors + 3 * own + 1))
        x = added(x, scaled(u, tl.load(factors + 3 * own + 2)))
        store_vectors(positions, atom, valid, x[0], x[1], x[2])
    store_vectors(velocities, atom, valid, u[0], u[1], u[2])


class BarostatKernels:
    """The halves of a MartynaTobiasKlein step, with the numbers that pass between them."""

    def __init__(
        self,
        state: State,
        schedules: Mapping[str, Tensor],
        chains: tuple[Tensor, Tensor, Tensor],
        rate: Tensor,
    ) -> None:
        """Makes room.

        Args:
            state: what moves.
            schedules: (4, S) float64, all parameters of the integrator.
            chains: weights (stages,), positions and velocities (3, 2 S) float64; those of the
                atoms of all systems, then those of their cells.
            rate: (S,) float64 1/fs, of strain.
        """
        self._state, self._schedules, self._rate = state, schedules, rate
        self._weights, *self._chains = chains
        self._friction = state.energy.new_zeros(state.grouping.systems, 2)
        self._factors = state.energy.new_zeros(state.grouping.systems, 3)
        self._now = state.step.new_zeros(())

    def half_step_(self, *, opens: bool) -> None:
        """What comes before the evaluation, or after it; does not sync."""
        state, given, group = self._state, self._schedules, self._state.grouping
        early = launching_ahead(state.device, group.atoms)
        if opens:
            parts = kinetic_parts(state, state.velocities)
        else:
            parts = kick_(state, given["timestep"], 0.5, self._now, self._friction)
        names = ("timestep", "temperature", "pressure", "relaxation", "cell_relaxation")
        with launching_on(state.device):
            _system_kernel[(group.systems,)](
                parts,
                state.virial,
                state.cell,
                state.degrees,
                *(given[name] for name in names),
                self._weights,
                *self._chains,
                self._rate,
                self._friction,
                self._factors,
                state.step,
                self._now,
                group.systems,
                OPENS=opens,
                STAGES=len(self._weights),
                PARTS=parts.shape[1],
                num_warps=1,
                **early,
            )
            _move_kernel[(triton.cdiv(group.atoms, _ATOMS),)](
                state.positions,
                state.velocities,
                state.forces,
                state.inverse_masses,
                group.index,
                given["timestep"],
                self._friction,
                self._factors,
                group.atoms,
                OPENS=opens,
                ATOMS=_ATOMS,
                **early,
            )
