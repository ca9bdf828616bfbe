"""Atoms at one place, which are an error in a structure."""

from typing import Final

import numpy as np
import torch

from mdgraph.errors import InputError
from mdgraph.neighbors import NeighborList
from mdgraph.state import State
from mdgraph.system import System

COINCIDENT: Final = 1e-3
"""Two atoms closer than this (A), in any image, are taken for an error in the structure."""


def check_duplicates(system: System) -> None:
    """Refuses equal positions before a list is allocated, which would need a slot for each.

    Raises:
        InputError: two atoms in the same place.
    """
    rounded = np.round(system.positions / COINCIDENT)
    _, place, count = np.unique(rounded, axis=0, return_inverse=True, return_counts=True)
    if count.max() > 1:
        first, second = np.flatnonzero(place.ravel() == count.argmax())[:2].tolist()
        raise _coincident(first, second)


def check_pairs(state: State, pairs: NeighborList) -> None:
    """Refuses pairs of a list that are too close, images among them; reads the device.

    Raises:
        InputError: two atoms, or an atom and an image, in the same place.
    """
    for block in pairs.pairs(state.positions, state.cell).blocks:
        distance = torch.linalg.vector_norm(block.vectors.detach(), dim=-1)
        close = (block.valid & (distance < COINCIDENT)).nonzero()
        if len(close):
            atom, slot = close[0].tolist()
            neighbor = int(block.index[atom, slot])
            start = int(state.grouping.start[state.grouping.index[atom]])
            raise _coincident(*sorted((atom - start, neighbor - start)))


def _coincident(first: int, second: int) -> InputError:
    return InputError(
        f"Atoms {first} and {second} are at the same place "
        f"(closer than {COINCIDENT} A); move or remove one of them."
    )
