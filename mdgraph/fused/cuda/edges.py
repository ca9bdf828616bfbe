"""Edges, moments and forces on CUDA: the kernels on the rows of the list, and their launches.

M[i, c, s, k] = sum over neighbors j of species s of B_k(d) Y_c(r), with B_k(d) from a table
and Y the components of 1 + [r]x + (r r^T - 1/3) of the unit vector r.

The last function, the window itself, is kept APART from the others where these are as many as a
power of two, as tiles are as wide as one.

One program walks one row, so sums have a fixed order. What differs from the rows of the
list: skin pairs are left out, and each edge remembers its slot to find its reverse.
"""

from typing import Any

import triton
import triton.language as tl

from mdgraph.fused.backend import NetworkResult
from mdgraph.fused.cuda.device import (
    interval_in,
    neighbor_in,
    pair_vectors,
    paired,
    polynomials,
    put,
    put_forces,
)
from mdgraph.fused.cuda.workspace import LaunchPlan
from mdgraph.gpu.launch import launching_ahead
from mdgraph.gpu.triton_jit import kernel, pdl_wait
from mdgraph.gpu.vectors import added, difference, less_outer, load_vector
from mdgraph.models.kernels.algebra import load
from mdgraph.neighbors import NeighborRows
from mdgraph.state import State


@triton.jit
def _close_slots(
    positions, cell, wrap, system, index, image, offsets, kinds, cutoff, atom, slots, used, here
):
    """Slots (W,) within the cutoff: which, neighbors, their elements, vectors, distances."""
    valid = here < used
    other = tl.load(index + atom * slots + here, mask=valid, other=0).to(tl.int64)
    number = tl.load(image + atom * slots + here, mask=valid, other=0).to(tl.int64)
    dx, dy, dz = pair_vectors(positions, cell, wrap, system, offsets, atom, other, number)
    distance = tl.sqrt((dx * dx + dy * dy + dz * dz).to(tl.float64))
    return valid & (distance < cutoff), other, tl.load(kinds + other), dx, dy, dz, distance


@triton.jit
def _write_edges(grid, pair, slot, offset, unit, slots, zones, atom, here, place, close):
    """Writes the edges of some slots, the results of `_close_slots`, at places of the row."""
    within, other, _, dx, dy, dz, distance = close
    grid_start = tl.load(grid)
    zone_width = tl.load(grid + 2)
    per_zone = 1.0 / zone_width
    below = distance < grid_start
    beyond = distance - grid_start
    zone = tl.minimum(tl.maximum((beyond * per_zone).to(tl.int32), 0), zones - 1)
    first = tl.load(grid + 4 + 4 * zone, mask=within, other=0.0)
    intervals = tl.load(grid + 5 + 4 * zone, mask=within, other=1.0)
    width = tl.load(grid + 6 + 4 * zone, mask=within, other=1.0)
    step = tl.load(grid + 7 + 4 * zone, mask=within, other=0.0).to(tl.float32)
    in_zone = beyond - zone.to(tl.float64) * zone_width
    number = tl.floor(in_zone * per_zone * intervals)
    number = tl.minimum(tl.maximum(number, 0.0), intervals - 1.0)
    from_centre = tl.where(below, distance - 0.5 * grid_start, in_zone - (number + 0.5) * width)
    number = tl.where(below, 0.0, first + number).to(tl.int32)
    inverse = 1.0 / tl.where(within, distance, 1.0)
    edge = atom * slots + place
    tl.store(pair + edge, paired(other, number, step), mask=within)
    tl.store(slot + edge, here, mask=within)
    tl.store(offset + edge, from_centre, mask=within)
    tl.store(unit + edge * 4, dx * inverse, mask=within)
    tl.store(unit + edge * 4 + 1, dy * inverse, mask=within)
    tl.store(unit + edge * 4 + 2, dz * inverse, mask=within)
    tl.store(unit + edge * 4 + 3, inverse, mask=within)


@triton.jit
def _edges_at_once(
    positions, cell, wrap, system, index, image, offsets, kinds, cutoff,
    grid, pair, slot, offset, unit, group, slots, zones, atom, used,
    E: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Writes the edges of a row whose slots are in one tile, and says how many."""
    lane = tl.arange(0, WIDTH)
    close = _close_slots(
        positions, cell, wrap, system, index, image, offsets, kinds, cutoff, atom, slots, used, lane
    )
    place = tl.zeros([WIDTH], tl.int32)
    found = 0
    for kind in range(E):
        mine = (close[0] & (close[2] == kind)).to(tl.int32)
        place += mine * (tl.cumsum(mine, 0) - 1 + found)
        tl.store(group + kind, found)
        found += tl.sum(mine, 0)
    _write_edges(grid, pair, slot, offset, unit, slots, zones, atom, lane, place, close)
    return found


@triton.jit
def write_edges(
    positions, cell, wrap, system, index, image, offsets, kinds, cutoff,
    grid, pair, slot, offset, unit, group, edges, slots, zones, atom, used,
    E: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Writes the edges of a row of at most WIDTH slots, and their numbers; see `edges_kernel`."""
    # Half of the lanes often suffice, as rows have room for a skin and a margin.
    if used <= WIDTH // 2:
        found = _edges_at_once(
            positions, cell, wrap, system, index, image, offsets, kinds, cutoff,
            grid, pair, slot, offset, unit, group, slots, zones, atom, used, E, WIDTH // 2,
        )  # fmt: skip
    else:
        found = _edges_at_once(
            positions, cell, wrap, system, index, image, offsets, kinds, cutoff,
            grid, pair, slot, offset, unit, group, slots, zones, atom, used, E, WIDTH,
        )  # fmt: skip
    tl.store(group + E, found)
    tl.store(edges + atom, found)


@kernel
def edges_kernel(
    positions,
    cell,
    wrap,
    system,
    index,
    image,
    count,
    offsets,
    kinds,
    grid,
    pair,
    slot,
    offset,
    unit,
    groups,
    edges,
    slots,
    zones,
    total,
    factor,
    order,
    table,
    moments,
    CHARGED: tl.constexpr,
    E: tl.constexpr,
    EP: tl.constexpr,
    WIDTH: tl.constexpr,
    ONCE: tl.constexpr,
    SUMMED: tl.constexpr,
    K: tl.constexpr,
    ROW: tl.constexpr,
    APART: tl.constexpr,
    KP: tl.constexpr,
    STEP: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """Writes each row's edges closer than the cutoff, element by element as the list has them.

    Where SUMMED, and all slots are in one tile, the program of an atom also sums its moments.

    Args:
        positions, cell, wrap, system, offsets: as in `pair_vectors`.
        index, image, count: the list.
        kinds: (N,) int64, element of each atom among those at hand.
        grid: (4 + 4 Z,) float64: start, cutoff, width of a zone, offset of distance zero in
            its interval; then for each zone its first interval, their number and their width,
            and the step of `packed_polynomials`.
        pair: (N, K) int64, written, see `paired`.
        slot: (N, K) int32, written.
        offset: (N, K), distance from the interval's centre, written.
        unit: (N, K, 4), unit vector and 1/d, written.
        groups: (N, E + 1) int32, first edge to each element, and the number of edges, written.
        edges: (N,) int32, number of edges, written.
        slots: K.
        zones: Z.
        total: (S,), e, total charges; factor: (N,), 1 + 0.1 of it, written where CHARGED.
        order, table, moments, K, ROW, APART, KP: as in `moments_kernel`, where SUMMED.
        EP: a power of two beyond E.
        ONCE: whether all slots are in one tile.
        STEP: edges whose moments are added at a time.
    """
    pdl_wait(USE_PDL)
    atom = (tl.load(order + tl.program_id(0)) if SUMMED else tl.program_id(0)).to(tl.int64)
    cutoff = tl.load(grid + 1)
    if CHARGED:
        tl.store(factor + atom, 1.0 + 0.1 * tl.load(total + tl.load(system + atom)))
    used = tl.load(count + atom)
    lane = tl.arange(0, WIDTH)
    group = groups + atom * (E + 1)
    if ONCE:
        write_edges(
            positions, cell, wrap, system, index, image, offsets, kinds, cutoff,
            grid, pair, slot, offset, unit, group, edges, slots, zones, atom, used, E, WIDTH,
        )  # fmt: skip
        if SUMMED:
            # All threads of this program must have written what others of them read now.
            tl.debug_barrier()
            for wanted in range(E):
                moments_of(
                    atom, wanted, groups, pair, offset, unit, table, moments, slots,
                    E, K, ROW, APART, STEP, KP,
                )  # fmt: skip
    else:
        element = tl.arange(0, EP)
        number = tl.zeros([EP], tl.int32)
        for start in range(0, used, WIDTH):
            close = _close_slots(
                positions, cell, wrap, system, index, image, offsets, kinds, cutoff, atom, slots,
                used, start + lane,
            )  # fmt: skip
            own = (close[0][:, None] & (close[2][:, None] == element[None, :])).to(tl.int32)
            number += tl.sum(own, 0)
        first = tl.cumsum(number, 0) - number
        begin = first
        for start in range(0, used, WIDTH):
            close = _close_slots(
                positions, cell, wrap, system, index, image, offsets, kinds, cutoff, atom, slots,
                used, start + lane,
            )  # fmt: skip
            own = (close[0][:, None] & (close[2][:, None] == element[None, :])).to(tl.int32)
            place = tl.sum(own * (tl.cumsum(own, 0) - 1 + begin[None, :]), 1)
            begin += tl.sum(own, 0)
            here = start + lane
            _write_edges(grid, pair, slot, offset, unit, slots, zones, atom, here, place, close)
        tl.store(group + element, first, mask=element <= E)
        tl.store(edges + atom, tl.sum(number, 0))


@kernel
def forces_kernel(
    gradient,
    pair,
    slot,
    reverse,
    unit,
    edges,
    forces,
    virials,
    slots,
    atoms,
    ADDED: tl.constexpr,
    VIRIALS: tl.constexpr,
    WIDTH: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """F_i = sum_k (w_ik - w_reverse) and W_i = -sum_k r_ik (x) w_ik, summed in float64.

    Args:
        gradient: w (N, K, 3), at the slots of the list.
        pair, slot, unit, edges: as `edges_kernel` wrote them.
        reverse: of the list.
        forces, virials: (N, 3), (9, N) float64, written, or added to where ADDED; virials only
            where VIRIALS.
        slots: K.
        atoms: N.
    """
    pdl_wait(USE_PDL)
    atom = tl.program_id(0).to(tl.int64)
    number = tl.load(edges + atom)
    zero = tl.zeros([WIDTH], tl.float64)
    force = (zero, zero, zero)
    virial = (zero, zero, zero, zero, zero, zero, zero, zero, zero)
    for start in range(0, number, WIDTH):
        here = start + tl.arange(0, WIDTH)
        valid = here < number
        edge = atom * slots + here
        own = atom * slots + tl.load(slot + edge, mask=valid, other=0)
        other = neighbor_in(tl.load(pair + edge, mask=valid, other=0))
        back = other * slots + tl.load(reverse + own, mask=valid, other=0)
        gx, gy, gz = load_vector(gradient + own * 3, valid)
        w = (gx.to(tl.float64), gy.to(tl.float64), gz.to(tl.float64))
        force = added(force, difference(w, load_vector(gradient + back * 3, valid)))
        if VIRIALS:
            inverse = tl.load(unit + edge * 4 + 3, mask=valid, other=1.0).to(tl.float64)
            x = tl.load(unit + edge * 4, mask=valid, other=0.0) / inverse
            y = tl.load(unit + edge * 4 + 1, mask=valid, other=0.0) / inverse
            z = tl.load(unit + edge * 4 + 2, mask=valid, other=0.0) / inverse
            virial = less_outer(virial, (x, y, z), w)
    if VIRIALS:
        put_forces(forces, virials, atom, atoms, force, virial, FACTOR=1.0, ADDED=ADDED)
    else:
        for axis in tl.static_range(3):
            put(forces + 3 * atom + axis, tl.sum(force[axis], 0), ADDED)


@kernel
def totals_kernel(
    energies,
    virials,
    start,
    count,
    energy,
    virial,
    atoms,
    WIDTH: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """Sums over the atoms of each system, one number a program, in float64.

    Args:
        energies, virials: (N,), (9, N) float64.
        start, count: (S,) int64, first atom and number of atoms of each system.
        energy, virial: (S,), (S, 9) float64, written.
        atoms: N.
    """
    pdl_wait(USE_PDL)
    system = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1)
    first = tl.load(start + system)
    number = tl.load(count + system)
    total = tl.zeros([WIDTH], tl.float64)
    for begin in range(0, number, WIDTH):
        here = begin + tl.arange(0, WIDTH)
        valid = here < number
        if column == 9:
            total += tl.load(energies + first + here, mask=valid, other=0.0)
        else:
            total += tl.load(virials + column * atoms + first + here, mask=valid, other=0.0)
    if column == 9:
        tl.store(energy + system, tl.sum(total, 0))
    else:
        tl.store(virial + system * 9 + column, tl.sum(total, 0))


_ROOT2 = tl.constexpr(1.4142135623730951)
_ROOT3 = tl.constexpr(1.7320508075688772)
_HALF = tl.constexpr(0.70710678118654752)
_SIXTH = tl.constexpr(0.40824829046386302)


@triton.jit
def _store_moments(out, m0, m1, m2, m3, m4, m5, m6, m7, m8, have, STRIDE: tl.constexpr):
    """Writes the sums of values times polynomials with the constants of the basis."""
    tl.store(out, m0 * _ROOT3, mask=have)
    tl.store(out + STRIDE, m1 * _ROOT2, mask=have)
    tl.store(out + 2 * STRIDE, m2 * _ROOT2, mask=have)
    tl.store(out + 3 * STRIDE, m3 * _ROOT2, mask=have)
    tl.store(out + 4 * STRIDE, m4 * _ROOT2, mask=have)
    tl.store(out + 5 * STRIDE, m5 * _ROOT2, mask=have)
    tl.store(out + 6 * STRIDE, m6 * _SIXTH, mask=have)
    tl.store(out + 7 * STRIDE, m7 * _ROOT2, mask=have)
    tl.store(out + 8 * STRIDE, m8 * _HALF, mask=have)


@triton.jit
def _summed(x, SUMMED: tl.constexpr):
    """Sums of the columns where SUMMED, else x."""
    return tl.sum(x, 0) if SUMMED else x


@triton.jit
def moments_of(
    atom, wanted, groups, pair, offset, unit, table, moments, slots,
    E: tl.constexpr, K: tl.constexpr, ROW: tl.constexpr, APART: tl.constexpr, WIDTH: tl.constexpr,
    KP: tl.constexpr,
):  # fmt: skip
    """Sums the moments of one atom and one species of neighbors; see `moments_kernel`."""
    k = tl.arange(0, KP)
    TILED: tl.constexpr = K - 1 if APART else K
    # All of a padded row is read, in pieces of 16 bytes.
    READ: tl.constexpr = K - 1 if APART else ROW
    # Sums over all edges at the end, or of each step at once.
    zero = tl.zeros([KP] if APART else [WIDTH, KP], moments.dtype.element_ty)
    m0, m1, m2, m3, m4, m5, m6, m7, m8 = zero, zero, zero, zero, zero, zero, zero, zero, zero
    one = tl.zeros([WIDTH], moments.dtype.element_ty)
    w0, w1, w2, w3, w4, w5, w6, w7, w8 = one, one, one, one, one, one, one, one, one
    group = groups + atom * (E + 1) + wanted
    end = tl.load(group + 1)
    for start in range(tl.load(group), end, WIDTH):
        here = start + tl.arange(0, WIDTH)
        edge = atom * slots + here
        valid = here < end
        u = tl.load(offset + edge, mask=valid, other=0.0)
        place = interval_in(tl.load(pair + edge, mask=valid, other=0))
        x = tl.load(unit + edge * 4, mask=valid, other=0.0)
        y = tl.load(unit + edge * 4 + 1, mask=valid, other=0.0)
        z = tl.load(unit + edge * 4 + 2, mask=valid, other=0.0)
        xy, yz, xz = x * y, y * z, x * z
        axial, planar = 2.0 * z * z - x * x - y * y, x * x - y * y
        if APART:
            window, _ = polynomials(table + place * (4 * ROW) + K - 1, u, valid, ROW)
            w0 += window
            w1 += window * x
            w2 += window * y
            w3 += window * z
            w4 += window * xy
            w5 += window * yz
            w6 += window * axial
            w7 += window * xz
            w8 += window * planar
        inside = valid[:, None] & (k < READ)[None, :]
        at = table + place[:, None] * (4 * ROW) + k[None, :]
        value, _ = polynomials(at, u[:, None], inside, ROW)
        m0 += _summed(value, APART)
        m1 += _summed(value * x[:, None], APART)
        m2 += _summed(value * y[:, None], APART)
        m3 += _summed(value * z[:, None], APART)
        m4 += _summed(value * xy[:, None], APART)
        m5 += _summed(value * yz[:, None], APART)
        m6 += _summed(value * axial[:, None], APART)
        m7 += _summed(value * xz[:, None], APART)
        m8 += _summed(value * planar[:, None], APART)
    out = moments + atom * (9 * E * K) + wanted * K
    _store_moments(
        out + k,
        _summed(m0, not APART),
        _summed(m1, not APART),
        _summed(m2, not APART),
        _summed(m3, not APART),
        _summed(m4, not APART),
        _summed(m5, not APART),
        _summed(m6, not APART),
        _summed(m7, not APART),
        _summed(m8, not APART),
        k < TILED,
        E * K,
    )
    if APART:
        _store_moments(
            out + K - 1,
            tl.sum(w0, 0),
            tl.sum(w1, 0),
            tl.sum(w2, 0),
            tl.sum(w3, 0),
            tl.sum(w4, 0),
            tl.sum(w5, 0),
            tl.sum(w6, 0),
            tl.sum(w7, 0),
            tl.sum(w8, 0),
            True,
            E * K,
        )


@kernel
def moments_kernel(
    order,
    groups,
    pair,
    offset,
    unit,
    table,
    moments,
    slots,
    E: tl.constexpr,
    K: tl.constexpr,
    ROW: tl.constexpr,
    APART: tl.constexpr,
    WIDTH: tl.constexpr,
    KP: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """Sums the moments of one atom and one species of neighbors.

    Args:
        order: (N,) int32, which atom a program takes.
        groups, pair, offset, unit: as `edges_kernel` wrote them.
        table: (intervals, 4, ROW), of which the first K of a row are functions.
        moments: (N, 9, E K), written.
        slots: slots a row.
        E, K: elements at hand, functions.
    """
    pdl_wait(USE_PDL)
    atom = tl.load(order + tl.program_id(0)).to(tl.int64)
    wanted = tl.program_id(1)
    moments_of(
        atom, wanted, groups, pair, offset, unit, table, moments, slots, E, K, ROW, APART, WIDTH, KP
    )  # fmt: skip


@triton.jit
def scaled(d):
    """Adjoint moments times the constants of the basis."""
    return (
        d[0] * _ROOT3,
        d[1] * _ROOT2,
        d[2] * _ROOT2,
        d[3] * _ROOT2,
        d[4] * _ROOT2,
        d[5] * _ROOT2,
        d[6] * _SIXTH,
        d[7] * _ROOT2,
        d[8] * _ROOT2,
    )


@triton.jit
def polynomials_adjoint(d, x, y, z):
    """H = sum_c D_c Y_c, and sum_c D_c dY_c/du, for adjoint moments of `scaled`."""
    d0, d1, d2, d3, d4, d5, d6, d7, d8 = d
    gx = y * d4 + z * d7 + x * d8 - 2.0 * x * d6
    gy = x * d4 + z * d5 - y * d8 - 2.0 * y * d6
    gz = y * d5 + x * d7 + 4.0 * z * d6
    # Y is of degree 2 in u here, of degree 1 and 0 below.
    h = 0.5 * (x * gx + y * gy + z * gz)
    h += x * d1 + y * d2 + z * d3 + d0
    return h, gx + d1, gy + d2, gz + d3


@kernel
def edge_gradients_kernel(
    order,
    groups,
    slot,
    pair,
    offset,
    unit,
    table,
    adjoint,
    central,
    gradient,
    slots,
    E: tl.constexpr,
    K: tl.constexpr,
    ROW: tl.constexpr,
    APART: tl.constexpr,
    STRIPS: tl.constexpr,
    WIDTH: tl.constexpr,
    KP: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """w_ik: derivative of the energy by r_ik through the moments of i, and the central forces.

    A program takes the edges of one atom to neighbors of one element.

    With h_k = sum_c D_ck Y_c and G = sum_k B_k sum_c D_ck dY_c/du for the adjoint moments D
    of the neighbor's species, w = u sum_k B'_k h_k + (G - u (u.G)) / d + b u.

    Args:
        adjoint: D (N, 9, E K).
        central: b (N, STRIPS, K'), from the layers' messages; not read where STRIPS is 0.
        gradient: w (N, K', 3), written at the slots of the list.
        others: as in `moments_kernel` and `edges_kernel`.
    """
    pdl_wait(USE_PDL)
    atom = tl.load(order + tl.program_id(0)).to(tl.int64)
    kind = tl.program_id(1)
    k = tl.arange(0, KP)
    d = adjoint + atom * (9 * E * K) + kind * K
    TILED: tl.constexpr = K - 1 if APART else K
    # All of a padded row is read, in pieces of 16 bytes.
    READ: tl.constexpr = K - 1 if APART else ROW
    if APART:
        by_window = scaled(load(d + K - 1, E * K, True))
    by_others = scaled(load((d + k)[None, :], E * K, (k < TILED)[None, :]))
    group = groups + atom * (E + 1) + kind
    end = tl.load(group + 1)
    for start in range(tl.load(group), end, WIDTH):
        here = start + tl.arange(0, WIDTH)
        edge = atom * slots + here
        valid = here < end
        offset_of = tl.load(offset + edge, mask=valid, other=0.0)
        place = interval_in(tl.load(pair + edge, mask=valid, other=0))
        ux = tl.load(unit + edge * 4, mask=valid, other=0.0)
        uy = tl.load(unit + edge * 4 + 1, mask=valid, other=0.0)
        uz = tl.load(unit + edge * 4 + 2, mask=valid, other=0.0)
        inverse = tl.load(unit + edge * 4 + 3, mask=valid, other=0.0)
        if APART:
            value, slope = polynomials(table + place * (4 * ROW) + K - 1, offset_of, valid, ROW)
            h, gx, gy, gz = polynomials_adjoint(by_window, ux, uy, uz)
            along = slope * h
            gx *= value
            gy *= value
            gz *= value
        else:
            along = tl.zeros([WIDTH], gradient.dtype.element_ty)
            gx, gy, gz = along, along, along
        inside = valid[:, None] & (k < READ)[None, :]
        values, slopes = polynomials(
            table + place[:, None] * (4 * ROW) + k[None, :], offset_of[:, None], inside, ROW
        )
        h, px, py, pz = polynomials_adjoint(by_others, ux[:, None], uy[:, None], uz[:, None])
        along += tl.sum(slopes * h, 1)
        gx += tl.sum(values * px, 1)
        gy += tl.sum(values * py, 1)
        gz += tl.sum(values * pz, 1)
        along -= (ux * gx + uy * gy + uz * gz) * inverse
        for strip in tl.static_range(STRIPS):
            place_of = central + (atom * STRIPS + strip) * slots + here
            along += tl.load(place_of, mask=valid, other=0.0)
        own = gradient + (atom * slots + tl.load(slot + edge, mask=valid, other=0)) * 3
        tl.store(own, gx * inverse + along * ux, mask=valid)
        tl.store(own + 1, gy * inverse + along * uy, mask=valid)
        tl.store(own + 2, gz * inverse + along * uz, mask=valid)


ROW = 128
"""Slots that `edges_kernel` takes in one tile; it looks twice at longer rows."""

WARPS = 1
"""Of a program of `edges_kernel`."""

EDGES = 32
"""Edges that `forces_kernel` takes at a time."""


def find_edges(bound: LaunchPlan, pairs: NeighborRows, summed: bool = False) -> None:
    """Selects the edges within the cutoff, of all rows.

    Args:
        bound: buffers, which are written.
        pairs: the list.
        summed: whether moments are written too; rows have `ROW` slots at most then.
    """
    state, b, once = bound.state, bound.buffers, bound.slots <= ROW
    assert once or not summed
    edges_kernel[(bound.rows,)](
        state.positions,
        state.cell,
        pairs.wrap,
        state.grouping.index,
        pairs.index,
        pairs.image,
        pairs.count,
        pairs.offsets,
        state.kinds,
        bound.grid,
        b.pair,
        b.slot,
        b.offset,
        b.unit,
        b.groups,
        b.edges,
        bound.slots,
        bound.model.grid.zones,
        state.charge,
        bound.charge,
        pairs.order,
        bound.model.embedding_table,
        b.moments,
        CHARGED=bound.model.config.charge_factor and not summed,
        EP=triton.next_power_of_2(bound.elements + 1),
        WIDTH=triton.next_power_of_2(bound.slots) if once else ROW // 2,
        ONCE=once,
        SUMMED=summed,
        STEP=edges_of_moments(bound),
        **moment_sizes(bound),
        num_warps=WARPS,
        **bound.launch,
    )


def sum_moments(bound: LaunchPlan, pairs: NeighborRows) -> None:
    """Moments of every atom, for each element of the neighbors."""
    b = bound.buffers
    moments_kernel[(bound.atoms, bound.elements)](
        pairs.order,
        b.groups,
        b.pair,
        b.offset,
        b.unit,
        bound.model.embedding_table,
        b.moments,
        bound.slots,
        **moment_sizes(bound),
        WIDTH=edges_of_moments(bound),
        num_warps=bound.shapes.moments.warps,
        **bound.launch,
    )


def edges_of_moments(bound: LaunchPlan) -> int:
    """Edges whose moments are added at a time, on which bits depend."""
    step = bound.shapes.moments.step
    # Sums of a step at once need twice the registers for twice the edges.
    return min(step, 4) if bound.model.layerless else step


def moment_sizes(bound: LaunchPlan) -> dict[str, Any]:
    """Sizes of the functions that kernels on moments take."""
    functions, row = bound.model.functions, bound.model.embedding_table.shape[-1]
    apart = not bound.model.layerless
    width = triton.next_power_of_2(max(1, functions - 1)) if apart else functions
    return {"E": bound.elements, "K": functions, "ROW": row, "APART": apart, "KP": width}


def forces(
    bound: LaunchPlan, pairs: NeighborRows, result: NetworkResult, virials: bool = True
) -> None:
    """Forces, and virials if wanted, of all rows from the gradients by moments and distances."""
    b = bound.buffers
    edge_gradients_kernel[(bound.atoms, bound.elements)](
        pairs.order,
        b.groups,
        b.slot,
        b.pair,
        b.offset,
        b.unit,
        bound.model.embedding_table,
        b.moments,
        b.central,
        b.gradient,
        bound.slots,
        STRIPS=bound.strips if bound.layers else 0,
        WIDTH=bound.shapes.gradients.step,
        **moment_sizes(bound),
        num_warps=bound.shapes.gradients.warps,
        **bound.launch,
    )
    pairs.join()
    bound.model.branch.join()
    forces_kernel[(bound.rows,)](
        b.gradient,
        b.pair,
        b.slot,
        pairs.reverse,
        b.unit,
        b.edges,
        result.forces,
        result.virials,
        bound.slots,
        bound.rows,
        ADDED=bound.predicts(bound.layers),
        VIRIALS=virials,
        WIDTH=EDGES,
        num_warps=1,
        **bound.launch,
    )


def totals(state: State, result: NetworkResult) -> None:
    """Sums energies and virials over each system."""
    group = state.grouping
    totals_kernel[(group.systems, 10)](
        result.energies,
        result.virials,
        group.start,
        group.counts,
        state.energy,
        state.virial,
        group.atoms,
        WIDTH=8192,
        num_warps=8,
        **launching_ahead(state.device, group.atoms),
    )
