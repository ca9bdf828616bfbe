"""Counter-based random numbers: Philox4x32-10 (DOI 10.1145/2063384.2063405) in torch.

A number is a pure function of (seed, step, replica, atom, stream), so neither the other systems of
a batch nor an interruption of the run changes it.
"""

import math
from typing import Final

import torch
from torch import Tensor

_WORD: Final = 0xFFFFFFFF
_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_WEYL: Final = (0x9E3779B9, 0xBB67AE85)
_ROUNDS: Final = 10

DYNAMICS: Final = 0
"""Stream of the noise of a step."""
VELOCITIES: Final = 1
"""Stream of initial velocities."""
THERMOSTAT: Final = 2
"""Stream of a thermostat's numbers, one set a system."""
BAROSTAT: Final = 3
"""Stream of a barostat's numbers, one set a system."""
EXCHANGE: Final = 4
"""Stream of replica exchange; the lower state of a pair takes the place of the replica."""
DIRECTIONS: Final = 5
"""Stream of the directions along which second derivatives are taken."""

TRIES: Final = 8
"""Tries of a rejection method; fixed, because a captured step has static shapes."""


def philox(counter: tuple[Tensor, ...], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Four random words from four counter words and two key words.

    Args:
        counter: four int64 tensors of values below 2^32 that broadcast together.
        key: two int64 tensors of values below 2^32.

    Returns:
        Four int64 tensors of values below 2^32.
    """
    first, second, third, fourth = counter
    low, high = key
    for _ in range(_ROUNDS):
        # An int64 product wraps, but has the bits of the unsigned product.
        first_product = first * _MULTIPLIERS[0]
        second_product = third * _MULTIPLIERS[1]
        first, second, third, fourth = (
            ((second_product >> 32) & _WORD) ^ second ^ low,
            second_product & _WORD,
            ((first_product >> 32) & _WORD) ^ fourth ^ high,
            first_product & _WORD,
        )
        low = (low + _WEYL[0]) & _WORD
        high = (high + _WEYL[1]) & _WORD
    return first, second, third, fourth


def uniforms(seed: Tensor, step: Tensor, replica: Tensor, atom: Tensor, stream: int) -> Tensor:
    """Four independent uniform numbers in (0, 1) for each (seed, step, replica, atom).

    Args:
        seed: () int64.
        step: int64, broadcasts with replica and atom.
        replica: int64, below 2^24.
        atom: int64, below 2^32; for numbers of a system, the number of the draw.
        stream: below 2^8; separates uses that share the other arguments.

    Returns:
        (..., 4) float64, neither 0 nor 1.
    """
    step, replica, atom = torch.broadcast_tensors(step, replica, atom)
    counter = (step & _WORD, (step >> 32) & _WORD, atom, (replica << 8) + stream)
    words = philox(counter, (seed & _WORD, (seed >> 32) & _WORD))
    return torch.stack([(word.to(torch.float64) + 0.5) / 2.0**32 for word in words], dim=-1)


def gaussians(seed: Tensor, step: Tensor, replica: Tensor, atom: Tensor, stream: int) -> Tensor:
    """Three independent standard normal numbers for each (seed, step, replica, atom).

    Arguments are those of `uniforms`.

    Returns:
        (..., 3) float64, by Box-Muller from 32-bit uniforms, so none exceeds 6.7.
    """
    uniform = uniforms(seed, step, replica, atom, stream).unbind(-1)
    radius = [torch.sqrt(-2.0 * torch.log(uniform[n])) for n in (0, 2)]
    angle = [2.0 * math.pi * uniform[n] for n in (1, 3)]
    return torch.stack(
        [
            radius[0] * torch.cos(angle[0]),
            radius[0] * torch.sin(angle[0]),
            radius[1] * torch.cos(angle[1]),
        ],
        dim=-1,
    )


def chi_squared(
    degrees: Tensor, seed: Tensor, step: Tensor, replica: Tensor, stream: int
) -> Tensor:
    """Chi-squared numbers for any number of degrees of freedom.

    Twice a gamma variate of shape degrees / 2 by the method of Marsaglia and Tsang (DOI
    10.1145/358407.358414). All tries are drawn at once and the first accepted one is taken. A
    try fails with a probability below 0.05, all of them with one below 4e-11; then the last
    try is taken. For a shape below 1, a variate of shape + 1 is multiplied by u^(1 / shape).

    Args:
        degrees: (S,) float64, degrees of freedom; the result is 0 where not positive.
        seed: () int64.
        step: (B, 1) int64.
        replica: (S,) int64.
        stream: see `uniforms`.

    Returns:
        (B, S) float64.
    """
    shape = 0.5 * degrees.clamp(min=0.0)
    small = shape < 1.0
    reduced = torch.where(small, shape + 1.0, shape) - 1.0 / 3.0
    tries = torch.arange(TRIES, device=degrees.device)
    uniform = uniforms(seed, step[..., None], replica[:, None], tries, stream)
    normal = torch.sqrt(-2.0 * torch.log(uniform[..., 0]))
    normal = normal * torch.cos(2.0 * math.pi * uniform[..., 1])
    offset = (1.0 + normal * torch.rsqrt(9.0 * reduced)[:, None]).clamp(min=0.0)
    cube = offset**3
    bound = 0.5 * normal.square() + reduced[:, None] * (1.0 - cube + torch.log(cube))
    accepted = torch.log(uniform[..., 2]) < bound
    # The first accepted try, else the last.
    rank = torch.where(accepted, tries, TRIES - 1).amin(-1, keepdim=True)
    gamma = reduced * cube.gather(-1, rank)[..., 0]
    boost = torch.where(small, uniform[..., 0, 3] ** (1.0 / shape), 1.0)
    return 2.0 * gamma * boost
