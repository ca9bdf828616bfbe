"""Measures the domain of a training set, and calibrates the last layer's uncertainty."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mdgraph.data import Dataset
from mdgraph.models import Domain, TrainablePotential
from mdgraph.precision import full_float32
from mdgraph.train.batches import FrameStore
from mdgraph.train.setup import Parts

Array = NDArray[np.float64]

_RIDGES: Final = (1e-6, 1e-4, 1e-2, 1.0)
"""Of the covariance, in units of its mean eigenvalue, among which the validation frames choose."""


def calibration_factor(trained: Array, sums: Array, error: Array) -> Array:
    """The factor of sigma (D, D), see Domain; NaN where there are no errors.

    The ridge is the one under which the errors are likeliest. It is not put on the constant.

    Args:
        trained: (M, D) sums over the atoms of training frames, by atom.
        sums: (V, D) sums over those of validation frames.
        error: (V,) eV, of these frames.
    """
    size = trained.shape[1]
    covariance = trained.T @ trained / len(trained)
    unit = float(np.trace(covariance[:-1, :-1])) / max(1, size - 1)
    if not error.any():
        return np.full((size, size), np.nan)
    best: tuple[float, Array] | None = None
    for ridge in _RIDGES:
        weights = np.full(size, max(ridge * unit, 1e-30))
        weights[-1] = 0.0
        values, vectors = np.linalg.eigh(covariance + np.diag(weights))
        factor = (vectors / np.sqrt(np.maximum(values, 1e-30))).T
        sigma = lengths(sums, factor)
        scale = float(np.sqrt(np.mean((error / sigma) ** 2)))
        unlikely = float(np.mean(np.log(scale * sigma)))
        if best is None or unlikely < best[0]:
            best = unlikely, scale * factor
    assert best is not None
    return best[1]


def lengths(sums: Array, factor: Array) -> Array:
    """Sigma (M,) eV of frames with these sums (M, D)."""
    sigma: Array = np.linalg.norm(sums @ factor.T, axis=1)
    return sigma


def agreement(sigma: Array, error: Array, atoms: Array) -> dict[str, Any]:
    """How errors (M,) eV are spread in units of sigma (M,) eV; empty without any."""
    if not len(error) or not np.isfinite(sigma).all():
        return {}
    z = error / sigma
    return {
        "frames": len(error),
        "sigma_meV_per_atom": round(1e3 * float(np.sqrt(np.mean((sigma / atoms) ** 2))), 4),
        "z_mean": round(float(z.mean()), 3),
        "z_spread": round(float(z.std()), 3),
        "within_1_sigma": round(float((np.abs(z) < 1.0).mean()), 3),
        "within_2_sigma": round(float((np.abs(z) < 2.0).mean()), 3),
        "rank_correlation": round(_rank_correlation(sigma, np.abs(error)), 3),
    }


def _rank_correlation(first: Array, second: Array) -> float:
    """Spearman's, of values that are all different."""
    if len(first) < 3:
        return 0.0
    ranks = [values.argsort().argsort() for values in (first, second)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


Frames = NDArray[np.int64]

_FRAMES: Final = 2000
"""Most frames that the domain is measured on."""

_RARE: Final = (0.0, 0.001, 0.999, 1.0)
"""Shares of the atoms below the four numbers of a range."""


@dataclass(frozen=True, eq=False)
class _BatchEnvironments:
    """Environments of the N atoms of a batch of B frames, without padding.

    Attributes:
        places: (B,) of its frames among all that are evaluated.
        latent: (N, H) float64.
        rows: (N,) int64, row of each atom's element.
        owner: (N,) int64, place of its frame.
        neighbors: (N,) int64, within the network's cutoff.
        nearest: (E, E) float64, A, shortest distance by elements.
        energy: (B,) float64, eV, predicted; NaN without `energies`.
    """

    places: Frames
    latent: Tensor
    rows: Tensor
    owner: Tensor
    neighbors: Tensor
    nearest: Tensor
    energy: Tensor

    def totals(self, values: Tensor) -> Tensor:
        """Sums (B, C) float64 over the atoms of each frame of values (N, C) of theirs."""
        total = torch.zeros(len(self.places), values.shape[1], dtype=torch.float64)
        return total.index_add_(0, self.owner, values)


def measure_domain(
    potential: TrainablePotential,
    store: FrameStore,
    dataset: Dataset,
    parts: Parts,
    seed: int = 0,
    labels: Dataset | None = None,
) -> tuple[Domain, dict[str, Any]]:
    """The domain, and how well its uncertainty agrees with errors, by part; reads the device.

    Args:
        potential: after training.
        store: holds all these frames.
        dataset: what the potential was fitted to.
        parts: training frames give ranges and covariance (a random choice of many), validation
            frames the calibration, and test frames were used for nothing.
        seed: of the choice among many.
        labels: whose forces count, if that is another data set of the same frames.
    """
    trained = parts.train
    if len(trained) > _FRAMES:
        trained = np.sort(np.random.default_rng(seed).choice(trained, _FRAMES, False))
    numbers = sorted(potential.species)
    elements = len(numbers)
    counts: list[list[Array]] = [[] for _ in numbers]
    shortest = torch.full((elements, elements), torch.inf, dtype=torch.float64)
    sums, by_frame = None, np.zeros((len(trained), 0))
    present = torch.zeros(len(trained), elements, dtype=torch.float64)
    for batch in _passes(potential, store, trained):
        of_element = torch.nn.functional.one_hot(batch.rows, elements).double()
        part = of_element.T @ batch.latent
        sums = part if sums is None else sums + part
        if not by_frame.size:
            by_frame = np.zeros((len(trained), part.shape[1]))
        by_frame[batch.places] = batch.totals(batch.latent).numpy()
        present[torch.from_numpy(batch.places)] = batch.totals(of_element)
        shortest = torch.minimum(shortest, batch.nearest)
        for row, values in enumerate(counts):
            values.append(batch.neighbors[batch.rows == row].numpy().astype(float))
    assert sums is not None
    mean = sums / present.sum(0)[:, None].clamp(min=1.0)
    atoms = present.sum(1, keepdim=True).numpy()
    centred = np.hstack([by_frame - (present @ mean).numpy(), atoms])
    statistics = {
        name: _with_energy(*_frame_sums(potential, store, frames, mean), dataset, frames)
        for name, frames in vars(parts).items()
        if name != "train"
    }
    factor = calibration_factor(centred / atoms, *statistics["validation"][:2])
    domain = Domain(
        species=torch.tensor(numbers),
        neighbors=_ranges(counts, [np.inf, np.inf, -np.inf, -np.inf]),
        shortest=shortest,
        forces=_force_ranges(labels or dataset, trained, numbers),
        mean=mean,
        factor=torch.from_numpy(factor),
        sigma=torch.zeros(elements, 2, dtype=torch.float64),
    )
    sigmas: list[list[Array]] = [[] for _ in numbers]
    for batch in _passes(potential, store, trained):
        length = domain.projected(batch.latent, domain.species[batch.rows]).norm(dim=1)
        for row, values in enumerate(sigmas):
            values.append(length[batch.rows == row].numpy())
    domain.sigma.copy_(_ranges(sigmas, [0.0] * 4)[:, 2:])
    fits = {
        name: agreement(lengths(sums, factor), error, atoms)
        for name, (sums, error, atoms) in statistics.items()
    }
    return domain, {name: fit for name, fit in fits.items() if fit}


def _passes(
    potential: TrainablePotential, store: FrameStore, frames: Frames, *, energies: bool = False
) -> Iterator[_BatchEnvironments]:
    """Evaluates frames batch by batch, without forces; copies to the host."""
    species = torch.tensor(sorted(potential.species))
    for places, batch in store.batches_of(frames):
        with torch.no_grad(), full_float32():
            inputs = batch.inputs()
            rows, atoms, pairs = inputs.labels, inputs.atoms, inputs.pairs
            latent = potential.latent(atoms, pairs)
            energy = torch.full((len(places),), torch.nan, dtype=torch.float64)
            if energies:
                energy = batch.energy(potential, inputs)[: len(places)].cpu()
        kept = rows.present.bool()
        kept[len(places) :] = False
        kept = kept.flatten().cpu()
        number = atoms.numbers.cpu()
        row = torch.searchsorted(species, number)
        owner = torch.repeat_interleave(torch.arange(len(batch)), rows.present.shape[1])
        nearest = torch.full((len(species) ** 2,), torch.inf, dtype=torch.float64)
        (block,) = pairs[0].blocks
        distance = block.vectors.detach().norm(dim=-1).cpu()
        used = block.valid.cpu() & kept[:, None]
        pair = row[:, None] * len(species) + row[block.index.cpu().long()]
        nearest.scatter_reduce_(0, pair[used], distance[used], "amin")
        yield _BatchEnvironments(
            places,
            latent.double().cpu()[kept],
            row[kept],
            owner[kept],
            used.sum(1)[kept],
            nearest.view(len(species), -1),
            energy,
        )


def mean_latents(potential: TrainablePotential, store: FrameStore, frames: Frames) -> Array:
    """Mean inputs of the last layer by element of each frame (M, E H); reads the device."""
    elements = len(potential.species)
    means = np.zeros((len(frames), 0))
    for batch in _passes(potential, store, frames):
        of_element = torch.nn.functional.one_hot(batch.rows, elements).double()
        size = batch.latent.shape[1]
        spread = (of_element[:, :, None] * batch.latent[:, None]).flatten(1)
        counts = batch.totals(of_element).clamp(min=1.0).repeat_interleave(size, dim=1)
        if not means.size:
            means = np.zeros((len(frames), elements * size))
        means[batch.places] = (batch.totals(spread) / counts).numpy()
    return means


def _frame_sums(
    potential: TrainablePotential, store: FrameStore, frames: Frames, mean: Tensor
) -> tuple[Array, Array]:
    """Sums f (M, H + 1) of each frame, and its energy (M,) eV."""
    sums = np.zeros((len(frames), mean.shape[1] + 1))
    energy = np.zeros(len(frames))
    for batch in _passes(potential, store, frames, energies=True):
        centred = batch.latent - mean[batch.rows]
        padded = torch.cat([centred, torch.ones_like(centred[:, :1])], dim=1)
        sums[batch.places] = batch.totals(padded).numpy()
        energy[batch.places] = batch.energy.numpy()
    return sums, energy


def _with_energy(
    sums: Array, predicted: Array, dataset: Dataset, frames: Frames
) -> tuple[Array, Array, Array]:
    """Sums, errors in eV and numbers of atoms of the frames whose energy has a weight."""
    error = predicted - dataset.energy[frames]
    known = np.isfinite(error) & (dataset.weight[frames] > 0.0)
    return sums[known], error[known], dataset.atoms[frames][known].astype(float)


def _ranges(values: list[list[Array]], absent: list[float]) -> Tensor:
    """Least, rare, rare and largest of each element (E, 4)."""
    by_element = [np.concatenate(parts) for parts in values]
    ranges = [np.quantile(own, _RARE).tolist() if len(own) else absent for own in by_element]
    return torch.tensor(ranges, dtype=torch.float64)


def _force_ranges(dataset: Dataset, frames: Frames, numbers: list[int]) -> Tensor:
    sizes: list[list[Array]] = [[] for _ in numbers]
    for frame in frames.tolist():
        size = np.linalg.norm(dataset.column("forces", frame, frame + 1), axis=-1)
        elements = dataset.column("numbers", frame, frame + 1)
        for row, number in enumerate(numbers):
            own = size[elements == number]
            sizes[row].append(own[np.isfinite(own)])
    return _ranges(sizes, [0.0] * 4)[:, 2:]
