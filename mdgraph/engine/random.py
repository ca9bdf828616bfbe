"""Counter-based random numbers: Philox4x32-10 (DOI 10.1145/2063384.2063405) in torch.

A number is a pure function of (seed, step, replica, atom, stream), so it does not depend on
the other systems of a batch or on where a run was interrupted.
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
        # int64 products wrap, but their 64 bits are those of the unsigned product.
        product = first * _MULTIPLIERS[0]
        other = third * _MULTIPLIERS[1]
        first, second, third, fourth = (
            ((other >> 32) & _WORD) ^ second ^ low,
            other & _WORD,
            ((product >> 32) & _WORD) ^ fourth ^ high,
            product & _WORD,
        )
        low = (low + _WEYL[0]) & _WORD
        high = (high + _WEYL[1]) & _WORD
    return first, second, third, fourth


def gaussians(seed: Tensor, step: Tensor, replica: Tensor, atom: Tensor, stream: int) -> Tensor:
    """Three independent standard normal numbers for each (seed, step, replica, atom).

    Args:
        seed: () int64.
        step: int64, broadcasts with replica and atom.
        replica: int64, below 2^24.
        atom: int64, below 2^32.
        stream: below 2^8; separates uses that share all the rest.

    Returns:
        (..., 3) float64. Box-Muller on 32-bit uniforms, so the tails end at 6.7.
    """
    step, replica, atom = torch.broadcast_tensors(step, replica, atom)
    counter = (step & _WORD, (step >> 32) & _WORD, atom, (replica << 8) + stream)
    words = philox(counter, (seed & _WORD, (seed >> 32) & _WORD))
    uniform = [(word.to(torch.float64) + 0.5) / 2.0**32 for word in words]
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
