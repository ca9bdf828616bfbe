"""The loss: how far energies, forces and stress are from their labels."""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from mdgraph.train.batches import Prediction
from mdgraph.train.configuration import TERMS, LossConfig, TermConfig
from mdgraph.train.tables import Table

_EPSILON: Final = 1e-12
"""Beneath the root of a length, whose slope at zero is not defined."""

_LOGGED: Final = ("energy", "forces")
"""Whose errors are told also where they have no weight in the loss."""


@dataclass(frozen=True)
class Errors:
    """Sums over the labels of a batch that have a weight; float64.

    Attributes:
        terms: (T,) penalties of energy, forces, stress, dipole, times their weights; all that is
            said of stress and dipole is 0 where the loss does not ask for them.
        squares: (T,) squared errors, in eV/atom, eV/A, eV/A^3, e A.
        counts: (T,) how many labels there are. Not the sum of their weights: frames of a small
            weight would count in full where they fill a batch.
    """

    terms: Tensor
    squares: Tensor
    counts: Tensor


def errors(config: LossConfig, scale: Tensor, found: Prediction, labels: Table) -> Errors:
    """Penalties of a batch; differentiable, static shapes, does not sync.

    Args:
        config: which penalties.
        scale: () eV/A; errors are told in it.
        found: what the potential gave.
        labels: what it should be.
    """
    energy = (found.energy - labels.energy) / labels.atoms
    forces = found.forces - labels.forces
    stress = found.stress - labels.stress
    parts = (
        (config.energy, energy[:, None], labels.energy_weight),
        (config.forces, forces.flatten(0, 1), labels.force_weight.flatten()),
        (config.stress, stress.flatten(1), labels.stress_weight),
        (config.dipole, found.dipole - labels.dipole, labels.dipole_weight),
    )
    terms: list[Tensor] = []
    squares: list[Tensor] = []
    counts: list[Tensor] = []
    zero = torch.zeros_like(scale)
    for name, (term, error, weight) in zip(TERMS, parts, strict=True):
        if name not in _LOGGED and not any(term.weight):
            # Some forty launches, with those of derivatives, for what nothing asks for.
            for kept in (terms, squares, counts):
                kept.append(zero)
            continue
        terms.append((_penalty(term, error / scale) * weight).sum())
        known = (weight > 0.0).to(weight)
        squares.append((error.detach().square().mean(1) * known).sum())
        counts.append(known.sum())
    return Errors(torch.stack(terms), torch.stack(squares), torch.stack(counts))


def _penalty(config: TermConfig, error: Tensor) -> Tensor:
    """Of errors (R, C) to (R,)."""
    match config.kind:
        case "mse":
            return error.square().mean(1)
        case "mae":
            return error.abs().mean(1)
        case "norm":
            return (error.square().sum(1) + _EPSILON).sqrt()
    size, delta = error.abs(), config.delta
    return torch.where(size < delta, 0.5 * error.square(), delta * (size - 0.5 * delta)).mean(1)


def loss(found: Errors, weights: Tensor, total: Tensor) -> Tensor:
    """Weighted mean penalties (): `weights` (T,) of the terms, `total` (T,) labels.

    Where several processes share a batch, `total` counts the labels of all of them, and the
    sum of their losses is the loss of the batch.
    """
    return (weights * found.terms / total.clamp(min=_EPSILON)).sum()
