"""A kernel for the kick of a thermostatted step, which also sums the kinetic energy."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton.language as tl
from torch import Tensor

from mdgraph.engine.kernels.sums import parts_of, shares
from mdgraph.engine.kernels.vectors import load_vectors, pushes, store_vectors
from mdgraph.neighbors.compilation import kernel
from mdgraph.neighbors.launching import launching_ahead, launching_on
from mdgraph.neighbors.succession import wait_for_previous
from mdgraph.state import State
from mdgraph.units import KINETIC_ENERGY

_KINETIC_ENERGY = tl.constexpr(KINETIC_ENERGY)


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
    EARLY: tl.constexpr = False,
):
    """Kicks for a fraction of the time step and writes parts (S, PARTS) of the energy, eV."""
    wait_for_previous(EARLY)
    system, part = tl.program_id(0), tl.program_id(1)
    first = tl.load(start + system)
    number = tl.load(count + system)
    time = tl.load(timestep) * FRACTION
    if (system == 0) & (part == 0):
        tl.store(now, tl.load(step))
    if SLOWED:
        decay = tl.load(friction + 2 * system)
        time = time * tl.load(friction + 2 * system + 1)
    energy = tl.zeros([ATOMS], tl.float64)
    for begin in range(part * ATOMS, number, PARTS * ATOMS):
        here = begin + tl.arange(0, ATOMS)
        valid = here < number
        atom = first + here
        vx, vy, vz = load_vectors(velocities, atom, valid)
        if SLOWED:
            vx, vy, vz = decay * vx, decay * vy, decay * vz
        dx, dy, dz = pushes(forces, inverse_masses, atom, valid, time)
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
    """Kicks velocities; returns parts (S, PARTS, 1) of the kinetic energy. Does not sync.

    Args:
        state: its velocities change.
        timestep: (4, S) float64, schedule.
        fraction: of the time step.
        now: () int64, takes a copy of the step counter, so that the next kernel may read one
            and write the other.
        friction: (S, 2) float64, factors for velocities and for what forces add to them.
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
    return parts
