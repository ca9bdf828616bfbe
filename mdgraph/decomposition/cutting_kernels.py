"""KernelCutter: cuts domains with Triton kernels that return at once if no cut is due.

Launched one after the other: whether a cut is due, the owner of each atom, the domains that each
atom has neighbors in; then for each domain its atoms in their rows, what it sends, and for each
list the order of rows and the rows. Kernels that put atoms into regions have one program for each,
so ranks of atoms within a region need no atomics and no second pass; the order of rows, which is
one of all atoms, takes a pass that counts and one that writes.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from mdgraph.decomposition.bricks import BrickGrid
from mdgraph.decomposition.subdomain import Subdomain
from mdgraph.gpu.launch import PROGRAMS, launching_on
from mdgraph.gpu.triton_jit import kernel
from mdgraph.gpu.vectors import load_vector
from mdgraph.neighbors import NeighborList
from mdgraph.neighbors.triton_builder import OPTIONS
from mdgraph.neighbors.triton_kernels import completed_vectors, inverse_columns
from mdgraph.state import State

BLOCK: Final = 128
"""Atoms of a program with one lane for each."""

_SCAN: Final = 4096
"""Atoms that a program of a region looks at together."""

_ORDERED: Final = 2048
"""Atoms that a program of their order looks at together."""

_BITS: Final = 31
"""Domains a word of a mask."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators


@kernel
def due_kernel(rebuilds, seen, due, FIRST: tl.constexpr):
    """Whether a list was built since the last cut.

    Buffers:
        rebuilds: () int64, number of builds of the list.
        seen: (1,) int64, that number at the last cut; brought up to date.
        due: (1,) int32, written by the first list, set to one by others.
    """
    now = tl.load(rebuilds)
    changed = (now != tl.load(seen)).to(tl.int32)
    if not FIRST:
        changed = tl.maximum(changed, tl.load(due))
    tl.store(due, changed)
    tl.store(seen, now)


@triton.jit
def _fractional(x, y, z, column, periodic):
    """Coordinate along one cell vector, from a column (1,) each of the inverse of the cell."""
    value = x * column[0] + y * column[1] + z * column[2]
    return tl.where(periodic, value - tl.floor(value), value)


@kernel
def owner_kernel(
    due,
    positions,
    cell,
    pbc,
    planes,
    owner,
    atoms,
    NX: tl.constexpr,
    NY: tl.constexpr,
    NZ: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The domain of each atom.

    Buffers and numbers:
        due: (1,) int32; nothing happens where it is zero.
        positions: (N, 3) A, that the lists were built from.
        cell: (3, 3) A, likewise.
        pbc: (3,) bool.
        planes: (P,) of `BrickGrid.planes`.
        owner: (N,) int32, written.
        atoms: N.
        NX, NY, NZ: bricks along the axes.
    """
    if tl.load(due) == 0:
        return
    atom = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = atom < atoms
    x = tl.load(positions + atom * 3, mask=inside, other=0.0)
    y = tl.load(positions + atom * 3 + 1, mask=inside, other=0.0)
    z = tl.load(positions + atom * 3 + 2, mask=inside, other=0.0)
    one = tl.arange(0, 1)
    p, q, r = tl.load(pbc + one) != 0, tl.load(pbc + one + 1) != 0, tl.load(pbc + one + 2) != 0
    a, b = load_vector(cell + one, p), load_vector(cell + one + 3, q)
    a, b, c = completed_vectors(a, b, load_vector(cell + one + 6, r), p, q, r)
    u, v, w = inverse_columns(a, b, c)
    domain = tl.zeros([BLOCK], tl.int32)
    if NX > 1:
        value = _fractional(x, y, z, u, p)
        part = tl.zeros([BLOCK], tl.int32)
        for plane in range(NX - 1):
            part += (value >= tl.load(planes + plane)).to(tl.int32)
        domain = part
    if NY > 1:
        value = _fractional(x, y, z, v, q)
        part = tl.zeros([BLOCK], tl.int32)
        first = planes + (NX - 1) + domain * (NY - 1)
        for plane in range(NY - 1):
            part += (value >= tl.load(first + plane)).to(tl.int32)
        domain = domain * NY + part
    if NZ > 1:
        value = _fractional(x, y, z, w, r)
        part = tl.zeros([BLOCK], tl.int32)
        first = planes + (NX - 1) + NX * (NY - 1) + domain * (NZ - 1)
        for plane in range(NZ - 1):
            part += (value >= tl.load(first + plane)).to(tl.int32)
        domain = domain * NZ + part
    tl.store(owner + atom, domain, mask=inside)


@kernel
def neighbors_kernel(
    due,
    owner,
    index,
    count,
    row_of,
    neighbors,
    atoms,
    slots,
    BITS: tl.constexpr,
    WORDS: tl.constexpr,
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    LIMITED: tl.constexpr,
):
    """The domains that atoms have neighbors in, as bits.

    Buffers and numbers:
        due: as above.
        owner: (N,) int32.
        index, count: (R, K) and (N,) int32, of a list.
        row_of: (N,) int32, row of each atom of a limited list.
        neighbors: (N, WORDS) int32, written by the first list, added to by others.
        atoms, slots: N, K.
        BITS: of a word that are used.
        WIDTH: slots looked at together, a power of two.
        FIRST: whether this is the first list.
    """
    if tl.load(due) == 0:
        return
    for atom in range(tl.program_id(0), atoms, tl.num_programs(0)):
        row = (tl.load(row_of + atom) if LIMITED else atom) * tl.cast(slots, tl.int64)
        used = tl.load(count + atom)
        for word in tl.static_range(WORDS):
            bits = tl.zeros([WIDTH], tl.int32)
            for start in range(0, used, WIDTH):
                slot = start + tl.arange(0, WIDTH)
                valid = slot < used
                other = tl.load(index + row + slot, mask=valid, other=0).to(tl.int64)
                domain = tl.load(owner + other, mask=valid, other=0) - word * BITS
                here = valid & (domain >= 0) & (domain < BITS)
                bits |= tl.where(here, 1 << tl.where(here, domain, 0), 0)
            found = tl.reduce(bits, 0, _either)
            if not FIRST:
                found |= tl.load(neighbors + atom * WORDS + word)
            tl.store(neighbors + atom * WORDS + word, found)


@triton.jit
def _either(a, b):
    return a | b


@kernel
def place_kernel(
    due,
    owner,
    neighbors,
    kinds,
    begins,
    sizes,
    source,
    is_used,
    place,
    most,
    atoms,
    number,
    elements,
    BITS: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The atoms of each region of rows, in ascending order: one program a region.

    Buffers and numbers:
        due, owner, neighbors: as above.
        kinds: (N,) int64, elements of the atoms among those at hand.
        begins, sizes: (E + D,) int32, first row and rows of each region.
        source: (R,) int64, written for rows with an atom.
        is_used: (R,) bool, written.
        place: (N,) int32, written for atoms of the regions.
        most: (E + D,) int32, raised to the number of atoms.
        atoms, elements: N, E.
        number: of the domain.
        BLOCK: atoms looked at together.
    """
    if tl.load(due) == 0:
        return
    region = tl.program_id(0)
    begin = tl.load(begins + region)
    size = tl.load(sizes + region)
    lane = tl.arange(0, BLOCK)
    found = 0
    for start in range(0, atoms, BLOCK):
        atom = start + lane
        inside = atom < atoms
        domain = tl.load(owner + atom, mask=inside, other=-1)
        kind = tl.load(kinds + atom, mask=inside, other=-1).to(tl.int32)
        word = tl.load(neighbors + atom * WORDS + number // BITS, mask=inside, other=0)
        is_near = ((word >> (number % BITS)) & 1) != 0
        is_own = (domain == number) & (kind == region)
        is_other = (domain == region - elements) & is_near & (domain != number)
        member = inside & tl.where(region < elements, is_own, is_other)
        ranks = found + tl.cumsum(member.to(tl.int32), 0) - 1
        fits = member & (ranks < size)
        tl.store(source + begin + ranks, atom.to(tl.int64), mask=fits)
        tl.store(place + atom, begin + ranks, mask=fits)
        found += tl.sum(member.to(tl.int32), 0)
    for start in range(0, size, BLOCK):
        row = start + lane
        tl.store(is_used + begin + row, row < found, mask=row < size)
    tl.store(most + region, tl.maximum(tl.load(most + region), found))


@kernel
def send_kernel(
    due,
    owner,
    neighbors,
    place,
    send,
    begins,
    sizes,
    most,
    atoms,
    number,
    BITS: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Rows of the atoms that each other domain gets, in ascending order: one program a domain.

    Buffers and numbers:
        due, owner, neighbors, place, atoms, number, BLOCK: as above.
        send: (sum of sizes,) int64, written; row zero where there is no atom.
        begins, sizes: (D,) int32, first place and places of each domain.
        most: (D,) int32, raised to the number of atoms.
    """
    if tl.load(due) == 0:
        return
    other = tl.program_id(0)
    begin = tl.load(begins + other)
    size = tl.load(sizes + other)
    lane = tl.arange(0, BLOCK)
    found = 0
    if other != number:
        for start in range(0, atoms, BLOCK):
            atom = start + lane
            inside = atom < atoms
            domain = tl.load(owner + atom, mask=inside, other=-1)
            word = tl.load(neighbors + atom * WORDS + other // BITS, mask=inside, other=0)
            member = inside & (domain == number) & (((word >> (other % BITS)) & 1) != 0)
            ranks = found + tl.cumsum(member.to(tl.int32), 0) - 1
            row = tl.load(place + atom, mask=member, other=0).to(tl.int64)
            tl.store(send + begin + ranks, row, mask=member & (ranks < size))
            found += tl.sum(member.to(tl.int32), 0)
    for start in range(0, size, BLOCK):
        here = start + lane
        nothing = (here >= found) & (here < size)
        tl.store(send + begin + here, tl.zeros([BLOCK], tl.int64), mask=nothing)
    tl.store(most + other, tl.maximum(tl.load(most + other), found))


@triton.jit
def _is_boundary(neighbors, atom, number, mask, BITS: tl.constexpr, WORDS: tl.constexpr):
    """Whether atoms have a neighbor in another domain than this."""
    found = tl.zeros_like(atom) != 0
    for word in tl.static_range(WORDS):
        bits = tl.load(neighbors + atom * WORDS + word, mask=mask, other=0)
        shift = number - word * BITS
        own = tl.where((shift >= 0) & (shift < BITS), 1 << tl.where(shift >= 0, shift, 0), 0)
        found |= (bits & ~own) != 0
    return found


@triton.jit
def _parts_of_order(
    owner, neighbors, is_used, listed, place, atoms, owned, number, BITS: tl.constexpr,
    WORDS: tl.constexpr,
):  # fmt: skip
    """The atoms at places of a list's order, and whether they are own ones far from others.

    And whether own rows of these numbers hold no atom, and whether the atoms are own ones near.
    """
    inside = place < atoms
    atom = tl.load(listed + place, mask=inside, other=0)
    own = inside & (tl.load(owner + atom, mask=inside, other=-1) == number)
    near = own & _is_boundary(neighbors, atom, number, own, BITS, WORDS)
    is_row = place < owned
    free = is_row & (tl.load(is_used + place, mask=is_row, other=1).to(tl.int32) == 0)
    return atom, own & ~near, free, near


@kernel
def count_kernel(
    due,
    owner,
    neighbors,
    is_used,
    listed,
    counts,
    atoms,
    owned,
    number,
    BITS: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """How many of a block there are of each part that `order_kernel` puts in order.

    Buffers and numbers:
        counts: (3, blocks) int32, written.
        Others: as there.
    """
    if tl.load(due) == 0:
        return
    block, blocks = tl.program_id(0), tl.num_programs(0)
    place = block * BLOCK + tl.arange(0, BLOCK)
    _, far, free, near = _parts_of_order(
        owner, neighbors, is_used, listed, place, atoms, owned, number, BITS, WORDS
    )
    tl.store(counts + block, tl.sum(far.to(tl.int32), 0))
    tl.store(counts + blocks + block, tl.sum(free.to(tl.int32), 0))
    tl.store(counts + 2 * blocks + block, tl.sum(near.to(tl.int32), 0))


@triton.jit
def _ranks(member, counts, block, blocks, BLOCKS: tl.constexpr):
    """Ranks of members of a block among all, and the number of all, by the counts of blocks."""
    other = tl.arange(0, BLOCKS)
    found = tl.load(counts + other, mask=other < blocks, other=0)
    before = tl.sum(tl.where(other < block, found, 0), 0)
    return before + tl.cumsum(member.to(tl.int32), 0) - 1, tl.sum(found, 0)


@kernel
def order_kernel(
    due,
    owner,
    neighbors,
    is_used,
    listed,
    counts,
    place_of,
    order,
    most,
    atoms,
    owned,
    number,
    BITS: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Own rows in the order of a list: without neighbors in others, without an atom, the rest.

    Buffers and numbers:
        due, owner, neighbors, is_used, atoms, number, BLOCK: as above.
        listed: (N,) int32, order of the list.
        counts: (3, blocks) int32, of `count_kernel`.
        place_of: (N,) int32, `place` as above.
        order: (owned,) int32, written.
        most: (1,) int32, raised to the number of atoms with neighbors in other domains.
        owned: rows of own atoms.
        BLOCKS: a power of two, at least the number of blocks.
    """
    if tl.load(due) == 0:
        return
    block, blocks = tl.program_id(0), tl.num_programs(0)
    place = block * BLOCK + tl.arange(0, BLOCK)
    atom, far, free, near = _parts_of_order(
        owner, neighbors, is_used, listed, place, atoms, owned, number, BITS, WORDS
    )
    row = tl.load(place_of + atom, mask=far | near, other=0)
    # An atom that was left out may have the place of a copy that it was before.
    ranks, before = _ranks(far, counts, block, blocks, BLOCKS)
    tl.store(order + ranks, row, mask=far & (ranks < owned) & (row < owned))
    ranks, found = _ranks(free, counts + blocks, block, blocks, BLOCKS)
    ranks += before
    tl.store(order + ranks, place, mask=free & (ranks < owned))
    before += found
    ranks, found = _ranks(near, counts + 2 * blocks, block, blocks, BLOCKS)
    ranks += before
    tl.store(order + ranks, row, mask=near & (ranks < owned) & (row < owned))
    if block == 0:
        tl.store(most, tl.maximum(tl.load(most), found))


@kernel
def rows_kernel(
    due,
    owner,
    place,
    source,
    is_used,
    kinds,
    numbers,
    listed_index,
    listed_image,
    listed_reverse,
    listed_count,
    listed_wrap,
    row_of,
    index,
    image,
    reverse,
    count,
    wrap,
    local_kinds,
    local_numbers,
    rows,
    slots,
    zero_image,
    owned,
    number,
    WIDTH: tl.constexpr,
    LIMITED: tl.constexpr,
):
    """The rows of local atoms, of one list: whole for own atoms, own neighbors for others.

    Buffers and numbers:
        due, owner, place, source, is_used, number, owned: as above.
        kinds, numbers: (N,) int64; local_kinds, local_numbers: (R,) int64, written for rows of
            others' atoms.
        listed_index, listed_image, listed_reverse, listed_count, listed_wrap, row_of: of the list.
        index, image, reverse, count, wrap: of the domain, written.
        rows, slots: R, K.
        zero_image: number of no translation, for empty slots.
        WIDTH: a power of two, at least K.
    """
    if tl.load(due) == 0:
        return
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        atom = tl.load(source + row)
        slot = tl.arange(0, WIDTH)
        inside = slot < slots
        used = tl.where(tl.load(is_used + row) != 0, tl.load(listed_count + atom), 0)
        kept = inside & (slot < used)
        at = (tl.load(row_of + atom).to(tl.int64) if LIMITED else atom) * slots + slot
        neighbor = tl.load(listed_index + at, mask=kept, other=0).to(tl.int64)
        if row >= owned:
            kept &= tl.load(owner + neighbor, mask=kept, other=-1) == number
            tl.store(local_kinds + row, tl.load(kinds + atom))
            tl.store(local_numbers + row, tl.load(numbers + atom))
        keeping = kept.to(tl.int32)
        found = tl.sum(keeping, 0)
        out = row * tl.cast(slots, tl.int64) + tl.cumsum(keeping, 0) - 1
        tl.store(index + out, tl.load(place + neighbor, mask=kept, other=0), mask=kept)
        tl.store(image + out, tl.load(listed_image + at, mask=kept, other=0), mask=kept)
        tl.store(reverse + out, tl.load(listed_reverse + at, mask=kept, other=0), mask=kept)
        empty = inside & (slot >= found)
        out = row * tl.cast(slots, tl.int64) + slot
        tl.store(index + out, tl.zeros([WIDTH], tl.int32) + row, mask=empty)
        tl.store(image + out, tl.zeros([WIDTH], tl.int32) + zero_image, mask=empty)
        tl.store(reverse + out, slot, mask=empty)
        tl.store(count + row, found)
        for axis in tl.static_range(3):
            tl.store(wrap + row * 3 + axis, tl.load(listed_wrap + atom * 3 + axis))


class KernelCutter:
    """Cuts with the kernels above; see Cutter."""

    def __init__(
        self, grid: BrickGrid, planes: Tensor, state: State, lists: Sequence[NeighborList]
    ) -> None:
        """Allocates buffers between the kernels; see TorchCutter."""
        self._grid, self._planes, self._state, self._lists = grid, planes, state, lists
        atoms, device = len(state.numbers), state.device
        int32: dict[str, Any] = {"dtype": torch.int32, "device": device}
        self._words = -(-len(grid) // _BITS)
        self._owner = torch.zeros(atoms, **int32)
        self._neighbors = torch.zeros(atoms, self._words, **int32)
        self._due = torch.ones(1, **int32)
        self._seen = torch.full((len(lists),), -1, dtype=torch.int64, device=device)
        self._pbc = state.pbc[0].contiguous()
        self._tables: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        self._is_given = False

    def give_(self, owner: Tensor | None) -> None:
        """See Cutter; does not sync."""
        self._is_given = owner is not None
        if owner is not None:
            self._owner.copy_(owner)
        self._seen.fill_(-1)

    def forget_where_(self, condition: Tensor) -> None:
        """See Cutter; does not sync."""
        self._seen.masked_fill_(condition, -1)

    def membership(self) -> tuple[Tensor, Tensor]:
        """See Cutter; cuts are due afterwards."""
        self._due.fill_(1)
        with launching_on(self._state.device):
            self._find_neighbors()
        number = torch.arange(len(self._grid), dtype=torch.int32, device=self._owner.device)
        words = self._neighbors[:, number // _BITS]
        return self._owner.to(torch.int64), ((words >> (number % _BITS)) & 1).to(torch.bool)

    def cut_(self, domains: Sequence[Subdomain]) -> None:
        """See Cutter; static shapes, does not sync."""
        with launching_on(self._state.device):
            for place, listed in enumerate(self._lists):
                due_kernel[(1,)](
                    listed.rebuilds, self._seen[place:], self._due, FIRST=place == 0, num_warps=1
                )
            self._find_neighbors()
            for domain in domains:
                self._cut_(domain)

    def _find_neighbors(self) -> None:
        state, first = self._state, self._lists[0]
        atoms = len(state.numbers)
        x, y, z = self._grid.shape
        if not self._is_given:
            owner_kernel[(triton.cdiv(atoms, BLOCK),)](
                self._due,
                first.reference_positions,
                first.reference_cell,
                self._pbc,
                self._planes,
                self._owner,
                atoms,
                NX=x,
                NY=y,
                NZ=z,
                BLOCK=BLOCK,
                **OPTIONS,
            )
        for place, listed in enumerate(self._lists):
            neighbors_kernel[(min(atoms, PROGRAMS),)](
                self._due,
                self._owner,
                listed.index,
                listed.count,
                listed.row,
                self._neighbors,
                atoms,
                listed.capacity,
                BITS=_BITS,
                WORDS=self._words,
                WIDTH=min(128, triton.next_power_of_2(listed.capacity)),
                FIRST=place == 0,
                LIMITED=listed.row is not None,
                num_warps=1,
            )

    def _cut_(self, domain: Subdomain) -> None:
        state, capacity, atoms = self._state, domain.capacity, len(self._state.numbers)
        begins, sizes, send = self._tables_of(domain)
        regions, elements = len(capacity.begins), len(capacity.own)
        block = min(_SCAN, triton.next_power_of_2(atoms))
        scan: dict[str, Any] = {"BLOCK": block, "num_warps": max(1, block // 512)}
        mask = {"BITS": _BITS, "WORDS": self._words}
        known = self._due, self._owner, self._neighbors
        place_kernel[(regions,)](
            *known,
            state.kinds,
            begins[:regions],
            sizes[:regions],
            domain.source,
            domain.is_used,
            domain.place,
            domain.most,
            atoms,
            domain.number,
            elements,
            **mask,
            **scan,
        )
        send_kernel[(len(capacity.send),)](
            *known,
            domain.place,
            send,
            begins[regions:],
            sizes[regions:],
            domain.most[regions:],
            atoms,
            domain.number,
            **mask,
            **scan,
        )
        blocks = triton.cdiv(max(atoms, capacity.owned), _ORDERED)
        counts = torch.empty(3, blocks, dtype=torch.int32, device=self._due.device)
        for rows, listed in zip(domain.lists, self._lists, strict=True):
            ordered = self._due, self._owner, self._neighbors, domain.is_used, listed.order
            sizes_of_order = atoms, capacity.owned, domain.number
            count_kernel[(blocks,)](*ordered, counts, *sizes_of_order, **mask, BLOCK=_ORDERED)
            order_kernel[(blocks,)](
                *ordered,
                counts,
                domain.place,
                rows.order,
                domain.most[-1:],
                *sizes_of_order,
                **mask,
                BLOCK=_ORDERED,
                BLOCKS=triton.next_power_of_2(blocks),
            )
            rows_kernel[(min(capacity.rows, PROGRAMS),)](
                self._due,
                self._owner,
                domain.place,
                domain.source,
                domain.is_used,
                state.kinds,
                state.numbers,
                listed.index,
                listed.image,
                listed.reverse,
                listed.count,
                listed.wrap,
                listed.row,
                rows.index,
                rows.image,
                rows.reverse,
                rows.count,
                rows.wrap,
                domain.state.kinds,
                domain.state.numbers,
                capacity.rows,
                listed.capacity,
                len(listed.offsets) // 2,
                capacity.owned,
                domain.number,
                WIDTH=triton.next_power_of_2(listed.capacity),
                LIMITED=listed.row is not None,
                num_warps=1,
            )

    def _tables_of(self, domain: Subdomain) -> tuple[Tensor, Tensor, Tensor]:
        """Begins and sizes of all regions, those to send last, and what is sent side by side."""
        known = self._tables.get(domain.number)
        if known is None:
            capacity, device = domain.capacity, self._owner.device
            sent = [sum(capacity.send[:other]) for other in range(len(capacity.send))]
            begins, sizes = torch.tensor(
                [[*capacity.begins, *sent], capacity.sizes[:-1]], dtype=torch.int32, device=device
            )
            known = begins.contiguous(), sizes.contiguous(), domain.sent
            self._tables[domain.number] = known
        return known
