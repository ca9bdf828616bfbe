"""Triton kernels for rows: those of every pair, and the reverse slots; one program an atom.

Rows are those that `search` finds. A pair is measured as (x_j - x_i) + t with
the lattice translation t, so that both directions round alike and a pair is found from both
sides or from none.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

from mdgraph.neighbors.compilation import kernel
from mdgraph.neighbors.succession import wait_for_previous


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
    EARLY: tl.constexpr = False,
):
    """The row of one atom from all atoms of its system, already in order.

    Buffers and numbers:
        due: (1,) int32; nothing happens where it is zero.
        wrapped, fractional: (3, N) from `prepare_kernel`.
        system_index: (N,) int64; system_start, system_size: (S,) int64.
        pbc: (S, 3) int32; vectors: (S, 3, 3) A.
        limits: (3,), the second is the squared range of the list, A^2.
        index, image: (N, K) int32, written.
        count: (N,) int32, written; sticky: (3,) int64, the first is raised.
        atoms, capacity: N, K.
        stride_x, stride_y, zero_image: of `ImageTable`; the third stride is one.
        SHELL_X, SHELL_Y, SHELL_Z: of `EveryPair`.
        CHUNK: candidates looked at together.
    """
    wait_for_previous(EARLY)
    if tl.load(due) == 0:
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
    rebuilds,
    capacity,
    zero_image,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """Slot of each pair's reverse in the neighbor's row, by bisection.

    Buffers and numbers:
        due: (1,) int32; nothing happens where it is zero.
        order: (N,) int32, which atom a program takes.
        index, image, count: the finished rows.
        reverse: (N, K) int32, written.
        rebuilds: () int64, counted up.
        capacity, zero_image: K, number of no translation.
        STEPS: bisections that find one of K + 1 places.
    """
    wait_for_previous(EARLY)
    if tl.load(due) == 0:
        return
    atom = tl.load(order + tl.program_id(0))
    row = atom.to(tl.int64) * capacity
    used = tl.load(count + atom)
    for begin in range(0, capacity, BLOCK):
        slot = begin + tl.arange(0, BLOCK)
        filled = slot < used
        neighbor = tl.load(index + row + slot, mask=filled, other=0)
        wanted = 2 * zero_image - tl.load(image + row + slot, mask=filled, other=0)
        other = neighbor.to(tl.int64) * capacity
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
    if tl.program_id(0) == 0:
        tl.store(rebuilds, tl.load(rebuilds) + 1)
