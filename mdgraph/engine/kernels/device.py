"""Device functions shared by the engine's kernels: vectors, matrices, schedules, random numbers.

Arithmetic is float64, whatever dtype the state has. Random counters and keys are laid out as in
`mdgraph.engine.random`: the random words are the same integers, and normal numbers agree to the
rounding of the logarithm and the cosine.
"""

import math

import triton
import triton.language as tl

from mdgraph.gpu.vectors import cross, dot, scaled
from mdgraph.units import ACCELERATION, KINETIC_ENERGY

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators


_ACCELERATION = tl.constexpr(ACCELERATION)
_KINETIC_ENERGY = tl.constexpr(KINETIC_ENERGY)


@triton.jit
def load_vectors(pointer, atom, valid):
    """Three components (float64) of the rows (N, 3) of atoms."""
    x = tl.load(pointer + 3 * atom, mask=valid, other=0.0).to(tl.float64)
    y = tl.load(pointer + 3 * atom + 1, mask=valid, other=0.0).to(tl.float64)
    z = tl.load(pointer + 3 * atom + 2, mask=valid, other=0.0).to(tl.float64)
    return x, y, z


@triton.jit
def store_vectors(pointer, atom, valid, x, y, z):
    """Writes what `load_vectors` reads, in the dtype of the buffer."""
    tl.store(pointer + 3 * atom, x, mask=valid)
    tl.store(pointer + 3 * atom + 1, y, mask=valid)
    tl.store(pointer + 3 * atom + 2, z, mask=valid)


@triton.jit
def add_heat(heat, velocities, masses, atom, valid, x, y, z, vx, vy, vz):
    """Adds to heat (N,) what the kinetic energy of atoms has gained, eV.

    That is by velocities v, as they are stored, instead of (x, y, z).
    """
    dtype = velocities.dtype.element_ty
    vx, vy, vz = (
        vx.to(dtype).to(tl.float64),
        vy.to(dtype).to(tl.float64),
        vz.to(dtype).to(tl.float64),
    )
    gained = (vx * vx + vy * vy + vz * vz) - (x * x + y * y + z * z)
    mass = tl.load(masses + atom, mask=valid, other=0.0).to(tl.float64)
    gained *= 0.5 * _KINETIC_ENERGY * mass
    tl.store(heat + atom, tl.load(heat + atom, mask=valid, other=0.0) + gained, mask=valid)


@triton.jit
def pushes(forces, inverse_masses, atom, valid, time):
    """Change of velocities by forces in a time in fs; zero for fixed atoms."""
    fx, fy, fz = load_vectors(forces, atom, valid)
    inverse = tl.load(inverse_masses + atom, mask=valid, other=0.0).to(tl.float64)
    kick = time * inverse * _ACCELERATION
    return kick * fx, kick * fy, kick * fz


_TURN = tl.constexpr(2.0 * math.pi)


@triton.jit
def words(seed, step, replica, atom, STREAM: tl.constexpr):
    """Four random words (uint32) for each (seed, step, replica, atom), of int64 numbers.

    Philox4x32-10, DOI 10.1145/2063384.2063405.
    """
    spread = atom * 0
    low = (spread + (step & 0xFFFFFFFF)).to(tl.uint32)
    high = (spread + ((step >> 32) & 0xFFFFFFFF)).to(tl.uint32)
    own = (spread + (replica << 8) + STREAM).to(tl.uint32)
    return tl.philox(seed, low, high, atom.to(tl.uint32), own)


@triton.jit
def uniform(word):
    """A uniform number in (0, 1) from a word."""
    return (word.to(tl.float64) + 0.5) * (1.0 / 4294967296.0)


@triton.jit
def radius(word):
    """Box-Muller: the radius from a word."""
    return tl.sqrt(-2.0 * tl.log(uniform(word)))


@triton.jit
def direction(word):
    """Box-Muller: the cosine of the angle from a word."""
    return tl.cos(uniform(word) * _TURN)


@triton.jit
def gaussians(seed, step, replica, atom, STREAM: tl.constexpr):
    """Three standard normal numbers (float64) for each (seed, step, replica, atom)."""
    first, second, third, fourth = words(seed, step, replica, atom, STREAM)
    length = radius(first)
    turn = uniform(second) * _TURN
    return length * tl.cos(turn), length * tl.sin(turn), radius(third) * direction(fourth)


@triton.jit
def value_at(schedule, system, systems, step):
    """Value of a schedule (4, S) float64 at a step, for the systems with these numbers."""
    start = tl.load(schedule + system)
    end = tl.load(schedule + systems + system)
    first = tl.load(schedule + 2 * systems + system)
    length = tl.load(schedule + 3 * systems + system)
    progress = (step.to(tl.float64) - first) / tl.maximum(length, 1.0)
    return start + (end - start) * tl.minimum(tl.maximum(progress, 0.0), 1.0)


@triton.jit
def store_last(pointer, value, arrived):
    """Writes a number after all programs of this kernel, in a one-dimensional grid, have read it.

    The last program to arrive here writes, so no other program still has to read.

    Args:
        pointer: address to write to.
        value: the number, the same in all programs.
        arrived: () int32, number of programs that have arrived; 0 between kernels.
    """
    tl.debug_barrier()
    if tl.atomic_add(arrived, 1) == tl.num_programs(0) - 1:
        tl.store(pointer, value)
        tl.store(arrived, 0)


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
    """Writes what `load_rows` reads, in the dtype of the buffer."""
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
