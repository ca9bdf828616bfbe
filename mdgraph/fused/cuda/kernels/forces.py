"""Device functions: force and virial of an atom, from sums over its pairs.

A central force adds nine tiles: the three of f, and of the symmetric r (x) f the six
xx, xy, xz, yy, yz, zz.
"""

import triton
import triton.language as tl


@triton.jit
def add_central(sums, along, r):
    """Adds a force `along` r to the nine tiles."""
    fx, fy, fz = along * r[0], along * r[1], along * r[2]
    return (
        sums[0] + fx,
        sums[1] + fy,
        sums[2] + fz,
        sums[3] + fx * r[0],
        sums[4] + fx * r[1],
        sums[5] + fx * r[2],
        sums[6] + fy * r[1],
        sums[7] + fy * r[2],
        sums[8] + fz * r[2],
    )


@triton.jit
def put(pointer, value, ADDED: tl.constexpr):
    """Writes a number, or adds it to what is there."""
    if ADDED:
        value += tl.load(pointer)
    tl.store(pointer, value)


@triton.jit
def put_forces(
    forces, virials, atom, atoms, force, virial, FACTOR: tl.constexpr, ADDED: tl.constexpr
):
    """Force of an atom, and its virial times a factor.

    Args:
        forces, virials: (N, 3), (9, N), written, or added to where ADDED.
        atom: its number.
        atoms: N.
        force, virial: three and nine tiles (W,), parts of the sums.
    """
    for axis in tl.static_range(3):
        put(forces + 3 * atom + axis, tl.sum(force[axis], 0), ADDED)
    for element in tl.static_range(9):
        total = tl.sum(virial[element], 0) * FACTOR
        put(virials + element * atoms + atom, total, ADDED)


@triton.jit
def put_central(forces, virials, atom, atoms, sums, ADDED: tl.constexpr):
    """Force of an atom, and half of r (x) f of its pairs as its virial, from nine tiles."""
    fx, fy, fz, xx, xy, xz, yy, yz, zz = sums
    virial = (xx, xy, xz, xy, yy, yz, xz, yz, zz)
    put_forces(forces, virials, atom, atoms, (fx, fy, fz), virial, -0.5, ADDED)
