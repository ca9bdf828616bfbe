"""Kernels on the rows of the list: edges within the cutoff, their gradients, the forces.

One program walks one row, so sums have a fixed order. What differs from the rows of the
list: skin pairs are left out, and each edge remembers its slot to find its reverse.
"""

import triton.language as tl

from mdgraph.fused.cuda.kernels.forces import put_forces
from mdgraph.fused.cuda.kernels.vectors import pair_vectors
from mdgraph.neighbors.compilation import kernel
from mdgraph.neighbors.succession import wait_for_previous
from mdgraph.neighbors.vectors import added, difference, less_outer, load_vector


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
    total,
    factor,
    grid,
    neighbor,
    species,
    slot,
    interval,
    offset,
    unit,
    edges,
    slots,
    zones,
    CHARGED: tl.constexpr,
    WIDTH: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """Writes each row's edges closer than the cutoff, in the order of the list.

    Args:
        positions, cell, wrap, system, offsets: as in `pair_vectors`.
        index, image, count: the list.
        kinds: (N,) int64, element of each atom among those at hand.
        total: (S,), e, total charges; factor: (N,), 1 + 0.1 of it, written where CHARGED.
        grid: (4 + 3 Z,) float64: start, cutoff, width of a zone, offset of distance zero in
            its interval; then for each zone its first interval, their number and their width.
        neighbor, species, slot, interval: (N, K) int32, written; species is a neighbor's element.
        offset: (N, K), distance from the interval's centre, written.
        unit: (N, K, 4), unit vector and 1/d, written.
        edges: (N,) int32, number of edges, written.
        slots: K.
        zones: Z.
    """
    wait_for_previous(EARLY)
    atom = tl.program_id(0).to(tl.int64)
    grid_start = tl.load(grid)
    cutoff = tl.load(grid + 1)
    zone_width = tl.load(grid + 2)
    per_zone = 1.0 / zone_width
    if CHARGED:
        tl.store(factor + atom, 1.0 + 0.1 * tl.load(total + tl.load(system + atom)))
    used = tl.load(count + atom)
    found = 0
    for start in range(0, used, WIDTH):
        here = start + tl.arange(0, WIDTH)
        valid = here < used
        other = tl.load(index + atom * slots + here, mask=valid, other=0).to(tl.int64)
        number = tl.load(image + atom * slots + here, mask=valid, other=0).to(tl.int64)
        dx, dy, dz = pair_vectors(positions, cell, wrap, system, offsets, atom, other, number)
        distance = tl.sqrt((dx * dx + dy * dy + dz * dz).to(tl.float64))
        within = valid & (distance < cutoff)
        below = distance < grid_start
        beyond = distance - grid_start
        zone = tl.minimum(tl.maximum((beyond * per_zone).to(tl.int32), 0), zones - 1)
        first = tl.load(grid + 4 + 3 * zone, mask=within, other=0.0)
        intervals = tl.load(grid + 5 + 3 * zone, mask=within, other=1.0)
        width = tl.load(grid + 6 + 3 * zone, mask=within, other=1.0)
        in_zone = beyond - zone.to(tl.float64) * zone_width
        place = tl.floor(in_zone * per_zone * intervals)
        place = tl.minimum(tl.maximum(place, 0.0), intervals - 1.0)
        from_centre = tl.where(below, distance - 0.5 * grid_start, in_zone - (place + 0.5) * width)
        place = tl.where(below, 0.0, first + place).to(tl.int32)
        inverse = 1.0 / tl.where(within, distance, 1.0)
        within_number = within.to(tl.int32)
        edge = atom * slots + found + tl.cumsum(within_number, 0) - 1
        tl.store(neighbor + edge, other.to(tl.int32), mask=within)
        tl.store(species + edge, tl.load(kinds + other).to(tl.int32), mask=within)
        tl.store(slot + edge, here, mask=within)
        tl.store(interval + edge, place, mask=within)
        tl.store(offset + edge, from_centre, mask=within)
        tl.store(unit + edge * 4, dx * inverse, mask=within)
        tl.store(unit + edge * 4 + 1, dy * inverse, mask=within)
        tl.store(unit + edge * 4 + 2, dz * inverse, mask=within)
        tl.store(unit + edge * 4 + 3, inverse, mask=within)
        found += tl.sum(within_number, 0)
    tl.store(edges + atom, found)


@kernel
def forces_kernel(
    gradient,
    neighbor,
    slot,
    reverse,
    unit,
    edges,
    forces,
    virials,
    slots,
    atoms,
    ADDED: tl.constexpr,
    WIDTH: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """F_i = sum_k (w_ik - w_reverse) and W_i = -sum_k r_ik (x) w_ik, summed in float64.

    Args:
        gradient: w (N, K, 3), at the slots of the list.
        neighbor, slot, unit, edges: as `edges_kernel` wrote them.
        reverse: of the list.
        forces, virials: (N, 3), (9, N) float64, written, or added to where ADDED.
        slots: K.
        atoms: N.
    """
    wait_for_previous(EARLY)
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
        other = tl.load(neighbor + edge, mask=valid, other=0).to(tl.int64)
        back = other * slots + tl.load(reverse + own, mask=valid, other=0)
        gx, gy, gz = load_vector(gradient + own * 3, valid)
        w = (gx.to(tl.float64), gy.to(tl.float64), gz.to(tl.float64))
        force = added(force, difference(w, load_vector(gradient + back * 3, valid)))
        inverse = tl.load(unit + edge * 4 + 3, mask=valid, other=1.0).to(tl.float64)
        x = tl.load(unit + edge * 4, mask=valid, other=0.0) / inverse
        y = tl.load(unit + edge * 4 + 1, mask=valid, other=0.0) / inverse
        z = tl.load(unit + edge * 4 + 2, mask=valid, other=0.0) / inverse
        virial = less_outer(virial, (x, y, z), w)
    put_forces(forces, virials, atom, atoms, force, virial, FACTOR=1.0, ADDED=ADDED)


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
    EARLY: tl.constexpr = False,
):
    """Sums over the atoms of each system, one number a program, in float64.

    Args:
        energies, virials: (N,), (9, N) float64.
        start, count: (S,) int64, first atom and number of atoms of each system.
        energy, virial: (S,), (S, 9) float64, written.
        atoms: N.
    """
    wait_for_previous(EARLY)
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
