"""The loss of energies, forces and stress, and the penalty on perturbed frames.

A network that fits its frames may have energies far below theirs a few tenths of an Angstrom
away, or far above, and hot dynamics finds such places. No label is needed to tell that they are
wrong: forces on the frames determine how stiff each direction is, and in a molecule or a solid a
stiff direction leads uphill, much as a spring or a bond does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mdgraph.models import TensorNetPotential
from mdgraph.precision import full_float32
from mdgraph.train.batches import Prediction
from mdgraph.train.config import TERMS, LossConfig, TermConfig, TrainConfig
from mdgraph.train.frames import FrameStore
from mdgraph.train.tables import Table

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


_STREAM: Final = 1
"""Beside the stream that shuffles frames."""

_WIDEST: Final = 2.0
"""A, to which atoms around the one that leads move along."""

_NARROWEST: Final = 0.1
"""A, at which it moves alone."""

_SHORT: Final = 0.1
"""A: moves of this length tell stiffness, long enough for what float32 rounds."""

_MARGIN: Final = 0.2
"""eV by which a move may miss its rise: frames of dynamics do not lie at the bottom of valleys."""


def draw(seed: int, step: int, frames: int, atoms: int) -> NDArray[np.float64]:
    """(frames, 1 + atoms, 3): three numbers between 0 and 1, then normal ones for each atom.

    They depend on nothing but the arguments, so a resumed training draws them again.
    """
    generator = np.random.default_rng((seed, step, _STREAM))
    first = generator.random((frames, 1, 3))
    return np.concatenate([first, generator.normal(size=(frames, atoms, 3))], axis=1)


def moves(drawn: Tensor, positions: Tensor, atoms: Tensor, largest: float) -> Tensor:
    """(B, N, 3) A: in each frame an atom and what is around it moved at random; does not sync.

    Atoms at a distance r from the one that leads move less by exp(-r^2 / 2 w^2), each its own way,
    with a width w between 0.1 and 2 A. Distances are those of the positions as given, so none moves
    along across a face of the cell.

    Args:
        drawn: (B, 1 + N, 3) see `draw`: which atom leads, how far, and how wide.
        positions: (B, N, 3) A.
        atoms: (B,) how many of the N are present.
        largest: A, that an atom is moved at most.
    """
    which, far, wide = drawn[:, 0, :, None].unbind(1)
    number = torch.arange(positions.shape[1], device=drawn.device)
    leads = number == (which * atoms[:, None]).long()
    centre = (leads[..., None] * positions).sum(1, keepdim=True)
    width = (_WIDEST * wide).clamp(min=_NARROWEST)
    share = torch.exp(-0.5 * (positions - centre).square().sum(2) / width**2)
    vectors = drawn[:, 1:] * (share * (number < atoms[:, None]))[..., None]
    return vectors * (largest * far / _longest(vectors))[..., None]


def harmonic_rise(energy_of: Callable[[Tensor], Tensor], energy: Tensor, moved: Tensor) -> Tensor:
    """(B,) eV that moves would cost by the stiffness of the frames, d.H.d / 2; no derivative.

    Args:
        energy_of: (B,) eV of the frames with atoms moved by (B, N, 3) A.
        energy: (B,) eV, of the frames as they are.
        moved: d, (B, N, 3) A.
    """
    part = (_SHORT / _longest(moved)).clamp(max=1.0)
    with torch.no_grad():
        short = part[..., None] * moved
        mean = 0.5 * (energy_of(short) + energy_of(-short))
        return ((mean - energy) / part.squeeze(1) ** 2).clamp(min=0.0)


def corridor(
    energy: Tensor, forces: Tensor, moved: Tensor, rise: Tensor, depth: float
) -> tuple[Tensor, Tensor]:
    """(B,) eV twice: between which displaced frames may lie; differentiable by the energy.

    From the bottom of a valley, a Morse curve of depth D with the frame's own stiffness is the
    least by which bonds that are stretched rise, and the most by which they rise when they are
    compressed as far; on top come the forces of the frame, which pull displaced atoms back or on,
    and a margin:

        low  = E + min(0, -sum_i F_i . d_i) + D (1 - exp(-sqrt(h / D)))^2 - margin
        high = E + max(0, -sum_i F_i . d_i) + D (exp(sqrt(h / D)) - 1)^2 + margin

    It is a rule, not a law: atoms that hardly feel each other may collide, and rise higher.

    Args:
        energy: E, (B,) eV, of the frames as they are.
        forces: F, (B, N, 3) eV/A, likewise.
        moved: d, (B, N, 3) A.
        rise: h, (B,) eV, see `harmonic_rise`.
        depth: D, eV.
    """
    linear = -(forces.detach() * moved).sum((1, 2))
    stretch = (rise / depth).sqrt()
    low = depth * (1.0 - torch.exp(-stretch)) ** 2 - _MARGIN
    high = depth * (torch.exp(stretch) - 1.0) ** 2 + _MARGIN
    return energy + linear.clamp(max=0.0) + low, energy + linear.clamp(min=0.0) + high


def outside(displaced: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """(B,) eV twice: by which energies lie below their corridor, and above.

    They have no slope along a shift of all energies, which labels alone decide.

    Args:
        displaced: (B,) eV.
        low: (B,) eV, see `corridor`.
        high: (B,) eV.
    """
    return (low - displaced).clamp(min=0.0), (displaced - high).clamp(min=0.0)


def misses(
    energy_of: Callable[[Tensor], Tensor],
    energy: Tensor,
    forces: Tensor,
    moved: Tensor,
    depth: float,
) -> tuple[Tensor, Tensor]:
    """(B,) eV twice: by which displaced frames lie below their corridor, and above.

    Arguments are those of `harmonic_rise` and `corridor`.
    """
    rise = harmonic_rise(energy_of, energy, moved)
    return outside(energy_of(moved), *corridor(energy, forces, moved, rise, depth))


def _longest(vectors: Tensor) -> Tensor:
    """(B, 1) of (B, N, 3): the length of each frame's longest."""
    return torch.linalg.vector_norm(vectors, dim=2).amax(1, keepdim=True)
