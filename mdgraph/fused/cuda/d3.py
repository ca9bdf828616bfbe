"""KernelD3: D3(BJ) on CUDA, in kernels on the lists; `mdgraph.models.d3` has equations.

The passes are those of `mdgraph.fused.cpu.d3`, with one program for each atom:

0. atoms within their cell, and translations of images;
1. CN_i, and from it w_ia, u_ieb = sum_a w_ia C_ab for each element e, and derivatives by CN_i;
2. C_ij = sum_b u_ib w_jb, energies, forces at constant C_ij, and dE/dCN_i;
3. with a three-body term, what triples add to these, seen from each of their corners: the neighbors
   of an atom are written one after the other, programs take `CORNERS` of them with all the others,
   and a third kernel adds what each neighbor has;
4. forces by the chain rule, (dE/dCN_i + dE/dCN_j) dCN/dr.

Vectors are differences in float64. What follows from them is computed in the type of the weights,
float32 unless the precision is double, as is each lane's sum over its pairs, every `WIDTH`-th of a
row; lanes are added in float64. So a result depends on the rows of the lists and on nothing else.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from mdgraph.fused.backend import NetworkResult
from mdgraph.fused.cuda.device import add_central, put_central
from mdgraph.fused.cuda.edges import totals
from mdgraph.fused.d3 import D3Evaluator
from mdgraph.gpu.launch import launching_ahead, launching_on
from mdgraph.gpu.triton_jit import compiling_ahead, kernel, pdl_wait
from mdgraph.models.d3 import (
    BOHR,
    HARTREE,
    STEEPNESS,
    THREE_BODY_EXPONENT,
    THREE_BODY_RADIUS,
    WIDTH,
)
from mdgraph.neighbors import NeighborList
from mdgraph.state import State

_STEEPNESS = tl.constexpr(STEEPNESS)
_WIDTH = tl.constexpr(WIDTH)
_EXPONENT = tl.constexpr(THREE_BODY_EXPONENT)

PAIRS: Final = 64
"""Pairs that a program takes at a time."""

CORNERS: Final = 8
OTHERS: Final = 32
"""Neighbors of an atom whose triples a program has, and with how many others at a time."""

WARPS: Final = 2
"""Of a program. Its eleven sums over lanes cost as much as some rounds, so warps are few."""


@kernel
def place_kernel(
    positions,
    cell,
    wrap,
    system,
    offsets,
    placed,
    moves,
    atoms,
    systems,
    images,
    BLOCK: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """Atoms within their cell as the list has them, and translations of images.

    Args:
        positions, cell, wrap: (N, 3), (S, 3, 3), (N, 3) in the state type.
        system: (N,) int64.
        offsets: (images, 3) int64.
        placed, moves: (N, 3), (S, images, 3) float64, A, written.
        atoms, systems, images: N, S and how many images.
    """
    pdl_wait(USE_PDL)
    block = tl.program_id(0)
    first = tl.cdiv(atoms, BLOCK)
    lane = tl.arange(0, BLOCK).to(tl.int64)
    if block < first:
        atom = block * BLOCK + lane
        valid = atom < atoms
        h = cell + tl.load(system + atom, mask=valid, other=0) * 9
        a = tl.load(wrap + 3 * atom, mask=valid, other=0.0).to(tl.float64)
        b = tl.load(wrap + 3 * atom + 1, mask=valid, other=0.0).to(tl.float64)
        c = tl.load(wrap + 3 * atom + 2, mask=valid, other=0.0).to(tl.float64)
        for axis in tl.static_range(3):
            x = tl.load(positions + 3 * atom + axis, mask=valid, other=0.0).to(tl.float64)
            x -= a * tl.load(h + axis, mask=valid, other=0.0).to(tl.float64)
            x -= b * tl.load(h + 3 + axis, mask=valid, other=0.0).to(tl.float64)
            x -= c * tl.load(h + 6 + axis, mask=valid, other=0.0).to(tl.float64)
            tl.store(placed + 3 * atom + axis, x, mask=valid)
    else:
        place = (block - first) * BLOCK + lane
        valid = place < systems * images
        h = cell + (place // images) * 9
        n = offsets + (place % images) * 3
        a = tl.load(n, mask=valid, other=0).to(tl.float64)
        b = tl.load(n + 1, mask=valid, other=0).to(tl.float64)
        c = tl.load(n + 2, mask=valid, other=0).to(tl.float64)
        for axis in tl.static_range(3):
            x = a * tl.load(h + axis, mask=valid, other=0.0).to(tl.float64)
            x += b * tl.load(h + 3 + axis, mask=valid, other=0.0).to(tl.float64)
            x += c * tl.load(h + 6 + axis, mask=valid, other=0.0).to(tl.float64)
            tl.store(moves + 3 * place + axis, x, mask=valid)


@triton.jit
def _neighbors(placed, moves, index, image, atom, place, valid):
    """Neighbor (int64) and vector (float64, A) at some places of a list.

    Where invalid, the neighbor is the atom itself.

    Args:
        placed: see `place_kernel`.
        moves: those of the system of the atom.
        index, image: (N, K) of the list.
        atom: int64.
        place: (W,) int64, flat slots.
        valid: (W,) bool.
    """
    other = tl.load(index + place, mask=valid, other=0).to(tl.int64)
    other = tl.where(valid, other, atom)
    move = moves + 3 * tl.load(image + place, mask=valid, other=0).to(tl.int64)
    x = tl.load(placed + 3 * other) - tl.load(placed + 3 * atom) + tl.load(move)
    y = tl.load(placed + 3 * other + 1) - tl.load(placed + 3 * atom + 1) + tl.load(move + 1)
    z = tl.load(placed + 3 * other + 2) - tl.load(placed + 3 * atom + 2) + tl.load(move + 2)
    return other, x, y, z


@triton.jit
def _within(x, y, z, valid, end):
    """Square (else 1), and whether pairs are within a cutoff; NaN stays in, and shows."""
    square = x * x + y * y + z * z
    within = valid & ~((square >= end * end) & (square < float("inf")))
    return tl.where(within, square, 1.0), within


@triton.jit
def _switch(distance, begin, inverse):
    """S(r) and its slope, with the place where it begins and 1 over its width, or 0 for none."""
    u = tl.minimum(tl.maximum((distance - begin) * inverse, 0.0), 1.0)
    rest = 1.0 - u
    value = 1.0 - u * u * u * (10.0 - u * (15.0 - 6.0 * u))
    return value, -30.0 * inverse * u * u * rest * rest


@triton.jit
def _count(distance, reach, begin, inverse):
    """A neighbor's part of CN, and its slope."""
    inverse_distance = 1.0 / distance
    ratio = reach * inverse_distance
    count = 1.0 / (1.0 + tl.exp((1.0 - ratio) * _STEEPNESS))
    slope = -count * (1.0 - count) * _STEEPNESS * ratio * inverse_distance
    value, fall = _switch(distance, begin, inverse)
    return count * value, slope * value + count * fall


@kernel
def coordinate_kernel(
    placed,
    moves,
    system,
    index,
    image,
    count,
    kinds,
    limits,
    reach,
    references,
    c6,
    weights,
    own,
    slopes,
    slots,
    images,
    elements,
    R: tl.constexpr,
    RP: tl.constexpr,
    WIDTH: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """Pass 1 for an atom.

    Args:
        placed, moves: see `place_kernel`.
        system, kinds: (N,) int64.
        index, image, count: of the list.
        limits: (3,) T, A: cutoff, where S' begins, and 1 over its width.
        reach: (E, E) T, A.
        references: (E, R) float64, negative for none.
        c6: (E, E, R, R) float64, eV A^6.
        weights, own, slopes: w (N, R), u and du/dCN (N, E, R) T, written.
        slots, images, elements: K, how many images, E.
    """
    pdl_wait(USE_PDL)
    atom = tl.program_id(0).to(tl.int64)
    kind = tl.load(kinds + atom)
    moves += tl.load(system + atom) * images * 3
    end = tl.load(limits).to(tl.float64)
    begin, inverse = tl.load(limits + 1), tl.load(limits + 2)
    used = tl.load(count + atom)
    sums = tl.zeros([WIDTH], limits.dtype.element_ty)
    for start in range(0, used, WIDTH):
        here = start + tl.arange(0, WIDTH)
        valid = here < used
        other, x, y, z = _neighbors(placed, moves, index, image, atom, atom * slots + here, valid)
        square, within = _within(x, y, z, valid, end)
        distance = tl.sqrt(square.to(limits.dtype.element_ty))
        pair = tl.load(reach + kind * elements + tl.load(kinds + other))
        part, _ = _count(distance, pair, begin, inverse)
        sums += tl.where(within, part, 0.0)
    coordination = tl.sum(sums.to(tl.float64), 0)
    a = tl.arange(0, RP)
    reference = tl.load(references + kind * R + a, mask=a < R, other=-1.0)
    away = coordination - reference
    exponent = tl.where(reference >= 0.0, away * away * -_WIDTH, -float("inf"))
    weight = tl.exp(exponent - tl.max(exponent, 0))
    weight = weight / tl.sum(weight, 0)
    change = weight * (tl.sum(weight * away, 0) - away) * (2.0 * _WIDTH)
    tl.store(weights + atom * R + a, weight, mask=a < R)
    inside = (a < R)[:, None] & (a < R)[None, :]
    for element in range(elements):
        table = c6 + (kind * elements + element) * R * R + a[:, None] * R + a[None, :]
        table = tl.load(table, mask=inside, other=0.0)
        row = (atom * elements + element) * R + a
        tl.store(own + row, tl.sum(weight[:, None] * table, 0), mask=a < R)
        tl.store(slopes + row, tl.sum(change[:, None] * table, 0), mask=a < R)


@kernel
def disperse_kernel(
    placed,
    moves,
    system,
    index,
    image,
    count,
    kinds,
    limits,
    damping,
    weights,
    own,
    slopes,
    energies,
    by_coordination,
    forces,
    virials,
    slots,
    images,
    elements,
    atoms,
    R: tl.constexpr,
    WIDTH: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """Pass 2 for an atom.

    Args:
        limits: (3,) T, A: cutoff, where S begins, and 1 over its width.
        damping: (E, E, 4) T, s6, 3 s8 q_i q_j in A^2, f^6 in A^6, f^8 in A^8.
        energies, by_coordination: (N,) float64, eV, written.
        forces, virials: (N, 3) eV/A, (9, N) float64 eV, written.
        atoms: N.
        others: as in `coordinate_kernel`.
    """
    pdl_wait(USE_PDL)
    atom = tl.program_id(0).to(tl.int64)
    kind = tl.load(kinds + atom)
    moves += tl.load(system + atom) * images * 3
    end = tl.load(limits).to(tl.float64)
    begin, inverse = tl.load(limits + 1), tl.load(limits + 2)
    used = tl.load(count + atom)
    zero = tl.zeros([WIDTH], limits.dtype.element_ty)
    energy, by = zero, zero
    sums = (zero, zero, zero, zero, zero, zero, zero, zero, zero)
    for start in range(0, used, WIDTH):
        here = start + tl.arange(0, WIDTH)
        valid = here < used
        other, x, y, z = _neighbors(placed, moves, index, image, atom, atom * slots + here, valid)
        square, within = _within(x, y, z, valid, end)
        square = square.to(limits.dtype.element_ty)
        other_kind = tl.load(kinds + other)
        row = (atom * elements + other_kind) * R
        c6, change = zero, zero
        for b in tl.static_range(R):
            weight = tl.load(weights + other * R + b)
            c6 += tl.load(own + row + b) * weight
            change += tl.load(slopes + row + b) * weight
        pair = damping + (kind * elements + other_kind) * 4
        fourth = square * square
        first = 1.0 / (fourth * square + tl.load(pair + 2))
        second = 1.0 / (fourth * fourth + tl.load(pair + 3))
        sixth, eighth = tl.load(pair) * first, tl.load(pair + 1) * second
        bare = -(sixth + eighth)
        slope = fourth * (6.0 * sixth * first + 8.0 * square * eighth * second)
        distance = tl.sqrt(square)
        value, fall = _switch(distance, begin, inverse)
        slope = slope * value + bare * fall / distance
        bare = tl.where(within, bare * value, 0.0)
        energy += c6 * bare
        by += change * bare
        r = (x.to(square.dtype), y.to(square.dtype), z.to(square.dtype))
        sums = add_central(sums, tl.where(within, c6 * slope, 0.0), r)
    tl.store(energies + atom, 0.5 * tl.sum(energy.to(tl.float64), 0))
    tl.store(by_coordination + atom, tl.sum(by.to(tl.float64), 0))
    _put(forces, virials, atom, atoms, sums, False)


@kernel
def gather_kernel(
    placed,
    moves,
    system,
    index,
    image,
    count,
    kinds,
    limits,
    reach,
    weights,
    own,
    slopes,
    near,
    others,
    found,
    slots,
    images,
    elements,
    atoms,
    R: tl.constexpr,
    WIDTH: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """Neighbors of an atom within the cutoff of triples, in the order of its row.

    Args:
        limits: (4,) T, A: cutoff, where S begins, 1 over its width, and the strength of triples.
        reach: (E, E) T, A, of triples.
        near: (8, N, K) T, written: vector, reach by distance, S, S'/2r, C6 and dC6/dCN.
        others: (N, K) int32, written: the neighbors.
        found: (N,) int32, written: how many.
        placed and all the rest: as in the other passes.
    """
    pdl_wait(USE_PDL)
    atom = tl.program_id(0).to(tl.int64)
    kind = tl.load(kinds + atom)
    moves += tl.load(system + atom) * images * 3
    end = tl.load(limits).to(tl.float64)
    begin, inverse = tl.load(limits + 1), tl.load(limits + 2)
    used = tl.load(count + atom)
    plane = tl.cast(atoms, tl.int64) * slots
    known = used * 0
    for start in range(0, used, WIDTH):
        here = start + tl.arange(0, WIDTH)
        valid = here < used
        other, x, y, z = _neighbors(placed, moves, index, image, atom, atom * slots + here, valid)
        square, within = _within(x, y, z, valid, end)
        distance = tl.sqrt(square.to(limits.dtype.element_ty))
        other_kind = tl.load(kinds + other)
        row = (atom * elements + other_kind) * R
        c6 = tl.zeros([WIDTH], limits.dtype.element_ty)
        change = c6
        for b in tl.static_range(R):
            weight = tl.load(weights + other * R + b)
            c6 += tl.load(own + row + b) * weight
            change += tl.load(slopes + row + b) * weight
        value, fall = _switch(distance, begin, inverse)
        ratio = tl.load(reach + kind * elements + other_kind) / distance
        one = within.to(tl.int32)
        place = atom * slots + known + tl.cumsum(one, 0) - one
        known += tl.sum(one, 0)
        tl.store(others + place, other.to(tl.int32), mask=within)
        tl.store(near + place, x.to(c6.dtype), mask=within)
        tl.store(near + plane + place, y.to(c6.dtype), mask=within)
        tl.store(near + 2 * plane + place, z.to(c6.dtype), mask=within)
        tl.store(near + 3 * plane + place, ratio, mask=within)
        tl.store(near + 4 * plane + place, value, mask=within)
        tl.store(near + 5 * plane + place, 0.5 * fall / distance, mask=within)
        tl.store(near + 6 * plane + place, c6, mask=within)
        tl.store(near + 7 * plane + place, change, mask=within)
    tl.store(found + atom, known)


@triton.jit
def _neighbor(near, others, kinds, plane, place, valid):
    """What `gather_kernel` wrote of some places: vector, square, ratio, S, S'/2r, C6, who, kind."""
    x = tl.load(near + place, mask=valid, other=1.0)
    y = tl.load(near + plane + place, mask=valid, other=1.0)
    z = tl.load(near + 2 * plane + place, mask=valid, other=1.0)
    ratio = tl.load(near + 3 * plane + place, mask=valid, other=1.0)
    value = tl.load(near + 4 * plane + place, mask=valid, other=0.0)
    fall = tl.load(near + 5 * plane + place, mask=valid, other=0.0)
    c6 = tl.load(near + 6 * plane + place, mask=valid, other=0.0)
    who = tl.load(others + place, mask=valid, other=0).to(tl.int64)
    return x, y, z, x * x + y * y + z * z, ratio, value, fall, c6, who, tl.load(kinds + who)


@kernel
def triple_kernel(
    near,
    others,
    found,
    kinds,
    limits,
    reach,
    weights,
    own,
    sums,
    slots,
    elements,
    atoms,
    R: tl.constexpr,
    CORNERS: tl.constexpr,
    OTHERS: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """Triples of an atom with some of its neighbors and all the others.

    Args:
        near, others, found: of `gather_kernel`.
        sums: (2, N, K) T, written: energies of the triples of each neighbor, eV, and half of
            their (dE/dr) / r, eV/A^2.
        kinds and all the rest: as in `gather_kernel`.
    """
    pdl_wait(USE_PDL)
    atom = tl.program_id(0).to(tl.int64)
    used = tl.load(found + atom)
    plane = tl.cast(atoms, tl.int64) * slots
    a = tl.program_id(1) * CORNERS + tl.arange(0, CORNERS)
    first = a < used
    xa, ya, za, one, ratio_a, value_a, fall_a, c6_a, j, kind_a = _neighbor(
        near, others, kinds, plane, atom * slots + a, first
    )
    end = tl.load(limits)
    begin, inverse, strength = tl.load(limits + 1), tl.load(limits + 2), tl.load(limits + 3)
    energies = tl.zeros([CORNERS, OTHERS], limits.dtype.element_ty)
    pulls = energies
    # Programs beyond the last neighbor have nothing to do.
    stop = tl.where(tl.program_id(1) * CORNERS < used, used, 0)
    for start in range(0, stop, OTHERS):
        b = start + tl.arange(0, OTHERS)
        second = b < used
        xb, yb, zb, two, ratio_b, value_b, _, c6_b, k, kind_b = _neighbor(
            near, others, kinds, plane, atom * slots + b, second
        )
        x, y, z = xb[None, :] - xa[:, None], yb[None, :] - ya[:, None], zb[None, :] - za[:, None]
        three = x * x + y * y + z * z
        both = first[:, None] & second[None, :] & (a[:, None] != b[None, :])
        both = both & ~((three >= end * end) & (three < float("inf")))
        three = tl.where(both, three, 1.0)
        c6 = tl.zeros([CORNERS, OTHERS], limits.dtype.element_ty)
        row = (j[:, None] * elements + kind_b[None, :]) * R
        for r in tl.static_range(R):
            c6 += tl.load(own + row + r) * tl.load(weights + k * R + r)[None, :]
        third = tl.sqrt(three)
        value, _ = _switch(third, begin, inverse)
        c9 = tl.sqrt(c6 * c6_a[:, None] * c6_b[None, :]) * value * strength
        ratio = tl.load(reach + kind_a[:, None] * elements + kind_b[None, :]) / third
        ratio = ratio * ratio_a[:, None] * ratio_b[None, :]
        q = tl.exp(tl.log(ratio) * _EXPONENT)
        f = 1.0 / (1.0 + 6.0 * q)
        s, t = one[:, None], two[None, :]
        inverse_three = 1.0 / (s * t * three)
        cube = inverse_three * tl.sqrt(inverse_three)
        u, v, w = s + t - three, s + three - t, t + three - s
        shape = 0.375 * inverse_three * cube
        skew = shape * u * v * w
        angle = skew + cube
        # By the square of the side to the first neighbor.
        rest = f * (16.0 * f * q * angle - 2.5 * skew - 1.5 * cube)
        by = f * shape * (v * w + u * w - u * v) + rest / s
        c9 = tl.where(both, c9 * value_b[None, :], 0.0)
        energies += c9 * angle * f
        pulls += c9 * (by * value_a[:, None] + angle * f * fall_a[:, None])
    energy = tl.sum(energies.to(tl.float64), 1) * value_a
    place = sums + atom * slots + a
    tl.store(place, energy.to(limits.dtype.element_ty), mask=first)
    pull = tl.sum(pulls.to(tl.float64), 1)
    tl.store(place + plane, pull.to(limits.dtype.element_ty), mask=first)


@kernel
def corner_kernel(
    near,
    found,
    sums,
    energies,
    by_coordination,
    forces,
    virials,
    slots,
    atoms,
    WIDTH: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """Adds the triples of an atom to its energy, force, virial and dE/dCN; see above."""
    pdl_wait(USE_PDL)
    atom = tl.program_id(0).to(tl.int64)
    used = tl.load(found + atom)
    plane = tl.cast(atoms, tl.int64) * slots
    zero = tl.zeros([WIDTH], near.dtype.element_ty)
    energy, by = zero, zero
    parts = (zero, zero, zero, zero, zero, zero, zero, zero, zero)
    for start in range(0, used, WIDTH):
        here = start + tl.arange(0, WIDTH)
        valid = here < used
        place = atom * slots + here
        x = tl.load(near + place, mask=valid, other=0.0)
        y = tl.load(near + plane + place, mask=valid, other=0.0)
        z = tl.load(near + 2 * plane + place, mask=valid, other=0.0)
        c6 = tl.load(near + 6 * plane + place, mask=valid, other=1.0)
        change = tl.load(near + 7 * plane + place, mask=valid, other=0.0)
        part = tl.load(sums + place, mask=valid, other=0.0)
        pull = tl.load(sums + plane + place, mask=valid, other=0.0)
        energy += part
        by += part * change / c6
        parts = add_central(parts, 2.0 * pull, (x, y, z))
    # Each triple is in two of the sums, and each atom gets a third of it.
    own = tl.load(energies + atom) + tl.sum(energy.to(tl.float64), 0) / 6.0
    tl.store(energies + atom, own)
    coordination = tl.load(by_coordination + atom) + 0.5 * tl.sum(by.to(tl.float64), 0)
    tl.store(by_coordination + atom, coordination)
    _put(forces, virials, atom, atoms, parts, True)


@kernel
def follow_kernel(
    placed,
    moves,
    system,
    index,
    image,
    count,
    kinds,
    limits,
    reach,
    by_coordination,
    forces,
    virials,
    slots,
    images,
    elements,
    atoms,
    WIDTH: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """Pass 4 for an atom: adds to forces and virials. Arguments as in the other passes."""
    pdl_wait(USE_PDL)
    atom = tl.program_id(0).to(tl.int64)
    kind = tl.load(kinds + atom)
    moves += tl.load(system + atom) * images * 3
    end = tl.load(limits).to(tl.float64)
    begin, inverse = tl.load(limits + 1), tl.load(limits + 2)
    mine = tl.load(by_coordination + atom)
    used = tl.load(count + atom)
    zero = tl.zeros([WIDTH], limits.dtype.element_ty)
    sums = (zero, zero, zero, zero, zero, zero, zero, zero, zero)
    for start in range(0, used, WIDTH):
        here = start + tl.arange(0, WIDTH)
        valid = here < used
        other, x, y, z = _neighbors(placed, moves, index, image, atom, atom * slots + here, valid)
        square, within = _within(x, y, z, valid, end)
        distance = tl.sqrt(square.to(limits.dtype.element_ty))
        pair = tl.load(reach + kind * elements + tl.load(kinds + other))
        _, slope = _count(distance, pair, begin, inverse)
        both = (mine + tl.load(by_coordination + other)).to(slope.dtype)
        r = (x.to(slope.dtype), y.to(slope.dtype), z.to(slope.dtype))
        sums = add_central(sums, tl.where(within, both * slope / distance, 0.0), r)
    _put(forces, virials, atom, atoms, sums, True)


@triton.jit
def _put(forces, virials, atom, atoms, sums, ADDED: tl.constexpr):
    """`put_central` of sums whose lanes are added in float64."""
    a, b, c, d, e, f, g, h, i = sums
    a, b, c = a.to(tl.float64), b.to(tl.float64), c.to(tl.float64)
    d, e, f = d.to(tl.float64), e.to(tl.float64), f.to(tl.float64)
    g, h, i = g.to(tl.float64), h.to(tl.float64), i.to(tl.float64)
    put_central(forces, virials, atom, atoms, (a, b, c, d, e, f, g, h, i), ADDED=ADDED)


@dataclass(frozen=True)
class D3Workspace:
    """Constants of the E elements of a state with R references, and buffers for its atoms.

    Attributes:
        reach, damping, references, c6: see the kernels.
        near, far: (3,) T, limits of coordination numbers and of the energy.
        weights, own, slopes: (N, R), (N, E, R) twice, T.
        by_coordination: (N,) float64.
        placed, moves: of each list, see `place_kernel`.
        result: energies, forces and virials; forces and energies are those of the state.
        images: of each list, how many.
        triple_reach, triples, gathered, others, found, sums: reach and limits of triples, and what
            is written of the neighbors of each atom; empty without a three-body term.
    """

    reach: Tensor
    damping: Tensor
    references: Tensor
    c6: Tensor
    near: Tensor
    far: Tensor
    weights: Tensor
    own: Tensor
    slopes: Tensor
    by_coordination: Tensor
    placed: tuple[Tensor, ...]
    moves: tuple[Tensor, ...]
    result: NetworkResult
    images: tuple[int, ...]
    triple_reach: Tensor
    triples: Tensor
    gathered: Tensor
    others: Tensor
    found: Tensor
    sums: Tensor


class KernelD3(D3Evaluator):
    """D3(BJ) by Triton kernels, on CUDA or in Triton's interpreter.

    Pairs and triples are computed in float64 if the precision is `double`, else in float32. Triples
    take 44 bytes, or 84, for each slot of their list.
    """

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        """See Evaluator; static shapes, does not sync. The first call for a state allocates."""
        with launching_on(state.device):
            bound: D3Workspace | None = state.workspaces.get(self)
            images = tuple(len(item.offsets) for item in lists)
            number = self._list_roles.places.get("three_body")
            slots = 0 if number is None else lists[number].capacity
            if bound is None or bound.images != images or bound.sums.shape[-1] != slots:
                state.workspaces[self] = bound = self._bound(state, images, slots)
                if state.device.type == "cuda":
                    with compiling_ahead():
                        self._launch(state, lists, bound)
            self._launch(state, lists, bound)

    def replace_(self, state: State) -> None:
        """See WorkspaceOwner: kernels read the kinds of the state."""

    def _launch(self, state: State, lists: Sequence[NeighborList], bound: D3Workspace) -> None:
        atoms, elements = len(state.numbers), len(state.elements)
        systems, system = state.grouping.systems, state.grouping.index
        references = bound.weights.shape[1]
        ahead = launching_ahead(state.device, atoms)
        for item, placed, moves, images in zip(
            lists, bound.placed, bound.moves, bound.images, strict=True
        ):
            blocks = triton.cdiv(atoms, PAIRS) + triton.cdiv(systems * images, PAIRS)
            place_kernel[(blocks,)](
                state.positions, state.cell, item.wrap, system, item.offsets, placed, moves,
                atoms, systems, images, BLOCK=PAIRS, num_warps=WARPS, **ahead,
            )  # fmt: skip

        def listed(role: str) -> tuple[NeighborList, int, tuple[Tensor, ...]]:
            number = self._list_roles.places[role]
            item = lists[number]
            geometry = (bound.placed[number], bound.moves[number], system)
            return (
                item,
                bound.images[number],
                (*geometry, item.index, item.image, item.count, state.kinds),
            )

        near, near_images, near_rows = listed("coordination")
        far, far_images, far_rows = listed("dispersion")
        coordinate_kernel[(atoms,)](
            *near_rows, bound.near, bound.reach, bound.references, bound.c6, bound.weights,
            bound.own, bound.slopes, near.capacity, near_images, elements, R=references,
            RP=triton.next_power_of_2(references), WIDTH=PAIRS, num_warps=WARPS, **ahead,
        )  # fmt: skip
        result = bound.result
        disperse_kernel[(atoms,)](
            *far_rows, bound.far, bound.damping, bound.weights, bound.own, bound.slopes,
            result.energies, bound.by_coordination, result.forces, result.virials, far.capacity,
            far_images, elements, atoms, R=references, WIDTH=PAIRS, num_warps=WARPS, **ahead,
        )  # fmt: skip
        if "three_body" in self._list_roles.places:
            around, around_images, around_rows = listed("three_body")
            slots = around.capacity
            gather_kernel[(atoms,)](
                *around_rows, bound.triples, bound.triple_reach, bound.weights, bound.own,
                bound.slopes, bound.gathered, bound.others, bound.found, slots, around_images,
                elements, atoms, R=references, WIDTH=PAIRS, num_warps=WARPS, **ahead,
            )  # fmt: skip
            triple_kernel[(atoms, triton.cdiv(slots, CORNERS))](
                bound.gathered, bound.others, bound.found, state.kinds, bound.triples,
                bound.triple_reach, bound.weights, bound.own, bound.sums, slots, elements, atoms,
                R=references, CORNERS=CORNERS, OTHERS=OTHERS, num_warps=WARPS, **ahead,
            )  # fmt: skip
            corner_kernel[(atoms,)](
                bound.gathered, bound.found, bound.sums, result.energies, bound.by_coordination,
                result.forces, result.virials, slots, atoms, WIDTH=PAIRS, num_warps=WARPS,
                **ahead,
            )  # fmt: skip
        follow_kernel[(atoms,)](
            *near_rows, bound.near, bound.reach, bound.by_coordination, result.forces,
            result.virials, near.capacity, near_images, elements, atoms, WIDTH=PAIRS,
            num_warps=WARPS, **ahead,
        )  # fmt: skip
        totals(state, result)

    def _bound(self, state: State, images: tuple[int, ...], slots: int) -> D3Workspace:
        own, config, device = self.potential, self.potential.config, state.device
        number = torch.float64 if self.precision.network == torch.float64 else torch.float32
        elements = state.elements.cpu()
        references = own.numbers.cpu()[elements]
        count = int((references >= 0.0).sum(1).max())
        moments, radii = own.moments.cpu()[elements], own.radii.cpu()[elements]
        ratio = 3.0 * moments[:, None] * moments
        length = BOHR * (config.a1 * torch.sqrt(ratio) + config.a2)
        strengths = (torch.full_like(ratio, config.s6), config.s8 * ratio * BOHR**2)
        c6 = own.c6.cpu()[elements][:, elements, :count, :count] * (HARTREE * BOHR**6)
        atoms, systems = len(state.numbers), state.grouping.systems

        reach = THREE_BODY_RADIUS * BOHR * own.separations.cpu()[elements][:, elements]
        # C6 are in eV A^6, and their root is of the energy of triples.
        strength = torch.tensor([config.s9 / math.sqrt(HARTREE)], dtype=number, device=device)

        def limits(cutoff: float, width: float) -> Tensor:
            numbers = [cutoff, cutoff - width, 1.0 / width if width else 0.0]
            return torch.tensor(numbers, dtype=number, device=device)

        def empty(*shape: int, dtype: torch.dtype = number) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return D3Workspace(
            reach=(BOHR * (radii[:, None] + radii)).to(device, number),
            damping=torch.stack([*strengths, length**6, length**8], -1).to(device, number),
            references=references[:, :count].contiguous().to(device),
            c6=c6.contiguous().to(device),
            near=limits(config.coordination_cutoff, config.coordination_switch),
            far=limits(config.cutoff, config.switch),
            weights=empty(atoms, count),
            own=empty(atoms, len(elements), count),
            slopes=empty(atoms, len(elements), count),
            by_coordination=empty(atoms, dtype=torch.float64),
            placed=tuple(empty(atoms, 3, dtype=torch.float64) for _ in images),
            moves=tuple(empty(systems, each, 3, dtype=torch.float64) for each in images),
            result=NetworkResult(
                empty(0),  # no constant
                state.energies,
                state.forces,
                empty(9, atoms, dtype=torch.float64),
            ),
            images=images,
            triple_reach=reach.to(device, number),
            triples=torch.cat(
                [limits(config.three_body_cutoff, config.three_body_switch), strength]
            ),
            gathered=empty(8, atoms, slots),
            others=empty(atoms, slots, dtype=torch.int32),
            found=empty(atoms, dtype=torch.int32),
            sums=empty(2, atoms, slots),
        )
