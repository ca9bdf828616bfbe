"""Triton kernels that move and kick atoms: velocity Verlet, Langevin and thermostatted steps.

One lane moves one atom. Arithmetic is float64, whatever the dtype of the state.
"""

from collections.abc import Mapping
from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from mdgraph.engine.kernels.device import (
    add_heat,
    gaussians,
    load_vectors,
    pushes,
    store_last,
    store_vectors,
    value_at,
)
from mdgraph.engine.kernels.reductions import of_all_ranks, parts_of, shares
from mdgraph.engine.random import DYNAMICS
from mdgraph.gpu.launch import launching_ahead, launching_on
from mdgraph.gpu.triton_jit import kernel, pdl_wait
from mdgraph.state import State
from mdgraph.units import ACCELERATION, BOLTZMANN, KINETIC_ENERGY

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators


_ATOMS: Final = 128
"""Atoms of a program."""

_THERMAL = tl.constexpr(BOLTZMANN * ACCELERATION)
_STREAM = tl.constexpr(DYNAMICS)
_KINETIC_ENERGY = tl.constexpr(KINETIC_ENERGY)


@kernel
def _verlet_kernel(
    positions,
    velocities,
    forces,
    inverse_masses,
    step,
    timestep,
    atoms,
    OPENS: tl.constexpr,
    ATOMS: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """Half a kick; before the evaluation also a drift, after it the count of the step."""
    pdl_wait(USE_PDL)
    atom = tl.program_id(0) * ATOMS + tl.arange(0, ATOMS)
    valid = atom < atoms
    # The time step has no ramp: its schedule begins with the number of all steps and systems.
    time = tl.load(timestep)
    vx, vy, vz = load_vectors(velocities, atom, valid)
    dx, dy, dz = pushes(forces, inverse_masses, atom, valid, 0.5 * time)
    vx, vy, vz = vx + dx, vy + dy, vz + dz
    store_vectors(velocities, atom, valid, vx, vy, vz)
    if OPENS:
        x, y, z = load_vectors(positions, atom, valid)
        store_vectors(positions, atom, valid, x + time * vx, y + time * vy, z + time * vz)
    elif tl.program_id(0) == 0:
        tl.store(step, tl.load(step) + 1)


@kernel
def _langevin_kernel(
    positions,
    velocities,
    forces,
    masses,
    inverse_masses,
    heat,
    system,
    replica,
    number,
    seed,
    step,
    arrived,
    timestep,
    temperature,
    friction,
    atoms,
    systems,
    ATOMS: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """Kick, half a drift, friction and noise, half a drift, and the count of the step.

    The heat of an atom, eV, is what friction and noise add to its kinetic energy, with velocities
    as they are stored.
    """
    pdl_wait(USE_PDL)
    atom = tl.program_id(0) * ATOMS + tl.arange(0, ATOMS)
    valid = atom < atoms
    own = tl.load(system + atom, mask=valid, other=0)
    index = tl.load(number + atom, mask=valid, other=0)
    now = tl.load(step)
    time = tl.load(timestep)
    vx, vy, vz = load_vectors(velocities, atom, valid)
    dx, dy, dz = pushes(forces, inverse_masses, atom, valid, time)
    vx, vy, vz = vx + dx, vy + dy, vz + dz
    x, y, z = load_vectors(positions, atom, valid)
    decay = tl.exp(-1e-3 * value_at(friction, own, systems, now) * time)
    thermal = value_at(temperature, own, systems, now) * _THERMAL
    inverse = tl.load(inverse_masses + atom, mask=valid, other=0.0).to(tl.float64)
    width = tl.sqrt(thermal * (1.0 - decay * decay)) * tl.sqrt(inverse)
    rx, ry, rz = gaussians(tl.load(seed), now, tl.load(replica + own), index, _STREAM)
    nx, ny, nz = decay * vx + width * rx, decay * vy + width * ry, decay * vz + width * rz
    half = 0.5 * time
    x, y, z = x + half * (vx + nx), y + half * (vy + ny), z + half * (vz + nz)
    store_vectors(positions, atom, valid, x, y, z)
    store_vectors(velocities, atom, valid, nx, ny, nz)
    add_heat(heat, velocities, masses, atom, valid, vx, vy, vz, nx, ny, nz)
    store_last(step, now + 1, arrived)


def verlet_(state: State, schedules: Mapping[str, Tensor], *, opens: bool) -> None:
    """The part of a VelocityVerlet step before or after the evaluation; does not sync.

    Args:
        state: positions and velocities change; the part after the evaluation counts the step.
        schedules: (4, S) float64, `timestep`.
        opens: whether this is the part before the evaluation.
    """
    atoms = state.grouping.atoms
    with launching_on(state.device):
        _verlet_kernel[(triton.cdiv(atoms, _ATOMS),)](
            state.positions,
            state.velocities,
            state.forces,
            state.inverse_masses,
            state.step,
            schedules["timestep"],
            atoms,
            OPENS=opens,
            ATOMS=_ATOMS,
            **launching_ahead(state.device, atoms),
        )


def langevin_(state: State, schedules: Mapping[str, Tensor], heat: Tensor, arrived: Tensor) -> None:
    """A LangevinMiddle step without the evaluation; does not sync.

    Args:
        state: positions and velocities change, the step is counted.
        schedules: (4, S) float64, `timestep`, `temperature` and `friction`.
        heat: (N,) float64, eV, to which what the bath gives each atom is added.
        arrived: () int32, see `store_last`.
    """
    atoms = state.grouping.atoms
    with launching_on(state.device):
        _langevin_kernel[(triton.cdiv(atoms, _ATOMS),)](
            state.positions,
            state.velocities,
            state.forces,
            state.masses,
            state.inverse_masses,
            heat,
            state.grouping.index,
            state.replica,
            state.atom,
            state.seed,
            state.step,
            arrived,
            schedules["timestep"],
            schedules["temperature"],
            schedules["friction"],
            atoms,
            state.grouping.systems,
            ATOMS=_ATOMS,
            **launching_ahead(state.device, atoms),
        )


@kernel
def _kick_kernel(
    velocities,
    forces,
    masses,
    inverse_masses,
    start,
    count,
    timestep,
    step,
    now,
    parts,
    friction,
    FRACTION: tl.constexpr,
    SLOWED: tl.constexpr,
    PARTS: tl.constexpr,
    ATOMS: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """Kicks for a fraction of the time step and writes parts (S, PARTS) of the energy, eV."""
    pdl_wait(USE_PDL)
    system, part = tl.program_id(0), tl.program_id(1)
    first = tl.load(start + system)
    number = tl.load(count + system)
    time = tl.load(timestep) * FRACTION
    if (system == 0) & (part == 0):
        tl.store(now, tl.load(step))
    if SLOWED:
        decay = tl.load(friction + 4 * system)
        gain = tl.load(friction + 4 * system + 1)
        decay_z = tl.load(friction + 4 * system + 2)
        gain_z = tl.load(friction + 4 * system + 3)
    energy = tl.zeros([ATOMS], tl.float64)
    for begin in range(part * ATOMS, number, PARTS * ATOMS):
        here = begin + tl.arange(0, ATOMS)
        valid = here < number
        atom = first + here
        vx, vy, vz = load_vectors(velocities, atom, valid)
        dx, dy, dz = pushes(forces, inverse_masses, atom, valid, time)
        if SLOWED:
            vx, vy, vz = decay * vx, decay * vy, decay_z * vz
            dx, dy, dz = gain * dx, gain * dy, gain_z * dz
        vx, vy, vz = vx + dx, vy + dy, vz + dz
        store_vectors(velocities, atom, valid, vx, vy, vz)
        mass = tl.load(masses + atom, mask=valid, other=0.0).to(tl.float64)
        energy += mass * (vx * vx + vy * vy + vz * vz)
    tl.store(parts + system * PARTS + part, tl.sum(energy, 0) * (0.5 * _KINETIC_ENERGY))


def kick_(
    state: State,
    timestep: Tensor,
    fraction: float,
    now: Tensor,
    friction: Tensor | None = None,
) -> Tensor:
    """Adds forces to velocities; returns parts (S, PARTS, 1) of the kinetic energy in eV.

    Does not sync.

    Args:
        state: its velocities change.
        timestep: (4, S) float64, schedule.
        fraction: of the time step.
        now: () int64, gets a copy of the step counter, so the next kernel can read the copy and
            write the counter.
        friction: (S, 4) float64, factors of the velocities and of the kick along x and y, and
            along z.
    """
    group, parts = state.grouping, parts_of(state, 1)
    with launching_on(state.device):
        _kick_kernel[parts.shape[:2]](
            state.velocities,
            state.forces,
            state.masses,
            state.inverse_masses,
            group.start,
            group.counts,
            timestep,
            state.step,
            now,
            parts,
            parts if friction is None else friction,
            FRACTION=fraction,
            SLOWED=friction is not None,
            **shares(state),
            **launching_ahead(state.device, group.atoms),
        )
    return of_all_ranks(state, parts)
