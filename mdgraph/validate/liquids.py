"""Means over runs of a liquid, with error bars; drops, slabs and molecules cut from one."""

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from mdgraph.errors import InputError
from mdgraph.system import System, make_whole
from mdgraph.validate.bonds import BondGraph, first_atoms

Array = NDArray[np.float64]

CM2_PER_S: Final = 1e4
"""1e-5 cm^2/s in an A^2/fs."""

DROP: Final = 20
"""Most molecules of a drop."""

_SLAB_HEIGHT: Final = 3
"""Height of a slab's cell, in cells of the liquid."""


def standard_error(values: Array) -> Array:
    """Standard error of the mean over the first axis; NaN for a single value."""
    if len(values) < 2:
        return np.full(values.shape[1:], np.nan)
    return np.asarray(values.std(0, ddof=1) / np.sqrt(len(values)))


def mean_and_error(blocks: Array) -> tuple[Array, Array]:
    """Mean over (blocks, starts, ...), and the larger of the standard errors of all and of starts.

    The error of a single value is NaN.
    """
    mean = blocks.mean((0, 1))
    every = blocks.reshape(-1, *blocks.shape[2:])
    return mean, np.fmax(standard_error(every), standard_error(blocks.mean(0)))


def cut(liquid: System, shape: str) -> System:
    """A drop, slab or molecule without velocities; molecules are made whole.

    A drop is the first molecule with the nearest others, a slab lies in a cell three times as high,
    and a molecule is the first one alone. None of them occurs in the training set of a liquid.

    Args:
        liquid: of whole molecules, periodic in all directions and neutral.
        shape: `drop`, `slab` or `molecule`.

    Raises:
        InputError: the liquid is charged, has an open side or no separate molecules.
    """
    if not liquid.pbc.all():
        raise InputError("The liquid has an open side; give one that is periodic in all three.")
    if liquid.charge:
        raise InputError("The liquid is charged, and nothing tells where; give a neutral one.")
    positions = torch.tensor(liquid.positions)[None]
    graph = BondGraph(liquid, np.zeros((119, 119)), positions.device)
    bonds = (graph.distances(positions)[0] < graph.reach).numpy()
    first = first_atoms(bonds)
    if not first.any():
        raise InputError("All atoms of a frame hang together; give a liquid of molecules.")
    places = make_whole(liquid.positions, liquid.cell, np.argwhere(np.triu(bonds)))
    places = places - np.floor(places[first] @ np.linalg.inv(liquid.cell)) @ liquid.cell
    if shape == "slab":
        high = liquid.cell * [[1], [1], [_SLAB_HEIGHT]]
        return liquid.replace(positions=places, cell=high, velocities=None)
    if shape == "molecule":
        return System(liquid.numbers[first == 0], places[first == 0])
    apart = places[first] - places[0]
    places = places - np.round(apart @ np.linalg.inv(liquid.cell)) @ liquid.cell
    distance = np.linalg.norm(places[first] - places[0], axis=1)
    molecules, order = np.unique(first), np.unique(first, return_index=True)[1]
    nearest = molecules[np.argsort(distance[order], kind="stable")[:DROP]]
    kept = np.isin(first, nearest)
    return System(liquid.numbers[kept], places[kept])
