"""Errors of a potential on frames, their table, and outliers.

Errors grow with forces, so the error of a frame is compared with those of frames whose forces are
about as large: a robust z counts how many of their spreads it lies from their median. An outlier
may be a wrong label if the frames most like it, by the inputs of the last layer, have much smaller
errors; where their errors are large too, the potential fails.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from mdgraph.data import Dataset
from mdgraph.models import TrainablePotential
from mdgraph.precision import full_float32
from mdgraph.train.batches import FrameStore, Prediction
from mdgraph.train.config import TERMS, LossConfig
from mdgraph.train.losses import errors as penalties
from mdgraph.train.losses import final_weights
from mdgraph.train.tables import has_dipole, has_stress
from mdgraph.units import SYMBOLS

Array = NDArray[np.float64]

_LEARNED: Final = 0.9
"""Share of the size of forces; if errors are larger, nothing was learned."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Labels and predictions of M frames with A atoms in all.

    A label is NaN if it is missing or has no weight in the data set.

    Attributes:
        frames: (M,) their numbers.
        energy: (M, 2) eV an atom, label and prediction.
        forces: (A, 3, 2) eV/A, likewise.
        stress: (M, 9, 2) eV/A^3, likewise.
        dipole: (M, 3, 2) e A, likewise.
        numbers: (A,) atomic numbers.
        owner: (A,) row of each atom's frame.
        loss: mean loss with the weights of the end of the training; NaN unless it was asked for.
    """

    frames: NDArray[np.int64]
    energy: Array
    forces: Array
    stress: Array
    dipole: Array
    numbers: NDArray[np.int64]
    owner: NDArray[np.int64]
    loss: float = np.nan


def energies_of(
    potential: TrainablePotential, store: FrameStore, frames: NDArray[np.int64]
) -> Array:
    """Energies (M,) eV; reads the device."""
    energies = np.zeros(len(frames))
    for places, batch in store.batches_of(frames):
        with torch.no_grad(), full_float32():
            energy = batch.energy(potential, batch.inputs())
        energies[places] = energy.cpu().numpy()[: len(places)]
    return energies


def score(
    potential: TrainablePotential,
    store: FrameStore,
    dataset: Dataset,
    frames: NDArray[np.int64],
    config: LossConfig | None = None,
) -> Scores:
    """Predictions beside labels; reads the device.

    Args:
        potential: any TensorNet.
        store: holds the frames.
        dataset: of the frames.
        frames: (M,) their numbers.
        config: of the loss, if that is to be known too; its terms keep the weights that they have
            at the end of the training, so that losses of two steps can be compared.
    """
    gives_dipoles = potential.predicts_charges
    atoms = dataset.atoms[frames]
    starts = np.concatenate([[0], np.cumsum(atoms)])
    energy = np.full((len(frames), 2), np.nan)
    forces = np.full((int(starts[-1]), 3, 2), np.nan)
    stress = np.full((len(frames), 9, 2), np.nan)
    dipole = np.full((len(frames), 3, 2), np.nan)
    numbers = np.zeros(int(starts[-1]), dtype=np.int64)
    for row, frame in enumerate(dataset.frames(frames)):
        assert frame.forces is not None
        assert frame.force_weights is not None
        part = slice(*starts[row : row + 2])
        numbers[part] = frame.numbers
        if frame.weight == 0.0:
            continue
        energy[row, 0] = frame.energy / len(frame)
        forces[part, :, 0] = np.where(frame.force_weights[:, None] > 0.0, frame.forces, np.nan)
        if has_stress(frame):
            assert frame.stress is not None
            stress[row, :, 0] = frame.stress.ravel()
        if gives_dipoles and has_dipole(frame):
            dipole[row, :, 0] = frame.dipole
    terms, counts = np.zeros((2, len(TERMS)))
    for places, batch in store.batches_of(frames):
        kept = slice(len(places))  # what follows are copies that fill the batch
        with full_float32():
            prediction, inputs = batch.predict(potential, differentiable=False)
            if config is not None:
                first = Prediction(*(value[kept].detach() for value in vars(prediction).values()))
                labels = inputs.labels.map_tensors(lambda value, kept=kept: value[kept])
                own = penalties(config, potential.scale, first, labels)
                terms += own.terms.cpu().numpy()
                counts += own.counts.cpu().numpy()
        pieces = [value.detach().cpu().numpy() for value in vars(prediction).values()]
        for place, e, f, s, d in zip(places, *pieces, strict=False):
            energy[place, 1] = e / atoms[place]
            forces[starts[place] : starts[place + 1], :, 1] = f[: atoms[place]]
            stress[place, :, 1] = s.ravel()
            dipole[place, :, 1] = d
    owner = np.repeat(np.arange(len(frames)), atoms)
    loss = np.nan
    if config is not None:
        loss = float(np.dot(final_weights(config), terms / np.maximum(counts, 1.0)))
    return Scores(frames, energy, forces, stress, dipole, numbers, owner, loss)


def table(scores: Scores, dataset: Dataset) -> dict[str, Any]:
    """Errors in meV/A, meV per atom and meV per frame, by element, group and source."""
    errors: dict[str, Any] = _errors(scores, np.ones(len(scores.frames), dtype=bool))
    for number in np.unique(scores.numbers):
        part = _difference(scores.forces[scores.numbers == number])
        errors |= _rmse_and_mae(f"force_{{}}_{SYMBOLS[number]}_meV_per_A", part)
    groups = dataset.group[scores.frames]
    if 1 < len(np.unique(groups)) <= 50:
        errors["by_group"] = {
            dataset.groups[group]: _errors(scores, groups == group) for group in np.unique(groups)
        }
    sources = dataset.source[scores.frames]
    if len(np.unique(sources)) > 1:
        errors["by_source"] = {
            dataset.sources[source].file: _errors(scores, sources == source)
            for source in np.unique(sources)
        }
    return errors


def no_learning_warning(scores: Scores, part: str) -> str:
    """A warning if errors of forces are about as large as forces, else an empty text."""
    error, size = _difference(scores.forces), scores.forces[..., 0]
    size = size[np.isfinite(size)]
    if not len(error) or not size.any() or _rms(error) < _LEARNED * _rms(size):
        return ""
    return (
        f"Forces on {part} are off by {1e3 * _rms(error):.4g} meV/A, and {1e3 * _rms(size):.4g} is "
        "all they have: nothing was learned, so train longer, lower learning_rate, or look at the "
        "data with 'mdgraph data check'."
    )


def _errors(scores: Scores, mask: NDArray[np.bool_]) -> dict[str, int | float]:
    """Errors over some frames, for each quantity with labels."""
    force = _difference(scores.forces[mask[scores.owner]])
    energy = _difference(scores.energy[mask])
    counts = np.bincount(scores.owner, minlength=len(scores.frames))[mask]
    whole = _difference(scores.energy[mask] * counts[:, None])
    errors: dict[str, int | float] = {"frames": int(mask.sum())}
    errors |= _rmse_and_mae("force_{}_meV_per_A", force)
    errors |= _rmse_and_mae("energy_{}_meV_per_atom", energy)
    errors |= _rmse_and_mae("energy_{}_meV", whole)
    for name, values in (
        ("stress_rmse_meV_per_A3", _difference(scores.stress[mask])),
        ("dipole_rmse_me_A", _difference(scores.dipole[mask])),
    ):
        if len(values):
            errors[name] = round(1e3 * _rms(values), 4)
    return errors


def _rmse_and_mae(name: str, errors: Array) -> dict[str, float]:
    """Both in thousandths, under a name with one of them for {}; empty without errors."""
    if not len(errors):
        return {}
    measures = {"rmse": _rms(errors), "mae": float(np.abs(errors).mean())}
    return {name.format(measure): round(1e3 * value, 4) for measure, value in measures.items()}


def _difference(values: Array) -> Array:
    """Predictions less labels where there is a label, flat."""
    error = (values[..., 1] - values[..., 0]).ravel()
    return error[np.isfinite(values[..., 0]).ravel()]


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(values**2)))


_FEWEST: Final = 20
"""Fewest frames among which outliers are looked for."""

_NEIGHBORS: Final = 101
_FAR: Final = 6.0
"""A z beyond this is reported; among normally distributed errors one in 10^8 is."""

_LISTED: Final = 20

_ROWS: Final = 1 << 16
"""Frames at a time, each with all its neighbors."""


_ALIKE: Final = 5
"""Frames most like an outlier, whose errors are looked at."""

_LARGE: Final = 1.0 / 3.0
"""Share of the error of an outlier at which the error of a frame like it is large too."""

_REMOTE: Final = 2.0
"""An outlier is this much further from the frames most like it than they are from theirs, if
nothing is like it."""

_COMPARED: Final = 2000
"""Most frames of one composition that are compared with each other."""


def find_outliers(
    scores: Scores, dataset: Dataset, features_of: Callable[[NDArray[np.int64]], Array]
) -> dict[str, Any]:
    """Number of outliers among the frames of a part, and the worst of them, for metrics.json.

    Args:
        scores: of the part.
        dataset: of the frames.
        features_of: gives features (K, D) of K frames, near for frames that are alike; called only
            if there are outliers.
    """
    frames = len(scores.frames)
    if frames < _FEWEST:
        return {"frames": 0, "worst": []}
    size, forces = _force_sizes(scores)
    energy = scores.energy[:, 1] - scores.energy[:, 0]
    order = np.argsort(np.where(np.isfinite(size), size, -1.0), kind="stable")
    z = {"energy": _robust_deviations(energy[order]), "forces": _robust_deviations(forces[order])}
    largest = np.fmax(*(np.nan_to_num(values) for values in z.values()))
    far = np.flatnonzero(largest > _FAR)
    listed = far[np.argsort(-largest[far])][:_LISTED]
    errors = {"energy": np.abs(energy), "forces": forces}
    outlying = {name: np.zeros(frames, dtype=bool) for name in z}
    for name, values in z.items():
        outlying[name][order] = values > _FAR
    alike = _most_alike(scores, order[listed], order[far], features_of)
    worst = []
    for place in listed:
        row = order[place]
        error_in = "energy" if z["energy"][place] == largest[place] else "forces"
        fails = outlying[error_in] | (errors[error_in] >= _LARGE * errors[error_in][row])
        near, remote = alike[int(row)]
        near = near[np.isfinite(errors[error_in][near])]
        failing = int(fails[near].sum())
        frame = int(scores.frames[row])
        source = int(dataset.source[frame])
        worst.append(
            {
                "frame": frame,
                "file": dataset.sources[source].file,
                "frame_of_file": frame - int(np.flatnonzero(dataset.source == source)[0]),
                "group": dataset.groups[dataset.group[frame]],
                "error_in": error_in,
                "z": round(float(largest[place]), 1),
                "energy_error_meV_per_atom": _rounded(1e3 * energy[row]),
                "force_rmse_meV_per_A": _rounded(1e3 * forces[row]),
                "cause": _cause(failing, len(near), remote),
                "alike": len(near),
                "alike_with_large_errors": failing,
            }
        )
    return {"frames": len(far), "worst": worst}


def outlier_sentences(part: str, outliers: Mapping[str, Any]) -> list[str]:
    """`find_outliers` in sentences; none without outliers."""
    if not outliers["frames"]:
        return []
    first = (
        f"{part}: {outliers['frames']} of the frames have errors beyond those of frames whose "
        "forces are as large."
    )
    sentences = [first]
    for outlier in outliers["worst"]:
        errors = {
            "energy": f"its energy is off by {outlier['energy_error_meV_per_atom']} meV/atom",
            "forces": f"its forces by {outlier['force_rmse_meV_per_A']} meV/A root mean square",
        }
        text = " and ".join(error for error in errors.values() if "None" not in error)
        group = f", {outlier['group']}" if outlier["group"] else ""
        where = f"number {outlier['frame_of_file']} taken from {outlier['file']}{group}"
        sentences.append(
            f"Frame {outlier['frame']} ({where}): {text}; the error of the "
            f"{outlier['error_in']} is {outlier['z']:g} spreads from the usual. "
            f"{_CAUSES[outlier['cause']].format_map(outlier)}"
        )
    return sentences


_CAUSES: Final = {
    "label": "The frames most like it have much smaller errors, so its label may be wrong.",
    "potential": "Of the {alike} frames most like it {alike_with_large_errors} have large errors "
    "too, so the potential fails there.",
    "unknown": "No other frame is like it, so it may be the label or the potential that is wrong.",
}


def _cause(failing: int, alike: int, remote: bool) -> str:
    """What an outlier tells of, if so many of the frames most like it have large errors too."""
    if failing >= min(2, max(1, alike - 1)):
        return "potential"
    return "unknown" if remote or alike < 3 else "label"


def _most_alike(
    scores: Scores,
    outliers: NDArray[np.int64],
    every_outlier: NDArray[np.int64],
    features_of: Callable[[NDArray[np.int64]], Array],
) -> dict[int, tuple[NDArray[np.int64], bool]]:
    """By row of an outlier the rows of the frames most like it, and whether even these are remote.

    Only frames with the same shares of elements are compared; of many, all outliers and a random
    choice of the others.

    Args:
        scores: of M frames.
        outliers: rows of those that are looked at.
        every_outlier: rows of all outliers.
        features_of: see `find_outliers`.
    """
    elements, kinds = np.unique(scores.numbers, return_inverse=True)
    size = len(scores.frames), len(elements)
    shares = np.bincount(scores.owner * size[1] + kinds, minlength=size[0] * size[1])
    shares = shares.reshape(size) / shares.reshape(size).sum(1, keepdims=True)
    shares = np.round(shares, 6)
    alike: dict[int, tuple[NDArray[np.int64], bool]] = {}
    for composition in np.unique(shares[outliers], axis=0):
        same = np.flatnonzero((shares == composition).all(1))
        if len(same) > _COMPARED:
            chosen = np.random.default_rng(0).choice(same, _COMPARED, False)
            same = np.union1d(chosen, np.intersect1d(same, every_outlier))
        number = min(_ALIKE, len(same) - 1)
        features = features_of(scores.frames[same])
        squares = (features**2).sum(1)
        distances = squares[:, None] + squares - 2.0 * features @ features.T
        distances = np.sqrt(np.maximum(distances, 0.0))
        np.fill_diagonal(distances, np.inf)
        nearest = np.argsort(distances, axis=1, kind="stable")[:, :number]
        reach = np.sort(distances, axis=1)[:, number - 1] if number else np.zeros(len(same))
        for row in outliers[np.isin(outliers, same)]:
            place = int(np.searchsorted(same, row))
            near = nearest[place]
            remote = not number or reach[place] > _REMOTE * float(np.median(reach[near]))
            alike[int(row)] = same[near], bool(remote)
    return alike


def _force_sizes(scores: Scores) -> tuple[Array, Array]:
    """Root mean squares (M,) of the forces of each frame and of their errors; NaN without any."""
    known = np.isfinite(scores.forces[:, 0, 0])
    owner, forces = scores.owner[known], scores.forces[known]
    count = np.bincount(owner, minlength=len(scores.frames))
    sizes = []
    for values in (forces[..., 0], forces[..., 1] - forces[..., 0]):
        total = np.bincount(owner, (values**2).mean(1), len(scores.frames))
        sizes.append(np.sqrt(np.where(count > 0, total / np.maximum(count, 1), np.nan)))
    return sizes[0], sizes[1]


def _robust_deviations(errors: Array) -> Array:
    """By how many spreads (M,) each error is away from the median of its neighbors."""
    width = min(_NEIGHBORS, len(errors))
    first = np.clip(np.arange(len(errors)) - width // 2, 0, len(errors) - width)
    every = np.lib.stride_tricks.sliding_window_view(errors, width)
    z = np.full(len(errors), np.nan)
    for start in range(0, len(errors), _ROWS):
        windows = every[first[start : start + _ROWS]]
        known = np.isfinite(windows).any(1)
        middle = np.nanmedian(windows[known], axis=1)
        spread = 1.4826 * np.nanmedian(np.abs(windows[known] - middle[:, None]), axis=1)
        # Among equal errors the least difference would be an outlier.
        spread = np.maximum(spread, 0.1 * np.abs(middle) + 1e-9)
        rows = start + np.flatnonzero(known)
        z[rows] = np.abs(errors[rows] - middle) / spread
    return z


def _rounded(value: float) -> float | None:
    return float(f"{value:.4g}") if np.isfinite(value) else None
