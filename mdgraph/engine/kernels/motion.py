"""Kernels that move atoms: what VelocityVerlet and LangevinMiddle do around an evaluation.

One lane moves one atom. Numbers are computed in float64, whatever type the state keeps.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from collections.abc import Mapping
from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from mdgraph.engine.kernels.random import gaussians
from mdgraph.engine.kernels.schedules import store_last, value_at
from mdgraph.engine.kernels.vectors import load_vectors, pushes, store_vectors
from mdgraph.engine.random import DYNAMICS
from mdgraph.neighbors.compilation import kernel
from mdgraph.neighbors.launching import launching_ahead, launching_on
from mdgraph.neighbors.succession import wait_for_previous
from mdgraph.state import State
from mdgraph.units import ACCELERATION, BOLTZMANN

_ATOMS: Final = 128
"""Atoms of a program."""

_THERMAL = tl.constexpr(BOLTZMANN * ACCELERATION)
_STREAM = tl.constexpr(DYNAMICS)


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
    EARLY: tl.constexpr = False,
):
    """Half a kick, and before the evaluation a drift, after it the count of the step."""
    wait_for_previous(EARLY)
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
    inverse_masses,
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
    EARLY: tl.constexpr = False,
):
    """Kick, half a drift, friction and noise, half a drift, and the count of the step."""
    wait_for_previous(EARLY)
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
    store_last(step, now + 1, arrived)


def verlet_(state: State, schedules: Mapping[str, Tensor], *, opens: bool) -> None:
    """The part of a VelocityVerlet step before the evaluation, or after it; does not sync.

    Args:
        state: positions and velocities move; the closing part counts the step.
        schedules: (4, S) float64, `timestep`.
        opens: whether it is the part before.
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


def langevin_(state: State, schedules: Mapping[str, Tensor], arrived: Tensor) -> None:
    """All of a LangevinMiddle step but the evaluation, with its noise; does not sync.

    Args:
        state: positions and velocities move, the step is counted.
        schedules: (4, S) float64, `timestep`, `temperature` and `friction`.
        arrived: () int32, see `store_last`.
    """
    atoms = state.grouping.atoms
    with launching_on(state.device):
        _langevin_kernel[(triton.cdiv(atoms, _ATOMS),)](
            state.positions,
            state.velocities,
            state.forces,
            state.inverse_masses,
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
