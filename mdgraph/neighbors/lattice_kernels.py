"""Triton kernels for cells that vary: inverse, reach, and whether a list has become due.

They compute what `geometry` and `TorchBuilder` compute. Vectors are tuples of three blocks,
one lane a system or an atom.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

from mdgraph.neighbors.compilation import kernel


@triton.jit
def _cross(a, b):
    return (
        a[1] * b[2] - a[2] * b[1],
        a[2] * b[0] - a[0] * b[2],
        a[0] * b[1] - a[1] * b[0],
    )


@triton.jit
def _dot(a, b):
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


@triton.jit
def _normalized(a):
    length = tl.sqrt(_dot(a, a))
    length = tl.where(length > 0, length, 1.0)
    return a[0] / length, a[1] / length, a[2] / length


@triton.jit
def _chosen(condition, a, b):
    return (
        tl.where(condition, a[0], b[0]),
        tl.where(condition, a[1], b[1]),
        tl.where(condition, a[2], b[2]),
    )


@triton.jit
def _row(matrices, system, row: tl.constexpr, wanted):
    at = matrices + system * 9 + row * 3
    return (
        tl.load(at, mask=wanted, other=0.0),
        tl.load(at + 1, mask=wanted, other=0.0),
        tl.load(at + 2, mask=wanted, other=0.0),
    )


@triton.jit
def _store_row(matrices, system, row: tl.constexpr, vector, wanted):
    at = matrices + system * 9 + row * 3
    tl.store(at, vector[0], mask=wanted)
    tl.store(at + 1, vector[1], mask=wanted)
    tl.store(at + 2, vector[2], mask=wanted)


@triton.jit
def product(vector, matrices, system, column: tl.constexpr, inside):
    """One component of vector (3) times the matrix (3, 3) of its system."""
    at = matrices + system * 9 + column
    x = vector[0] * tl.load(at, mask=inside, other=0.0)
    y = vector[1] * tl.load(at + 3, mask=inside, other=0.0)
    return x + y + vector[2] * tl.load(at + 6, mask=inside, other=0.0)


@triton.jit
def _complete(a, b, c, p, q, r):
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
    part = _dot(axis, along)
    first = _normalized(
        (axis[0] - part * along[0], axis[1] - part * along[1], axis[2] - part * along[2])
    )
    second = _cross(along, first)
    filled_a = _chosen(periodic == 1, first, (one, zero, zero))
    filled_b = _chosen(periodic == 1, _chosen(p, first, second), (zero, one, zero))
    filled_c = _chosen(periodic == 1, second, (zero, zero, one))
    filled_a = _chosen(periodic == 2, _normalized(_cross(b, c)), filled_a)
    filled_b = _chosen(periodic == 2, _normalized(_cross(c, a)), filled_b)
    filled_c = _chosen(periodic == 2, _normalized(_cross(a, b)), filled_c)
    return _chosen(p, a, filled_a), _chosen(q, b, filled_b), _chosen(r, c, filled_c)


@triton.jit
def _inverse_columns(a, b, c):
    """Columns of the inverse of the matrix with rows a, b, c."""
    u, v, w = _cross(b, c), _cross(c, a), _cross(a, b)
    volume = _dot(a, u)
    return (
        (u[0] / volume, u[1] / volume, u[2] / volume),
        (v[0] / volume, v[1] / volume, v[2] / volume),
        (w[0] / volume, w[1] / volume, w[2] / volume),
    )


@triton.jit
def _deformation_row(u, v, w, row: tl.constexpr, a, b, c):
    """Row of (inverse with columns u, v, w) times (matrix with rows a, b, c)."""
    return (
        u[row] * a[0] + v[row] * b[0] + w[row] * c[0],
        u[row] * a[1] + v[row] * b[1] + w[row] * c[1],
        u[row] * a[2] + v[row] * b[2] + w[row] * c[2],
    )


@triton.jit
def _length(a):
    return tl.sqrt(_dot(a, a))


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
    a, b, c = _row(cell, system, 0, p), _row(cell, system, 1, q), _row(cell, system, 2, r)
    _store_row(vectors, system, 0, a, inside)
    _store_row(vectors, system, 1, b, inside)
    _store_row(vectors, system, 2, c, inside)
    a, b, c = _complete(a, b, c, p, q, r)
    u, v, w = _inverse_columns(a, b, c)
    _store_row(inverse, system, 0, (u[0], v[0], w[0]), inside)
    _store_row(inverse, system, 1, (u[1], v[1], w[1]), inside)
    _store_row(inverse, system, 2, (u[2], v[2], w[2]), inside)
    list_range = tl.load(limits)
    tl.store(reach + system * 3, tl.where(p, list_range * _length(u), 0.0), mask=inside)
    tl.store(reach + system * 3 + 1, tl.where(q, list_range * _length(v), 0.0), mask=inside)
    tl.store(reach + system * 3 + 2, tl.where(r, list_range * _length(w), 0.0), mask=inside)
    if SKIN:
        d = _row(reference_cell, system, 0, p)
        e = _row(reference_cell, system, 1, q)
        f = _row(reference_cell, system, 2, r)
        d, e, f = _complete(d, e, f, p, q, r)
        u, v, w = _inverse_columns(d, e, f)
        d = _deformation_row(u, v, w, 0, a, b, c)
        e = _deformation_row(u, v, w, 1, a, b, c)
        f = _deformation_row(u, v, w, 2, a, b, c)
        _store_row(deformation, system, 0, d, inside)
        _store_row(deformation, system, 1, e, inside)
        _store_row(deformation, system, 2, f, inside)
        d, e, f = (d[0] - 1.0, d[1], d[2]), (e[0], e[1] - 1.0, e[2]), (f[0], f[1], f[2] - 1.0)
        smallest = 1.0 - tl.sqrt(_dot(d, d) + _dot(e, e) + _dot(f, f))
        tl.store(allowed + system, smallest * list_range - tl.load(limits + 2), mask=inside)


@kernel
def due_kernel(
    positions,
    reference_positions,
    system_index,
    deformation,
    allowed,
    due,
    atoms,
    CELL_VARIES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sets the flag where an atom may have come closer than the list knows.

    Buffers and numbers:
        positions, reference_positions: (N, 3) A.
        system_index: (N,) int64.
        deformation, allowed: from `lattice_kernel`; the skin (S,) where no cell varies.
        due: (1,) int32, zero before; set to one.
        atoms: N.
    """
    atom = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = atom < atoms
    system = tl.load(system_index + atom, mask=inside, other=0)
    at = atom * 3
    x = tl.load(reference_positions + at, mask=inside, other=0.0)
    y = tl.load(reference_positions + at + 1, mask=inside, other=0.0)
    z = tl.load(reference_positions + at + 2, mask=inside, other=0.0)
    if CELL_VARIES:
        carried = (x, y, z)
        x = product(carried, deformation, system, 0, inside)
        y = product(carried, deformation, system, 1, inside)
        z = product(carried, deformation, system, 2, inside)
    x = tl.load(positions + at, mask=inside, other=0.0) - x
    y = tl.load(positions + at + 1, mask=inside, other=0.0) - y
    z = tl.load(positions + at + 2, mask=inside, other=0.0) - z
    moved = tl.sqrt(x * x + y * y + z * z)
    # A position that is not a number must count as moved.
    still = 2.0 * moved <= tl.load(allowed + system, mask=inside, other=0.0)
    if tl.max((inside & ~still).to(tl.int32), 0) > 0:
        tl.store(due, 1)
