"""A box of water for whoever has no structure at hand."""

from typing import Final

import numpy as np

from mdgraph.errors import InputError
from mdgraph.system import System

_MOLECULE: Final = np.array([[0.0, 0.0, 0.0], [0.757, 0.586, 0.0], [-0.757, 0.586, 0.0]])
"""A, oxygen first."""

_VOLUME: Final = 29.9
"""A^3 a molecule, liquid water at 300 K."""


def water(atoms: int, *, periodic: bool = True, seed: int = 1) -> System:
    """Randomly turned molecules on a jittered grid, with the density of the liquid.

    They are not at rest: relaxing heats them by some hundred kelvin.

    Args:
        atoms: a multiple of three.
        periodic: a cubic box; else a cluster without a cell.
        seed: of places and turns.

    Raises:
        InputError: a number of atoms that makes no molecules.
    """
    if atoms < 3 or atoms % 3:
        raise InputError(
            f"Water has three atoms a molecule, and {atoms} is no multiple of that; "
            f"ask for {3 * max(1, round(atoms / 3))}."
        )
    generator = np.random.default_rng(seed)
    molecules = atoms // 3
    edge = (molecules * _VOLUME) ** (1 / 3)
    points = int(np.ceil(molecules ** (1 / 3) - 1e-9))
    # Where the grid has more points than molecules, those of a box leave gaps all over it.
    taken = np.arange(molecules) * (points**3 if periodic else molecules) // molecules
    grid = np.stack(np.unravel_index(taken, [points] * 3), axis=-1)
    centres = (grid + 0.5) * edge / points
    centres = centres + generator.normal(scale=0.05, size=centres.shape)
    turns, _ = np.linalg.qr(generator.normal(size=(molecules, 3, 3)))
    positions = centres[:, None] + _MOLECULE @ turns
    return System(
        numbers=np.tile([8, 1, 1], molecules),
        positions=positions.reshape(-1, 3),
        cell=np.eye(3) * edge if periodic else np.zeros((3, 3)),
        pbc=np.full(3, periodic),
    )
