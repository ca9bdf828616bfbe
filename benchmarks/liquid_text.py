"""What `liquid.py` found, in words and as a picture."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from distributions import BINS, MAXIMUM, Array, standard_error
from shipped_water import POTENTIAL

from mdgraph.analysis.style import BLUE, LINE, ORANGE, blank_figure, dress


def features(distance: Array, value: Array) -> Iterator[tuple[str, int]]:
    """Bins of the first peak, and of the first minimum beyond it."""
    peak = int(np.argmax(value * (distance < 3.5)))
    beyond = (distance > distance[peak]) & (distance < 4.0)
    yield "first peak", peak
    yield "first minimum", int(np.argmin(np.where(beyond, value, np.inf)))


def text(found: dict[str, Any]) -> str:
    """For people: g_OO at every other bin, its first extrema, and the diffusion."""
    r, g, error, training, other = (
        np.array(found[key])
        for key in ("distance_A", "g_OO", "g_OO_error", "training", "training_error")
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        z = (g - training) / np.sqrt(error**2 + np.nan_to_num(other) ** 2)
    starts = f"{found['starts']} starts of {found['atoms']} atoms"
    lines = [
        f"{found['hardware']}, {found['precision']}: {found['ps']:g} ps of {starts}",
        f"g_OO at {found['temperature_K']:g} K",
        f"{'r A':>8}{'g_OO':>9}{'SE':>9}{'training':>10}{'SE':>9}{'z':>7}",
        *(
            f"{r[place]:>8.3f}{g[place]:>9.3f}{error[place]:>9.3f}"
            f"{training[place]:>10.3f}{other[place]:>9.3f}{z[place]:>7.1f}"
            for place in range(int(2.3 / MAXIMUM * BINS), BINS, 2)
        ),
    ]
    for name, place in features(r, g):
        lines.append(f"{name} at {r[place]:.2f} A: {g[place]:.3f} +- {error[place]:.3f}")
    for name, place in features(r, training):
        lines.append(f"{name} in training at {r[place]:.2f} A: {training[place]:.3f}")
    beyond = (r > 2.4) & np.isfinite(z)
    apart, errors = (float(np.sqrt((one[beyond] ** 2).mean())) for one in (g - training, z))
    lines.append(f"RMS difference beyond 2.4 A: {apart:.3f}, {errors:.1f} standard errors")
    both = {
        name: np.array(found[f"{key}diffusion_1e-5_cm2_per_s"])
        for key, name in (("", "mdgraph"), ("ase_", "ASE"))
    }
    for name, runs in both.items():
        if len(runs):
            lines.append(
                f"D of {len(runs)} runs at constant energy, {name}: {runs.mean():.3f} +- "
                f"{float(standard_error(runs)):.3f} e-5 cm^2/s"
            )
    if min(map(len, both.values())) > 1:
        gap = both["mdgraph"].mean() - both["ASE"].mean()
        spread = np.hypot(*map(standard_error, both.values()))
        lines.append(f"They differ by {abs(gap) / spread:.1f} standard errors")
    return "\n".join(lines)


def draw(found: dict[str, Any], path: Path) -> None:
    """g_OO with two standard errors on each side."""
    figure = blank_figure(
        7.0,
        5.2,
        f"{POTENTIAL} at {found['temperature_K']:g} K",
        f"{found['starts']} starts of {found['ps']:g} ps; bands are two standard errors",
    )
    axes = figure.add_subplot()
    r = np.array(found["distance_A"])
    for key, name, colour in (("training", "training frames", ORANGE), ("g_OO", "mdgraph", BLUE)):
        value, error = np.array(found[key]), np.nan_to_num(np.array(found[f"{key}_error"]))
        axes.plot(r, value, color=colour, label=name, **LINE)
        axes.fill_between(r, value - 2 * error, value + 2 * error, color=colour, alpha=0.25, lw=0)
    axes.set_xlim(2.0, MAXIMUM)
    axes.set_xlabel("O-O distance (Å)")
    axes.set_ylabel("g(r)")
    axes.legend(frameon=False)
    dress(axes)
    figure.savefig(path)
