"""Triton kernels that build neighbor lists: wrap, bins, rows, reverse slots, skin tests.

They build the rows that `neighbors/search.py` and `TorchBuilder` build. Both searches measure a
pair as (x_j - x_i) + t with the lattice translation t, so both directions round alike, and a pair
is found from both sides or from none.
"""

import triton
import triton.language as tl

from mdgraph.gpu.triton_jit import kernel, pdl_wait
from mdgraph.gpu.vectors import (
    chosen,
    combined,
    cross,
    difference,
    dot,
    load_vector,
    norm,
    store_vector,
)

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators


@triton.jit
def _normalized(a):
    length = norm(a)
    length = tl.where(length > 0, length, 1.0)
    return a[0] / length, a[1] / length, a[2] / length


@triton.jit
def product(vector, matrices, system, column: tl.constexpr, inside):
    """One component of vector (3) times the matrix (3, 3) of its system."""
    at = matrices + system * 9 + column
    x = vector[0] * tl.load(at, mask=inside, other=0.0)
    y = vector[1] * tl.load(at + 3, mask=inside, other=0.0)
    return x + y + vector[2] * tl.load(at + 6, mask=inside, other=0.0)


@triton.jit
def completed_vectors(a, b, c, p, q, r):
    """Fills the rows a, b, c that are not periodic (not p, q, r) as `complete_cell` does."""
    periodic = p.to(tl.int32) + q.to(tl.int32) + r.to(tl.int32)
    zero = tl.zeros_like(a[0])
    one = zero + 1.0
    # One periodic direction: two normals from the Cartesian axis least along it.
    along = _normalized((a[0] + b[0] + c[0], a[1] + b[1] + c[1], a[2] + b[2] + c[2]))
    x, y, z = tl.abs(along[0]), tl.abs(along[1]), tl.abs(along[2])
    on_x = (x <= y) & (x <= z)
    on_y = ~on_x & (y <= z)
    axis = (
        tl.where(on_x, one, zero),
        tl.where(on_y, one, zero),
        tl.where(on_x | on_y, zero, one),
    )
    part = dot(axis, along)
    first = _normalized(
        (axis[0] - part * along[0], axis[1] - part * along[1], axis[2] - part * along[2])
    )
    second = cross(along, first)
    filled_a = chosen(periodic == 1, first, (one, zero, zero))
    filled_b = chosen(periodic == 1, chosen(p, first, second), (zero, one, zero))
    filled_c = chosen(periodic == 1, second, (zero, zero, one))
    filled_a = chosen(periodic == 2, _normalized(cross(b, c)), filled_a)
    filled_b = chosen(periodic == 2, _normalized(cross(c, a)), filled_b)
    filled_c = chosen(periodic == 2, _normalized(cross(a, b)), filled_c)
    return chosen(p, a, filled_a), chosen(q, b, filled_b), chosen(r, c, filled_c)


@triton.jit
def inverse_columns(a, b, c):
    """Columns of the inverse of the matrix with rows a, b, c."""
    u, v, w = cross(b, c), cross(c, a), cross(a, b)
    volume = dot(a, u)
    return (
        (u[0] / volume, u[1] / volume, u[2] / volume),
        (v[0] / volume, v[1] / volume, v[2] / volume),
        (w[0] / volume, w[1] / volume, w[2] / volume),
    )


@triton.jit
def is_due(due, FLAGS: tl.constexpr):
    """Whether one of some flags, a power of two of them, is set."""
    flag = tl.load(due) if FLAGS == 1 else tl.max(tl.load(due + tl.arange(0, FLAGS)), 0)
    return flag != 0


@kernel
def lattice_kernel(
    cell,
    reference_cell,
    pbc,
    limits,
    vectors,
    inverse,
    reach,
    deformation,
    allowed,
    systems,
    SKIN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """What a build needs of cells that vary, and what the check of the skin needs.

    Buffers and numbers:
        cell, reference_cell: (S, 3, 3) A.
        pbc: (S, 3) int32.
        limits: (3,) range, range squared, cutoff of the list; A, A^2, A.
        vectors, inverse, reach: of `geometry.Lattice`, written.
        deformation: (S, 3, 3), from the reference cell to the cell; written with a skin.
        allowed: (S,), twice the way an atom may have gone; written with a skin.
        systems: S.
    """
    system = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = system < systems
    p = tl.load(pbc + system * 3, mask=inside, other=0) != 0
    q = tl.load(pbc + system * 3 + 1, mask=inside, other=0) != 0
    r = tl.load(pbc + system * 3 + 2, mask=inside, other=0) != 0
    at = system * 9
    a = load_vector(cell + at, p)
    b = load_vector(cell + at + 3, q)
    c = load_vector(cell + at + 6, r)
    store_vector(vectors + at, a, inside)
    store_vector(vectors + at + 3, b, inside)
    store_vector(vectors + at + 6, c, inside)
    a, b, c = completed_vectors(a, b, c, p, q, r)
    u, v, w = inverse_columns(a, b, c)
    for row in tl.static_range(3):
        store_vector(inverse + at + 3 * row, (u[row], v[row], w[row]), inside)
    list_range = tl.load(limits)
    tl.store(reach + system * 3, tl.where(p, list_range * norm(u), 0.0), mask=inside)
    tl.store(reach + system * 3 + 1, tl.where(q, list_range * norm(v), 0.0), mask=inside)
    tl.store(reach + system * 3 + 2, tl.where(r, list_range * norm(w), 0.0), mask=inside)
    if SKIN:
        d = load_vector(reference_cell + at, p)
        e = load_vector(reference_cell + at + 3, q)
        f = load_vector(reference_cell + at + 6, r)
        d, e, f = completed_vectors(d, e, f, p, q, r)
        u, v, w = inverse_columns(d, e, f)
        d = combined((u[0], v[0], w[0]), a, b, c)
        e = combined((u[1], v[1], w[1]), a, b, c)
        f = combined((u[2], v[2], w[2]), a, b, c)
        store_vector(deformation + at, d, inside)
        store_vector(deformation + at + 3, e, inside)
        store_vector(deformation + at + 6, f, inside)
        d, e, f = (d[0] - 1.0, d[1], d[2]), (e[0], e[1] - 1.0, e[2]), (f[0], f[1], f[2] - 1.0)
        smallest = 1.0 - tl.sqrt(dot(d, d) + dot(e, e) + dot(f, f))
        tl.store(allowed + system, smallest * list_range - tl.load(limits + 2), mask=inside)


@kernel
def due_kernel(
    positions,
    reference_positions,
    system_index,
    deformation,
    allowed,
    due,
    numbers,
    used,
    rows,
    CELL_VARIES: tl.constexpr,
    SOME: tl.constexpr,
    OWN: tl.constexpr,
    BLOCK: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """Sets the flag where an atom may have come closer than the list knows.

    Buffers and numbers:
        positions: (n, 3) A, of all atoms or some.
        reference_positions: (N, 3) A.
        system_index: (N,) int64.
        deformation, allowed: from `lattice_kernel`; the skin (S,) where no cell varies.
        due: (FLAGS,) int32: a flag for each program, written in any case, or where there is one
            for all, zero before, it is set to one.
        numbers, used: (n,) int64 and bool, which atoms some are, and whether they count.
        rows: n.
        SOME: whether these are some.
        OWN: whether each program has a flag.
    """
    pdl_wait(USE_PDL)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    atom = row
    if SOME:
        inside &= tl.load(used + row, mask=inside, other=0) != 0
        atom = tl.load(numbers + row, mask=inside, other=0)
    system = tl.load(system_index + atom, mask=inside, other=0)
    place = load_vector(reference_positions + atom * 3, inside)
    if CELL_VARIES:
        place = (
            product(place, deformation, system, 0, inside),
            product(place, deformation, system, 1, inside),
            product(place, deformation, system, 2, inside),
        )
    moved = norm(difference(load_vector(positions + row * 3, inside), place))
    # A position that is not a number must count as moved.
    still = 2.0 * moved <= tl.load(allowed + system, mask=inside, other=0.0)
    found = tl.max((inside & ~still).to(tl.int32), 0)
    if OWN:
        tl.store(due + tl.program_id(0), found)
    elif found > 0:
        tl.store(due, 1)


# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators


@triton.jit
def translation(vectors, column: tl.constexpr, a, b, c):
    """Component of a lattice translation from its whole numbers a, b, c."""
    first = a * tl.load(vectors + column) + b * tl.load(vectors + column + 3)
    return first + c * tl.load(vectors + column + 6)


@triton.jit
def _nearest(difference, periodic):
    """Whole number to add to a difference of wrapped coordinates to make it smallest."""
    zero = tl.zeros_like(difference)
    ahead, behind = periodic & (difference > 0.5), periodic & (difference < -0.5)
    return tl.where(ahead, zero - 1.0, tl.where(behind, zero + 1.0, zero))


@triton.jit
def finish(count, sticky, atom, found, capacity):
    """Writes the count of a row, and the true one where it is the largest yet."""
    tl.store(count + atom, tl.minimum(found, capacity))
    # Rarely true, which spares an atomic operation an atom on one address.
    if found > tl.load(sticky):
        tl.atomic_max(sticky, found.to(tl.int64))


@kernel
def every_pair_kernel(
    due,
    wrapped,
    fractional,
    system_index,
    system_start,
    system_size,
    pbc,
    vectors,
    limits,
    index,
    image,
    count,
    sticky,
    atoms,
    capacity,
    stride_x,
    stride_y,
    zero_image,
    SHELL_X: tl.constexpr,
    SHELL_Y: tl.constexpr,
    SHELL_Z: tl.constexpr,
    CHUNK: tl.constexpr,
    FLAGS: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """The row of one atom from all atoms of its system, already in order.

    Buffers and numbers:
        due: (FLAGS,) int32; nothing happens where all are zero.
        wrapped, fractional: (3, N) from `prepare_kernel`.
        system_index: (N,) int64; system_start, system_size: (S,) int64.
        pbc: (S, 3) int32; vectors: (S, 3, 3) A.
        limits: (3,), the second is the squared range of the list, A^2.
        index, image: (N, K) int32, written.
        count: (N,) int32, written; sticky: (4,) int64, the first is raised.
        atoms, capacity: N, K.
        stride_x, stride_y, zero_image: of `ImageTable`; the third stride is one.
        SHELL_X, SHELL_Y, SHELL_Z: of `EveryPair`.
        CHUNK: candidates looked at together.
    """
    pdl_wait(USE_PDL)
    if not is_due(due, FLAGS):
        return
    atom = tl.program_id(0)
    row = atom.to(tl.int64) * capacity
    system = tl.load(system_index + atom)
    start = tl.load(system_start + system).to(tl.int32)
    x = tl.load(wrapped + atom)
    y = tl.load(wrapped + atoms + atom)
    z = tl.load(wrapped + 2 * atoms + atom)
    f = tl.load(fractional + atom)
    g = tl.load(fractional + atoms + atom)
    h = tl.load(fractional + 2 * atoms + atom)
    periodic_x = tl.load(pbc + system * 3) != 0
    periodic_y = tl.load(pbc + system * 3 + 1) != 0
    periodic_z = tl.load(pbc + system * 3 + 2) != 0
    cell = vectors + system * 9
    limit = tl.load(limits + 1)
    WIDTH_Z: tl.constexpr = 2 * SHELL_Z + 1
    WIDTH_YZ: tl.constexpr = (2 * SHELL_Y + 1) * WIDTH_Z
    WIDTH: tl.constexpr = (2 * SHELL_X + 1) * WIDTH_YZ
    candidates = tl.load(system_size + system).to(tl.int32) * WIDTH
    found = 0
    for begin in range(0, candidates, CHUNK):
        candidate = begin + tl.arange(0, CHUNK)
        present = candidate < candidates
        neighbor = start + candidate // WIDTH
        shift = candidate % WIDTH
        shift_x = shift // WIDTH_YZ - SHELL_X
        shift_y = shift // WIDTH_Z % (2 * SHELL_Y + 1) - SHELL_Y
        shift_z = shift % WIDTH_Z - SHELL_Z
        # A system has images only along its own periodic directions.
        allowed = present & (periodic_x | (shift_x == 0))
        allowed &= (periodic_y | (shift_y == 0)) & (periodic_z | (shift_z == 0))
        a = tl.load(fractional + neighbor, mask=present, other=0.0) - f
        b = tl.load(fractional + atoms + neighbor, mask=present, other=0.0) - g
        c = tl.load(fractional + 2 * atoms + neighbor, mask=present, other=0.0) - h
        a = _nearest(a, periodic_x) + shift_x.to(x.dtype)
        b = _nearest(b, periodic_y) + shift_y.to(x.dtype)
        c = _nearest(c, periodic_z) + shift_z.to(x.dtype)
        dx = tl.load(wrapped + neighbor, mask=present, other=0.0) - x
        dy = tl.load(wrapped + atoms + neighbor, mask=present, other=0.0) - y
        dz = tl.load(wrapped + 2 * atoms + neighbor, mask=present, other=0.0) - z
        dx += translation(cell, 0, a, b, c)
        dy += translation(cell, 1, a, b, c)
        dz += translation(cell, 2, a, b, c)
        number = a * stride_x + b * stride_y + c + zero_image
        itself = (neighbor == atom) & (number == zero_image)
        within = allowed & (dx * dx + dy * dy + dz * dz < limit) & ~itself
        place = found + tl.cumsum(within.to(tl.int32), 0) - 1
        kept = within & (place < capacity)
        tl.store(index + row + place, neighbor, mask=kept)
        # The number of a position that is not a number cannot be cast.
        tl.store(image + row + place, tl.where(kept, number, 0.0).to(tl.int32), mask=kept)
        found += tl.sum(within.to(tl.int32), 0)
    for begin in range(0, capacity, CHUNK):
        slot = begin + tl.arange(0, CHUNK)
        empty = (slot >= found) & (slot < capacity)
        tl.store(index + row + slot, tl.zeros_like(slot) + atom, mask=empty)
        tl.store(image + row + slot, tl.zeros_like(slot) + zero_image, mask=empty)
    finish(count, sticky, atom, found, capacity)


@kernel
def reverse_kernel(
    due,
    order,
    index,
    image,
    count,
    reverse,
    row_of,
    atoms,
    capacity,
    zero_image,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
    LIMITED: tl.constexpr,
    FLAGS: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """Slot of each pair's reverse in the neighbor's row, by bisection.

    Buffers and numbers:
        due: (FLAGS,) int32; nothing happens where all are zero.
        order: (N,) int32, in which atoms are taken.
        index, image, count: the finished rows.
        reverse: (R, K) int32, written; any slot where the neighbor has no row.
        row_of: (N,) int32 of `prepare_kernel`, where rows are limited.
        atoms, capacity, zero_image: N, K, number of no translation.
        STEPS: bisections that find one of K + 1 places.
    """
    pdl_wait(USE_PDL)
    if not is_due(due, FLAGS):
        return
    for turn in range(tl.program_id(0), atoms, tl.num_programs(0)):
        atom = tl.load(order + turn)
        own = tl.load(row_of + atom) if LIMITED else atom
        row = own.to(tl.int64) * capacity
        used = tl.load(count + atom)
        for begin in range(0, tl.where(own >= 0, capacity, 0), BLOCK):
            slot = begin + tl.arange(0, BLOCK)
            filled = slot < used
            neighbor = tl.load(index + row + slot, mask=filled, other=0)
            wanted = 2 * zero_image - tl.load(image + row + slot, mask=filled, other=0)
            there = tl.load(row_of + neighbor, mask=filled, other=0) if LIMITED else neighbor
            other = there.to(tl.int64) * capacity
            low = tl.zeros([BLOCK], tl.int32)
            high = tl.load(count + neighbor, mask=filled, other=0)
            for _ in range(STEPS):
                searching = low < high
                middle = (low + high) // 2
                found = tl.load(index + other + middle, mask=searching, other=0)
                same = searching & (found == atom)
                number = tl.load(image + other + middle, mask=same, other=0)
                before = searching & ((found < atom) | (same & (number < wanted)))
                low = tl.where(before, middle + 1, low)
                high = tl.where(searching & ~before, middle, high)
            place = tl.where(filled, tl.minimum(low, capacity - 1), slot)
            tl.store(reverse + row + slot, place, mask=slot < capacity)


# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators


@triton.jit
def _place(fractional, low, scale, shape, at, inside):
    """Place of a bin along one direction; whatever is not a number goes into the first."""
    last = tl.load(shape + at, mask=inside, other=1) - 1
    place = tl.load(low + at, mask=inside, other=0.0)
    place = tl.floor((fractional - place) * tl.load(scale + at, mask=inside, other=0.0))
    place = tl.where(place > 0, place, 0.0)
    return tl.where(place < last, place, last.to(place.dtype)).to(tl.int32)


@triton.jit
def _is_far(fractional, planes, low, high, reach, periodic):
    """Whether coordinates lie farther than the reach from those between two planes.

    Numbers of planes below zero stand for the ends of the cell, or for none where it is not
    periodic. False for what is not a number.
    """
    zero = tl.zeros_like(fractional)
    start = tl.where(periodic, zero, zero - float("inf"))
    end = tl.where(periodic, zero + 1.0, zero + float("inf"))
    if low >= 0:
        start = zero + tl.load(planes + low)
    if high >= 0:
        end = zero + tl.load(planes + high)
    below, above = start - reach, end + reach
    outside = (fractional < below) | (fractional > above)
    across = (fractional + 1.0 <= above) | (fractional - 1.0 >= below)
    return outside & ~(periodic & across)


@triton.jit
def _scan(in_bin, bin_start, bins, BLOCK: tl.constexpr):
    """Turns the numbers of atoms into the starts of bins, and zeroes them."""
    total = 0
    for start in range(0, bins, BLOCK):
        here = start + tl.arange(0, BLOCK)
        inside = here < bins
        number = tl.load(in_bin + here, mask=inside, other=0)
        tl.store(bin_start + here, total + tl.cumsum(number, 0) - number, mask=inside)
        tl.store(in_bin + here, tl.zeros_like(number), mask=inside)
        total += tl.sum(number, 0)


@triton.jit
def _put_in_bins(bin_of, slot_of, bin_start, wrapped, members, placed, atom, atoms):
    """Puts atoms and their positions next to the others of their bin; see `place_kernel`."""
    inside = atom < atoms
    start = tl.load(bin_start + tl.load(bin_of + atom, mask=inside, other=0))
    place = start + tl.load(slot_of + atom, mask=inside, other=0)
    tl.store(members + place, atom, mask=inside)
    for axis in tl.static_range(3):
        value = tl.load(wrapped + axis * atoms + atom, mask=inside, other=0.0)
        tl.store(placed + axis * atoms + place, value, mask=inside)


@kernel
def prepare_kernel(
    due,
    positions,
    system_index,
    pbc,
    vectors,
    inverse,
    wrap,
    wrapped,
    fractional,
    reference_positions,
    cell,
    reference_cell,
    reach,
    allowed_reach,
    largest_reach,
    sticky,
    rebuilds,
    low,
    scale,
    shape,
    first,
    curve,
    in_bin,
    bin_start,
    bin_of,
    slot_of,
    members,
    placed,
    limits,
    planes,
    row_of,
    filled,
    arrived,
    low_x,
    high_x,
    low_y,
    high_y,
    low_z,
    high_z,
    rows,
    atoms,
    systems,
    all_bins,
    CELL_VARIES: tl.constexpr,
    BINNED: tl.constexpr,
    LIMITED: tl.constexpr,
    BLOCK: tl.constexpr,
    PLACED: tl.constexpr,
    WIDTH: tl.constexpr,
    FLAGS: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """Wraps the atoms, keeps the reference, counts the atoms of each bin, and finds their starts.

    Where PLACED it does what `place_kernel` does too, in one program.

    Buffers and numbers:
        due: (FLAGS,) int32; nothing happens where all are zero.
        positions: (N, 3) A.
        system_index: (N,) int64.
        pbc: (S, 3) int32.
        vectors, inverse, reach: of `geometry.Lattice`.
        wrap, reference_positions: (N, 3), written.
        wrapped, fractional: (3, N), written; coordinates in A and in the complete cell.
        cell: (S, 3, 3) A; reference_cell: written where cells vary.
        allowed_reach: (S, 3) of the plan; largest_reach: (S, 3), raised.
        sticky: (4,) int64 of `torch_builder.Counters`; the third is set where the plan falls short,
            and the last raised to the rows that are needed, where they are limited.
        rebuilds: () int64, counted up.
        low, scale, shape, first, curve: the plan of `CellList`.
        in_bin: (bins,) int32, zero between kernels; atoms of each bin, counted.
        bin_start: (bins + 2,) int32, the first ones written; the last two hold N.
        bin_of, slot_of: (N,) int32, written; slots of a bin fall in any order.
        limits: (1,), range of the list and what atoms may have left the brick by, A.
        planes, low_x to high_z: of a `Brick`, where rows are limited to one; -1 for None.
        row_of: (N,) int32, row of each atom, -1 without one; written where rows are limited. They
            fall in any order.
        filled: (1,) int32, zero between kernels; atoms near the brick, counted.
        arrived: () int32, programs that have done so, zero between kernels. The last one goes on.
        rows, atoms, systems: R, N, S.
        all_bins: how many.
        members, placed: see `place_kernel`, written where PLACED.
        WIDTH: bins, and atoms, that the last program takes at a time.
    """
    pdl_wait(USE_PDL)
    if not is_due(due, FLAGS):
        return
    if tl.program_id(0) == 0:
        tl.store(rebuilds, tl.load(rebuilds) + 1)
    atom = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = atom < atoms
    system = tl.load(system_index + atom, mask=inside, other=0).to(tl.int32)
    position = load_vector(positions + atom * 3, inside)
    f = product(position, inverse, system, 0, inside)
    g = product(position, inverse, system, 1, inside)
    h = product(position, inverse, system, 2, inside)
    at = system * 3
    whole = (
        tl.where(tl.load(pbc + at, mask=inside, other=0) != 0, tl.floor(f), 0.0),
        tl.where(tl.load(pbc + at + 1, mask=inside, other=0) != 0, tl.floor(g), 0.0),
        tl.where(tl.load(pbc + at + 2, mask=inside, other=0) != 0, tl.floor(h), 0.0),
    )
    f, g, h = f - whole[0], g - whole[1], h - whole[2]
    for axis in tl.static_range(3):
        shifted = position[axis] - product(whole, vectors, system, axis, inside)
        tl.store(wrapped + axis * atoms + atom, shifted, mask=inside)
        tl.store(wrap + atom * 3 + axis, whole[axis], mask=inside)
        tl.store(reference_positions + atom * 3 + axis, position[axis], mask=inside)
    if BINNED:
        bins = tl.load(shape + at + 1, mask=inside, other=1)
        number = _place(f, low, scale, shape, at, inside) * bins
        number += _place(g, low, scale, shape, at + 1, inside)
        bins = tl.load(shape + at + 2, mask=inside, other=1)
        number = number * bins + _place(h, low, scale, shape, at + 2, inside)
        number += tl.load(first + system, mask=inside, other=0)
        number = tl.load(curve + number, mask=inside, other=0)
        tl.store(bin_of + atom, number, mask=inside)
        tl.store(slot_of + atom, tl.atomic_add(in_bin + number, 1, mask=inside), mask=inside)
    else:
        tl.store(fractional + atom, f, mask=inside)
        tl.store(fractional + atoms + atom, g, mask=inside)
        tl.store(fractional + 2 * atoms + atom, h, mask=inside)
    if LIMITED:
        # A little more than the range, as rounding may put atoms elsewhere.
        more = 1.02 * tl.load(limits)
        matrix = inverse + system * 9
        a, b = load_vector(matrix, inside), load_vector(matrix + 3, inside)
        c = load_vector(matrix + 6, inside)
        p = tl.load(pbc + at, mask=inside, other=0) != 0
        q = tl.load(pbc + at + 1, mask=inside, other=0) != 0
        r = tl.load(pbc + at + 2, mask=inside, other=0) != 0
        far = _is_far(f, planes, low_x, high_x, more * norm((a[0], b[0], c[0])), p)
        far |= _is_far(g, planes, low_y, high_y, more * norm((a[1], b[1], c[1])), q)
        far |= _is_far(h, planes, low_z, high_z, more * norm((a[2], b[2], c[2])), r)
        near = (inside & ~far).to(tl.int32)
        number = tl.atomic_add(filled, tl.sum(near, 0)) + tl.cumsum(near, 0) - 1
        has_row = (near != 0) & (number < rows)
        tl.store(row_of + atom, tl.where(has_row, number, -1), mask=inside)
    if CELL_VARIES:
        # Each system has an atom, so the lanes suffice for the systems too.
        own = atom < systems
        for element in tl.static_range(9):
            here = atom * 9 + element
            tl.store(reference_cell + here, tl.load(cell + here, mask=own), mask=own)
        short = 0
        for axis in tl.static_range(3):
            here = atom * 3 + axis
            now = tl.load(reach + here, mask=own, other=0.0)
            beyond = own & (now > tl.load(allowed_reach + here, mask=own, other=0.0))
            short += tl.max(beyond.to(tl.int32), 0)
            longest = tl.load(largest_reach + here, mask=own, other=0.0)
            tl.store(largest_reach + here, tl.where(now > longest, now, longest), mask=own)
        if short > 0:
            tl.store(sticky + 2, 1)
    if BINNED:
        # What all threads of this program have counted goes before its arrival.
        tl.debug_barrier()
        if tl.atomic_add(arrived, 1) == tl.num_programs(0) - 1:
            _scan(in_bin, bin_start, all_bins, WIDTH)
            if LIMITED:
                near_all = tl.load(filled).to(tl.int64)
                tl.store(sticky + 3, tl.maximum(tl.load(sticky + 3), near_all))
                tl.store(filled, 0)
            tl.store(arrived, 0)
            if PLACED:
                tl.debug_barrier()
                for start in range(0, atoms, WIDTH):
                    one = start + tl.arange(0, WIDTH)
                    _put_in_bins(bin_of, slot_of, bin_start, wrapped, members, placed, one, atoms)


@kernel
def place_kernel(
    due,
    bin_of,
    slot_of,
    bin_start,
    wrapped,
    members,
    placed,
    atoms,
    BLOCK: tl.constexpr,
    FLAGS: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """Puts atoms and their positions next to the others of their bin.

    Buffers and numbers:
        due: (FLAGS,) int32; nothing happens where all are zero.
        bin_of, slot_of, bin_start: see the kernels before.
        wrapped: (3, N) A.
        members: (N,) int32, atom at each place, written.
        placed: (3, N) A, positions in the same order, written.
        atoms: N.
    """
    pdl_wait(USE_PDL)
    if not is_due(due, FLAGS):
        return
    atom = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    _put_in_bins(bin_of, slot_of, bin_start, wrapped, members, placed, atom, atoms)


# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators


@triton.jit
def _walk_bins(
    place,
    x,
    y,
    z,
    around,
    images,
    offsets,
    vectors,
    limit,
    bin_start,
    members,
    placed,
    index,
    image,
    atoms,
    capacity,
    bins,
    zero_image,
    STENCIL: tl.constexpr,
    LANES: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Writes what lies within the range in the order in which it is met; says how many."""
    found = 0
    for begin in range(0, STENCIL, LANES):
        lane = begin + tl.arange(0, LANES)
        there = lane < STENCIL
        target = tl.load(around + lane, mask=there, other=bins)
        number = tl.load(images + lane, mask=there, other=zero_image)
        start = tl.load(bin_start + target)
        size = tl.load(bin_start + target + 1) - start
        a = tl.load(offsets + number * 3).to(x.dtype)
        b = tl.load(offsets + number * 3 + 1).to(x.dtype)
        c = tl.load(offsets + number * 3 + 2).to(x.dtype)
        tx = translation(vectors, 0, a, b, c)[:, None]
        ty = translation(vectors, 1, a, b, c)[:, None]
        tz = translation(vectors, 2, a, b, c)[:, None]
        number = number[:, None] + tl.zeros([LANES, DEPTH], tl.int32)
        for first in range(0, tl.max(size, 0), DEPTH):
            depth = first + tl.arange(0, DEPTH)[None, :]
            present = depth < size[:, None]
            candidate = start[:, None] + depth
            dx = tl.load(placed + candidate, mask=present, other=0.0) - x + tx
            dy = tl.load(placed + atoms + candidate, mask=present, other=0.0) - y + ty
            dz = tl.load(placed + 2 * atoms + candidate, mask=present, other=0.0) - z + tz
            itself = (candidate == place) & (number == zero_image)
            within = present & (dx * dx + dy * dy + dz * dz < limit) & ~itself
            ones = within.to(tl.int32)
            row_sum = tl.sum(ones, 1)
            slot = found + (tl.cumsum(row_sum, 0) - row_sum)[:, None] + tl.cumsum(ones, 1) - 1
            kept = within & (slot < capacity)
            neighbor = tl.load(members + candidate, mask=kept, other=0)
            tl.store(index + slot, neighbor, mask=kept)
            tl.store(image + slot, number, mask=kept)
            found += tl.sum(row_sum, 0)
    return found


@triton.jit
def _sort_row(index, image, used, atom, capacity, zero_image, WIDTH: tl.constexpr):
    """Sorts a row by (neighbor, image) and fills its empty slots."""
    # What other threads of this program have written must be there to be read.
    tl.debug_barrier()
    slot = tl.arange(0, WIDTH)
    filled = slot < used
    # An empty slot sorts behind any neighbor.
    neighbor = tl.load(index + slot, mask=filled, other=2**31 - 1).to(tl.int64)
    key = tl.sort((neighbor << 32) + tl.load(image + slot, mask=filled, other=0))
    # All must have read before any writes.
    tl.debug_barrier()
    neighbor = tl.where(filled, (key >> 32).to(tl.int32), atom)
    number = tl.where(filled, key.to(tl.int32), zero_image)
    tl.store(index + slot, neighbor, mask=slot < capacity)
    tl.store(image + slot, number, mask=slot < capacity)


@kernel
def cell_list_kernel(
    due,
    members,
    placed,
    bin_of,
    bin_start,
    stencil,
    stencil_image,
    offsets,
    system_index,
    vectors,
    limits,
    index,
    image,
    count,
    order,
    sticky,
    row_of,
    atoms,
    capacity,
    bins,
    zero_image,
    STENCIL: tl.constexpr,
    LANES: tl.constexpr,
    DEPTH: tl.constexpr,
    WIDTH: tl.constexpr,
    LIMITED: tl.constexpr,
    FLAGS: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """The rows of atoms from the bins around their own.

    Buffers and numbers:
        due: (FLAGS,) int32; nothing happens where all are zero.
        members, placed, bin_of, bin_start: see `place_kernel`.
        stencil, stencil_image: (bins, STENCIL) int32 of `CellList`.
        offsets: (images, 3) int64.
        system_index: (N,) int64; vectors: (S, 3, 3) A.
        limits: (3,), the second is the squared range of the list, A^2.
        index, image: (R, K) int32, written.
        count: (N,) int32, written; sticky: (4,) int64, the first is raised.
        order: (N,) int32, atoms by bin and number, written.
        row_of: (N,) int32 of `prepare_kernel`, where rows are limited; others have a count of zero.
        atoms, capacity, bins, zero_image: N, K, number of bins, number of no translation.
        LANES, DEPTH: bins, and atoms of each, looked at together.
        WIDTH: K or more, a power of two.
    """
    pdl_wait(USE_PDL)
    if not is_due(due, FLAGS):
        return
    for place in range(tl.program_id(0), atoms, tl.num_programs(0)):
        atom = tl.load(members + place)
        own = tl.load(bin_of + atom)
        number = tl.load(row_of + atom) if LIMITED else atom
        if number >= 0:
            row = number.to(tl.int64) * capacity
            found = _walk_bins(
                place,
                tl.load(placed + place),
                tl.load(placed + atoms + place),
                tl.load(placed + 2 * atoms + place),
                stencil + own * STENCIL,
                stencil_image + own * STENCIL,
                offsets,
                vectors + tl.load(system_index + atom) * 9,
                tl.load(limits + 1),
                bin_start,
                members,
                placed,
                index + row,
                image + row,
                atoms,
                capacity,
                bins,
                zero_image,
                STENCIL,
                LANES,
                DEPTH,
            )
            used = tl.minimum(found, capacity)
            _sort_row(index + row, image + row, used, atom, capacity, zero_image, WIDTH)
            finish(count, sticky, atom, found, capacity)
        else:
            tl.store(count + atom, 0)
        # Members of a bin lie in any order; their ranks make one that repeats.
        start = tl.load(bin_start + own)
        rank = 0
        for begin in range(start, tl.load(bin_start + own + 1), LANES):
            here = begin + tl.arange(0, LANES)
            inside = here < tl.load(bin_start + own + 1)
            smaller = tl.load(members + here, mask=inside, other=atoms) < atom
            rank += tl.sum(smaller.to(tl.int32), 0)
        tl.store(order + start + rank, atom)
