"""Triton kernels for what comes before the search: wrapped atoms, atoms sorted into bins."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

from mdgraph.neighbors.compilation import kernel
from mdgraph.neighbors.lattice_kernels import product
from mdgraph.neighbors.succession import wait_for_previous
from mdgraph.neighbors.vectors import load_vector


@triton.jit
def _place(fractional, low, scale, shape, at, inside):
    """Place of a bin along one direction; whatever is not a number goes into the first."""
    last = tl.load(shape + at, mask=inside, other=1) - 1
    place = tl.load(low + at, mask=inside, other=0.0)
    place = tl.floor((fractional - place) * tl.load(scale + at, mask=inside, other=0.0))
    place = tl.where(place > 0, place, 0.0)
    return tl.where(place < last, place, last.to(place.dtype)).to(tl.int32)


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
    low,
    scale,
    shape,
    first,
    curve,
    in_bin,
    bin_of,
    slot_of,
    atoms,
    systems,
    CELL_VARIES: tl.constexpr,
    BINNED: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """Wraps the atoms, keeps the reference, and counts the atoms of each bin.

    Buffers and numbers:
        due: (1,) int32; nothing happens where it is zero.
        positions: (N, 3) A.
        system_index: (N,) int64.
        pbc: (S, 3) int32.
        vectors, inverse, reach: of `geometry.Lattice`.
        wrap, reference_positions: (N, 3), written.
        wrapped, fractional: (3, N), written; coordinates in A and in the complete cell.
        cell: (S, 3, 3) A; reference_cell: written where cells vary.
        allowed_reach: (S, 3) of the plan; largest_reach: (S, 3), raised.
        sticky: (3,) int64 of `rows.Counters`; the last is set where the plan falls short.
        low, scale, shape, first, curve: the plan of `CellList`.
        in_bin: (bins,) int32, zero before; atoms of each bin, counted.
        bin_of, slot_of: (N,) int32, written; slots of a bin fall in any order.
        atoms, systems: N, S.
    """
    wait_for_previous(EARLY)
    if tl.load(due) == 0:
        return
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


@kernel
def scan_kernel(
    due,
    in_bin,
    bin_start,
    bins,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """Turns the numbers of atoms into the starts of bins, and zeroes them; one program.

    Buffers and numbers:
        due: (1,) int32; nothing happens where it is zero.
        in_bin: (bins,) int32, read and zeroed.
        bin_start: (bins + 2,) int32, the first ones written; the last two hold N.
        bins: how many.
    """
    wait_for_previous(EARLY)
    if tl.load(due) == 0:
        return
    total = 0
    for start in range(0, bins, BLOCK):
        here = start + tl.arange(0, BLOCK)
        inside = here < bins
        number = tl.load(in_bin + here, mask=inside, other=0)
        tl.store(bin_start + here, total + tl.cumsum(number, 0) - number, mask=inside)
        tl.store(in_bin + here, tl.zeros_like(number), mask=inside)
        total += tl.sum(number, 0)


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
    EARLY: tl.constexpr = False,
):
    """Puts atoms and their positions next to the others of their bin.

    Buffers and numbers:
        due: (1,) int32; nothing happens where it is zero.
        bin_of, slot_of, bin_start: see the kernels before.
        wrapped: (3, N) A.
        members: (N,) int32, atom at each place, written.
        placed: (3, N) A, positions in the same order, written.
        atoms: N.
    """
    wait_for_previous(EARLY)
    if tl.load(due) == 0:
        return
    atom = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = atom < atoms
    start = tl.load(bin_start + tl.load(bin_of + atom, mask=inside, other=0))
    place = start + tl.load(slot_of + atom, mask=inside, other=0)
    tl.store(members + place, atom, mask=inside)
    for axis in tl.static_range(3):
        value = tl.load(wrapped + axis * atoms + atom, mask=inside, other=0.0)
        tl.store(placed + axis * atoms + place, value, mask=inside)
