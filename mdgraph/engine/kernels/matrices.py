"""Device functions: 3 x 3 matrices as three rows, which are tuples of three numbers."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

from mdgraph.neighbors.vectors import cross, dot, scaled


@triton.jit
def load_rows(matrices, number):
    """The rows (float64) of one of the matrices (S, 3, 3)."""
    at = matrices + number * 9
    return (
        (load(at), load(at + 1), load(at + 2)),
        (load(at + 3), load(at + 4), load(at + 5)),
        (load(at + 6), load(at + 7), load(at + 8)),
    )


@triton.jit
def load(pointer):
    """One number, as float64."""
    return tl.load(pointer).to(tl.float64)


@triton.jit
def store_rows(matrices, number, a, b, c):
    """Writes what `load_rows` reads, in the type of the memory."""
    at = matrices + number * 9
    _store_row(at, a)
    _store_row(at + 3, b)
    _store_row(at + 6, c)


@triton.jit
def _store_row(at, a):
    tl.store(at, a[0])
    tl.store(at + 1, a[1])
    tl.store(at + 2, a[2])


@triton.jit
def volume(a, b, c):
    """Volume that three vectors span."""
    return tl.abs(dot(cross(a, b), c))


@triton.jit
def inverse_transposed(a, b, c):
    """Rows of the transpose of the inverse."""
    u, v, w = cross(b, c), cross(c, a), cross(a, b)
    factor = 1.0 / dot(a, u)
    return scaled(u, factor), scaled(v, factor), scaled(w, factor)
