"""Triton kernel for rows by the cell list, one program an atom.

A pair is measured as in `row_kernels`, so both searches find the same pairs.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

from mdgraph.neighbors.compilation import kernel
from mdgraph.neighbors.row_kernels import finish, translation
from mdgraph.neighbors.succession import wait_for_previous


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
    atoms,
    capacity,
    bins,
    zero_image,
    STENCIL: tl.constexpr,
    LANES: tl.constexpr,
    DEPTH: tl.constexpr,
    WIDTH: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """The row of one atom from the bins around its own.

    Buffers and numbers:
        due: (1,) int32; nothing happens where it is zero.
        members, placed, bin_of, bin_start: see `frame_kernels`.
        stencil, stencil_image: (bins, STENCIL) int32 of `CellList`.
        offsets: (images, 3) int64.
        system_index: (N,) int64; vectors: (S, 3, 3) A.
        limits: (3,), the second is the squared range of the list, A^2.
        index, image: (N, K) int32, written.
        count: (N,) int32, written; sticky: (3,) int64, the first is raised.
        order: (N,) int32, atoms by bin and number, written.
        atoms, capacity, bins, zero_image: N, K, number of bins, number of no translation.
        LANES, DEPTH: bins, and atoms of each, looked at together.
        WIDTH: K or more, a power of two.
    """
    wait_for_previous(EARLY)
    if tl.load(due) == 0:
        return
    place = tl.program_id(0)
    atom = tl.load(members + place)
    own = tl.load(bin_of + atom)
    row = atom.to(tl.int64) * capacity
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
    # Members of a bin lie in any order; their ranks make one that repeats.
    start = tl.load(bin_start + own)
    rank = 0
    for begin in range(start, tl.load(bin_start + own + 1), LANES):
        here = begin + tl.arange(0, LANES)
        inside = here < tl.load(bin_start + own + 1)
        smaller = tl.load(members + here, mask=inside, other=atoms) < atom
        rank += tl.sum(smaller.to(tl.int32), 0)
    tl.store(order + start + rank, atom)
