"""A picture of a data set."""

import numpy as np
from matplotlib.figure import Figure

from mdgraph.analysis.style import BLUE, GREEN, ORANGE, blank_figure, dress
from mdgraph.data.summary import Summary


def dataset_figure(summary: Summary, name: str) -> Figure:
    """Draws distributions of energies and forces, and the share of each element."""
    least, _, most = summary.atoms
    atoms = f"{most} atoms each" if least == most else f"{least} to {most} atoms"
    text = f"{summary.frames} frames, {atoms}"
    figure = blank_figure(11.0, 5.2, name, text)
    left, middle, right = figure.subplots(1, 3)
    energies = summary.energies[np.isfinite(summary.energies)]
    if len(energies):
        left.hist(1e3 * (energies - np.median(energies)), bins=60, color=BLUE)
    left.set_xlabel("energy, from the median (meV/atom)")
    left.set_ylabel("frames")
    if len(summary.forces):
        middle.hist(summary.forces, bins=80, color=ORANGE, log=True)
    middle.set_xlabel("force on an atom (eV/Å)")
    middle.set_ylabel("atoms")
    right.bar(list(summary.elements), list(summary.elements.values()), color=GREEN)
    # From below one atom up, or the rarest element of a log scale would have no bar.
    right.set_yscale("log")
    right.set_ylim(bottom=0.5)
    right.set_ylabel("atoms")
    dress(left, middle, right)
    return figure
