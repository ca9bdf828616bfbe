"""The loss of energies, forces and stress, and the penalty on perturbed frames.

A network that fits its frames may have energies far too low, or too high, a few tenths of an
Angstrom away, and hot dynamics reaches such places. No label is needed to see that they are wrong:
forces near a frame determine how stiff each direction is, and in a molecule or a solid a stiff
direction leads uphill, as a spring or a bond does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mdgraph.models import TrainablePotential
from mdgraph.precision import full_float32
from mdgraph.train.batches import FrameStore, Prediction
from mdgraph.train.config import TERMS, LossConfig, TermConfig, TrainConfig
from mdgraph.train.tables import Table

_EPSILON: Final = 1e-12
"""Added under the root of a length, whose slope is not defined at zero."""

_FRAMES: Final = 64
"""Most frames that give the loss at the start."""

_LOGGED: Final = ("energy", "forces")
"""Terms whose errors are logged even without a weight in the loss."""


@dataclass(frozen=True)
class Errors:
    """Sums over the labels of a batch that have a weight; float64.

    Attributes:
        terms: (T,) penalties of energy, forces, stress, dipole, times their weights; stress and
            dipole are 0 throughout where they have no weight in the loss.
        squares: (T,) squared errors, in eV/atom, eV/A, eV/A^3, e A.
        counts: (T,) numbers of labels. Not sums of weights: a batch of frames with small weights
            would then count in full.
    """

    terms: Tensor
    squares: Tensor
    counts: Tensor


def errors(config: LossConfig, scale: Tensor, prediction: Prediction, labels: Table) -> Errors:
    """Penalties of a batch; differentiable, static shapes, does not sync.

    Args:
        config: kinds of penalties.
        scale: () eV/A, by which errors are divided.
        prediction: of the potential.
        labels: of the same frames.
    """
    energy = (prediction.energy - labels.energy) / labels.atoms
    forces = prediction.forces - labels.forces
    stress = prediction.stress - labels.stress
    parts = (
        (config.energy, energy[:, None], labels.energy_weight),
        (config.forces, forces.flatten(0, 1), labels.force_weight.flatten()),
        (config.stress, stress.flatten(1), labels.stress_weight),
        (config.dipole, prediction.dipole - labels.dipole, labels.dipole_weight),
    )
    terms: list[Tensor] = []
    squares: list[Tensor] = []
    counts: list[Tensor] = []
    zero = torch.zeros_like(scale)
    for name, (term, error, weight) in zip(TERMS, parts, strict=True):
        if name not in _LOGGED and not any(term.weight):
            # Saves some forty launches, derivatives included.
            for sums in (terms, squares, counts):
                sums.append(zero)
            continue
        terms.append((_penalty(term, error / scale) * weight).sum())
        known = (weight > 0.0).to(weight)
        squares.append((error.detach().square().mean(1) * known).sum())
        counts.append(known.sum())
    return Errors(torch.stack(terms), torch.stack(squares), torch.stack(counts))


def _penalty(config: TermConfig, error: Tensor) -> Tensor:
    """Penalties (R,) of errors (R, C)."""
    match config.kind:
        case "mse":
            return error.square().mean(1)
        case "mae":
            return error.abs().mean(1)
        case "norm":
            return (error.square().sum(1) + _EPSILON).sqrt()
    size, delta = error.abs(), config.delta
    return torch.where(size < delta, 0.5 * error.square(), delta * (size - 0.5 * delta)).mean(1)


def loss(batch: Errors, weights: Tensor, total: Tensor) -> Tensor:
    """Weighted mean penalties (): `weights` (T,) of the terms, `total` (T,) labels.

    Where several processes share a batch, `total` counts the labels of all of them, and the
    sum of their losses is the loss of the batch.
    """
    return (weights * batch.terms / total.clamp(min=_EPSILON)).sum()


def final_weights(config: LossConfig) -> list[float]:
    """Weights of the terms at the end of a training, or at its start where all end at 0."""
    starts, ends = zip(*(getattr(config, name).weight for name in TERMS), strict=True)
    return list(ends if any(ends) else starts)


def loss_at_start(
    config: TrainConfig,
    potential: TrainablePotential,
    store: FrameStore,
    frames: NDArray[np.int64],
) -> float:
    """Mean loss before the first step, with the largest weights of the terms; syncs.

    It is at least the loss of errors as large as the scale: fine-tuning may begin with small ones.

    Args:
        config: the loss, and the seed of the choice among many frames.
        potential: any TensorNet.
        store: holds the frames.
        frames: training frames.
    """
    if len(frames) > _FRAMES:
        frames = np.random.default_rng(config.seed).choice(frames, _FRAMES, False)
    largest = [max(getattr(config.loss, name).weight) for name in TERMS]
    weights = torch.tensor(largest, dtype=torch.float64, device=potential.scale.device)
    terms, counts = torch.zeros_like(weights), torch.zeros_like(weights)
    for _, batch in store.batches_of(frames):
        with full_float32():
            prediction, inputs = batch.predict(potential, differentiable=False)
            own = errors(config.loss, potential.scale, prediction, inputs.labels)
        terms += own.terms.detach()
        counts += own.counts
    return float((weights * (terms / counts.clamp(min=1.0)).clamp(min=1.0)).sum())


_STREAM: Final = 1
"""Of random numbers, so that they are not those that shuffle frames."""

_WIDEST: Final = 2.0
"""A, largest width within which atoms move with the central one."""

_NARROWEST: Final = 0.1
"""A, smallest width, at which the central atom moves alone."""

_SHORT: Final = 0.1
"""A: displacements of this length give the stiffness; shorter ones drown in float32 rounding."""

_MARGIN: Final = 0.2
"""eV, on both sides of the corridor: frames of dynamics do not lie at minima."""


def draw_numbers(seed: int, step: int, frames: int, atoms: int) -> NDArray[np.float64]:
    """(frames, 1 + atoms, 3): three numbers between 0 and 1, then normal ones for each atom.

    They depend on the arguments alone, so a resumed training draws the same.
    """
    generator = np.random.default_rng((seed, step, _STREAM))
    first = generator.random((frames, 1, 3))
    return np.concatenate([first, generator.normal(size=(frames, atoms, 3))], axis=1)


def displacements(
    random: Tensor, positions: Tensor, atoms: Tensor, max_displacement: float
) -> Tensor:
    """(B, N, 3) A: random displacements around a random atom of each frame; does not sync.

    Each atom moves in its own random direction, less by exp(-r^2 / 2 w^2) at a distance r from the
    central one, with a random width w from 0.1 to 2 A. Distances are those of the positions as they
    are, without periodic images.

    Args:
        random: (B, 1 + N, 3) see `draw_numbers`: central atom, length, width, directions.
        positions: (B, N, 3) A.
        atoms: (B,) how many of the N are present.
        max_displacement: A, of an atom.
    """
    which, far, wide = random[:, 0, :, None].unbind(1)
    number = torch.arange(positions.shape[1], device=random.device)
    central = number == (which * atoms[:, None]).long()
    centre = (central[..., None] * positions).sum(1, keepdim=True)
    width = (_WIDEST * wide).clamp(min=_NARROWEST)
    share = torch.exp(-0.5 * (positions - centre).square().sum(2) / width**2)
    vectors = random[:, 1:] * (share * (number < atoms[:, None]))[..., None]
    return vectors * (max_displacement * far / _longest(vectors))[..., None]


def harmonic_energy(
    energy_of: Callable[[Tensor], Tensor], energy: Tensor, displacement: Tensor
) -> Tensor:
    """(B,) eV that displacements cost in the harmonic approximation, d.H.d / 2; without gradient.

    Args:
        energy_of: energies (B,) eV of the frames with atoms displaced by (B, N, 3) A.
        energy: (B,) eV, of the frames as they are.
        displacement: d, (B, N, 3) A.
    """
    part = (_SHORT / _longest(displacement)).clamp(max=1.0)
    with torch.no_grad():
        short = part[..., None] * displacement
        mean = 0.5 * (energy_of(short) + energy_of(-short))
        return ((mean - energy) / part.squeeze(1) ** 2).clamp(min=0.0)


def corridor(
    energy: Tensor, forces: Tensor, displacement: Tensor, rise: Tensor, well_depth: float
) -> tuple[Tensor, Tensor]:
    """Lowest and highest energies (B,) eV of perturbed frames; differentiable by the energy.

    From a minimum, a Morse curve of depth D with the stiffness of the frame bounds the energy: from
    below by its stretched branch, from above by its compressed one. The forces of the frame, which
    pull displaced atoms back or on, and a margin are added:

        low  = E + min(0, -sum_i F_i . d_i) + D (1 - exp(-sqrt(h / D)))^2 - margin
        high = E + max(0, -sum_i F_i . d_i) + D (exp(sqrt(h / D)) - 1)^2 + margin

    It is a rule, not a law: atoms that hardly interact in the frame may collide, and rise higher.

    Args:
        energy: E, (B,) eV, of the frames as they are.
        forces: F, (B, N, 3) eV/A, likewise.
        displacement: d, (B, N, 3) A.
        rise: h, (B,) eV, see `harmonic_energy`.
        well_depth: D, eV.
    """
    linear = -(forces.detach() * displacement).sum((1, 2))
    stretch = (rise / well_depth).sqrt()
    low = well_depth * (1.0 - torch.exp(-stretch)) ** 2 - _MARGIN
    high = well_depth * (torch.exp(stretch) - 1.0) ** 2 + _MARGIN
    return energy + linear.clamp(max=0.0) + low, energy + linear.clamp(min=0.0) + high


def violations(perturbed: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """(B,) eV twice: by how much energies lie below their corridor, and above it.

    They do not change when all energies shift alike, which labels alone decide.

    Args:
        perturbed: (B,) eV.
        low: (B,) eV, see `corridor`.
        high: (B,) eV.
    """
    return (low - perturbed).clamp(min=0.0), (perturbed - high).clamp(min=0.0)


def corridor_violations(
    energy_of: Callable[[Tensor], Tensor],
    energy: Tensor,
    forces: Tensor,
    displacement: Tensor,
    well_depth: float,
) -> tuple[Tensor, Tensor]:
    """(B,) eV twice: by how much perturbed frames lie below their corridor, and above it.

    Arguments are those of `harmonic_energy` and `corridor`.
    """
    rise = harmonic_energy(energy_of, energy, displacement)
    bounds = corridor(energy, forces, displacement, rise, well_depth)
    return violations(energy_of(displacement), *bounds)


def _longest(vectors: Tensor) -> Tensor:
    """(B, 1) of (B, N, 3): the length of each frame's longest."""
    return torch.linalg.vector_norm(vectors, dim=2).amax(1, keepdim=True)
