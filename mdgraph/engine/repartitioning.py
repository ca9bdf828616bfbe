"""Hydrogen mass repartitioning: slower hydrogens, for longer time steps."""

from typing import Final

import numpy as np
import torch

from mdgraph.arguments import checked
from mdgraph.errors import InputError, name_some
from mdgraph.neighbors import NeighborList
from mdgraph.state import State
from mdgraph.system import System

_BOND: Final = 1.7
"""A, within which the atom lies that a hydrogen is bonded to."""

_LEAST: Final = 1.0
"""amu that a heavy atom must keep."""


@checked
def repartitioned(system: System, hydrogen_mass: float = 3.024) -> System:
    """A copy in which every hydrogen takes mass from the nearest heavy atom.

    The total mass stays, and so does every average over positions; vibrations of hydrogen
    slow down by about the root of the ratio of masses. DOI 10.1021/ct5010406.

    Args:
        system: hydrogens that are as heavy already are left alone.
        hydrogen_mass: amu.

    Raises:
        InputError: a hydrogen with no heavy atom within 1.7 A, or a heavy atom that would
            keep less than 1 amu.
    """
    if not (np.isfinite(hydrogen_mass) and hydrogen_mass > 0.0):
        raise InputError(f"The mass of hydrogen is {hydrogen_mass} amu; give one above zero.")
    light = np.flatnonzero((system.numbers == 1) & (system.masses < hydrogen_mass))
    state = State([system])
    blocks = NeighborList(state, _BOND).pairs(state.positions, state.cell).blocks
    index = torch.cat([block.index for block in blocks], dim=1).numpy()
    vectors = torch.cat([block.vectors.detach() for block in blocks], dim=1)
    valid = torch.cat([block.valid for block in blocks], dim=1).numpy()
    distance = torch.linalg.vector_norm(vectors, dim=-1).numpy()
    bonded = valid & (system.numbers[index] != 1)
    distance = np.where(bonded, distance, np.inf)[light]
    alone = light[~np.isfinite(distance).any(axis=1)]
    if len(alone):
        raise InputError(
            f"Hydrogens {name_some(alone.tolist())} have no heavy atom within {_BOND} A to take "
            "mass from; keep the masses, or repair the structure."
        )
    heavy = index[light, distance.argmin(axis=1)]
    masses = system.masses.copy()
    np.subtract.at(masses, heavy, hydrogen_mass - masses[light])
    masses[light] = hydrogen_mass
    poor = np.unique(heavy[masses[heavy] < _LEAST])
    if len(poor):
        raise InputError(
            f"Atoms {name_some(poor.tolist())} would keep less than {_LEAST} amu; "
            "give hydrogen a smaller mass."
        )
    return system.replace(masses=masses)
