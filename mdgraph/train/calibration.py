"""The uncertainty of the last layer, fitted to the errors of energies on validation frames."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_RIDGES: Final = (1e-6, 1e-4, 1e-2, 1.0)
"""Of the covariance, in units of its mean eigenvalue, among which the validation frames choose."""


def calibrated(trained: Array, held: Array, error: Array) -> Array:
    """The factor of sigma (D, D), see Domain; NaN where there are no errors.

    The ridge is the one under which the errors are likeliest. It is not put on the constant.

    Args:
        trained: (M, D) sums over the atoms of training frames, by atom.
        held: (V, D) sums over those of validation frames.
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
        sigma = lengths(held, factor)
        scale = float(np.sqrt(np.mean((error / sigma) ** 2)))
        unlikely = float(np.mean(np.log(scale * sigma)))
        if best is None or unlikely < best[0]:
            best = unlikely, scale * factor
    assert best is not None
    return best[1]


def lengths(sums: Array, factor: Array) -> Array:
    """Sigma (M,) eV of frames with these sums (M, D)."""
    found: Array = np.linalg.norm(sums @ factor.T, axis=1)
    return found


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
    ranks = [one.argsort().argsort() for one in (first, second)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])
