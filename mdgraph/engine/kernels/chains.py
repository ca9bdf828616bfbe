"""Kernels of Nose-Hoover chains: their motion, and the halves of a step with them."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from collections.abc import Mapping

import triton
import triton.language as tl
from torch import Tensor

from mdgraph.engine.kernels.schedules import value_at
from mdgraph.engine.kernels.sums import shares, total
from mdgraph.engine.kernels.vectors import load_vectors, pushes, store_vectors
from mdgraph.neighbors.compilation import kernel
from mdgraph.neighbors.launching import launching_ahead, launching_on
from mdgraph.neighbors.succession import wait_for_previous
from mdgraph.state import State
from mdgraph.units import BOLTZMANN

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
    EARLY: tl.constexpr = False,
):
    """Half a step of the chain; then kick and drift, or the count of the step.

    Every program moves the chain of its system, from one copy to another, and the first of a
    system writes it.
    """
    wait_for_previous(EARLY)
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
    """What NoseHooverChains does before the evaluation, or after it and its kick; no sync.

    Args:
        state: velocities are scaled; at the opening they are kicked and positions drift, at
            the closing the step is counted.
        parts: (S, PARTS, 1) of the kinetic energy.
        schedules: (4, S) float64, `timestep`, `temperature` and `relaxation`.
        weights: (stages,) float64 of a step.
        now: () int64, see `kick_`; read at the closing.
        before: positions and velocities (3, S) float64 of the chains.
        after: as `before`, other memory, written.
        opens: whether it is the part before.
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
            schedules["relaxation"],
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
