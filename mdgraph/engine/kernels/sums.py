"""Kernels that sum over the atoms of each system: kinetic energy and momentum.

A few programs share a system. Each sums its share in a fixed order in float64 and writes a
number of its own, a part; whoever reads the parts adds them in their order. So sums repeat
bit for bit, and one system of many atoms keeps as many multiprocessors busy as many systems.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from mdgraph.engine.kernels.vectors import load_vectors, store_vectors
from mdgraph.neighbors.compilation import kernel
from mdgraph.neighbors.launching import launching_on
from mdgraph.state import State
from mdgraph.units import KINETIC_ENERGY

_WIDEST: Final = 256
"""Atoms that a program takes at a time."""

_MOST: Final = 64
"""Programs of a system."""

_KINETIC_ENERGY = tl.constexpr(KINETIC_ENERGY)


def shares(state: State) -> dict[str, int]:
    """PARTS, programs of a system, and ATOMS that each takes at a time; both powers of two."""
    largest = state.grouping.largest
    width = min(_WIDEST, max(32, triton.next_power_of_2(largest)))
    return {
        "PARTS": min(_MOST, triton.next_power_of_2(triton.cdiv(largest, width))),
        "ATOMS": width,
    }


def parts_of(state: State, columns: int) -> Tensor:
    """Room for the parts (S, PARTS, columns) of sums, float64, not filled."""
    shape = (state.grouping.systems, shares(state)["PARTS"], columns)
    return torch.empty(shape, dtype=torch.float64, device=state.device)


@triton.jit
def total(parts, system, column, COLUMNS: tl.constexpr, PARTS: tl.constexpr):
    """One sum of a system from its parts (S, PARTS, COLUMNS)."""
    place = (system * PARTS + tl.arange(0, PARTS)) * COLUMNS + column
    return tl.sum(tl.load(parts + place), 0)


@kernel
def _energy_kernel(
    velocities, masses, start, count, parts, PARTS: tl.constexpr, ATOMS: tl.constexpr
):
    """Parts (S, PARTS) of the kinetic energy, eV."""
    system, part = tl.program_id(0), tl.program_id(1)
    first = tl.load(start + system)
    number = tl.load(count + system)
    energy = tl.zeros([ATOMS], tl.float64)
    for begin in range(part * ATOMS, number, PARTS * ATOMS):
        here = begin + tl.arange(0, ATOMS)
        valid = here < number
        x, y, z = load_vectors(velocities, first + here, valid)
        mass = tl.load(masses + first + here, mask=valid, other=0.0).to(tl.float64)
        energy += mass * (x * x + y * y + z * z)
    tl.store(parts + system * PARTS + part, tl.sum(energy, 0) * (0.5 * _KINETIC_ENERGY))


@kernel
def _tensor_kernel(
    velocities, masses, start, count, parts, PARTS: tl.constexpr, ATOMS: tl.constexpr
):
    """Parts (S, PARTS, 9) of the kinetic tensor, eV."""
    system, part = tl.program_id(0), tl.program_id(1)
    first = tl.load(start + system)
    number = tl.load(count + system)
    zero = tl.zeros([ATOMS], tl.float64)
    xx, yy, zz, yz, xz, xy = zero, zero, zero, zero, zero, zero
    for begin in range(part * ATOMS, number, PARTS * ATOMS):
        here = begin + tl.arange(0, ATOMS)
        valid = here < number
        x, y, z = load_vectors(velocities, first + here, valid)
        mass = tl.load(masses + first + here, mask=valid, other=0.0).to(tl.float64)
        mass = mass * _KINETIC_ENERGY
        xx += mass * x * x
        yy += mass * y * y
        zz += mass * z * z
        yz += mass * y * z
        xz += mass * x * z
        xy += mass * x * y
    out = parts + (system * PARTS + part) * 9
    tl.store(out, tl.sum(xx, 0))
    tl.store(out + 4, tl.sum(yy, 0))
    tl.store(out + 8, tl.sum(zz, 0))
    offside = tl.sum(yz, 0)
    tl.store(out + 5, offside)
    tl.store(out + 7, offside)
    offside = tl.sum(xz, 0)
    tl.store(out + 2, offside)
    tl.store(out + 6, offside)
    offside = tl.sum(xy, 0)
    tl.store(out + 1, offside)
    tl.store(out + 3, offside)


@kernel
def _momentum_kernel(
    velocities, masses, start, count, wanted, parts, PARTS: tl.constexpr, ATOMS: tl.constexpr
):
    """Parts (S, PARTS, 4) of the momentum and the mass, amu A/fs and amu, where wanted."""
    system, part = tl.program_id(0), tl.program_id(1)
    first = tl.load(start + system)
    number = tl.load(count + system) * tl.load(wanted).to(tl.int64)
    px = tl.zeros([ATOMS], tl.float64)
    py, pz, sum_of_masses = px, px, px
    for begin in range(part * ATOMS, number, PARTS * ATOMS):
        here = begin + tl.arange(0, ATOMS)
        valid = here < number
        x, y, z = load_vectors(velocities, first + here, valid)
        mass = tl.load(masses + first + here, mask=valid, other=0.0).to(tl.float64)
        px += mass * x
        py += mass * y
        pz += mass * z
        sum_of_masses += mass
    out = parts + (system * PARTS + part) * 4
    tl.store(out, tl.sum(px, 0))
    tl.store(out + 1, tl.sum(py, 0))
    tl.store(out + 2, tl.sum(pz, 0))
    tl.store(out + 3, tl.sum(sum_of_masses, 0))


@kernel
def _stop_kernel(velocities, start, count, wanted, parts, PARTS: tl.constexpr, ATOMS: tl.constexpr):
    """Takes the velocity of the centre of mass off a system's atoms, where wanted."""
    system, part = tl.program_id(0), tl.program_id(1)
    first = tl.load(start + system)
    number = tl.load(count + system) * tl.load(wanted).to(tl.int64)
    mass = tl.maximum(total(parts, system, 3, 4, PARTS), 1e-300)
    dx = total(parts, system, 0, 4, PARTS) / mass
    dy = total(parts, system, 1, 4, PARTS) / mass
    dz = total(parts, system, 2, 4, PARTS) / mass
    for begin in range(part * ATOMS, number, PARTS * ATOMS):
        here = begin + tl.arange(0, ATOMS)
        valid = here < number
        x, y, z = load_vectors(velocities, first + here, valid)
        store_vectors(velocities, first + here, valid, x - dx, y - dy, z - dz)


def kinetic_energy(state: State, velocities: Tensor) -> Tensor:
    """See `mdgraph.engine.kinetics`."""
    parts = kinetic_parts(state, velocities)
    return parts[:, 0, 0] if parts.shape[1] == 1 else parts[..., 0].sum(1)


def kinetic_parts(state: State, velocities: Tensor) -> Tensor:
    """Parts (S, PARTS, 1) of the kinetic energy, eV; does not sync."""
    group, parts = state.grouping, parts_of(state, 1)
    with launching_on(state.device):
        _energy_kernel[parts.shape[:2]](
            velocities.contiguous(),
            state.masses,
            group.start,
            group.counts,
            parts,
            **shares(state),
        )
    return parts


def kinetic_tensor(state: State) -> Tensor:
    """See `mdgraph.engine.kinetics`."""
    parts = kinetic_tensor_parts(state)
    both = parts[:, 0] if parts.shape[1] == 1 else parts.sum(1)
    return both.view(-1, 3, 3)


def kinetic_tensor_parts(state: State) -> Tensor:
    """Parts (S, PARTS, 9) of the kinetic tensor, eV; does not sync."""
    group, parts = state.grouping, parts_of(state, 9)
    with launching_on(state.device):
        _tensor_kernel[parts.shape[:2]](
            state.velocities, state.masses, group.start, group.counts, parts, **shares(state)
        )
    return parts


def remove_momentum_(state: State, wanted: Tensor) -> None:
    """See `mdgraph.engine.kinetics`."""
    group, parts = state.grouping, parts_of(state, 4)
    with launching_on(state.device):
        _momentum_kernel[parts.shape[:2]](
            state.velocities,
            state.masses,
            group.start,
            group.counts,
            wanted,
            parts,
            **shares(state),
        )
        _stop_kernel[parts.shape[:2]](
            state.velocities, group.start, group.counts, wanted, parts, **shares(state)
        )
