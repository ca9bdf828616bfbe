"""Triton kernels for what most biased runs have: one spring or grid, on variables of points.

The programs of a system find its variables and the energy and slopes of the bias; the first adds
forces, energy and virial, and each its share of the energies of atoms. A second kernel adds hills.
Arithmetic is float64. Whatever else there may be (several
biases, variables of whole groups, volume or energy, cells periodic along one or two directions,
states in float32) is left to the tensors of `tables` and `bias`, which these kernels agree with.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from mdgraph.biases import geometry
from mdgraph.biases.bias import BoundBias, BoundSpring
from mdgraph.biases.metadynamics import BoundMetadynamics
from mdgraph.biases.tables import Tables
from mdgraph.gpu.launch import launching_ahead, launching_on
from mdgraph.gpu.triton_jit import kernel, pdl_wait
from mdgraph.gpu.vectors import (
    added,
    chosen,
    cross,
    difference,
    dot,
    load_vector,
    norm,
    scaled,
    store_vector,
)
from mdgraph.state import State

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

_DISTANCE, _ANGLE, _DIHEDRAL, _POSITION, _FROM_ORIGIN = (
    tl.constexpr(number) for number in range(5)
)
_PI = tl.constexpr(3.141592653589793)


@triton.jit
def arctangent(y, x):
    """The angle of (x, y) from -pi to pi, float64; 0 at the origin.

    The rational approximation of Cephes (S. L. Moshier), which errs by 2e-16 of the result.
    """
    flat, steep = tl.abs(x), tl.abs(y)
    larger, smaller = tl.maximum(flat, steep), tl.minimum(flat, steep)
    # Beyond pi/8 the angle from pi/4 is found.
    far = smaller > 0.41421356237309503 * larger
    above = tl.where(far, smaller - larger, smaller)
    below = tl.where(far, smaller + larger, larger)
    t = above / tl.where(below > 0.0, below, 1.0)
    z = t * t
    p = -8.750608600031904122785e-1 * z - 1.615753718733365076637e1
    p = (p * z - 7.500855792314704667340e1) * z - 1.228866684490136173410e2
    p = p * z - 6.485021904942025371773e1
    q = z + 2.485846490142306297962e1
    q = (q * z + 1.650270098316988542046e2) * z + 4.328810604912902668951e2
    q = (q * z + 4.853903996359136964868e2) * z + 1.945506571482613964425e2
    angle = t + t * (z * p / q) + far.to(tl.float64) * (0.25 * _PI)
    angle = tl.where(steep > flat, 0.5 * _PI - angle, angle)
    angle = tl.where(x < 0.0, _PI - angle, angle)
    return tl.where(y < 0.0, -angle, angle)


@triton.jit
def rounded(value):
    """The nearest whole number."""
    return tl.floor(value + 0.5)


@triton.jit
def fractional(a, g):
    """Components of a along the vectors of the cell, by their reciprocal vectors g."""
    return (
        a[0] * g[0] + a[1] * g[3] + a[2] * g[6],
        a[0] * g[1] + a[1] * g[4] + a[2] * g[7],
        a[0] * g[2] + a[1] * g[5] + a[2] * g[8],
    )


@triton.jit
def lattice_vector(n, h):
    """The sum of n_k times the vectors of the cell."""
    return (
        n[0] * h[0] + n[1] * h[3] + n[2] * h[6],
        n[0] * h[1] + n[1] * h[4] + n[2] * h[7],
        n[0] * h[2] + n[1] * h[5] + n[2] * h[8],
    )


@triton.jit
def load_cell(cell):
    """The nine numbers of a cell, and of its reciprocal vectors, in float64."""
    h = (
        tl.load(cell).to(tl.float64), tl.load(cell + 1).to(tl.float64),
        tl.load(cell + 2).to(tl.float64), tl.load(cell + 3).to(tl.float64),
        tl.load(cell + 4).to(tl.float64), tl.load(cell + 5).to(tl.float64),
        tl.load(cell + 6).to(tl.float64), tl.load(cell + 7).to(tl.float64),
        tl.load(cell + 8).to(tl.float64),
    )  # fmt: skip
    a, b, c = (h[0], h[1], h[2]), (h[3], h[4], h[5]), (h[6], h[7], h[8])
    bc, ca, ab = cross(b, c), cross(c, a), cross(a, b)
    volume = dot(a, bc)
    share = 1.0 / tl.where(volume != 0.0, volume, 1.0)
    g = (
        share * bc[0], share * ca[0], share * ab[0],
        share * bc[1], share * ca[1], share * ab[1],
        share * bc[2], share * ca[2], share * ab[2],
    )  # fmt: skip
    return h, g


@triton.jit
def nearby(a, h, g):
    """The image of a whose fractional components are within one half."""
    f = fractional(a, g)
    whole = (-rounded(f[0]), -rounded(f[1]), -rounded(f[2]))
    return added(a, lattice_vector(whole, h))


@triton.jit
def nearest_image(a, h, g, PERIODIC: tl.constexpr, ANY_CELL: tl.constexpr):
    """The shortest image of a."""
    if PERIODIC:
        a = nearby(a, h, g)
        if ANY_CELL:
            best, first = a, a
            shortest = dot(a, a)
            for image in range(1, 27):
                i, j, k = image // 9, image // 3 % 3, image % 3
                # 0, 1, -1 in turn, so the image itself comes first.
                whole = (i - 3 * (i // 2), j - 3 * (j // 2), k - 3 * (k // 2))
                other = added(first, lattice_vector(whole, h))
                square = dot(other, other)
                best = chosen(square < shortest, other, best)
                shortest = tl.minimum(square, shortest)
            a = best
    return a


@triton.jit
def centre_of_mass(
    positions, placed, shares, here, valid, h, g, L: tl.constexpr, PERIODIC: tl.constexpr
):
    """Centres of groups of L atoms from `here` on, each at the image nearest to the one before."""
    atom = tl.load(placed + here, mask=valid, other=0)
    before = load_vector(positions + 3 * atom, valid)
    centre = scaled(before, tl.load(shares + here, mask=valid, other=0.0))
    for number in range(1, L):
        share = tl.load(shares + here + number, mask=valid, other=0.0)
        used = valid & (share > 0.0)
        atom = tl.load(placed + here + number, mask=used, other=0)
        step = difference(load_vector(positions + 3 * atom, used), before)
        if PERIODIC:
            step = nearby(step, h, g)
        before = chosen(used, added(before, step), before)
        centre = added(centre, scaled(before, share))
    return centre


@triton.jit
def positive(number):
    """The number, 1 where that is 0: a divisor of what is 0 then."""
    return tl.where(number > 0.0, number, 1.0)


@triton.jit
def divided(a, number):
    """A / number, 0 where that is 0."""
    return scaled(a, 1.0 / positive(number))


@triton.jit
def taken(values, lane, place):
    """The value of one lane."""
    return tl.sum(tl.where(lane == place, values, 0.0))


@triton.jit
def load_axis(axes, number):
    """First point, spacing, points, period and the inverses of spacing and period; see `_axes`."""
    axis = axes + 6 * number
    return (
        tl.load(axis), tl.load(axis + 1), tl.load(axis + 2),
        tl.load(axis + 3), tl.load(axis + 4), tl.load(axis + 5),
    )  # fmt: skip


@triton.jit
def factors(t, per_spacing, corner, derivative):
    """Hermite polynomial at t of the value or slope at one of two points, and its slope."""
    u = 1.0 - t
    bend = 6.0 * t * u
    of_value = tl.where(corner == 0, u * u * (1.0 + 2.0 * t), t * t * (1.0 + 2.0 * u))
    of_slope = tl.where(corner == 0, u * u * t, -t * t * u)
    by_value = tl.where(corner == 0, -bend, bend)
    by_slope = tl.where(corner == 0, u * (u - 2.0 * t), t * (t - 2.0 * u))
    return (
        tl.where(derivative == 0, of_value, of_slope),
        tl.where(derivative == 0, by_value, by_slope) * per_spacing,
    )


@triton.jit
def on_axis(axis, s):
    """Lower point and place t between points of a value, and whether it is on the grid."""
    low, _, points, period, per_spacing, _ = axis
    place = (s - low) * per_spacing
    floor = tl.floor(place)
    bounded = tl.minimum(tl.maximum(floor, 0.0), points - 2.0)
    lower = tl.where(period > 0.0, floor, bounded)
    t = place - lower
    t = tl.where(period > 0.0, t, tl.minimum(tl.maximum(t, 0.0), 1.0))
    inside = (period > 0.0) | ((place >= 0.0) & (place <= points - 1.0))
    return lower, t, inside


@triton.jit
def of_grid(grid, axis_0, axis_1, axis_2, which, s0, s1, s2, N: tl.constexpr):
    """Energy, slopes by up to three variables, and whether all are on the grid."""
    corners: tl.constexpr = 2**N
    lane = tl.arange(0, 4**N)
    corner, derivative = lane // corners, lane % corners
    energy_of = lane.to(tl.float64) * 0.0 + 1.0
    by_0, by_1, by_2 = energy_of, energy_of, energy_of
    flat, size, on_grid = lane * 0, 1, s0 == s0
    for number in tl.static_range(N):
        s = s0 if number == 0 else (s1 if number == 1 else s2)
        axis = axis_0 if number == 0 else (axis_1 if number == 1 else axis_2)
        lower, t, inside = on_axis(axis, s)
        c = (corner >> (N - 1 - number)) & 1
        d = (derivative >> (N - 1 - number)) & 1
        value, slope = factors(t, axis[4], c, d)
        energy_of = energy_of * value
        by_0 = by_0 * (slope if number == 0 else value)
        by_1 = by_1 * (slope if number == 1 else value)
        by_2 = by_2 * (slope if number == 2 else value)
        count = axis[2].to(tl.int32)
        at = (lower.to(tl.int32) + c) % count
        at = tl.where(at < 0, at + count, at)
        flat = flat * count + at
        size = size * count
        on_grid = on_grid & inside
    node = tl.load(grid + (which * size + flat) * corners + derivative)
    energy, slope_0 = tl.sum(energy_of * node), tl.sum(by_0 * node)
    slope_1, slope_2 = slope_0, slope_0
    if N > 1:
        slope_1 = tl.sum(by_1 * node)
    if N > 2:
        slope_2 = tl.sum(by_2 * node)
    return energy, slope_0, slope_1, slope_2, on_grid


@triton.jit
def of_spring(centre, stiffness, axis_0, axis_1, axis_2, system, s0, s1, s2, N: tl.constexpr):
    """Energy and slopes of a spring by up to three variables."""
    energy, by_0, by_1, by_2 = 0.0 * s0, 0.0 * s0, 0.0 * s0, 0.0 * s0
    for number in tl.static_range(N):
        s = s0 if number == 0 else (s1 if number == 1 else s2)
        axis = axis_0 if number == 0 else (axis_1 if number == 1 else axis_2)
        apart = s - tl.load(centre + system * N + number)
        apart = apart - axis[3] * rounded(apart * axis[5])
        slope = tl.load(stiffness + system * N + number) * apart
        energy += 0.5 * slope * apart
        if number == 0:
            by_0 = slope
        if number == 1:
            by_1 = slope
        if number == 2:
            by_2 = slope
    return energy, by_0, by_1, by_2


@kernel
def _bias_kernel(
    positions, cell, forces, atom_energies, energy, virial,
    placed, shares, kinds, directions, mix, periods, touched, pulls, pull, starts, axes,
    grid, centre, stiffness, grid_stride,
    values, bias_energy, energies, outside,
    systems,
    L: tl.constexpr, B: tl.constexpr, V: tl.constexpr, BP: tl.constexpr, VP: tl.constexpr,
    N: tl.constexpr, C0: tl.constexpr, C1: tl.constexpr, C2: tl.constexpr,
    T: tl.constexpr, TP: tl.constexpr, POINTS: tl.constexpr, KINDS: tl.constexpr,
    PERIODIC: tl.constexpr, ANY_CELL: tl.constexpr, GRID: tl.constexpr, ATOMS: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):  # fmt: skip
    """Variables and bias of a system, and what it adds to forces, energies and virial.

    All programs of a system find its energy, for their shares of the energies of atoms; the first
    one writes everything else. What does not depend on the variables is loaded first.
    """
    pdl_wait(USE_PDL)
    system, part = tl.program_id(0), tl.program_id(1)
    variable = tl.arange(0, BP)
    valid = variable < B
    kind = tl.load(kinds + variable, mask=valid, other=0)
    h, g = variable, variable
    if PERIODIC:
        h, g = load_cell(cell + 9 * system)
    here = (system * B + variable) * (4 * L)
    place_0 = centre_of_mass(positions, placed, shares, here, valid, h, g, L, PERIODIC)
    place_1 = centre_of_mass(positions, placed, shares, here + L, valid, h, g, L, PERIODIC)
    place_2, place_3 = place_1, place_1
    if POINTS > 2:
        place_2 = centre_of_mass(positions, placed, shares, here + 2 * L, valid, h, g, L, PERIODIC)
    if POINTS > 3:
        place_3 = centre_of_mass(positions, placed, shares, here + 3 * L, valid, h, g, L, PERIODIC)

    axis_0 = load_axis(axes, 0)
    axis_1, axis_2 = axis_0, axis_0
    mix_0 = tl.load(mix + C0 * B + variable, mask=valid, other=0.0)
    mix_1, mix_2 = mix_0, mix_0
    if N > 1:
        axis_1 = load_axis(axes, 1)
        mix_1 = tl.load(mix + C1 * B + variable, mask=valid, other=0.0)
    if N > 2:
        axis_2 = load_axis(axes, 2)
        mix_2 = tl.load(mix + C2 * B + variable, mask=valid, other=0.0)
    named = tl.arange(0, VP)
    mix_place = named[:, None] * B + variable[None, :]
    both = (named[:, None] < V) & valid[None, :]
    coefficients = tl.load(mix + mix_place, mask=both, other=0.0)
    period = tl.load(periods + named, mask=named < V, other=0.0)
    per_period = tl.load(periods + V + named, mask=named < V, other=0.0)
    begin, end = tl.load(starts + system), tl.load(starts + system + 1)
    lane = tl.arange(0, TP)
    atom = tl.load(touched + system * T + lane, mask=lane < T, other=-1)
    real = atom >= 0
    force = load_vector(forces + 3 * atom, real)

    # Vectors: of a distance or position one, of an angle from its middle, of a dihedral the chain.
    first = difference(place_1, place_0)
    if KINDS & 2:
        first = chosen(kind == _ANGLE, difference(place_0, place_1), first)
    near = nearest_image(first, h, g, PERIODIC, ANY_CELL)
    if KINDS & 16:
        near = chosen(kind == _FROM_ORIGIN, first, near)
    first = near
    value = variable.to(tl.float64) * 0.0
    second, third, zero = first, first, (value, value, value)
    by_first, by_second, by_third = zero, zero, zero
    if KINDS & 1:
        length = norm(first)
        value, by_first = length, divided(first, length)
    if KINDS & 24:
        along = load_vector(directions + 3 * variable, valid)
        straight = (kind == _POSITION) | (kind == _FROM_ORIGIN)
        value = tl.where(straight, dot(first, along), value)
        by_first = chosen(straight, along, by_first)
    if KINDS & 6:
        second = nearest_image(difference(place_2, place_1), h, g, PERIODIC, ANY_CELL)
        # Both have a normal: of an angle v_1 x v_2, of a dihedral m = v_1 x v_2 and n = v_2 x v_3.
        m, middle = cross(first, second), norm(second)
        per_square = 1.0 / positive(middle * middle)
        if KINDS & 2:
            is_angle, size_m = kind == _ANGLE, norm(m)
            unit = divided(m, size_m)
            value = tl.where(is_angle, arctangent(size_m, dot(first, second)), value)
            on_first = divided(cross(first, unit), dot(first, first))
            by_first = chosen(is_angle, on_first, by_first)
            by_second = chosen(is_angle, scaled(cross(unit, second), per_square), by_second)
        if KINDS & 4:
            is_dihedral = kind == _DIHEDRAL
            third = nearest_image(difference(place_3, place_2), h, g, PERIODIC, ANY_CELL)
            n = cross(second, third)
            torsion = arctangent(middle * dot(first, n), dot(m, n))
            value = tl.where(is_dihedral, torsion, value)
            one = scaled(m, middle / positive(dot(m, m)))
            three = scaled(n, middle / positive(dot(n, n)))
            turning = added(scaled(one, dot(first, second)), scaled(three, dot(third, second)))
            by_first = chosen(is_dihedral, one, by_first)
            by_second = chosen(is_dihedral, scaled(turning, -per_square), by_second)
            by_third = chosen(is_dihedral, three, by_third)

    value = tl.where(valid, value, 0.0)
    total = tl.sum(coefficients * value[None, :], axis=1)
    total = total - period * rounded(total * per_period)
    s0 = taken(total, named, C0)
    s1, s2 = s0, s0
    if N > 1:
        s1 = taken(total, named, C1)
    if N > 2:
        s2 = taken(total, named, C2)
    on_grid = s0 == s0
    if GRID:
        which = (system * grid_stride).to(tl.int64)
        found, slope_0, slope_1, slope_2, on_grid = of_grid(
            grid, axis_0, axis_1, axis_2, which, s0, s1, s2, N
        )
    else:
        found, slope_0, slope_1, slope_2 = of_spring(
            centre, stiffness, axis_0, axis_1, axis_2, system, s0, s1, s2, N
        )

    count = end - begin
    member = begin + part * ATOMS + tl.arange(0, ATOMS)
    before = tl.load(atom_energies + member, mask=member < end, other=0.0)
    tl.store(atom_energies + member, before + found / count.to(tl.float64), mask=member < end)
    if part == 0:
        slope = slope_0 * mix_0
        if N > 1:
            slope += slope_1 * mix_1
        if N > 2:
            slope += slope_2 * mix_2
        by_first, by_second = scaled(by_first, slope), scaled(by_second, slope)
        by_third = scaled(by_third, slope)
        away = scaled(by_first, -1.0)
        on_0, on_1, on_2 = away, by_first, by_second
        if KINDS & 2:
            both_ends = scaled(added(by_first, by_second), -1.0)
            on_0 = chosen(kind == _ANGLE, by_first, on_0)
            on_1 = chosen(kind == _ANGLE, both_ends, on_1)
        if KINDS & 4:
            on_1 = chosen(kind == _DIHEDRAL, difference(by_first, by_second), on_1)
            on_2 = chosen(kind == _DIHEDRAL, difference(by_second, by_third), on_2)
        own = (lane * 0.0).to(tl.float64), (lane * 0.0).to(tl.float64), (lane * 0.0).to(tl.float64)
        for point in tl.static_range(POINTS):
            on = (
                on_0 if point == 0 else (on_1 if point == 1 else (on_2 if point == 2 else by_third))
            )
            rows = pulls + ((system * T + lane[:, None]) * 4 + point) * B + variable[None, :]
            weight = tl.load(rows, mask=(lane[:, None] < T) & valid[None, :], other=0.0)
            own = (
                own[0] + tl.sum(weight * on[0][None, :], axis=1),
                own[1] + tl.sum(weight * on[1][None, :], axis=1),
                own[2] + tl.sum(weight * on[2][None, :], axis=1),
            )
        store_vector(forces + 3 * atom, difference(force, own), real)
        store_vector(pull + 3 * atom, own, real)
        for row in tl.static_range(3):
            for column in tl.static_range(3):
                strain = first[row] * by_first[column] + second[row] * by_second[column]
                strain += third[row] * by_third[column]
                strain = tl.sum(tl.where(valid, strain, 0.0))
                entry = virial + 9 * system + 3 * row + column
                tl.store(entry, tl.load(entry) - strain)
        tl.store(values + named * systems + system, total, mask=named < V)
        tl.store(bias_energy + system, found)
        tl.store(energies + system, found)
        tl.store(energy + system, tl.load(energy + system) + found)
        if GRID:
            tl.store(outside, True, mask=on_grid == 0)


@kernel
def _hill_kernel(
    grid, records, values, energies, per_energy, columns, axes, sigma, step,
    height, every, rows, systems, size,
    N: tl.constexpr, SHARED: tl.constexpr, POINTS: tl.constexpr, USE_PDL: tl.constexpr = False,
):  # fmt: skip
    """Adds the hills of a step that is a multiple of `every` to a block of points of a grid."""
    pdl_wait(USE_PDL)
    now = tl.load(step)
    if now % every == 0:
        own = tl.program_id(1)
        flat = tl.program_id(0) * POINTS + tl.arange(0, POINTS)
        valid = flat < size
        first, last = own, own + 1
        if SHARED:
            first, last = 0, systems
        for system in range(first, last):
            # The height is a function of the energy before any hill of this step.
            shrunk = -tl.load(energies + system) * tl.load(per_energy + system)
            top = tl.load(height) * tl.exp(shrunk)
            rest, exponent = flat, flat.to(tl.float64) * 0.0
            slope_0, slope_1, slope_2 = exponent, exponent, exponent
            for number in tl.static_range(N - 1, -1, -1):
                low, spacing, length, period, _, per_period = load_axis(axes, number)
                points = length.to(tl.int32)
                width = tl.load(sigma + number)
                s = tl.load(values + tl.load(columns + number) * systems + system)
                apart = low + spacing * (rest % points).to(tl.float64) - s
                rest = rest // points
                apart = apart - period * rounded(apart * per_period)
                exponent -= 0.5 * (apart / width) * (apart / width)
                slope = -spacing / (width * width) * apart
                if number == 0:
                    slope_0 = slope
                if number == 1:
                    slope_1 = slope
                if number == 2:
                    slope_2 = slope
            hill = top * tl.exp(exponent)
            which = own.to(tl.int64)  # 0 where all share a grid
            base = grid + (which * size + flat) * 2**N
            slopes = (slope_0, slope_1, slope_2)
            for derivative in tl.static_range(2**N):
                term = hill
                for number in tl.static_range(N):
                    if (derivative >> (N - 1 - number)) & 1:
                        term = term * slopes[number]
                before = tl.load(base + derivative, mask=valid, other=0.0)
                tl.store(base + derivative, before + term, mask=valid)
            if tl.program_id(0) == 0:
                row = (now // every) % rows
                record = records + (row * systems + system) * (N + 1)
                for number in tl.static_range(N):
                    s = tl.load(values + tl.load(columns + number) * systems + system)
                    tl.store(record + number, s)
                tl.store(record + N, top)


_MOST_MEMBERS: Final = 64
"""Of a group of a point; a program takes them one after the other."""

_MOST_VARIABLES: Final = 64
"""Named or basic; a program holds both, and the coefficients of all combinations."""

_MOST_PULLS: Final = 4096
"""Atoms that variables read times basic variables, each rounded up to a power of two."""

_FEW_PULLS: Final = 256
"""Up to which one warp holds all of them, and waits for no other."""

_ATOMS: Final = 256
"""Atoms whose energies a program takes."""

_POINTS: Final = 256
"""Points of a grid that a program adds hills to."""

_ARGUMENTS: Final = (
    *("placed", "shares", "kinds", "directions", "mix", "periods"),
    *("touched", "pulls", "pull", "starts", "axes"),
)
"""Tables in the order in which `_bias_kernel` takes them."""


@dataclass(frozen=True)
class PointBias:
    """One bias on variables of points, by a kernel.

    Attributes:
        tables: on the device, by the names of the arguments of `_bias_kernel`.
        sizes: constants of the kernel.
        bound: the bias.
    """

    tables: dict[str, Tensor]
    sizes: dict[str, Any]
    bound: BoundSpring | BoundMetadynamics

    @classmethod
    def of(cls, tables: Tables, bound: Sequence[BoundBias], state: State) -> "PointBias | None":
        """The bias for the systems of a state; None if kernels do not have what it needs. Syncs.

        Args:
            tables: of all variables.
            bound: all biases.
            state: of the systems.
        """
        if tables.groups or tables.has_volume or tables.has_energy or len(bound) != 1:
            return None
        if tables.reduction is not None:
            return None
        (own,) = bound
        if not isinstance(own, BoundSpring | BoundMetadynamics) or own.work is not None:
            return None
        partly = tables.periodic and not bool(state.pbc.all())
        if partly or state.dtype != torch.float64 or len(own.columns) > 3:
            return None
        members, (named, basic) = tables.members.shape[1], tables.mix.shape
        touched = int(state.grouping.index[tables.touched].bincount().max())
        most = triton.next_power_of_2(touched) * triton.next_power_of_2(basic)
        if members > _MOST_MEMBERS or max(named, basic) > _MOST_VARIABLES or most > _MOST_PULLS:
            return None
        packed = _packed(tables, own, state)
        columns = own.columns.tolist()
        kinds = set(packed["kinds"].tolist())
        sizes = {
            "L": members,
            "B": basic,
            "V": named,
            "BP": triton.next_power_of_2(basic),
            "VP": triton.next_power_of_2(named),
            "N": len(columns),
            **{f"C{number}": (columns * 3)[number] for number in range(3)},
            "T": touched,
            "TP": triton.next_power_of_2(touched),
            "POINTS": 4 if 2 in kinds else (3 if 1 in kinds else 2),
            "KINDS": sum(1 << kind for kind in kinds),
            "PERIODIC": tables.periodic,
            "ANY_CELL": tables.candidates is not None,
            "GRID": isinstance(own, BoundMetadynamics),
            "ATOMS": _ATOMS,
            "num_warps": 1 if most <= _FEW_PULLS else 4,
        }
        return cls(packed, sizes, own)

    def add_(self, state: State, values: Tensor, energies: Tensor) -> Tensor:
        """Does what `AppliedBiases.add_` does, in one launch; does not sync.

        Args:
            state: energies, forces and virial change.
            values: (V, S) float64, of the variables; written.
            energies: (1, S) float64, eV, of the bias; written.

        Returns:
            (N, 3) float64, eV/A, what it took from the forces.
        """
        bound = self.bound
        # Where a bias has no such tensor, any other stands for it.
        grid = centre = stiffness = outside = values
        stride = 1
        if isinstance(bound, BoundMetadynamics):
            assert bound.outside is not None
            grid, outside, stride = bound.values, bound.outside, int(not bound.shared)
        else:
            centre, stiffness = bound.centre, bound.stiffness
        group = state.grouping
        blocks = triton.cdiv(max(group.sizes), _ATOMS)
        with launching_on(state.device):
            _bias_kernel[(group.systems, blocks)](
                state.positions, state.cell, state.forces, state.energies, state.energy,
                state.virial, *(self.tables[name] for name in _ARGUMENTS),
                grid, centre, stiffness, stride, values, bound.energy, energies, outside,
                group.systems, **self.sizes, **launching_ahead(state.device, group.atoms),
            )  # fmt: skip
        return self.tables["pull"]


class HillKernel:
    """Adds the hills of metadynamics, on variables of any kind."""

    def __init__(self, bound: BoundMetadynamics) -> None:
        """Allocates.

        Args:
            bound: the bias.
        """
        self._bound = bound
        self._axes = _axes(bound)
        self._sigma = torch.tensor(bound.sigma, device=self._axes.device)
        # A number given to a kernel would be rounded to float32.
        self._height = self._sigma.new_tensor([bound.height])
        self._in_order = torch.arange(len(bound.columns), device=self._axes.device)

    def add_(self, values: Tensor, step: int | None) -> None:
        """Adds hills if the step is one of those that do, in one launch; does not sync.

        Args:
            values: (V, S) float64, of all variables.
            step: number of steps done; None within a captured step.
        """
        bound = self._bound
        if not bound.apart and (step is None or step % bound.every == 0):
            self._add_(values, bound.columns, bound.energy)

    def add_hills_(self, values: Tensor, energies: Tensor) -> None:
        """Does what `BoundMetadynamics.add_hills_` does, in one launch.

        Args:
            values: (n, W) float64, of its variables.
            energies: (W,) float64, eV.
        """
        self._add_(values, self._in_order, energies)

    def _add_(self, values: Tensor, columns: Tensor, energies: Tensor) -> None:
        bound = self._bound
        state, size, walkers = bound.state, math.prod(bound.grid.points), len(energies)
        with launching_on(state.device):
            _hill_kernel[(triton.cdiv(size, _POINTS), 1 if bound.shared else walkers)](
                bound.values, bound.records, values, energies, bound.per_energy,
                columns, self._axes, self._sigma, state.step,
                self._height, bound.every, len(bound.records), walkers, size,
                N=len(columns), SHARED=bound.shared, POINTS=_POINTS,
                **launching_ahead(state.device, state.grouping.atoms),
            )  # fmt: skip


def _axes(bound: BoundBias) -> Tensor:
    """What `load_axis` reads (n, 6) float64 of the variables of a bias; inverses of 0 are 0."""
    axes = torch.zeros(len(bound.columns), 6, dtype=torch.float64)
    axes[:, 1] = 1.0
    axes[:, 3] = bound.period.cpu()
    if isinstance(bound, BoundMetadynamics):
        grid = bound.grid
        axes[:, 0], axes[:, 1] = torch.tensor(grid.minimum), torch.tensor(grid.spacing)
        axes[:, 2] = torch.tensor(grid.points)
    axes[:, 4], axes[:, 5] = 1.0 / axes[:, 1], _inverses(axes[:, 3])
    return axes.to(bound.columns.device)


def _inverses(periods: Tensor) -> Tensor:
    return torch.where(periods > 0.0, 1.0 / periods, 0.0)


_FUNCTIONS: Final[dict[Any, int]] = {
    geometry.distances: 0,
    geometry.angles: 1,
    geometry.dihedrals: 2,
    geometry.projections: 3,
}
"""Kinds of the kernel by the functions that say the same of tensors."""

_KIND_FROM_ORIGIN: Final = 4
"""Of positions that are no differences."""


def _packed(tables: Tables, bound: BoundBias, state: State) -> dict[str, Tensor]:
    """Tables of the kernel; see `_ARGUMENTS`. Syncs.

    placed: (S, B, 4, L) int64, atoms of the groups of up to four points of each variable.
    shares: (S, B, 4, L) float64, their shares of the mass; 0 on padding and of missing points.
    kinds: (B,) int64.
    directions: (B, 3) float64, of positions.
    mix: (V, B) float64, see `Tables`.
    periods: (2, V) float64, of named variables and their inverses, 0 of others.
    touched: (S, T) int64, atoms that variables read; -1 on padding.
    pulls: (S, T, 4, B) float64, share of each of them in each point.
    pull: (N, 3) float64, what the bias took from forces.
    starts: (S + 1,) int64, first atom of each system.
    axes: see `_axes`.
    """
    kinds: list[int] = []
    directions: list[list[float]] = []
    for kind in tables.kinds:
        function = getattr(kind.function, "func", kind.function)
        kinds += [_FUNCTIONS[function]] * kind.count
        given = getattr(kind.function, "keywords", {}).get("directions")
        directions += [[0.0] * 3] * kind.count if given is None else given[:, 0].tolist()
    ends = _ends(tables, kinds)
    for owner, points in enumerate(ends.tolist()):
        if kinds[owner] == _FUNCTIONS[geometry.projections] and points[0] < 0:
            kinds[owner] = _KIND_FROM_ORIGIN
    atoms = tables.atoms.cpu()[:, tables.members.cpu()]  # (S, P, L)
    there = (ends >= 0)[None, :, :, None]
    placed = atoms[:, ends.clamp(min=0)] * there
    shares = tables.member_weights.cpu()[:, ends.clamp(min=0)] * there
    index, own = state.grouping.index.cpu(), tables.touched.cpu()
    parts = [own[index[own] == system] for system in range(state.grouping.systems)]
    touched = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=-1)
    here = placed[:, None] == touched[:, :, None, None, None]  # (S, T, B, 4, L)
    pulls = (here * shares[:, None]).sum(-1).transpose(2, 3).contiguous()
    starts = [0, *accumulate(state.grouping.sizes)]
    made = {
        "placed": placed,
        "shares": shares,
        "kinds": torch.tensor(kinds),
        "directions": torch.tensor(directions, dtype=torch.float64),
        "periods": torch.stack([tables.period, _inverses(tables.period)]),
        "touched": touched,
        "pulls": pulls,
        "starts": torch.tensor(starts),
    }
    return {
        "mix": tables.mix,
        "axes": _axes(bound),
        "pull": tables.weights.new_zeros(state.grouping.atoms, 3),
    } | {name: table.to(state.device) for name, table in made.items()}


def _ends(tables: Tables, kinds: Sequence[int]) -> Tensor:
    """Points (B, 4) int64 of variables of these kinds; -1 for the origin and where there is none.

    Vectors lead from each point to the next, but those of an angle from the second point.
    """
    ends = [[-1] * 4 for _ in kinds]
    placed = [0] * len(kinds)
    points = len(tables.members)
    for tail, head, owner in zip(
        tables.tails.tolist(), tables.heads.tolist(), tables.owner.tolist(), strict=True
    ):
        number = placed[owner]
        of_angle = kinds[owner] == _FUNCTIONS[geometry.angles]
        first, second = (1, 2 * number) if of_angle else (number, number + 1)
        ends[owner][first] = tail if tail < points else -1
        ends[owner][second] = head
        placed[owner] += 1
    return torch.tensor(ends)
