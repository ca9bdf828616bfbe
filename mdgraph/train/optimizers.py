"""Optimizers on static buffers: AdamW and Muon, with the schedule of the learning rate."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim import Optimizer

from mdgraph.models import TrainablePotential
from mdgraph.train.config import TERMS, TrainConfig

_COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)
"""a, b and c of an iteration, X to a X + b (X X^T) X + c (X X^T)^2 X."""

_ITERATIONS: Final = 5

_LIKE_ADAM: Final = 0.2
"""Root mean square of Adam's steps in units of the rate; those of matrices get the same."""

_EPSILON: Final = 1e-8


class Muon(Optimizer):
    """AdamW, except for matrices, whose momentum is made orthogonal first.

        m = beta_1 m + (1 - beta_1) g           v = beta_2 v + (1 - beta_2) g^2
        matrices:  d = 0.2 sqrt(max(R, C)) O(beta_1 m + (1 - beta_1) g)
        the rest:  d = m / (1 - beta_1^t) / (sqrt(v / (1 - beta_2^t)) + epsilon)
        w = w - rate (decay w + d)

    g is the gradient, t counts the steps, and O brings the singular values of an (R, C) matrix
    near 1 by Newton-Schulz iterations (K. Jordan and others, Muon, 2024). The factor gives
    entries the root mean square that Adam's have, so that rate and decay mean the same for all
    weights (J. Liu and others, DOI 10.48550/arXiv.2502.16982).

    Steps use static buffers and read the rate on the device, so that a graph can hold them.

    Attributes:
        places: offsets in the weights of the matrices of each shape (R, C).
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
            weight_decay: share of a weight, times the rate, that a step subtracts.
        """
        super().__init__([weights], {"lr": lr, "betas": betas, "weight_decay": weight_decay})
        places: dict[tuple[int, int], list[int]] = defaultdict(list)
        for matrix in matrices:
            places[matrix.shape[0], matrix.shape[1]].append(int(matrix.storage_offset()))
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
            moves = orthogonalize(parts.view(-1, *shape)) * (_LIKE_ADAM * math.sqrt(max(shape)))
            for place, move in zip(places, moves, strict=True):
                direction[place : place + size] = move.flatten()
        weights.mul_(1.0 - rate * group["weight_decay"]).sub_(rate * direction)


def orthogonalize(matrices: Tensor) -> Tensor:
    """Matrices (B, R, C) with their singular values brought to between 0.68 and 1.2.

    Singular values below some 0.0015 of a matrix's Frobenius norm stay smaller.
    """
    if matrices.shape[1] > matrices.shape[2]:
        return orthogonalize(matrices.mT).mT
    linear, cubic, fifth = _COEFFICIENTS
    norms = torch.linalg.matrix_norm(matrices, keepdim=True)
    matrices = matrices / (norms + _EPSILON)
    for _ in range(_ITERATIONS):
        squares = matrices @ matrices.mT
        factors = torch.baddbmm(squares, squares, squares, beta=cubic, alpha=fifth)
        matrices = torch.baddbmm(matrices, factors, matrices, beta=linear)
    return matrices


@dataclass(frozen=True)
class StepControls:
    """What changes from step to step.

    Attributes:
        learning_rate: of the optimizer.
        decay: of the running mean of the weights.
        weights: of the terms of the loss, in the order of `TERMS`.
        perturbation: weight of the perturbation.
        step: from 0; seeds the random numbers of perturbations.
    """

    learning_rate: float
    decay: float
    weights: tuple[float, ...]
    perturbation: float
    step: int

    def numbers(self) -> list[float]:
        """The first of `TrainingStep.controls`."""
        return [self.learning_rate, self.decay, self.perturbation, *self.weights]


def controls_at(config: TrainConfig, step: int, steps: int, factor: float) -> StepControls:
    """Controls of a step.

    Args:
        config: the schedules.
        step: from 0.
        steps: of the whole training.
        factor: on the learning rate, by plateaus and rollbacks.
    """
    progress = min(1.0, step / steps)
    high, low = config.learning_rate, min(config.final_learning_rate, config.learning_rate)
    if config.warmup and progress < config.warmup:
        rate = high * (step + 1) / (config.warmup * steps + 1)
    elif config.schedule == "cosine":
        turn = math.pi * (progress - config.warmup) / (1.0 - config.warmup)
        rate = low + 0.5 * (high - low) * (1.0 + math.cos(turn))
    else:
        rate = high
    # At the start a long memory would remember random weights.
    decay = min(config.average, (1.0 + step) / (10.0 + step))
    if config.average_from is not None:
        # Stochastic weight averaging, DOI 10.48550/arXiv.1803.05407: a plain mean.
        since = step - math.ceil(config.average_from * steps)
        decay = since / (since + 1.0) if since >= 0 else decay
    ends = [getattr(config.loss, name).weight for name in (*TERMS, "perturbation")]
    *weights, perturbation = (first + progress * (last - first) for first, last in ends)
    return StepControls(rate * factor, decay, tuple(weights), perturbation, step)


_FUSED: Final = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}
_OTHERS: Final = {"nadam": torch.optim.NAdam, "radam": torch.optim.RAdam}
"""Steps of one kernel, and of several. torch's Muon reads the rate on the host, so `muon` is a
class of this module."""

_FROM_ONE: Final = "mu_product"
"""The only state that begins at 1."""


def hidden_matrices(
    potential: TrainablePotential, trained: Sequence[Tensor], edges: bool = False
) -> list[Tensor]:
    """Trained weights that are matrices between features, which Muon moves as such.

    Tables of the elements and the last layer are not among them. Nor, without `edges`, are the
    layers that take functions of the distance: distances that no frame has give next to no
    gradient, and steps of equal length in all directions may break bonds there.
    """
    linears = {module for module in potential.modules() if isinstance(module, torch.nn.Linear)}
    if not edges:
        linears.difference_update(potential.distance_layers())
    matrices = {id(linear.weight) for linear in linears if linear.out_features > 1}
    return [weight for weight in trained if id(weight) in matrices]


def make_optimizer(
    config: TrainConfig,
    weights: Tensor,
    gradient: Tensor,
    rate: Tensor,
    matrices: Sequence[Tensor] = (),
) -> Optimizer:
    """The optimizer of a training with all its buffers, as before its first step.

    Args:
        config: which, with its betas (the first is the momentum of sgd) and weight decay.
        weights: (W,), moved in place.
        gradient: (W,) zeros; each step reads what they hold then.
        rate: (), read at each step.
        matrices: views of the weights that Muon moves as matrices.
    """
    if config.optimizer == "muon":
        weights.grad = gradient
        return Muon(weights, matrices, rate, config.betas, config.weight_decay)
    options: dict[str, Any] = {"lr": rate, "weight_decay": config.weight_decay}
    if config.optimizer == "sgd":
        options["momentum"] = config.betas[0]
    else:
        options |= {"betas": config.betas, "capturable": weights.is_cuda}
    if config.optimizer in _FUSED:
        optimizer: Optimizer = _FUSED[config.optimizer]([weights], fused=True, **options)
    else:
        options["decoupled_weight_decay"] = True
        optimizer = _OTHERS[config.optimizer]([weights], **options)
    # torch allocates buffers in the first step.
    before = weights.clone()
    weights.grad = gradient
    optimizer.step()
    weights.copy_(before)
    for name, tensor in optimizer.state[weights].items():
        tensor.fill_(1.0 if name == _FROM_ONE else 0.0)
    return optimizer
