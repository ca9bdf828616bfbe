"""Device functions: vectors of atoms in memory, and what forces do to velocities.

Numbers are computed in float64, whatever type the state keeps.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

from mdgraph.units import ACCELERATION

_ACCELERATION = tl.constexpr(ACCELERATION)


@triton.jit
def load_vectors(pointer, atom, valid):
    """Three components (float64) of the rows (N, 3) of atoms."""
    x = tl.load(pointer + 3 * atom, mask=valid, other=0.0).to(tl.float64)
    y = tl.load(pointer + 3 * atom + 1, mask=valid, other=0.0).to(tl.float64)
    z = tl.load(pointer + 3 * atom + 2, mask=valid, other=0.0).to(tl.float64)
    return x, y, z


@triton.jit
def store_vectors(pointer, atom, valid, x, y, z):
    """Writes what `load_vectors` reads, in the type of the memory."""
    tl.store(pointer + 3 * atom, x, mask=valid)
    tl.store(pointer + 3 * atom + 1, y, mask=valid)
    tl.store(pointer + 3 * atom + 2, z, mask=valid)


@triton.jit
def pushes(forces, inverse_masses, atom, valid, time):
    """What forces add to velocities in a time, fs; nothing for fixed atoms."""
    fx, fy, fz = load_vectors(forces, atom, valid)
    inverse = tl.load(inverse_masses + atom, mask=valid, other=0.0).to(tl.float64)
    kick = time * inverse * _ACCELERATION
    return kick * fx, kick * fy, kick * fz
