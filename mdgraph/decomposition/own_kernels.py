"""Triton kernels on the own atoms of a rank, in each step: before and after an evaluation."""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from mdgraph.decomposition.own_rows import BLOCK, MarginStart
from mdgraph.fused.backend import NetworkResult
from mdgraph.gpu.launch import launching_on
from mdgraph.gpu.triton_jit import kernel
from mdgraph.gpu.vectors import load_vector, norm, store_vector
from mdgraph.neighbors.triton_kernels import completed_vectors, inverse_columns
from mdgraph.state import State

_LANES: Final = 128
"""Rows of a program with one lane for each."""

_COLUMNS: Final = 10
"""Sums: of the energy, then of the virial row by row."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators


@triton.jit
def _double(a):
    return a[0].to(tl.float64), a[1].to(tl.float64), a[2].to(tl.float64)


@triton.jit
def _needed(place, inside, begun, axis: tl.constexpr, column, start, VARIES: tl.constexpr):
    """Margin (BLOCK,) A that atoms need along a cell vector, see `MarginStart`.

    `place` are their positions, `begun` points to their coordinates at the start, `column` (1,) is
    that of the inverse of the cell.
    """
    height = tl.load(start + 9 + axis)
    here = place[0] * column[0] + place[1] * column[1] + place[2] * column[2]
    moved = tl.abs(here - tl.load(begun + axis, mask=inside, other=0.0))
    needed = tl.where(inside, 2.0 * moved * height, 0.0)
    if VARIES:
        far = column[0] * 0.0
        for number in tl.static_range(3):
            a = start + 3 * number
            x = tl.load(a) * column[0] + tl.load(a + 1) * column[1] + tl.load(a + 2) * column[2]
            if number == axis:
                x -= 1.0
            far += tl.load(start + 12 + number) * tl.abs(x)
        needed += far * height + tl.load(start + 15) * (height * norm(column) - 1.0)
    return tl.where(needed == needed, needed, 0.0)


@kernel
def put_kernel(
    own,
    atoms,
    used,
    positions,
    cell,
    pbc,
    start,
    begun,
    needed,
    rows,
    X: tl.constexpr,
    Y: tl.constexpr,
    Z: tl.constexpr,
    VARIES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Brings positions of own atoms up to date, and raises the margin that a program's need.

    Buffers and numbers:
        own: (C, 3) A.
        atoms, used: (C,) int64 and bool.
        positions: (N, 3) A, written for own atoms.
        cell, pbc: (3, 3) A and (3,) bool.
        start, begun: `values` and `places` of MarginStart.
        needed: (programs,) float64, A, raised.
        rows: C.
        X, Y, Z: whether bricks lie along a cell vector.
        VARIES: whether the cell does.
    """
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    inside &= tl.load(used + row, mask=inside, other=0) != 0
    atom = tl.load(atoms + row, mask=inside, other=0)
    place = load_vector(own + row * 3, inside)
    store_vector(positions + atom * 3, place, inside)
    place = _double(place)
    one = tl.arange(0, 1)
    p, q, r = tl.load(pbc + one) != 0, tl.load(pbc + one + 1) != 0, tl.load(pbc + one + 2) != 0
    a, b = _double(load_vector(cell + one, p)), _double(load_vector(cell + one + 3, q))
    a, b, c = completed_vectors(a, b, _double(load_vector(cell + one + 6, r)), p, q, r)
    u, v, w = inverse_columns(a, b, c)
    begun += row * 3
    most = tl.zeros([BLOCK], tl.float64)
    if X:
        most = tl.maximum(most, _needed(place, inside, begun, 0, u, start, VARIES))
    if Y:
        most = tl.maximum(most, _needed(place, inside, begun, 1, v, start, VARIES))
    if Z:
        most = tl.maximum(most, _needed(place, inside, begun, 2, w, start, VARIES))
    here = needed + tl.program_id(0)
    tl.store(here, tl.maximum(tl.load(here), tl.max(most, 0)))


@kernel
def pack_kernel(source, entries, flags, message, count, BLOCK: tl.constexpr):
    """Rows and flags for a message.

    Buffers and numbers:
        source: (C, 3).
        entries: (n,) int64, rows; -1 - k for flag k.
        flags: (L, 4) int32, of which the first counts; anything without such entries.
        message: (n, 3), written.
        count: n.
    """
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    entry = tl.load(entries + place, mask=inside, other=0)
    is_row = entry >= 0
    value = load_vector(source + entry * 3, inside & is_row)
    flag = tl.load(flags - (entry + 1) * 4, mask=inside & ~is_row, other=0)
    x = tl.where(is_row, value[0], flag.to(value[0].dtype))
    store_vector(message + place * 3, (x, value[1], value[2]), inside)


@kernel
def unpack_kernel(message, entries, target, flags, count, BLOCK: tl.constexpr):
    """Writes what `pack_kernel` packed: rows (N, 3) of `target`, and flags that are set."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    entry = tl.load(entries + place, mask=inside, other=0)
    is_row = entry >= 0
    value = load_vector(message + place * 3, inside)
    store_vector(target + entry * 3, value, inside & is_row)
    is_set = inside & ~is_row & (value[0] != 0.0)
    tl.store(flags - (entry + 1) * 4, tl.full([BLOCK], 1, tl.int32), mask=is_set)


@kernel
def take_kernel(
    atoms,
    used,
    place,
    local_forces,
    local_energies,
    virials,
    constant,
    forces,
    energies,
    parts,
    rows,
    local_rows,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Results of own atoms from the rows of a domain, and their sums over a block.

    Buffers and numbers:
        atoms, used: (C,) int64 and bool.
        place: (N,) int32, local row of each atom.
        local_forces, local_energies, virials: (R, 3), (R,) and (9, R).
        constant: (N,) eV, energies to add.
        forces, energies: (N, 3) and (N,), written for own atoms.
        parts: (C / BLOCK, COLUMNS) float64, written.
        rows, local_rows: C, R.
    """
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    inside &= tl.load(used + row, mask=inside, other=0) != 0
    atom = tl.load(atoms + row, mask=inside, other=0)
    local = tl.load(place + atom, mask=inside, other=0).to(tl.int64)
    store_vector(forces + atom * 3, load_vector(local_forces + local * 3, inside), inside)
    energy = tl.load(local_energies + local, mask=inside, other=0.0)
    energy += tl.load(constant + atom, mask=inside, other=0.0)
    tl.store(energies + atom, energy, mask=inside)
    out = parts + tl.program_id(0) * COLUMNS
    tl.store(out, tl.sum(energy, 0))
    for column in tl.static_range(COLUMNS - 1):
        at = virials + column * tl.cast(local_rows, tl.int64) + local
        tl.store(out + 1 + column, tl.sum(tl.load(at, mask=inside, other=0.0), 0))


@kernel
def total_kernel(parts, energy, virial, blocks, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """Sums over blocks (n, COLUMNS), the same whatever number of zeros follows them."""
    column = tl.arange(0, 16)
    total = tl.zeros([16], tl.float64)
    for begin in range(0, blocks, BLOCK):
        block = begin + tl.arange(0, BLOCK)
        inside = (block[:, None] < blocks) & (column[None, :] < COLUMNS)
        at = parts + block[:, None] * COLUMNS + column[None, :]
        total += tl.sum(tl.load(at, mask=inside, other=0.0), 0)
    tl.store(energy + column, total, mask=column == 0)
    tl.store(virial + column - 1, total, mask=(column > 0) & (column < COLUMNS))


class KernelRows:
    """By the kernels above; see `row_operations.TorchRows`."""

    def programs(self, rows: int) -> int:
        """See TorchRows: a lane a row."""
        return triton.cdiv(rows, _LANES)

    def gather_(self, source: Tensor, rows: Tensor, target: Tensor) -> None:
        """See TorchRows."""
        self.pack_(source, rows, rows, target)

    def put_(
        self, own: Tensor, atoms: Tensor, used: Tensor, state: State, start: MarginStart
    ) -> None:
        """See TorchRows."""
        x, y, z = start.cut
        with launching_on(own.device):
            put_kernel[(self.programs(len(own)),)](
                own, atoms, used, state.positions, state.cell, start.pbc, start.values,
                start.places, start.needed, len(own),
                X=x, Y=y, Z=z, VARIES=start.cell_varies, BLOCK=_LANES,
            )  # fmt: skip

    def pack_(self, source: Tensor, entries: Tensor, flags: Tensor, message: Tensor) -> None:
        """See TorchRows."""
        if len(entries) == 0:  # no other rank is near
            return
        with launching_on(source.device):
            pack_kernel[(self.programs(len(entries)),)](
                source, entries, flags, message, len(entries), BLOCK=_LANES
            )

    def unpack_(self, message: Tensor, entries: Tensor, target: Tensor, flags: Tensor) -> None:
        """See TorchRows."""
        if len(entries) == 0:  # no other rank is near
            return
        with launching_on(target.device):
            unpack_kernel[(self.programs(len(entries)),)](
                message, entries, target, flags, len(entries), BLOCK=_LANES
            )

    def take_(
        self,
        atoms: Tensor,
        used: Tensor,
        place: Tensor,
        result: NetworkResult,
        constant: Tensor,
        state: State,
    ) -> None:
        """See TorchRows."""
        blocks = len(atoms) // BLOCK
        parts = torch.empty(blocks, _COLUMNS, dtype=torch.float64, device=atoms.device)
        with launching_on(atoms.device):
            take_kernel[(blocks,)](
                atoms, used, place, result.forces, result.energies, result.virials, constant,
                state.forces, state.energies, parts, len(atoms), len(result.energies),
                COLUMNS=_COLUMNS, BLOCK=BLOCK,
            )  # fmt: skip
            total_kernel[(1,)](
                parts, state.energy, state.virial, blocks, COLUMNS=_COLUMNS, BLOCK=128
            )
