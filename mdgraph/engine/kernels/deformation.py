"""Kernels of StochasticCellRescaling: the strain of each system's cell, and what it moves."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from collections.abc import Mapping
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from mdgraph.engine.kernels.kicks import kick_
from mdgraph.engine.kernels.matrices import inverse_transposed, load_rows, store_rows, volume
from mdgraph.engine.kernels.random import gaussians
from mdgraph.engine.kernels.rescaling import DRAWS, rescaling_factor
from mdgraph.engine.kernels.schedules import value_at
from mdgraph.engine.kernels.strains import along_axes, of_all_components, strained
from mdgraph.engine.kernels.sums import kinetic_tensor_parts, total
from mdgraph.engine.kernels.vectors import load_vectors, store_vectors
from mdgraph.engine.random import BAROSTAT
from mdgraph.neighbors.compilation import kernel
from mdgraph.neighbors.launching import launching_ahead, launching_on
from mdgraph.neighbors.succession import wait_for_previous
from mdgraph.neighbors.vectors import combined, scaled
from mdgraph.state import State
from mdgraph.units import BOLTZMANN

_ATOMS: Final = 128
"""Atoms of a program."""

_WAYS: Final = {"isotropic": 0, "axes": 1, "full": 2}

_BOLTZMANN = tl.constexpr(BOLTZMANN)
_STREAM = tl.constexpr(BAROSTAT)


@triton.jit
def _work(virial, parts, system, row, column, square, PARTS: tl.constexpr):
    """A component of virial and kinetic tensor together, eV; velocities are still to scale."""
    at = virial + system * 9
    both = tl.load(at + row * 3 + column) + tl.load(at + column * 3 + row)
    return 0.5 * both + square * total(parts, system, row * 3 + column, 9, PARTS)


@kernel
def _deform_kernel(
    energy_parts,
    parts,
    virial,
    cell,
    pbc,
    varies,
    degrees,
    seed,
    replica,
    timestep,
    temperature,
    relaxation,
    pressure,
    cell_relaxation,
    compressibility,
    heat,
    step,
    now,
    matrices,
    systems,
    WAYS: tl.constexpr,
    DRAWS: tl.constexpr,
    PARTS: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """One program a system: the factor of the bath, F, the cell, and the count of the step.

    Writes F and, times the factor, F^-T to `matrices` (2, S, 3, 3) float64.
    """
    wait_for_previous(EARLY)
    system = tl.program_id(0)
    done = tl.load(now)
    if system == 0:
        tl.store(step, done + 1)
    time = tl.load(timestep)
    thermal = value_at(temperature, system, systems, done) * _BOLTZMANN
    key = tl.load(seed)
    own = tl.load(replica + system)
    kinetic = total(energy_parts, system, 0, 1, PARTS)
    decay = tl.exp(-time / value_at(relaxation, system, systems, done))
    freedom = tl.load(degrees + system)
    factor = rescaling_factor(kinetic, decay, thermal, freedom, key, done, own, DRAWS)
    square = factor * factor
    before = tl.load(heat + system)
    tl.store(heat + system, before + (square * kinetic - kinetic))

    a, b, c = load_rows(cell, system)
    space = volume(a, b, c)
    mobility = time * value_at(compressibility, system, systems, done)
    mobility = mobility / value_at(cell_relaxation, system, systems, done) / space
    push = value_at(pressure, system, systems, done) * space
    xx = _work(virial, parts, system, 0, 0, square, PARTS) - push
    yy = _work(virial, parts, system, 1, 1, square, PARTS) - push
    zz = _work(virial, parts, system, 2, 2, square, PARTS) - push
    noise = gaussians(key, done, own, done * 0, _STREAM)
    if WAYS == 0:
        strain = strained(mobility, thermal, (xx + yy + zz) / 3.0, noise[0])
        stretch = tl.exp(strain / 3.0)
        none = stretch * 0.0
        f, g, h = (stretch, none, none), (none, stretch, none), (none, none, stretch)
    else:
        mobility = mobility / 3.0
        yz = _work(virial, parts, system, 1, 2, square, PARTS)
        xz = _work(virial, parts, system, 0, 2, square, PARTS)
        xy = _work(virial, parts, system, 0, 1, square, PARTS)
        x, y, z = (xx, xy, xz), (xy, yy, yz), (xz, yz, zz)
        if WAYS == 1:
            at = 3 * system
            f, g, h = along_axes(a, b, c, pbc + at, varies + at, x, y, z, mobility, thermal, noise)
        else:
            shear_noise = gaussians(key, done, own, done * 0 + 1, _STREAM)
            f, g, h = of_all_components(x, y, z, mobility, thermal, noise, shear_noise)
        f, g, h = (f[0] + 1.0, f[1], f[2]), (g[0], g[1] + 1.0, g[2]), (h[0], h[1], h[2] + 1.0)
    store_rows(cell, system, combined(a, f, g, h), combined(b, f, g, h), combined(c, f, g, h))
    store_rows(matrices, system, f, g, h)
    f, g, h = inverse_transposed(f, g, h)
    store_rows(matrices, systems + system, scaled(f, factor), scaled(g, factor), scaled(h, factor))


@kernel
def _carry_kernel(
    positions,
    velocities,
    system,
    matrices,
    timestep,
    atoms,
    systems,
    ATOMS: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """Half a drift, the deformation of positions and velocities, half a drift."""
    wait_for_previous(EARLY)
    atom = tl.program_id(0) * ATOMS + tl.arange(0, ATOMS)
    valid = atom < atoms
    own = tl.load(system + atom, mask=valid, other=0)
    half = 0.5 * tl.load(timestep)
    x, y, z = load_vectors(positions, atom, valid)
    u, v, w = load_vectors(velocities, atom, valid)
    f, g, h = load_rows(matrices, own)
    x, y, z = combined((x + half * u, y + half * v, z + half * w), f, g, h)
    f, g, h = load_rows(matrices, systems + own)
    u, v, w = combined((u, v, w), f, g, h)
    store_vectors(positions, atom, valid, x + half * u, y + half * v, z + half * w)
    store_vectors(velocities, atom, valid, u, v, w)


def cell_rescaling_step_(
    state: State,
    schedules: Mapping[str, Tensor],
    heat: Tensor,
    now: Tensor,
    varies: Tensor,
    ways: str,
) -> None:
    """All of a StochasticCellRescaling step but the evaluation; does not sync.

    Args:
        state: positions, velocities and cells move, the step is counted.
        schedules: (4, S) float64, all parameters of the integrator.
        heat: (S,) float64 eV, takes what the bath's factors put in.
        now: () int64, see `kick_`.
        varies: (S, 3) bool, vectors that may change their length.
        ways: of `Deformation`.
    """
    group = state.grouping
    energy_parts = kick_(state, schedules["timestep"], 1.0, now)
    parts = kinetic_tensor_parts(state)
    shape = (2, group.systems, 3, 3)
    matrices = torch.empty(shape, dtype=torch.float64, device=state.device)
    early = launching_ahead(state.device, group.atoms)
    names = ("timestep", "temperature", "relaxation", "pressure")
    with launching_on(state.device):
        _deform_kernel[(group.systems,)](
            energy_parts,
            parts,
            state.virial,
            state.cell,
            state.pbc,
            varies,
            state.degrees,
            state.seed,
            state.replica,
            *(schedules[name] for name in (*names, "cell_relaxation", "compressibility")),
            heat,
            state.step,
            now,
            matrices,
            group.systems,
            WAYS=_WAYS[ways],
            DRAWS=DRAWS,
            PARTS=parts.shape[1],
            num_warps=1,
            **early,
        )
        _carry_kernel[(triton.cdiv(group.atoms, _ATOMS),)](
            state.positions,
            state.velocities,
            group.index,
            matrices,
            schedules["timestep"],
            group.atoms,
            group.systems,
            ATOMS=_ATOMS,
            **early,
        )
