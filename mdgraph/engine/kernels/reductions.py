"""Triton kernels that sum over the atoms of each system and record averages.

Several programs share a system. Each sums its share of atoms in a fixed order in float64 and
writes the result, a part; the reader adds the parts in their order. Sums therefore repeat bit for
bit, and a single large system occupies as many multiprocessors as many systems.
"""

from collections.abc import Mapping
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from mdgraph.engine.kernels.device import (
    add_heat,
    load_rows,
    load_vectors,
    store_last,
    store_vectors,
    volume,
)
from mdgraph.gpu.launch import launching_on
from mdgraph.gpu.triton_jit import kernel
from mdgraph.state import State
from mdgraph.units import BOLTZMANN, KINETIC_ENERGY

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators


_WIDEST: Final = 256
"""Atoms that a program takes at a time."""

_MOST: Final = 64
"""Programs of a system."""

_KINETIC_ENERGY = tl.constexpr(KINETIC_ENERGY)


def shares(state: State) -> dict[str, int]:
    """PARTS, programs of a system, and ATOMS that each loads at a time; both powers of two."""
    largest = state.grouping.largest
    width = min(_WIDEST, max(32, triton.next_power_of_2(largest)))
    return {
        "PARTS": min(_MOST, triton.next_power_of_2(triton.cdiv(largest, width))),
        "ATOMS": width,
    }


def parts_of(state: State, columns: int) -> Tensor:
    """An empty buffer for parts of sums, (S, PARTS, columns) float64."""
    shape = (state.grouping.systems, shares(state)["PARTS"], columns)
    return torch.empty(shape, dtype=torch.float64, device=state.device)


def of_all_ranks(state: State, parts: Tensor) -> Tensor:
    """Parts of sums as they are, or where other processes have other atoms, with theirs."""
    return parts if state.ranks is None else state.ranks.add(parts)


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
def _stop_kernel(
    velocities,
    masses,
    heat,
    start,
    count,
    wanted,
    parts,
    HEATED: tl.constexpr,
    PARTS: tl.constexpr,
    ATOMS: tl.constexpr,
):
    """Takes the velocity of the centre of mass off a system's atoms, where wanted.

    Where HEATED, what their kinetic energy gains is added to the heat of each, eV.
    """
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
        atom = first + here
        x, y, z = load_vectors(velocities, atom, valid)
        vx, vy, vz = x - dx, y - dy, z - dz
        store_vectors(velocities, atom, valid, vx, vy, vz)
        if HEATED:
            add_heat(heat, velocities, masses, atom, valid, x, y, z, vx, vy, vz)


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
    return of_all_ranks(state, parts)


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
    return of_all_ranks(state, parts)


def remove_momentum_(state: State, due: Tensor, heat: Tensor | None) -> None:
    """See `mdgraph.engine.kinetics`."""
    group, parts = state.grouping, parts_of(state, 4)
    with launching_on(state.device):
        _momentum_kernel[parts.shape[:2]](
            state.velocities,
            state.masses,
            group.start,
            group.counts,
            due,
            parts,
            **shares(state),
        )
        parts = of_all_ranks(state, parts)
        _stop_kernel[parts.shape[:2]](
            state.velocities,
            state.masses,
            heat,
            group.start,
            group.counts,
            due,
            parts,
            HEATED=heat is not None,
            **shares(state),
        )


COLUMNS: Final = (
    "potential_energy",
    "kinetic_energy",
    "total_energy",
    "temperature",
    "conserved_energy",
    "volume",
    "density",
    "pressure",
    "pressure_xx",
    "pressure_yy",
    "pressure_zz",
    "pressure_yz",
    "pressure_xz",
    "pressure_xy",
)
"""Quantities that the kernel can average; it takes their indices here."""

_BOLTZMANN = tl.constexpr(BOLTZMANN)


@triton.jit
def _stress(parts, virial, system, row, column, PARTS: tl.constexpr):
    """A component of the kinetic tensor and the virial together, made symmetric, eV."""
    place = virial + system * 9
    both = tl.load(place + row * 3 + column) + tl.load(place + column * 3 + row)
    return total(parts, system, row * 3 + column, 9, PARTS) + 0.5 * both


@triton.jit
def _known(column, number, value, values):
    """The numbers so far, with one more where its column is asked for."""
    return tl.where(column == number, value, values)


@kernel
def _record_kernel(
    parts,
    energy,
    conserved_in,
    virial,
    cell,
    degrees,
    masses,
    columns,
    first,
    partial,
    mean,
    squares,
    samples,
    arrived,
    step,
    every,
    start,
    systems,
    quantities,
    LEVELS: tl.constexpr,
    WIDTH: tl.constexpr,
    PARTS: tl.constexpr,
):
    """One program a system; adds a sample as `BlockAverages.add_` does, in steps that are due."""
    system = tl.program_id(0)
    now = tl.load(step)
    before = tl.load(samples)
    due = (now % every == 0) & (now > start)
    if due:
        potential = tl.load(energy + system)
        freedom = tl.load(degrees + system)
        a, b, c = load_rows(cell, system)
        space = volume(a, b, c)
        inverse = 1.0 / tl.where(space > 0.0, space, 1.0)
        xx = total(parts, system, 0, 9, PARTS)
        yy = total(parts, system, 4, 9, PARTS)
        zz = total(parts, system, 8, 9, PARTS)
        kinetic = 0.5 * (xx + yy + zz)
        kelvin = 2.0 * kinetic / (tl.maximum(freedom, 1.0) * _BOLTZMANN)
        xx = _stress(parts, virial, system, 0, 0, PARTS) * inverse
        yy = _stress(parts, virial, system, 1, 1, PARTS) * inverse
        zz = _stress(parts, virial, system, 2, 2, PARTS) * inverse

        lane = tl.arange(0, WIDTH)
        valid = lane < quantities
        column = tl.load(columns + lane, mask=valid, other=-1)
        values = tl.zeros([WIDTH], tl.float64)
        values = _known(column, 0, potential, values)
        values = _known(column, 1, kinetic, values)
        values = _known(column, 2, potential + kinetic, values)
        values = _known(column, 3, tl.where(freedom > 0.0, kelvin, 0.0), values)
        values = _known(column, 4, tl.load(conserved_in + system), values)
        values = _known(column, 5, space, values)
        values = _known(column, 6, tl.load(masses + system) * inverse, values)
        values = _known(column, 7, (xx + yy + zz) / 3.0, values)
        values = _known(column, 8, xx, values)
        values = _known(column, 9, yy, values)
        values = _known(column, 10, zz, values)
        values = _known(column, 11, _stress(parts, virial, system, 1, 2, PARTS) * inverse, values)
        values = _known(column, 12, _stress(parts, virial, system, 0, 2, PARTS) * inverse, values)
        values = _known(column, 13, _stress(parts, virial, system, 0, 1, PARTS) * inverse, values)

        own = system * quantities + lane
        origin = tl.where(before == 0, values, tl.load(first + own, mask=valid, other=0.0))
        tl.store(first + own, origin, mask=valid)
        level = tl.arange(0, LEVELS).to(tl.int64)
        length = (level * 0 + 1) << level
        number = before + 1
        whole = (number % length == 0)[:, None]
        share = length.to(tl.float64)[:, None]
        place = level[:, None] * (systems * quantities) + own[None, :]
        inside = valid[None, :] & (level[:, None] >= 0)
        collected = tl.load(partial + place, mask=inside, other=0.0) + (values - origin)[None, :]
        tl.store(partial + place, tl.where(whole, 0.0, collected), mask=inside)
        middle = tl.load(mean + place, mask=inside, other=0.0)
        blocks = collected / share
        change = tl.where(whole, blocks - middle, 0.0)
        count = tl.maximum(number // length, 1).to(tl.float64)[:, None]
        middle = middle + change / count
        tl.store(mean + place, middle, mask=inside)
        scatter = tl.load(squares + place, mask=inside, other=0.0)
        tl.store(squares + place, scatter + change * (blocks - middle), mask=inside)
    store_last(samples, before + due.to(tl.int64), arrived)


def record_(
    state: State,
    buffers: Mapping[str, Tensor],
    conserved: Tensor | None,
    masses: Tensor,
    columns: Tensor,
    arrived: Tensor,
    *,
    every: int,
    start: int,
) -> None:
    """Adds a sample of the current state to averages if it is due; does not sync.

    Args:
        state: the state to sample.
        buffers: those of `Averages.tensors`; changed in place.
        conserved: (S,) float64 eV, conserved energy, if it is averaged.
        masses: (S,) float64 amu, masses of the systems.
        columns: (Q,) int64, indices in `COLUMNS` of the quantities to average.
        arrived: () int32, see `store_last`.
        every: steps from one sample to the next.
        start: steps before the first sample.
    """
    parts = kinetic_tensor_parts(state)
    levels, systems, quantities = buffers["mean"].shape
    with launching_on(state.device):
        _record_kernel[(systems,)](
            parts,
            state.energy,
            state.energy if conserved is None else conserved,
            state.virial,
            state.cell,
            state.degrees,
            masses,
            columns,
            *(buffers[name] for name in ("first", "partial", "mean", "squares", "samples")),
            arrived,
            state.step,
            every,
            start,
            systems,
            quantities,
            LEVELS=levels,
            # At least as many numbers as threads, so that no two threads hold the same number.
            WIDTH=max(4, triton.next_power_of_2(quantities)),
            PARTS=parts.shape[1],
        )
