"""Triton kernels of variable cells: Martyna-Tobias-Klein and stochastic cell rescaling.

Deformations are rows of F - 1; forces and strains are those of `Deformation`.
"""

import math
from collections.abc import Mapping
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from mdgraph.engine.kernels.atoms import kick_
from mdgraph.engine.kernels.device import (
    gaussians,
    inverse_transposed,
    load_rows,
    load_vectors,
    pushes,
    store_rows,
    store_vectors,
    value_at,
    volume,
)
from mdgraph.engine.kernels.reductions import kinetic_parts, kinetic_tensor_parts, total
from mdgraph.engine.kernels.thermostats import DRAWS, advanced, rescaling_factor, store_chain
from mdgraph.engine.kinetics import LARGEST_STRAIN
from mdgraph.engine.random import BAROSTAT
from mdgraph.gpu.launch import launching_ahead, launching_on
from mdgraph.gpu.triton_jit import kernel, pdl_wait
from mdgraph.gpu.vectors import added, combined, dot, scaled
from mdgraph.state import State
from mdgraph.units import BOLTZMANN

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators


_LARGEST = tl.constexpr(LARGEST_STRAIN)
_ROOT = tl.constexpr(math.sqrt(2.0))
_HALF_ROOT = tl.constexpr(math.sqrt(0.5))


@triton.jit
def strained(mobility, thermal, force, noise):
    """Change of one coordinate of the strain in a step, from its force and noise."""
    strain = mobility * force + tl.sqrt(2.0 * mobility * thermal) * noise
    return tl.minimum(tl.maximum(strain, -_LARGEST), _LARGEST)


@triton.jit
def along_axes(a, b, c, pbc, varies, x, y, z, mobility, thermal, noise):
    """Deformation that stretches those of the cell vectors a, b, c that may vary.

    Numbers and buffers:
        a, b, c: the cell.
        pbc, varies: (3,) bool, which vectors are periodic, and which may vary.
        x, y, z: rows of the work.
        mobility, thermal: of the strain; eV.
        noise: three normal numbers.
    """
    p = tl.load(pbc).to(tl.float64)
    q = tl.load(pbc + 1).to(tl.float64)
    r = tl.load(pbc + 2).to(tl.float64)
    a, b, c = scaled(a, p), scaled(b, q), scaled(c, r)
    # The duals of the periodic vectors, in the space that these span.
    ab, ac, bc = dot(a, b), dot(a, c), dot(b, c)
    i, j, k = inverse_transposed(
        (dot(a, a) + 1.0 - p, ab, ac),
        (ab, dot(b, b) + 1.0 - q, bc),
        (ac, bc, dot(c, c) + 1.0 - r),
    )
    i, j, k = combined(i, a, b, c), combined(j, a, b, c), combined(k, a, b, c)
    first = strained(mobility, thermal, dot(combined(a, x, y, z), i), noise[0])
    second = strained(mobility, thermal, dot(combined(b, x, y, z), j), noise[1])
    third = strained(mobility, thermal, dot(combined(c, x, y, z), k), noise[2])
    i = scaled(i, (tl.exp(first) - 1.0) * tl.load(varies).to(tl.float64))
    j = scaled(j, (tl.exp(second) - 1.0) * tl.load(varies + 1).to(tl.float64))
    k = scaled(k, (tl.exp(third) - 1.0) * tl.load(varies + 2).to(tl.float64))
    return (
        combined((i[0], j[0], k[0]), a, b, c),
        combined((i[1], j[1], k[1]), a, b, c),
        combined((i[2], j[2], k[2]), a, b, c),
    )


@triton.jit
def of_all_components(x, y, z, mobility, thermal, noise, shear_noise):
    """Deformation by a symmetric strain, with the exponential to fourth order.

    Numbers and buffers:
        x, y, z: rows of the work.
        mobility, thermal: of the strain; eV.
        noise, shear_noise: three normal numbers each.
    """
    xx = strained(mobility, thermal, x[0], noise[0])
    yy = strained(mobility, thermal, y[1], noise[1])
    zz = strained(mobility, thermal, z[2], noise[2])
    yz = strained(mobility, thermal, y[2] * _ROOT, shear_noise[0]) * _HALF_ROOT
    xz = strained(mobility, thermal, x[2] * _ROOT, shear_noise[1]) * _HALF_ROOT
    xy = strained(mobility, thermal, x[1] * _ROOT, shear_noise[2]) * _HALF_ROOT
    x, y, z = (xx, xy, xz), (xy, yy, yz), (xz, yz, zz)
    f, g, h = scaled(x, 0.25), scaled(y, 0.25), scaled(z, 0.25)
    f, g, h = _next(x, f, g, h, 3.0), _next(y, f, g, h, 3.0), _next(z, f, g, h, 3.0)
    f, g, h = _next(x, f, g, h, 2.0), _next(y, f, g, h, 2.0), _next(z, f, g, h, 2.0)
    return _next(x, f, g, h, 1.0), _next(y, f, g, h, 1.0), _next(z, f, g, h, 1.0)


@triton.jit
def _next(strain, f, g, h, order):
    """Row of (S + S E) / order, from a row of S and the matrix E of rows f, g, h."""
    e = combined(strain, f, g, h)
    return (strain[0] + e[0]) / order, (strain[1] + e[1]) / order, (strain[2] + e[2]) / order


_ATOMS: Final = 128
"""Atoms of a program."""

_BOLTZMANN = tl.constexpr(BOLTZMANN)

_WAYS: Final = {
    "isotropic": 0,
    "axes": 1,
    "full": 2,
    "semiisotropic": 3,
    "semiisotropic-fixed-z": 4,
}


@triton.jit
def _sinhc(x):
    """sinh(x) / x, by its series."""
    square = x * x
    return 1.0 + square / 6.0 * (1.0 + square / 20.0 * (1.0 + square / 42.0))


@triton.jit
def _pushed(
    rate,
    rate_z,
    twice,
    twice_z,
    degrees,
    virial,
    cell,
    pressure,
    mass,
    time,
    system,
    WAYS: tl.constexpr,
):
    """Rates of strain of x and y and of z after half a step, and the cell vectors."""
    a, b, c = load_rows(cell, system)
    x, y, z = load_rows(virial, system)
    each = twice / degrees - pressure * volume(a, b, c)
    if WAYS == 0:
        force = twice + x[0] + y[1] + z[2] + 3.0 * each
        rate = rate + 0.5 * time * force / mass
        rate_z = rate
    else:
        force = twice - twice_z + x[0] + y[1] + 2.0 * each
        rate = rate + 0.5 * time * force / (mass * (2.0 / 3.0))
        if WAYS == 3:
            rate_z = rate_z + 0.5 * time * (twice_z + z[2] + each) / (mass / 3.0)
    return rate, rate_z, a, b, c


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
    WAYS: tl.constexpr,
    STAGES: tl.constexpr,
    PARTS: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """One program a system: half a step of chains and rates; then the cell, or the count.

    `parts` are those of the kinetic energy where the cell is isotropic, of the tensor elsewhere.
    Writes `factors` (S, 3, 2) of velocities, positions and drift, each along x and y and along
    z, and `friction` (S, 4) of `kick_`.
    """
    pdl_wait(USE_PDL)
    system = tl.program_id(0)
    done = tl.load(step if OPENS else now)
    time = tl.load(timestep)
    thermal = value_at(temperature, system, systems, done) * _BOLTZMANN
    pressure = value_at(pressure_in, system, systems, done)
    cell_tau = value_at(cell_relaxation, system, systems, done)
    degrees = tl.maximum(tl.load(degrees_in + system), 1.0)
    mass = (degrees + 3.0) * thermal * cell_tau * cell_tau
    modes: tl.constexpr = 2 if WAYS == 3 else 1
    rate = tl.load(rates + modes * system)
    if WAYS == 0:
        twice = 2.0 * total(parts, system, 0, 1, PARTS)
        twice_z = twice / 3.0
        rate_z = rate
    else:
        twice_z = total(parts, system, 8, 9, PARTS)
        twice = total(parts, system, 0, 9, PARTS) + total(parts, system, 4, 9, PARTS) + twice_z
        rate_z = tl.load(rates + modes * system + 1) if WAYS == 3 else 0.0 * rate
    if not OPENS:
        rate, rate_z, a, b, c = _pushed(
            rate, rate_z, twice, twice_z, degrees, virial, cell, pressure, mass, time, system, WAYS
        )
    if WAYS == 0:
        moving = mass * rate * rate
    else:
        moving = mass * ((2.0 / 3.0) * rate * rate + (1.0 / 3.0) * rate_z * rate_z)
    # The chain of the atoms in one lane, that of the cell in the other.
    lane = tl.arange(0, 2)
    chain = system + lane * systems
    freedom = tl.where(lane == 0, degrees, 1.0 * modes)
    ratio = tl.where(lane == 0, twice, moving) / (freedom * thermal)
    tau = tl.where(lane == 0, value_at(relaxation, system, systems, done), cell_tau)
    x0, x1, x2, v0, v1, v2, scale = advanced(
        ratio, freedom, tau, 0.5 * time, weights, positions, velocities, chain, 2 * systems, STAGES
    )
    store_chain(positions, chain, 2 * systems, x0, x1, x2)
    store_chain(velocities, chain, 2 * systems, v0, v1, v2)
    factor = tl.sum(tl.where(lane == 0, scale, 0.0), 0)
    slowed = tl.sum(tl.where(lane == 1, scale, 0.0), 0)
    rate, rate_z = rate * slowed, rate_z * slowed
    along_z = factor
    if OPENS:
        twice, twice_z = twice * factor * factor, twice_z * factor * factor
        rate, rate_z, a, b, c = _pushed(
            rate, rate_z, twice, twice_z, degrees, virial, cell, pressure, mass, time, system, WAYS
        )
        trace = (2.0 * rate + rate_z) / degrees
        slowing = 0.25 * (rate + trace) * time
        decay = tl.exp(-2.0 * slowing)
        tl.store(friction + 4 * system, decay)
        tl.store(friction + 4 * system + 1, tl.exp(-slowing) * _sinhc(slowing))
        factor = factor * decay
        slowing = 0.25 * (rate_z + trace) * time
        decay = tl.exp(-2.0 * slowing)
        tl.store(friction + 4 * system + 2, decay)
        tl.store(friction + 4 * system + 3, tl.exp(-slowing) * _sinhc(slowing))
        along_z = along_z * decay
        xy, z = tl.exp(rate * time), tl.exp(rate_z * time)
        store_rows(
            cell,
            system,
            (a[0] * xy, a[1] * xy, a[2] * z),
            (b[0] * xy, b[1] * xy, b[2] * z),
            (c[0] * xy, c[1] * xy, c[2] * z),
        )
        tl.store(factors + 6 * system + 2, xy)
        tl.store(factors + 6 * system + 3, z)
        half = 0.5 * (rate * time)
        tl.store(factors + 6 * system + 4, tl.exp(half) * _sinhc(half) * time)
        half = 0.5 * (rate_z * time)
        tl.store(factors + 6 * system + 5, tl.exp(half) * _sinhc(half) * time)
    elif system == 0:
        tl.store(step, done + 1)
    tl.store(factors + 6 * system, factor)
    tl.store(factors + 6 * system + 1, along_z)
    tl.store(rates + modes * system, rate)
    if WAYS == 3:
        tl.store(rates + modes * system + 1, rate_z)


@triton.jit
def _each(vector, factors):
    """Vectors times the first factor along x and y, times the second along z."""
    xy = tl.load(factors)
    return vector[0] * xy, vector[1] * xy, vector[2] * tl.load(factors + 1)


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
    USE_PDL: tl.constexpr = False,
):
    """Scales velocities; before the evaluation also kicks them, and stretches and drifts."""
    pdl_wait(USE_PDL)
    atom = tl.program_id(0) * ATOMS + tl.arange(0, ATOMS)
    valid = atom < atoms
    own = tl.load(system + atom, mask=valid, other=0)
    u = _each(load_vectors(velocities, atom, valid), factors + 6 * own)
    if OPENS:
        push = pushes(forces, inverse_masses, atom, valid, 0.5 * tl.load(timestep))
        gain, gain_z = tl.load(friction + 4 * own + 1), tl.load(friction + 4 * own + 3)
        u = added(u, (gain * push[0], gain * push[1], gain_z * push[2]))
        x = _each(load_vectors(positions, atom, valid), factors + 6 * own + 2)
        x = added(x, _each(u, factors + 6 * own + 4))
        store_vectors(positions, atom, valid, x[0], x[1], x[2])
    store_vectors(velocities, atom, valid, u[0], u[1], u[2])


class BarostatKernels:
    """Both halves of a MartynaTobiasKlein step, and the buffers between them."""

    def __init__(
        self,
        state: State,
        schedules: Mapping[str, Tensor],
        chains: tuple[Tensor, Tensor, Tensor],
        rates: Tensor,
        cell_dof: str,
    ) -> None:
        """Allocates buffers.

        Args:
            state: the state that moves.
            schedules: (4, S) float64, all parameters of the integrator.
            chains: weights (stages,), positions and velocities (3, 2 S) float64; first those of
                the atoms of all systems, then those of their cells.
            rates: (S, 1 or 2) float64, rates of strain in 1/fs.
            cell_dof: of `Deformation`, isotropic or semiisotropic.
        """
        self._state, self._schedules, self._rates = state, schedules, rates
        self._ways = _WAYS[cell_dof]
        self._weights, *self._chains = chains
        self._friction = state.energy.new_zeros(state.grouping.systems, 4)
        self._factors = state.energy.new_zeros(state.grouping.systems, 3, 2)
        self._now = state.step.new_zeros(())

    def half_step_(self, *, opens: bool) -> None:
        """The half before the evaluation, or after it; does not sync."""
        state, schedules, group = self._state, self._schedules, self._state.grouping
        early = launching_ahead(state.device, group.atoms)
        if not opens:
            parts = kick_(state, schedules["timestep"], 0.5, self._now, self._friction)
        elif self._ways == 0:
            parts = kinetic_parts(state, state.velocities)
        if self._ways:
            parts = kinetic_tensor_parts(state)
        names = ("timestep", "temperature", "pressure", "tau", "tau_p")
        with launching_on(state.device):
            _system_kernel[(group.systems,)](
                parts,
                state.virial,
                state.cell,
                state.degrees,
                *(schedules[name] for name in names),
                self._weights,
                *self._chains,
                self._rates,
                self._friction,
                self._factors,
                state.step,
                self._now,
                group.systems,
                OPENS=opens,
                WAYS=self._ways,
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
                schedules["timestep"],
                self._friction,
                self._factors,
                group.atoms,
                OPENS=opens,
                ATOMS=_ATOMS,
                **early,
            )


_STREAM = tl.constexpr(BAROSTAT)


@triton.jit
def _work(virial, parts, system, row, column, square, PARTS: tl.constexpr):
    """Sum of a component of virial and kinetic tensor, eV; before velocities are scaled."""
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
    USE_PDL: tl.constexpr = False,
):
    """One program for each system: factor of the bath, F, cell, and count of the step.

    Writes F and, times the factor, F^-T to `matrices` (2, S, 3, 3) float64.
    """
    pdl_wait(USE_PDL)
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
    elif WAYS >= 3:
        mobility = mobility / 3.0
        stretch = tl.exp(strained(mobility, thermal, (xx + yy) * _HALF_ROOT, noise[0]) * _HALF_ROOT)
        none = stretch * 0.0
        along = none + 1.0
        if WAYS == 3:
            along = tl.exp(strained(mobility, thermal, zz, noise[1]))
        f, g, h = (stretch, none, none), (none, stretch, none), (none, none, along)
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
    USE_PDL: tl.constexpr = False,
):
    """Half a drift, the deformation of positions and velocities, half a drift."""
    pdl_wait(USE_PDL)
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
    cell_dof: str,
) -> None:
    """A StochasticCellRescaling step without the evaluation; does not sync.

    Args:
        state: positions, velocities and cells change, the step is counted.
        schedules: (4, S) float64, all parameters of the integrator.
        heat: (S,) float64 eV; the heat from the bath is added.
        now: () int64, see `kick_`.
        varies: (S, 3) bool, cell vectors that may change their length.
        cell_dof: of `Deformation`.
    """
    group = state.grouping
    energy_parts = kick_(state, schedules["timestep"], 1.0, now)
    parts = kinetic_tensor_parts(state)
    shape = (2, group.systems, 3, 3)
    matrices = torch.empty(shape, dtype=torch.float64, device=state.device)
    early = launching_ahead(state.device, group.atoms)
    names = ("timestep", "temperature", "tau", "pressure")
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
            *(schedules[name] for name in (*names, "tau_p", "compressibility")),
            heat,
            state.step,
            now,
            matrices,
            group.systems,
            WAYS=_WAYS[cell_dof],
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
