"""Muon: steps of matrices that move all their directions alike."""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor
from torch.optim import Optimizer

_COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)
"""a, b and c of an iteration, X to a X + b (X X^T) X + c (X X^T)^2 X."""

_ITERATIONS: Final = 5

_LIKE_ADAM: Final = 0.2
"""Root mean square of Adam's steps in units of the rate, which those of matrices are given."""

_EPSILON: Final = 1e-8


class Muon(Optimizer):
    """AdamW, but for matrices, whose momentum is made orthogonal first.

        m = beta_1 m + (1 - beta_1) g           v = beta_2 v + (1 - beta_2) g^2
        matrices:  d = 0.2 sqrt(max(R, C)) O(beta_1 m + (1 - beta_1) g)
        the rest:  d = m / (1 - beta_1^t) / (sqrt(v / (1 - beta_2^t)) + epsilon)
        w = w - rate (decay w + d)

    g is the gradient, t counts the steps, and O brings the singular values of an (R, C) matrix
    near 1 by Newton-Schulz iterations (K. Jordan and others, Muon, 2024). The factor gives
    entries the root mean square that Adam's have, so that rate and decay mean the same for all
    weights (J. Liu and others, DOI 10.48550/arXiv.2502.16982).

    All of it works on static buffers and reads the rate on the device: a graph may hold a step.

    Attributes:
        places: where in the weights matrices of each shape (R, C) begin.
    """

    def __init__(
        self,
        weights: Tensor,
        matrices: Sequence[Tensor],
        lr: Tensor,
        betas: tuple[float, float],
        weight_decay: float,
    ) -> None:
        """Allocates buffers of zeros.

        Args:
            weights: (W,), contiguous; its `grad` is read at each step.
            matrices: (R, C) each, views of the weights.
            lr: () the rate, read at each step.
            betas: of the running means of gradients and of their squares.
            weight_decay: share of a weight, times the rate, that a step takes away.
        """
        super().__init__([weights], {"lr": lr, "betas": betas, "weight_decay": weight_decay})
        places: dict[tuple[int, int], list[int]] = defaultdict(list)
        for one in matrices:
            places[one.shape[0], one.shape[1]].append(int(one.storage_offset()))
        self.places = dict(places)
        self.state[weights] = {
            "step": torch.zeros((), dtype=torch.float32, device=weights.device),
            "exp_avg": torch.zeros_like(weights),
            "exp_avg_sq": torch.zeros_like(weights),
        }

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Moves the weights; does not sync."""
        (group,) = self.param_groups
        (weights,) = group["params"]
        state, (first, second), rate = self.state[weights], group["betas"], group["lr"]
        gradient, mean, squares = weights.grad, state["exp_avg"], state["exp_avg_sq"]
        state["step"].add_(1.0)
        mean.lerp_(gradient, 1.0 - first)
        squares.lerp_(gradient.square(), 1.0 - second)
        spread = (squares / (1.0 - second ** state["step"])).sqrt_().add_(_EPSILON)
        direction = (mean / (1.0 - first ** state["step"])).div_(spread)
        ahead = gradient.lerp(mean, first)
        for shape, places in self.places.items():
            size = math.prod(shape)
            parts = torch.stack([ahead[place : place + size] for place in places])
            moves = orthogonalized(parts.view(-1, *shape)) * (_LIKE_ADAM * math.sqrt(max(shape)))
            for place, move in zip(places, moves, strict=True):
                direction[place : place + size] = move.flatten()
        weights.mul_(1.0 - rate * group["weight_decay"]).sub_(rate * direction)


def orthogonalized(matrices: Tensor) -> Tensor:
    """Matrices (B, R, C) with their singular values brought to between 0.68 and 1.2.

    Those below some 0.0015 of all of them, as a root of the sum of squares, stay smaller.
    """
    if matrices.shape[1] > matrices.shape[2]:
        return orthogonalized(matrices.mT).mT
    linear, cubic, fifth = _COEFFICIENTS
    norms = torch.linalg.matrix_norm(matrices, keepdim=True)
    found = matrices / (norms + _EPSILON)
    for _ in range(_ITERATIONS):
        squares = found @ found.mT
        factors = torch.baddbmm(squares, squares, squares, beta=cubic, alpha=fifth)
        found = torch.baddbmm(found, factors, found, beta=linear)
    return found
