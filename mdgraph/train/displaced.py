"""Displaced frames: one atom moved at random, by which no energy should fall.

A network that fits its frames may have energies far below theirs a few tenths of an Angstrom
away, where none is, and dynamics finds them. No label is needed to tell that such an energy is
wrong: near a valley moving one atom costs energy, but for what forces and shallow valleys explain.
"""

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

DRAWN: Final = 5
"""Numbers that move a frame: which atom, how far, and a direction."""

_STREAM: Final = 1
"""Beside the stream that shuffles frames."""

_MARGIN: Final = 0.2
"""eV by which a move may lower the energy: frames of dynamics stand high in shallow valleys."""


def draw(seed: int, step: int, frames: int) -> NDArray[np.float64]:
    """(frames, 5): two numbers between 0 and 1, and three of a normal distribution.

    They depend on nothing but the arguments, so a resumed training draws them again.
    """
    generator = np.random.default_rng((seed, step, _STREAM))
    return np.hstack([generator.random((frames, 2)), generator.normal(size=(frames, 3))])


def moves(drawn: Tensor, atoms: Tensor, size: int, largest: float) -> Tensor:
    """(B, N, 3) A: one atom of each frame moved, the others at rest; does not sync.

    Args:
        drawn: (B, 5) see `draw`.
        atoms: (B,) how many of the N are present.
        size: N.
        largest: A, that an atom is moved at most.
    """
    place = (drawn[:, :1] * atoms[:, None]).long()
    chosen = torch.arange(size, device=drawn.device) == place
    directions = drawn[:, 2:]
    lengths = torch.linalg.vector_norm(directions, dim=1, keepdim=True)
    vectors = largest * drawn[:, 1:2] * directions / lengths
    return chosen[..., None] * vectors[:, None]


def fall(displaced: Tensor, energy: Tensor, forces: Tensor, moved: Tensor) -> Tensor:
    """(B,) eV by which displaced frames lie too low; differentiable by both energies.

    A frame may lie as low as its forces say, which pull a displaced atom back or on:

        max(0, E + min(0, -sum_i F_i . d_i) - margin - E_d)

    It has no slope along a shift of all energies, which labels alone decide.

    Args:
        displaced: E_d, (B,) eV.
        energy: E, (B,) eV, of the frames as they are, by the same potential.
        forces: F, (B, N, 3) eV/A, likewise.
        moved: d, (B, N, 3) A.
    """
    linear = -(forces.detach() * moved).sum((1, 2))
    return (energy + linear.clamp(max=0.0) - _MARGIN - displaced).clamp(min=0.0)
