"""Reference energies of the elements, and the scale of what the network adds to them."""

import itertools
import logging
from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from mdgraph.data import Dataset
from mdgraph.data.dataset import compositions, fit_references, rank
from mdgraph.errors import InputError
from mdgraph.models import TrainablePotential
from mdgraph.train.config import TrainConfig
from mdgraph.units import NUMBERS, SYMBOLS

logger = logging.getLogger(__name__)

Energies = Callable[[NDArray[np.int64]], NDArray[np.float64]]
"""Energies (M,) eV of the potential for frames (M,)."""


_APART: Final = 8.0
"""A; an atom farther than this from its images counts as isolated. Crystals are denser."""


def single_atoms(dataset: Dataset) -> NDArray[np.int64]:
    """Frames of one atom, without a cell or in one so large that the atom counts as isolated."""
    single = np.flatnonzero(dataset.atoms == 1)
    steps = np.array(list(itertools.product((-1, 0, 1), repeat=3)))
    cells = np.where(dataset.pbc[single][:, :, None], dataset.cell[single], 0.0)
    lengths = np.linalg.norm(steps @ cells, axis=2)
    return single[np.where(lengths > 0.0, lengths, np.inf).min(1) > _APART]


def isolated_atoms(dataset: Dataset) -> dict[str, float]:
    """Energies of the elements for which the data hold a single neutral atom.

    Of several the lowest counts, which has the spin of the ground state.
    """
    numbers = dataset.numbers()
    single = np.zeros(len(dataset), dtype=bool)
    single[single_atoms(dataset)] = True
    single &= np.isfinite(dataset.energy) & (dataset.charge == 0.0)
    energies: dict[str, float] = {}
    for frame in np.flatnonzero(single):
        name, energy = SYMBOLS[numbers[dataset.start[frame]]], float(dataset.energy[frame])
        energies[name] = min(energy, energies.get(name, energy))
    return energies


def reference_energies(config: TrainConfig, dataset: Dataset) -> dict[str, float] | None:
    """Reference energies as given or of isolated atoms, or None for a fit.

    Raises:
        InputError: an element has none.
    """
    elements = [SYMBOLS[number] for number in np.unique(dataset.numbers())]
    if isinstance(config.references, dict):
        energies, where = dict(config.references), "references"
    else:
        energies, where = isolated_atoms(dataset), "the isolated atoms of the data"
    missing = [name for name in elements if name not in energies]
    if config.references == "auto":
        fitted = missing or config.start_from is not None or config.baseline
        return None if fitted else energies
    if config.references in ("least-squares", "none"):
        return None
    if missing:
        raise InputError(f"{missing[0]} has no energy among {where}; add it.")
    return energies


def set_references(
    potential: TrainablePotential,
    dataset: Dataset,
    frames: NDArray[np.int64],
    by_element: dict[str, float],
    energies: Energies,
) -> str:
    """Sets the references, and returns a sentence about their origin; reads the device.

    Args:
        potential: changed in place.
        dataset: labels.
        frames: those to fit on.
        by_element: energies of elements.
        energies: of the potential as it is.
    """
    rows = potential.rows.cpu()
    for name, energy in by_element.items():
        if rows[NUMBERS[name]] >= 0:
            potential.references[rows[NUMBERS[name]]] = energy
    known = _with_energy(dataset, frames)
    residual = (dataset.energy[known] - energies(known)) / dataset.atoms[known]
    mean = float(residual.mean()) if len(residual) else 0.0
    potential.references += mean
    return (
        "Reference energies are those given or of isolated atoms, each shifted by "
        f"{mean:.4f} eV, the mean interaction energy of an atom."
    )


def add_residual(
    potential: TrainablePotential,
    dataset: Dataset,
    frames: NDArray[np.int64],
    energies: Energies,
) -> str:
    """Adds a fit of the errors of energies to the references; returns a sentence about it."""
    elements, counts = compositions(dataset)
    known = _with_energy(dataset, frames)
    if len(known) == 0:
        return "No frame has an energy, so reference energies stay as they are."
    residual, _ = fit_references(counts[known], dataset.energy[known] - energies(known))
    rows = potential.rows.cpu()[torch.from_numpy(elements)]
    potential.references[rows.to(potential.references.device)] += torch.from_numpy(residual).to(
        potential.references
    )
    determined = rank(counts[known])
    if determined < len(elements):
        return (
            f"Reference energies are a least-squares fit; the compositions determine {determined} "
            f"of {len(elements)}, so the solution of least norm is taken, and single ones mean "
            "nothing."
        )
    return "Reference energies are a least-squares fit to the compositions."


def _with_energy(dataset: Dataset, frames: NDArray[np.int64]) -> NDArray[np.int64]:
    """Frames whose energy is known and has a weight."""
    return frames[np.isfinite(dataset.energy[frames]) & (dataset.weight[frames] > 0.0)]


def force_scale(dataset: Dataset, frames: NDArray[np.int64]) -> float:
    """Root mean square (eV/A) of the components of forces that have a weight; 1 without any."""
    squares, count = 0.0, 0
    for frame in dataset.frames(frames):
        assert frame.forces is not None
        assert frame.force_weights is not None
        forces = frame.forces[frame.weight * frame.force_weights > 0.0]
        forces = forces[np.isfinite(forces)]
        squares += float((forces**2).sum())
        count += forces.size
    return float(np.sqrt(squares / count)) if squares > 0.0 else 1.0
