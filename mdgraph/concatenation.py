"""Systems of a batch, one after the other, as tensors on the host."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mdgraph.system import System, total_charge

Array = NDArray[Any]

NEAR: Final = 4.0
"""A, from the origin, within which a small system stays where it is."""


def concatenated(systems: Sequence[System], dtype: torch.dtype) -> dict[str, Tensor]:
    """What systems hold, by the names that `State` has for it.

    Args:
        systems: at least one; without velocities they are at rest.
        dtype: of what is real.
    """

    def parts(name: str, kind: torch.dtype) -> list[Tensor]:
        return [torch.tensor(getattr(system, name), dtype=kind) for system in systems]

    velocities = [
        np.zeros((len(one), 3)) if one.velocities is None else one.velocities for one in systems
    ]
    charges = [total_charge(system) for system in systems]
    given = {
        "numbers": torch.cat(parts("numbers", torch.int64)),
        "masses": torch.cat(parts("masses", dtype)),
        "positions": torch.cat(parts("positions", dtype)),
        "velocities": torch.tensor(np.concatenate(velocities), dtype=dtype),
        "cell": torch.stack(parts("cell", dtype)),
        "pbc": torch.stack(parts("pbc", torch.bool)),
        "charge": torch.tensor(charges, dtype=dtype),
        "atom": torch.cat([torch.arange(len(system)) for system in systems]),
    }
    if dtype != torch.float64:
        positions, cells = [one.positions for one in systems], [one.cell for one in systems]
        given |= centred(positions, cells, [one.pbc for one in systems], dtype)
    return given


def centred(
    positions: Sequence[Array], cells: Sequence[Array], pbc: Sequence[Array], dtype: torch.dtype
) -> dict[str, Tensor]:
    """Positions that fewer digits can hold, and what was taken off them.

    A system far from the origin is moved there, atom by atom into the cell and then as a whole,
    before its positions are rounded; one that would gain little stays where it is.

    Args:
        positions: (N, 3) A of each system.
        cells: (3, 3) A of each.
        pbc: (3,) of each.
        dtype: of the positions.

    Returns:
        `positions`, `turns`, `offset` and `offset_cell`, as in State.
    """
    away = [_away(*one) for one in zip(positions, cells, pbc, strict=True)]
    offsets = [turns @ cell + centre for (turns, centre), cell in zip(away, cells, strict=True)]
    offset = torch.tensor(np.concatenate(offsets))
    return {
        "positions": (torch.tensor(np.concatenate(positions)) - offset).to(dtype),
        "turns": torch.tensor(np.concatenate([turns for turns, _ in away])),
        "offset": offset,
        "offset_cell": torch.tensor(np.stack(cells)).to(dtype).double(),
    }


def _away(positions: Array, cell: Array, pbc: Array) -> tuple[Array, Array]:
    """Lattice translations (N, 3) and a point (3,), A, to be taken off the positions."""
    turns = np.zeros_like(positions)
    if pbc.any():
        turns[:, pbc] = np.floor(positions @ np.linalg.pinv(cell[pbc]))
    inside = positions - turns @ cell
    centre = inside.mean(axis=0)
    if np.abs(positions).max() <= 2.0 * np.abs(inside - centre).max() + NEAR:
        return np.zeros_like(turns), np.zeros(3)
    return turns, centre
