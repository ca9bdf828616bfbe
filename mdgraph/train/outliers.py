"""Frames whose errors stand out from those of frames with forces as large.

Errors grow with forces, so each frame is held against its neighbors in the size of forces: a
robust z tells by how many of their spreads it is off.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mdgraph.data import Dataset
from mdgraph.train.evaluation import Scores

Array = NDArray[np.float64]

_FEWEST: Final = 20
"""Frames without which nothing stands out."""

_NEIGHBORS: Final = 101
_FAR: Final = 6.0
"""A z beyond this is reported; of errors as noise has them, one in 10^8 is."""

_LISTED: Final = 20

_ROWS: Final = 1 << 16
"""Frames at a time, each with all its neighbors."""


def outlying_frames(scores: Scores, dataset: Dataset) -> dict[str, Any]:
    """How many frames of a part stand out, and the worst of them, for metrics.json."""
    frames = len(scores.frames)
    if frames < _FEWEST:
        return {"frames": 0, "worst": []}
    size, forces = _force_sizes(scores)
    energy = scores.energy[:, 1] - scores.energy[:, 0]
    order = np.argsort(np.where(np.isfinite(size), size, -1.0), kind="stable")
    z = {"energy": _standing_out(energy[order]), "forces": _standing_out(forces[order])}
    largest = np.fmax(*(np.nan_to_num(one) for one in z.values()))
    far = np.flatnonzero(largest > _FAR)
    worst = []
    for place in far[np.argsort(-largest[far])][:_LISTED]:
        row = order[place]
        frame = int(scores.frames[row])
        source = int(dataset.source[frame])
        worst.append(
            {
                "frame": frame,
                "file": dataset.sources[source].file,
                "frame_of_file": frame - int(np.flatnonzero(dataset.source == source)[0]),
                "group": dataset.groups[dataset.group[frame]],
                "error_in": "energy" if z["energy"][place] == largest[place] else "forces",
                "z": round(float(largest[place]), 1),
                "energy_error_meV_per_atom": _rounded(1e3 * energy[row]),
                "force_rmse_meV_per_A": _rounded(1e3 * forces[row]),
            }
        )
    return {"frames": len(far), "worst": worst}


def outlier_sentences(part: str, found: Mapping[str, Any]) -> list[str]:
    """What was found, for a reader; nothing where nothing stands out."""
    if not found["frames"]:
        return []
    first = (
        f"{part}: {found['frames']} of the frames have errors beyond those of frames whose forces "
        "are as large; their labels may be wrong, or nothing else in the data is like them."
    )
    sentences = [first]
    for one in found["worst"]:
        errors = {
            "energy": f"its energy is off by {one['energy_error_meV_per_atom']} meV/atom",
            "forces": f"its forces by {one['force_rmse_meV_per_A']} meV/A root mean square",
        }
        said = " and ".join(text for text in errors.values() if "None" not in text)
        group = f", {one['group']}" if one["group"] else ""
        where = f"number {one['frame_of_file']} taken from {one['file']}{group}"
        sentences.append(
            f"Frame {one['frame']} ({where}): "
            f"{said}; the error of the {one['error_in']} is {one['z']:g} spreads from the usual."
        )
    return sentences


def _force_sizes(scores: Scores) -> tuple[Array, Array]:
    """Root mean squares (M,) of the forces of each frame and of their errors; NaN without any."""
    known = np.isfinite(scores.forces[:, 0, 0])
    owner, forces = scores.owner[known], scores.forces[known]
    count = np.bincount(owner, minlength=len(scores.frames))
    found = []
    for values in (forces[..., 0], forces[..., 1] - forces[..., 0]):
        total = np.bincount(owner, (values**2).mean(1), len(scores.frames))
        found.append(np.sqrt(np.where(count > 0, total / np.maximum(count, 1), np.nan)))
    return found[0], found[1]


def _standing_out(errors: Array) -> Array:
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
        # Of errors that are all alike the least bit would stand out.
        spread = np.maximum(spread, 0.1 * np.abs(middle) + 1e-9)
        rows = start + np.flatnonzero(known)
        z[rows] = np.abs(errors[rows] - middle) / spread
    return z


def _rounded(value: float) -> float | None:
    return float(f"{value:.4g}") if np.isfinite(value) else None
