"""Device functions: the random numbers of `mdgraph.engine.random`, made where they are used.

Counters and keys are laid out as there, so the words are the same integers, and the numbers
agree to the rounding of the logarithm and the cosine.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import math

import triton
import triton.language as tl

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
    """A number between 0 and 1, neither of both, from a word."""
    return (word.to(tl.float64) + 0.5) * (1.0 / 4294967296.0)


@triton.jit
def radius(word):
    """The length in the plane that Box and Muller give a word."""
    return tl.sqrt(-2.0 * tl.log(uniform(word)))


@triton.jit
def direction(word):
    """The cosine that Box and Muller give a word."""
    return tl.cos(uniform(word) * _TURN)


@triton.jit
def gaussians(seed, step, replica, atom, STREAM: tl.constexpr):
    """Three standard normal numbers (float64) for each (seed, step, replica, atom)."""
    first, second, third, fourth = words(seed, step, replica, atom, STREAM)
    length = radius(first)
    turn = uniform(second) * _TURN
    return length * tl.cos(turn), length * tl.sin(turn), radius(third) * direction(fourth)
