"""Triton kernels for cells that vary: inverse, reach, and whether a list has become due.

They compute what `geometry` and `TorchBuilder` compute, one lane a system or an atom.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

from mdgraph.neighbors.compilation import kernel
from mdgraph.neighbors.vectors import (
    combined,
    cross,
    difference,
    dot,
    load_vector,
    store_vector,
)


@triton.jit
def _length(a):
    return tl.sqrt(dot(a, a))


@triton.jit
def _normalized(a):
    length = _length(a)
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
    part = dot(axis, along)
    first = _normalized(
        (axis[0] - part * along[0], axis[1] - part * along[1], axis[2] - part * along[2])
    )
    second = cross(along, first)
    filled_a = _chosen(periodic == 1, first, (one, zero, zero))
    filled_b = _chosen(periodic == 1, _chosen(p, first, second), (zero, one, zero))
    filled_c = _chosen(periodic == 1, second, (zero, zero, one))
    filled_a = _chosen(periodic == 2, _normalized(cross(b, c)), filled_a)
    filled_b = _chosen(periodic == 2, _normalized(cross(c, a)), filled_b)
    filled_c = _chosen(periodic == 2, _normalized(cross(a, b)), filled_c)
    return _chosen(p, a, filled_a), _chosen(q, b, filled_b), _chosen(r, c, filled_c)


@triton.jit
def _inverse_columns(a, b, c):
    """Columns of the inverse of the matrix with rows a, b, c."""
    u, v, w = cross(b, c), cross(c, a), cross(a, b)
    volume = dot(a, u)
    return (
        (u[0] / volume, u[1] / volume, u[2] / volume),
        (v[0] / volume, v[1] / volume, v[2] / volume),
        (w[0] / volume, w[1] / volume, w[2] / volume),
    )


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
    a, b, c = _complete(a, b, c, p, q, r)
    u, v, w = _inverse_columns(a, b, c)
    for row in tl.static_range(3):
        store_vector(inverse + at + 3 * row, (u[row], v[row], w[row]), inside)
    list_range = tl.load(limits)
    tl.store(reach + system * 3, tl.where(p, list_range * _length(u), 0.0), mask=inside)
    tl.store(reach + system * 3 + 1, tl.where(q, list_range * _length(v), 0.0), mask=inside)
    tl.store(reach + system * 3 + 2, tl.where(r, list_range * _length(w), 0.0), mask=inside)
    if SKIN:
        d = load_vector(reference_cell + at, p)
        e = load_vector(reference_cell + at + 3, q)
        f = load_vector(reference_cell + at + 6, r)
        d, e, f = _complete(d, e, f, p, q, r)
        u, v, w = _inverse_columns(d, e, f)
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
    place = load_vector(reference_positions + atom * 3, inside)
    if CELL_VARIES:
        place = (
            product(place, deformation, system, 0, inside),
            product(place, deformation, system, 1, inside),
            product(place, deformation, system, 2, inside),
        )
    moved = _length(difference(load_vector(positions + atom * 3, inside), place))
    # A position that is not a number must count as moved.
    still = 2.0 * moved <= tl.load(allowed + system, mask=inside, other=0.0)
    if tl.max((inside & ~still).to(tl.int32), 0) > 0:
        tl.store(due, 1)
