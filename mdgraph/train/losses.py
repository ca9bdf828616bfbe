"""The loss: how far energies, forces and stress are from their labels."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mdgraph.models import TensorNetPotential
from mdgraph.precision import full_float32
from mdgraph.train.batches import Prediction
from mdgraph.train.configuration import TrainConfig
from mdgraph.train.frames import FrameStore
from mdgraph.train.tables import Table
from mdgraph.train.terms import TERMS, LossConfig, TermConfig

_EPSILON: Final = 1e-12
"""Beneath the root of a length, whose slope at zero is not defined."""

_FRAMES: Final = 64
"""That the loss at the start is taken of, at most."""

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


def loss_at_start(
    config: TrainConfig,
    potential: TensorNetPotential,
    store: FrameStore,
    frames: NDArray[np.int64],
) -> float:
    """Mean loss of a potential as it is, by the largest weights of the terms; reads the device.

    At least that of errors as large as the scale: fine-tuning may begin with next to none.

    Args:
        config: the loss, and the seed of a choice among many frames.
        potential: any TensorNet.
        store: holds the frames.
        frames: those that are trained on.
    """
    if len(frames) > _FRAMES:
        frames = np.random.default_rng(config.seed).choice(frames, _FRAMES, False)
    largest = [max(getattr(config.loss, name).weight) for name in TERMS]
    weights = torch.tensor(largest, dtype=torch.float64, device=potential.scale.device)
    terms, counts = torch.zeros_like(weights), torch.zeros_like(weights)
    for _, batch in store.covering(frames):
        with full_float32():
            found, inputs = batch.predict(potential, differentiable=False)
            own = errors(config.loss, potential.scale, found, inputs.labels)
        terms += own.terms.detach()
        counts += own.counts
    return float((weights * (terms / counts.clamp(min=1.0)).clamp(min=1.0)).sum())
