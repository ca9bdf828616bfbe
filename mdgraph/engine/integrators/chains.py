"""Nose-Hoover chains: the variables of a thermostat, and their motion over a time step."""

from typing import Final

import torch
from torch import Tensor

LENGTH: Final = 3
"""Variables of a chain."""

_THIRD: Final = 1.0 / (2.0 - 2.0 ** (1.0 / 3.0))
WEIGHTS: Final = (_THIRD, 1.0 - 2.0 * _THIRD, _THIRD)
"""Parts of a time step after Suzuki and Yoshida, which together are exact to fourth order."""


class Chains:
    """C chains of M variables, each thermostat to so many degrees of freedom.

    xi_k' = v_k
    v_1'  = (2K - n kT) / Q_1 - v_1 v_2
    v_k'  = (Q_{k-1} v_{k-1}^2 - kT) / Q_k - v_k v_{k+1}
    p'    = -v_1 p

    with Q_1 = n kT tau^2 and Q_k = kT tau^2, so that only 2K / (n kT) and tau enter. Each
    part of a step goes down the chain, scales the momenta, and comes back up, with the
    friction of the next variable half before and half after each push.

    =========  ==================
    xi_k, v_k  `positions`, `velocities` (M, C), float64; 1 and 1/fs
    K          kinetic energy of what is thermostatted, eV
    n          its degrees of freedom
    kT         thermal energy, eV
    tau        time of the chain, fs
    =========  ==================

    DOI 10.1063/1.463940, 10.1080/00268979600100761.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self.positions = torch.zeros(LENGTH, count, dtype=torch.float64, device=device)
        self.velocities = torch.zeros_like(self.positions)
        self.weights = torch.tensor(WEIGHTS, dtype=torch.float64, device=device)

    def advance_(self, ratio: Tensor, degrees: Tensor, tau: Tensor, time: Tensor) -> Tensor:
        """Moves the chains and returns the factors for the momenta (C,); does not sync.

        Args:
            ratio: 2K / (n kT).
            degrees: n.
            tau: fs.
            time: fs, half a time step.
        """
        rate = tau.pow(-2)
        scale = torch.ones_like(ratio)
        v = list(self.velocities)
        moves = [torch.zeros_like(ratio)] * LENGTH
        for weight in WEIGHTS:
            part = weight * time
            half, quarter = 0.5 * part, 0.25 * part
            for k in reversed(range(LENGTH)):
                v[k] = _pushed(v, k, ratio * scale.square(), degrees, rate, half, quarter)
            scale = scale * torch.exp(-part * v[0])
            moves = [move + part * one for move, one in zip(moves, v, strict=True)]
            for k in range(LENGTH):
                v[k] = _pushed(v, k, ratio * scale.square(), degrees, rate, half, quarter)
        self.velocities.copy_(torch.stack(v))
        self.positions += torch.stack(moves)
        return scale

    def tensors(self) -> dict[str, Tensor]:
        """The buffers, by name."""
        return {"chain.positions": self.positions, "chain.velocities": self.velocities}

    def energy(self, degrees: Tensor, thermal: Tensor, tau: Tensor) -> Tensor:
        """(C,) eV, what the chains add to the conserved energy; does not sync.

        sum of Q_k v_k^2 / 2 + n kT xi_1 + kT sum of xi_k beyond the first.
        """
        each = 0.5 * (tau * self.velocities).square() + self.positions
        return thermal * (degrees * each[0] + each[1:].sum(0))


def _pushed(
    v: list[Tensor],
    k: int,
    ratio: Tensor,
    degrees: Tensor,
    rate: Tensor,
    half: Tensor,
    quarter: Tensor,
) -> Tensor:
    """Velocity of a variable after half a part of a step."""
    if k == 0:
        push = (ratio - 1.0) * rate
    elif k == 1:
        push = degrees * v[0].square() - rate
    else:
        push = v[k - 1].square() - rate
    if k == LENGTH - 1:
        return v[k] + half * push
    friction = torch.exp(-quarter * v[k + 1])
    return (v[k] * friction + half * push) * friction
