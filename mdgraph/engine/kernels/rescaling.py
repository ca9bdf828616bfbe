"""Kernels of StochasticVelocityRescaling: a factor for each system, drawn where it acts."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from collections.abc import Mapping
from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from mdgraph.engine.kernels.kicks import kick_
from mdgraph.engine.kernels.random import direction, radius, uniform, words
from mdgraph.engine.kernels.schedules import value_at
from mdgraph.engine.kernels.sums import shares, total
from mdgraph.engine.kernels.vectors import load_vectors, store_vectors
from mdgraph.engine.random import THERMOSTAT, TRIES
from mdgraph.neighbors.compilation import kernel
from mdgraph.neighbors.launching import launching_ahead, launching_on
from mdgraph.neighbors.succession import wait_for_previous
from mdgraph.state import State
from mdgraph.units import BOLTZMANN

_BOLTZMANN = tl.constexpr(BOLTZMANN)
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
    EARLY: tl.constexpr = False,
):
    """Half a drift, the factor, half a drift, the count of the step."""
    wait_for_previous(EARLY)
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
    """All of a StochasticVelocityRescaling step but the evaluation; does not sync.

    Args:
        state: positions and velocities move, the step is counted.
        schedules: (4, S) float64, `timestep`, `temperature` and `relaxation`.
        heat: (S,) float64 eV, takes what the factors put in.
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
            schedules["relaxation"],
            heat,
            state.step,
            now,
            group.systems,
            DRAWS=DRAWS,
            **shares(state),
            **launching_ahead(state.device, group.atoms),
        )
