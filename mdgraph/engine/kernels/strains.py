"""Device functions: how far a cell is strained in a step, and the deformation that makes.

Deformations are rows of F less the identity; forces and strains are those of `Deformation`.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import math

import triton
import triton.language as tl

from mdgraph.engine.deformation import LARGEST_STRAIN
from mdgraph.engine.kernels.matrices import inverse_transposed
from mdgraph.neighbors.vectors import combined, dot, scaled

_LARGEST = tl.constexpr(LARGEST_STRAIN)
_ROOT = tl.constexpr(math.sqrt(2.0))
_HALF_ROOT = tl.constexpr(math.sqrt(0.5))


@triton.jit
def strained(mobility, thermal, force, noise):
    """How far one coordinate of the strain goes in a step, under its force and noise."""
    strain = mobility * force + tl.sqrt(2.0 * mobility * thermal) * noise
    return tl.minimum(tl.maximum(strain, -_LARGEST), _LARGEST)


@triton.jit
def along_axes(a, b, c, pbc, varies, x, y, z, mobility, thermal, noise):
    """Deformation that stretches the vectors a, b, c of a cell that may vary.

    Numbers and buffers:
        a, b, c: the cell.
        pbc, varies: (3,) bool, which vectors are periodic, and which may vary.
        x, y, z: rows of the work.
        mobility, thermal: of the strain; eV.
        noise: three normal numbers.
    """
    p = tl.load(pbc).to(tl.float64)
    q = tl.load(pbc + 1).to(tl.float64)
    r = tl.load(pbc + 2).to(tl.float64)
    a, b, c = scaled(a, p), scaled(b, q), scaled(c, r)
    # The duals of the periodic vectors, in the space that these span.
    ab, ac, bc = dot(a, b), dot(a, c), dot(b, c)
    i, j, k = inverse_transposed(
        (dot(a, a) + 1.0 - p, ab, ac),
        (ab, dot(b, b) + 1.0 - q, bc),
        (ac, bc, dot(c, c) + 1.0 - r),
    )
    i, j, k = combined(i, a, b, c), combined(j, a, b, c), combined(k, a, b, c)
    first = strained(mobility, thermal, dot(combined(a, x, y, z), i), noise[0])
    second = strained(mobility, thermal, dot(combined(b, x, y, z), j), noise[1])
    third = strained(mobility, thermal, dot(combined(c, x, y, z), k), noise[2])
    i = scaled(i, (tl.exp(first) - 1.0) * tl.load(varies).to(tl.float64))
    j = scaled(j, (tl.exp(second) - 1.0) * tl.load(varies + 1).to(tl.float64))
    k = scaled(k, (tl.exp(third) - 1.0) * tl.load(varies + 2).to(tl.float64))
    return (
        combined((i[0], j[0], k[0]), a, b, c),
        combined((i[1], j[1], k[1]), a, b, c),
        combined((i[2], j[2], k[2]), a, b, c),
    )


@triton.jit
def of_all_components(x, y, z, mobility, thermal, noise, shear_noise):
    """Deformation by a symmetric strain, the exponential to fourth order.

    Numbers and buffers:
        x, y, z: rows of the work.
        mobility, thermal: of the strain; eV.
        noise, shear_noise: three normal numbers each.
    """
    xx = strained(mobility, thermal, x[0], noise[0])
    yy = strained(mobility, thermal, y[1], noise[1])
    zz = strained(mobility, thermal, z[2], noise[2])
    yz = strained(mobility, thermal, y[2] * _ROOT, shear_noise[0]) * _HALF_ROOT
    xz = strained(mobility, thermal, x[2] * _ROOT, shear_noise[1]) * _HALF_ROOT
    xy = strained(mobility, thermal, x[1] * _ROOT, shear_noise[2]) * _HALF_ROOT
    x, y, z = (xx, xy, xz), (xy, yy, yz), (xz, yz, zz)
    f, g, h = scaled(x, 0.25), scaled(y, 0.25), scaled(z, 0.25)
    f, g, h = _next(x, f, g, h, 3.0), _next(y, f, g, h, 3.0), _next(z, f, g, h, 3.0)
    f, g, h = _next(x, f, g, h, 2.0), _next(y, f, g, h, 2.0), _next(z, f, g, h, 2.0)
    return _next(x, f, g, h, 1.0), _next(y, f, g, h, 1.0), _next(z, f, g, h, 1.0)


@triton.jit
def _next(strain, f, g, h, order):
    """Row of (S + S E) / order, from a row of S and the matrix E of rows f, g, h."""
    e = combined(strain, f, g, h)
    return (strain[0] + e[0]) / order, (strain[1] + e[1]) / order, (strain[2] + e[2]) / order
