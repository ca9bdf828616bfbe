"""Triton kernels of thermostats: Nose-Hoover chains and stochastic velocity rescaling."""

from collections.abc import Mapping
from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from mdgraph.engine.kernels.atoms import kick_
from mdgraph.engine.kernels.device import (
    direction,
    load_vectors,
    pushes,
    radius,
    store_vectors,
    uniform,
    value_at,
    words,
)
from mdgraph.engine.kernels.reductions import shares, total
from mdgraph.engine.random import THERMOSTAT, TRIES
from mdgraph.gpu.launch import launching_ahead, launching_on
from mdgraph.gpu.triton_jit import kernel, pdl_wait
from mdgraph.state import State
from mdgraph.units import BOLTZMANN

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators


_BOLTZMANN = tl.constexpr(BOLTZMANN)


@triton.jit
def _first(v, friction, push, half, quarter):
    """A variable under half a part of a step, with the friction of the one after it."""
    decay = tl.exp(-quarter * friction)
    return (v * decay + half * push) * decay


@triton.jit
def advanced(
    ratio, degrees, tau, time, weights, positions, velocities, chain, chains, PARTS: tl.constexpr
):
    """Positions and velocities of chains of three variables after a time, and the factor."""
    rate = 1.0 / (tau * tau)
    v0 = tl.load(velocities + chain)
    v1 = tl.load(velocities + chains + chain)
    v2 = tl.load(velocities + 2 * chains + chain)
    x0 = tl.load(positions + chain)
    x1 = tl.load(positions + chains + chain)
    x2 = tl.load(positions + 2 * chains + chain)
    scale = v0 * 0.0 + 1.0
    for number in range(PARTS):
        part = tl.load(weights + number) * time
        half = 0.5 * part
        quarter = 0.25 * part
        v2 = v2 + half * (v1 * v1 - rate)
        v1 = _first(v1, v2, degrees * v0 * v0 - rate, half, quarter)
        v0 = _first(v0, v1, (ratio * scale * scale - 1.0) * rate, half, quarter)
        scale = scale * tl.exp(-part * v0)
        x0 += part * v0
        x1 += part * v1
        x2 += part * v2
        v0 = _first(v0, v1, (ratio * scale * scale - 1.0) * rate, half, quarter)
        v1 = _first(v1, v2, degrees * v0 * v0 - rate, half, quarter)
        v2 = v2 + half * (v1 * v1 - rate)
    return x0, x1, x2, v0, v1, v2, scale


@triton.jit
def store_chain(pointer, chain, chains, a, b, c):
    """Writes the three variables of chains."""
    tl.store(pointer + chain, a)
    tl.store(pointer + chains + chain, b)
    tl.store(pointer + 2 * chains + chain, c)


@kernel
def _half_step_kernel(
    atoms_at,
    velocities,
    forces,
    inverse_masses,
    start,
    count,
    parts,
    degrees_in,
    timestep,
    temperature,
    relaxation,
    weights,
    positions_before,
    velocities_before,
    positions_after,
    velocities_after,
    step,
    now,
    systems,
    OPENS: tl.constexpr,
    STAGES: tl.constexpr,
    PARTS: tl.constexpr,
    ATOMS: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """Half a step of the chain; then kick and drift, or the count of the step.

    Every program moves the chain of its system, from one copy to another, and the first of a
    system writes it.
    """
    pdl_wait(USE_PDL)
    system, part = tl.program_id(0), tl.program_id(1)
    first = tl.load(start + system)
    number = tl.load(count + system)
    done = tl.load(step if OPENS else now)
    time = tl.load(timestep)
    degrees = tl.maximum(tl.load(degrees_in + system), 1.0)
    thermal = value_at(temperature, system, systems, done) * _BOLTZMANN
    tau = value_at(relaxation, system, systems, done)
    ratio = 2.0 * total(parts, system, 0, 1, PARTS) / (degrees * thermal)
    x0, x1, x2, v0, v1, v2, scale = advanced(
        ratio,
        degrees,
        tau,
        0.5 * time,
        weights,
        positions_before,
        velocities_before,
        system,
        systems,
        STAGES,
    )
    if part == 0:
        store_chain(positions_after, system, systems, x0, x1, x2)
        store_chain(velocities_after, system, systems, v0, v1, v2)
        if not OPENS and system == 0:
            tl.store(step, done + 1)
    for begin in range(part * ATOMS, number, PARTS * ATOMS):
        here = begin + tl.arange(0, ATOMS)
        valid = here < number
        atom = first + here
        vx, vy, vz = load_vectors(velocities, atom, valid)
        vx, vy, vz = scale * vx, scale * vy, scale * vz
        if OPENS:
            dx, dy, dz = pushes(forces, inverse_masses, atom, valid, 0.5 * time)
            vx, vy, vz = vx + dx, vy + dy, vz + dz
            x, y, z = load_vectors(atoms_at, atom, valid)
            x, y, z = x + time * vx, y + time * vy, z + time * vz
            store_vectors(atoms_at, atom, valid, x, y, z)
        store_vectors(velocities, atom, valid, vx, vy, vz)


def half_step_(
    state: State,
    parts: Tensor,
    schedules: Mapping[str, Tensor],
    weights: Tensor,
    now: Tensor,
    *,
    before: tuple[Tensor, Tensor],
    after: tuple[Tensor, Tensor],
    opens: bool,
) -> None:
    """The part of a NoseHooverChains step before the evaluation, or after it and its kick.

    Does not sync.

    Args:
        state: velocities are scaled; before the evaluation they are also kicked and positions
            drift, after it the step is counted.
        parts: (S, PARTS, 1) of the kinetic energy.
        schedules: (4, S) float64, `timestep`, `temperature` and `tau`.
        weights: (stages,) float64, fractions of a step.
        now: () int64, see `kick_`; read after the evaluation.
        before: positions and velocities (3, S) float64 of the chains.
        after: the same after this part, in other buffers; written.
        opens: whether this is the part before the evaluation.
    """
    group = state.grouping
    with launching_on(state.device):
        _half_step_kernel[parts.shape[:2]](
            state.positions,
            state.velocities,
            state.forces,
            state.inverse_masses,
            group.start,
            group.counts,
            parts,
            state.degrees,
            schedules["timestep"],
            schedules["temperature"],
            schedules["tau"],
            weights,
            *before,
            *after,
            state.step,
            now,
            group.systems,
            OPENS=opens,
            STAGES=len(weights),
            **shares(state),
            **launching_ahead(state.device, group.atoms),
        )


_STREAM = tl.constexpr(THERMOSTAT)
_TRIES = tl.constexpr(TRIES)
DRAWS: Final = triton.next_power_of_2(TRIES + 1)
"""Lanes that draw for a system: the tries of the sum of squares, and the normal number."""


@triton.jit
def _drawn(seed, step, replica, degrees, DRAWS: tl.constexpr):
    """A normal number, and a sum of so many squared ones less one, as `chi_squared` draws it."""
    draw = tl.arange(0, DRAWS)
    first, second, third, fourth = words(seed, step, replica, draw.to(tl.int64), _STREAM)
    normal = radius(first) * direction(second)
    shape = tl.maximum(degrees - 1.0, 0.0) * 0.5
    small = shape < 1.0
    reduced = tl.where(small, shape + 1.0, shape) - 1.0 / 3.0
    offset = tl.maximum(normal / tl.sqrt(reduced * 9.0) + 1.0, 0.0)
    cube = offset * offset * offset
    # The logarithm of 0 is minus infinity: such a try is refused.
    logarithm = tl.where(cube > 0.0, tl.log(tl.where(cube > 0.0, cube, 1.0)), float("-inf"))
    bound = 0.5 * normal * normal + reduced * (1.0 - cube + logarithm)
    accepted = (tl.log(uniform(third)) < bound) & (draw < _TRIES)
    rank = tl.min(tl.where(accepted, draw, _TRIES - 1), 0)
    gamma = reduced * tl.sum(tl.where(draw == rank, cube, 0.0), 0)
    boost = tl.sum(tl.where(draw == 0, tl.log(uniform(fourth)), 0.0), 0)
    boost = tl.exp(boost / tl.maximum(shape, 1e-300))
    rest = tl.where(small, 2.0 * gamma * boost, 2.0 * gamma)
    return tl.sum(tl.where(draw == _TRIES, normal, 0.0), 0), rest


@triton.jit
def rescaling_factor(kinetic, decay, thermal, degrees, seed, step, replica, DRAWS: tl.constexpr):
    """The factor for velocities of a system, as `velocity_rescaling.rescaling_factor`."""
    normal, rest = _drawn(seed, step, replica, degrees, DRAWS)
    moving = (kinetic > 0.0) & (degrees > 0.0)
    ratio = 0.5 * thermal / tl.where(moving, kinetic, 1.0)
    root = tl.sqrt(decay) + normal * tl.sqrt((1.0 - decay) * ratio)
    square = root * root + (1.0 - decay) * ratio * rest
    factor = tl.where(root < 0.0, -tl.sqrt(square), tl.sqrt(square))
    return tl.where(moving, factor, 1.0)


@kernel
def _rescale_kernel(
    positions,
    velocities,
    start,
    count,
    parts,
    degrees,
    seed,
    replica,
    timestep,
    temperature,
    relaxation,
    heat,
    step,
    now,
    systems,
    DRAWS: tl.constexpr,
    PARTS: tl.constexpr,
    ATOMS: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """Half a drift, the factor, half a drift, the count of the step."""
    pdl_wait(USE_PDL)
    system, part = tl.program_id(0), tl.program_id(1)
    first = tl.load(start + system)
    number = tl.load(count + system)
    done = tl.load(now)
    time = tl.load(timestep)
    kinetic = total(parts, system, 0, 1, PARTS)
    factor = rescaling_factor(
        kinetic,
        tl.exp(-time / value_at(relaxation, system, systems, done)),
        value_at(temperature, system, systems, done) * _BOLTZMANN,
        tl.load(degrees + system),
        tl.load(seed),
        done,
        tl.load(replica + system),
        DRAWS,
    )
    if part == 0:
        before = tl.load(heat + system)
        tl.store(heat + system, before + (factor * factor * kinetic - kinetic))
        if system == 0:
            tl.store(step, done + 1)
    half = 0.5 * time
    for begin in range(part * ATOMS, number, PARTS * ATOMS):
        here = begin + tl.arange(0, ATOMS)
        valid = here < number
        atom = first + here
        x, y, z = load_vectors(positions, atom, valid)
        vx, vy, vz = load_vectors(velocities, atom, valid)
        nx, ny, nz = factor * vx, factor * vy, factor * vz
        x, y, z = x + half * (vx + nx), y + half * (vy + ny), z + half * (vz + nz)
        store_vectors(positions, atom, valid, x, y, z)
        store_vectors(velocities, atom, valid, nx, ny, nz)


def rescaling_step_(
    state: State, schedules: Mapping[str, Tensor], heat: Tensor, now: Tensor
) -> None:
    """A StochasticVelocityRescaling step without the evaluation; does not sync.

    Args:
        state: positions and velocities change, the step is counted.
        schedules: (4, S) float64, `timestep`, `temperature` and `tau`.
        heat: (S,) float64 eV; the heat from the bath is added.
        now: () int64, see `kick_`.
    """
    group = state.grouping
    parts = kick_(state, schedules["timestep"], 1.0, now)
    with launching_on(state.device):
        _rescale_kernel[parts.shape[:2]](
            state.positions,
            state.velocities,
            group.start,
            group.counts,
            parts,
            state.degrees,
            state.seed,
            state.replica,
            schedules["timestep"],
            schedules["temperature"],
            schedules["tau"],
            heat,
            state.step,
            now,
            group.systems,
            DRAWS=DRAWS,
            **shares(state),
            **launching_ahead(state.device, group.atoms),
        )
