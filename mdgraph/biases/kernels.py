"""Triton kernels for what most biased runs have: one spring or grid, on variables of points.

One program a system finds the variables, the energy and slopes of the bias, and adds forces, energy
and virial; a second kernel adds hills. Arithmetic is float64. Whatever else there may be (several
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
from mdgraph.gpu.launch import launching_on
from mdgraph.gpu.triton_jit import kernel
from mdgraph.gpu.vectors import (
    added,
    chosen,
    cross,
    difference,
    dot,
    load_vector,
    norm,
    scaled,
)
from mdgraph.state import State

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

_DISTANCE, _ANGLE, _DIHEDRAL, _POSITION = (tl.constexpr(number) for number in range(4))
_PI = tl.constexpr(3.141592653589793)


@triton.jit
def arctangent(y, x):
    """The angle of (x, y) from -pi to pi, float64; 0 at the origin.

    A polynomial that errs by 1e-5, then a step of Newton's method, which leaves the rounding.
    """
    flat, steep = tl.abs(x), tl.abs(y)
    larger = tl.maximum(flat, steep)
    ratio = tl.minimum(flat, steep) / tl.where(larger > 0.0, larger, 1.0)
    square = ratio * ratio
    guess = 0.0208351 * square - 0.0851330
    guess = (guess * square + 0.1801410) * square - 0.3302995
    guess = ratio * (guess * square + 0.9998660)
    guess = tl.where(steep > flat, 0.5 * _PI - guess, guess)
    guess = tl.where(x < 0.0, _PI - guess, guess)
    guess = tl.where(y < 0.0, -guess, guess)
    cosine, sine = tl.cos(guess), tl.sin(guess)
    along = x * cosine + y * sine
    return guess + (y * cosine - x * sine) / tl.where(along != 0.0, along, 1.0)


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
    positions, atoms, members, weights, point, valid, system, h, g,
    M: tl.constexpr, P: tl.constexpr, L: tl.constexpr, PERIODIC: tl.constexpr,
):  # fmt: skip
    """Centres of the groups of points, each atom at the image nearest to the one before."""
    slot = tl.load(members + point * L, mask=valid, other=0)
    atom = tl.load(atoms + system * M + slot, mask=valid, other=0)
    before = load_vector(positions + 3 * atom, valid)
    share = tl.load(weights + (system * P + point) * L, mask=valid, other=0.0)
    centre = scaled(before, share)
    for number in range(1, L):
        slot = tl.load(members + point * L + number, mask=valid, other=0)
        share = tl.load(weights + (system * P + point) * L + number, mask=valid, other=0.0)
        used = valid & (share > 0.0)
        atom = tl.load(atoms + system * M + slot, mask=used, other=0)
        step = difference(load_vector(positions + 3 * atom, used), before)
        if PERIODIC:
            step = nearby(step, h, g)
        before = chosen(used, added(before, step), before)
        centre = added(centre, scaled(before, share))
    return centre


@triton.jit
def divided(a, number):
    """A / number, 0 where that is 0."""
    return scaled(a, 1.0 / tl.where(number > 0.0, number, 1.0))


@triton.jit
def pull_on_points(
    scratch, members, weights, point, valid, system, gradient,
    M: tl.constexpr, P: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Writes the gradient by the place of each atom of the groups of points, by slot."""
    for number in range(L):
        slot = tl.load(members + point * L + number, mask=valid, other=0)
        share = tl.load(weights + (system * P + point) * L + number, mask=valid, other=0.0)
        used = valid & (share > 0.0)
        place = scratch + 3 * (system * M + slot)
        tl.store(place, share * gradient[0], mask=used)
        tl.store(place + 1, share * gradient[1], mask=used)
        tl.store(place + 2, share * gradient[2], mask=used)


@triton.jit
def taken(values, lane, place):
    """The value of one lane."""
    return tl.sum(tl.where(lane == place, values, 0.0))


@triton.jit
def factor(t, spacing, corner, derivative, SLOPE: tl.constexpr):
    """Hermite polynomial at t of the value or slope at one of two points, or its slope."""
    u = 1.0 - t
    if SLOPE:
        bend = 6.0 * t * u
        of_values = tl.where(corner == 0, -bend, bend)
        of_slopes = tl.where(corner == 0, u * (u - 2.0 * t), t * (t - 2.0 * u))
        result = tl.where(derivative == 0, of_values, of_slopes) / spacing
    else:
        of_values = tl.where(corner == 0, u * u * (1.0 + 2.0 * t), t * t * (1.0 + 2.0 * u))
        of_slopes = tl.where(corner == 0, u * u * t, -t * t * u)
        result = tl.where(derivative == 0, of_values, of_slopes)
    return result


@triton.jit
def on_axis(axes, number, s):
    """Lower point and place t between points, of a value on an axis of a grid.

    Returns:
        Both, the spacing, the number of points and whether the value is on the grid.
    """
    low, spacing = tl.load(axes + 4 * number), tl.load(axes + 4 * number + 1)
    points, period = tl.load(axes + 4 * number + 2), tl.load(axes + 4 * number + 3)
    place = (s - low) / spacing
    floor = tl.floor(place)
    bounded = tl.minimum(tl.maximum(floor, 0.0), points - 2.0)
    lower = tl.where(period > 0.0, floor, bounded)
    t = place - lower
    t = tl.where(period > 0.0, t, tl.minimum(tl.maximum(t, 0.0), 1.0))
    inside = (period > 0.0) | ((place >= 0.0) & (place <= points - 1.0))
    return lower, t, spacing, points, inside


@triton.jit
def of_grid(grid, axes, which, s0, s1, s2, N: tl.constexpr):
    """Energy, slopes by up to three variables, and whether all are on the grid."""
    corners: tl.constexpr = 2**N
    lane = tl.arange(0, 4**N)
    corner, derivative = lane // corners, lane % corners
    energy_of = lane.to(tl.float64) * 0.0 + 1.0
    by_0, by_1, by_2 = energy_of, energy_of, energy_of
    flat, size, on_grid = lane * 0, 1, s0 == s0
    for number in tl.static_range(N):
        s = s0 if number == 0 else (s1 if number == 1 else s2)
        lower, t, spacing, points, inside = on_axis(axes, number, s)
        c = (corner >> (N - 1 - number)) & 1
        d = (derivative >> (N - 1 - number)) & 1
        value = factor(t, spacing, c, d, SLOPE=False)
        slope = factor(t, spacing, c, d, SLOPE=True)
        energy_of = energy_of * value
        by_0 = by_0 * (slope if number == 0 else value)
        by_1 = by_1 * (slope if number == 1 else value)
        by_2 = by_2 * (slope if number == 2 else value)
        count = points.to(tl.int32)
        at = (lower.to(tl.int32) + c) % count
        at = tl.where(at < 0, at + count, at)
        flat = flat * count + at
        size = size * count
        on_grid = on_grid & inside
    node = tl.load(grid + (which * size + flat) * corners + derivative)
    return (
        tl.sum(energy_of * node),
        tl.sum(by_0 * node),
        tl.sum(by_1 * node),
        tl.sum(by_2 * node),
        on_grid,
    )


@triton.jit
def of_spring(centre, stiffness, axes, system, s0, s1, s2, N: tl.constexpr):
    """Energy and slopes of a spring by up to three variables."""
    energy, by_0, by_1, by_2 = 0.0 * s0, 0.0 * s0, 0.0 * s0, 0.0 * s0
    for number in tl.static_range(N):
        s = s0 if number == 0 else (s1 if number == 1 else s2)
        apart = s - tl.load(centre + system * N + number)
        period = tl.load(axes + 4 * number + 3)
        turns = rounded(apart / tl.where(period > 0.0, period, 1.0))
        apart = apart - tl.where(period > 0.0, period * turns, 0.0)
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
    atoms, members, weights, kinds, ends, directions, mix, periods,
    touched, slots, scratch, pull, starts, columns, axes,
    grid, centre, stiffness, grid_stride,
    values, bias_energy, energies, outside,
    systems,
    M: tl.constexpr, P: tl.constexpr, L: tl.constexpr, B: tl.constexpr, V: tl.constexpr,
    BP: tl.constexpr, VP: tl.constexpr, N: tl.constexpr, T: tl.constexpr, TP: tl.constexpr,
    J: tl.constexpr, PERIODIC: tl.constexpr, ANY_CELL: tl.constexpr, GRID: tl.constexpr,
    ATOMS: tl.constexpr,
):  # fmt: skip
    """Variables and bias of a system, and what it adds to forces, energies and virial."""
    system = tl.program_id(0)
    h = cell + 9 * system
    h = (
        tl.load(h).to(tl.float64), tl.load(h + 1).to(tl.float64), tl.load(h + 2).to(tl.float64),
        tl.load(h + 3).to(tl.float64), tl.load(h + 4).to(tl.float64), tl.load(h + 5).to(tl.float64),
        tl.load(h + 6).to(tl.float64), tl.load(h + 7).to(tl.float64), tl.load(h + 8).to(tl.float64),
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

    variable = tl.arange(0, BP)
    valid = variable < B
    kind = tl.load(kinds + variable, mask=valid, other=0)
    point_0 = tl.load(ends + 4 * variable, mask=valid, other=-1)
    point_1 = tl.load(ends + 4 * variable + 1, mask=valid, other=-1)
    point_2 = tl.load(ends + 4 * variable + 2, mask=valid, other=-1)
    point_3 = tl.load(ends + 4 * variable + 3, mask=valid, other=-1)
    place_0 = centre_of_mass(
        positions, atoms, members, weights, point_0, point_0 >= 0, system, h, g, M, P, L, PERIODIC
    )
    place_1 = centre_of_mass(
        positions, atoms, members, weights, point_1, point_1 >= 0, system, h, g, M, P, L, PERIODIC
    )
    place_2 = centre_of_mass(
        positions, atoms, members, weights, point_2, point_2 >= 0, system, h, g, M, P, L, PERIODIC
    )
    place_3 = centre_of_mass(
        positions, atoms, members, weights, point_3, point_3 >= 0, system, h, g, M, P, L, PERIODIC
    )
    # Vectors: of a distance or position one, of an angle from its middle, of a dihedral the chain.
    free = point_0 < 0
    first = chosen(kind == _ANGLE, difference(place_0, place_1), difference(place_1, place_0))
    first = chosen(free, first, nearest_image(first, h, g, PERIODIC, ANY_CELL))
    second = nearest_image(difference(place_2, place_1), h, g, PERIODIC, ANY_CELL)
    third = nearest_image(difference(place_3, place_2), h, g, PERIODIC, ANY_CELL)

    is_angle, is_dihedral = kind == _ANGLE, kind == _DIHEDRAL
    length = norm(first)
    value = length
    zero = (length * 0.0, length * 0.0, length * 0.0)
    by_first, by_second, by_third = divided(first, length), zero, zero
    along = load_vector(directions + 3 * variable, valid)
    value = tl.where(kind == _POSITION, dot(first, along), value)
    by_first = chosen(kind == _POSITION, along, by_first)
    # Both have a normal: of an angle v_1 x v_2, of a dihedral m = v_1 x v_2 and n = v_2 x v_3.
    m, n = cross(first, second), cross(second, third)
    size_m, middle = norm(m), norm(second)
    unit = divided(m, size_m)
    value = tl.where(is_angle, arctangent(size_m, dot(first, second)), value)
    squared = dot(first, first)
    by_first = chosen(is_angle, divided(cross(first, unit), squared), by_first)
    by_second = chosen(is_angle, divided(cross(unit, second), middle * middle), by_second)
    torsion = arctangent(middle * dot(first, n), dot(m, n))
    value = tl.where(is_dihedral, torsion, value)
    one = divided(scaled(m, middle), dot(m, m))
    three = divided(scaled(n, middle), dot(n, n))
    turning = added(scaled(one, dot(first, second)), scaled(three, dot(third, second)))
    by_first = chosen(is_dihedral, one, by_first)
    by_second = chosen(is_dihedral, divided(scaled(turning, -1.0), middle * middle), by_second)
    by_third = chosen(is_dihedral, three, by_third)

    named = tl.arange(0, VP)
    place = named[:, None] * B + variable[None, :]
    both = (named[:, None] < V) & valid[None, :]
    coefficients = tl.load(mix + place, mask=both, other=0.0)
    value = tl.where(valid, value, 0.0)
    total = tl.sum(coefficients * value[None, :], axis=1)
    period = tl.load(periods + named, mask=named < V, other=0.0)
    turns = rounded(total / tl.where(period > 0.0, period, 1.0))
    total = total - tl.where(period > 0.0, period * turns, 0.0)
    tl.store(values + named * systems + system, total, mask=named < V)

    column_0 = tl.load(columns)
    column_1 = tl.load(columns + 1) if N > 1 else column_0
    column_2 = tl.load(columns + 2) if N > 2 else column_0
    s0 = taken(total, named, column_0)
    s1, s2 = taken(total, named, column_1), taken(total, named, column_2)
    if GRID:
        which = (system * grid_stride).to(tl.int64)
        found, slope_0, slope_1, slope_2, on_grid = of_grid(grid, axes, which, s0, s1, s2, N)
        tl.store(outside, True, mask=on_grid == 0)
    else:
        found, slope_0, slope_1, slope_2 = of_spring(centre, stiffness, axes, system, s0, s1, s2, N)
    tl.store(bias_energy + system, found)
    tl.store(energies + system, found)
    tl.store(energy + system, tl.load(energy + system) + found)

    slope = slope_0 * tl.load(mix + column_0 * B + variable, mask=valid, other=0.0)
    if N > 1:
        slope += slope_1 * tl.load(mix + column_1 * B + variable, mask=valid, other=0.0)
    if N > 2:
        slope += slope_2 * tl.load(mix + column_2 * B + variable, mask=valid, other=0.0)
    by_first, by_second = scaled(by_first, slope), scaled(by_second, slope)
    by_third = scaled(by_third, slope)

    for row in tl.static_range(3):
        for column in tl.static_range(3):
            strain = first[row] * by_first[column] + second[row] * by_second[column]
            strain += third[row] * by_third[column]
            strain = tl.sum(tl.where(valid, strain, 0.0))
            entry = virial + 9 * system + 3 * row + column
            tl.store(entry, tl.load(entry) - strain)

    away = scaled(by_first, -1.0)
    on_0 = chosen(is_angle, by_first, away)
    on_1 = chosen(is_angle, scaled(added(by_first, by_second), -1.0), by_first)
    on_1 = chosen(is_dihedral, difference(by_first, by_second), on_1)
    on_2 = chosen(is_dihedral, difference(by_second, by_third), by_second)
    pull_on_points(scratch, members, weights, point_0, point_0 >= 0, system, on_0, M, P, L)
    pull_on_points(scratch, members, weights, point_1, point_1 >= 0, system, on_1, M, P, L)
    pull_on_points(scratch, members, weights, point_2, point_2 >= 0, system, on_2, M, P, L)
    pull_on_points(scratch, members, weights, point_3, point_3 >= 0, system, by_third, M, P, L)
    tl.debug_barrier()
    lane = tl.arange(0, TP)
    atom = tl.load(touched + system * T + lane, mask=lane < T, other=-1)
    real = atom >= 0
    x, y, z = lane * 0.0, lane * 0.0, lane * 0.0
    x, y, z = x.to(tl.float64), y.to(tl.float64), z.to(tl.float64)
    for number in range(J):
        slot = tl.load(slots + (system * T + lane) * J + number, mask=real, other=-1)
        used = slot >= 0
        source = scratch + 3 * (system * M + slot)
        x += tl.load(source, mask=used, other=0.0)
        y += tl.load(source + 1, mask=used, other=0.0)
        z += tl.load(source + 2, mask=used, other=0.0)
    for axis in tl.static_range(3):
        own = x if axis == 0 else (y if axis == 1 else z)
        tl.store(pull + 3 * atom + axis, own, mask=real)
        force = tl.load(forces + 3 * atom + axis, mask=real, other=0.0)
        tl.store(forces + 3 * atom + axis, force - own, mask=real)

    begin, end = tl.load(starts + system), tl.load(starts + system + 1)
    part = found / (end - begin).to(tl.float64)
    for start in range(begin, end, ATOMS):
        member = start + tl.arange(0, ATOMS)
        before = tl.load(atom_energies + member, mask=member < end, other=0.0)
        tl.store(atom_energies + member, before + part, mask=member < end)


@kernel
def _hill_kernel(
    grid, records, values, energies, per_energy, columns, axes, sigma, step,
    height, every, rows, systems, size,
    N: tl.constexpr, SHARED: tl.constexpr, POINTS: tl.constexpr,
):  # fmt: skip
    """Adds the hills of a step that is a multiple of `every` to a block of points of a grid."""
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
                low, spacing = tl.load(axes + 4 * number), tl.load(axes + 4 * number + 1)
                points = tl.load(axes + 4 * number + 2).to(tl.int32)
                period = tl.load(axes + 4 * number + 3)
                width = tl.load(sigma + number)
                s = tl.load(values + tl.load(columns + number) * systems + system)
                apart = low + spacing * (rest % points).to(tl.float64) - s
                rest = rest // points
                turns = rounded(apart / tl.where(period > 0.0, period, 1.0))
                apart = apart - tl.where(period > 0.0, period * turns, 0.0)
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

_MOST_ATOMS: Final = 1024
"""Of a system that variables read."""

_ATOMS: Final = 1024
"""Atoms whose energies a program takes together."""

_POINTS: Final = 256
"""Points of a grid that a program adds hills to."""

_ARGUMENTS: Final = (
    *("atoms", "members", "weights", "kinds", "ends", "directions", "mix", "periods"),
    *("touched", "slots", "scratch", "pull", "starts", "columns", "axes"),
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
        (own,) = bound
        if not isinstance(own, BoundSpring | BoundMetadynamics) or own.work is not None:
            return None
        partly = tables.periodic and not bool(state.pbc.all())
        if partly or state.dtype != torch.float64 or len(own.columns) > 3:
            return None
        packed = _packed(tables, own, state)
        counts = packed["members"].shape[1], packed["touched"].shape[1], *tables.mix.shape
        members, touched, named, basic = counts
        if members > _MOST_MEMBERS or touched > _MOST_ATOMS or max(named, basic) > _MOST_VARIABLES:
            return None
        sizes = {
            "M": tables.atoms.shape[1],
            "P": tables.members.shape[0],
            "L": members,
            "B": basic,
            "V": named,
            "BP": triton.next_power_of_2(basic),
            "VP": triton.next_power_of_2(named),
            "N": len(own.columns),
            "T": touched,
            "TP": triton.next_power_of_2(touched),
            "J": packed["slots"].shape[2],
            "PERIODIC": tables.periodic,
            "ANY_CELL": tables.candidates is not None,
            "GRID": isinstance(own, BoundMetadynamics),
            "ATOMS": _ATOMS,
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
        with launching_on(state.device):
            _bias_kernel[(len(state.energy),)](
                state.positions, state.cell, state.forces, state.energies, state.energy,
                state.virial, *(self.tables[name] for name in _ARGUMENTS),
                grid, centre, stiffness, stride, values, bound.energy, energies, outside,
                len(state.energy), **self.sizes,
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

    def add_(self, values: Tensor, step: int | None) -> None:
        """Adds hills if the step is one of those that do, in one launch; does not sync.

        Args:
            values: (V, S) float64, of all variables.
            step: number of steps done; None within a captured step.
        """
        bound = self._bound
        if step is not None and step % bound.every:
            return
        state, size = bound.state, math.prod(bound.grid.points)
        systems = len(state.energy)
        with launching_on(state.device):
            _hill_kernel[(triton.cdiv(size, _POINTS), 1 if bound.shared else systems)](
                bound.values, bound.records, values, bound.energy, bound.per_energy,
                bound.columns, self._axes, self._sigma, state.step,
                self._height, bound.every, len(bound.records), systems, size,
                N=len(bound.columns), SHARED=bound.shared, POINTS=_POINTS,
            )  # fmt: skip


def _axes(bound: BoundBias) -> Tensor:
    """First point, spacing, points and period (n, 4) float64 of the variables of a bias."""
    axes = torch.zeros(len(bound.columns), 4, dtype=torch.float64)
    axes[:, 1] = 1.0
    axes[:, 3] = bound.period.cpu()
    if isinstance(bound, BoundMetadynamics):
        grid = bound.grid
        axes[:, 0], axes[:, 1] = torch.tensor(grid.minimum), torch.tensor(grid.spacing)
        axes[:, 2] = torch.tensor(grid.points)
    return axes.to(bound.columns.device)


_FUNCTIONS: Final[dict[Any, int]] = {
    geometry.distances: 0,
    geometry.angles: 1,
    geometry.dihedrals: 2,
    geometry.projections: 3,
}
"""Kinds of the kernel by the functions that say the same of tensors."""


def _packed(tables: Tables, bound: BoundBias, state: State) -> dict[str, Tensor]:
    """Tables of the kernel; see `_ARGUMENTS`. Syncs."""
    systems, slots = tables.atoms.shape
    kinds: list[int] = []
    directions: list[list[float]] = []
    for kind in tables.kinds:
        function = getattr(kind.function, "func", kind.function)
        kinds += [_FUNCTIONS[function]] * kind.count
        given = getattr(kind.function, "keywords", {}).get("directions")
        directions += [[0.0] * 3] * kind.count if given is None else given[:, 0].tolist()
    ends = [[-1] * 4 for _ in kinds]
    placed = [0] * len(kinds)
    points = len(tables.members)
    for tail, head, owner in zip(
        tables.tails.tolist(), tables.heads.tolist(), tables.owner.tolist(), strict=True
    ):
        # Vectors lead from each point to the next, but those of an angle from the second point.
        number = placed[owner]
        of_angle = kinds[owner] == _FUNCTIONS[geometry.angles]
        first, second = (1, 2 * number) if of_angle else (number, number + 1)
        ends[owner][first] = tail if tail < points else -1
        ends[owner][second] = head
        placed[owner] += 1
    own: list[list[tuple[int, list[int]]]] = [[] for _ in range(systems)]
    index, empty = state.grouping.index.tolist(), systems * slots
    for atom, places in zip(tables.touched.tolist(), tables.slots.tolist(), strict=True):
        system = index[atom]
        local = [place - system * slots if place < empty else -1 for place in places]
        own[system].append((atom, local))
    most = max(map(len, own))
    touched = [[atom for atom, _ in row] + [-1] * (most - len(row)) for row in own]
    blank = [-1] * tables.slots.shape[1]
    by_atom = [[local for _, local in row] + [blank] * (most - len(row)) for row in own]
    starts = [0, *accumulate(state.grouping.sizes)]
    made = {
        "kinds": torch.tensor(kinds),
        "ends": torch.tensor(ends),
        "directions": torch.tensor(directions, dtype=torch.float64),
        "touched": torch.tensor(touched),
        "slots": torch.tensor(by_atom),
        "starts": torch.tensor(starts),
    }
    return {
        "atoms": tables.atoms,
        "members": tables.members,
        "weights": tables.member_weights,
        "mix": tables.mix,
        "periods": tables.period,
        "columns": bound.columns,
        "axes": _axes(bound),
        "scratch": tables.weights.new_zeros(systems, slots, 3),
        "pull": tables.weights.new_zeros(state.grouping.atoms, 3),
    } | {name: table.to(state.device) for name, table in made.items()}
