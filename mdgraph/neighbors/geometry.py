"""Geometry of cells of any shape and periodicity; static shapes, nothing syncs."""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.jit._trace import is_tracing

NEIGHBORS: Final = torch.cartesian_prod(*[torch.tensor([0.0, 1.0, -1.0])] * 3).double()
"""(27, 3) images around a vector, itself first."""

_ROUNDS: Final = 6
"""Vectors that are made shorter where nothing may sync; enough for nearest images in 999 of 1,000
random cells that three shears by up to four vectors have skewed."""


@dataclass(frozen=True)
class Lattice:
    """Quantities of the cells that a search needs.

    Attributes:
        vectors: (S, 3, 3) A, cell vectors; zero where not periodic.
        inverse: (S, 3, 3) 1/A, inverse of the completed cells.
        reach: (S, 3) range of the list divided by the distance of opposite faces; 0 where not
            periodic.
    """

    vectors: Tensor
    inverse: Tensor
    reach: Tensor

    @classmethod
    def of(cls, cell: Tensor, pbc: Tensor, list_range: float) -> "Lattice":
        """From cells (S, 3, 3) A, pbc (S, 3) bool and a range in A; does not sync."""
        inverse_cell = inverse(complete_cell(cell, pbc))
        reach = torch.where(pbc, list_range / heights(inverse_cell), 0.0)
        return cls(periodic_vectors(cell, pbc), inverse_cell, reach)


def periodic_vectors(cell: Tensor, pbc: Tensor) -> Tensor:
    """Cell (S, 3, 3) with the vectors along directions that are not periodic set to zero."""
    return torch.where(pbc[..., None], cell, 0.0)


def complete_cell(cell: Tensor, pbc: Tensor) -> Tensor:
    """Replaces vectors that are not periodic by unit vectors normal to all others.

    Fractional coordinates in the result are lattice coordinates along periodic directions and
    distances in A along the others. The vectors that are replaced have no influence.

    Args:
        cell: (S, 3, 3) A.
        pbc: (S, 3) bool.

    Returns:
        (S, 3, 3) A, of full rank.
    """
    vectors = periodic_vectors(cell, pbc)
    first, second, third = vectors.unbind(-2)
    normals = torch.stack(
        [
            torch.linalg.cross(second, third),
            torch.linalg.cross(third, first),
            torch.linalg.cross(first, second),
        ],
        dim=-2,
    )
    normals = _normalized(normals)
    # One periodic direction: both normals from the Cartesian axis that is least parallel to it.
    direction = _normalized(vectors.sum(-2))
    least = direction.abs().argmin(-1, keepdim=True)
    axis = (torch.arange(3, device=cell.device) == least).to(cell.dtype)
    along = (axis * direction).sum(-1, keepdim=True)
    normal = _normalized(axis - along * direction)
    binormal = torch.linalg.cross(direction, normal)
    missing_before = (~pbc).cumsum(-1) - (~pbc).to(torch.int64)
    pair = torch.where(missing_before[..., None] == 0, normal[..., None, :], binormal[..., None, :])
    identity = torch.eye(3, dtype=cell.dtype, device=cell.device).expand_as(vectors)
    periodic = pbc.sum(-1)[..., None, None]
    filler = torch.where(periodic == 2, normals, torch.where(periodic == 1, pair, identity))
    return torch.where(pbc[..., None], vectors, filler)


def inverse(matrices: Tensor) -> Tensor:
    """Inverse of (S, 3, 3) by cross products; `torch.linalg.inv` would sync."""
    first, second, third = matrices.unbind(-2)
    columns = torch.stack(
        [
            torch.linalg.cross(second, third),
            torch.linalg.cross(third, first),
            torch.linalg.cross(first, second),
        ],
        dim=-1,
    )
    determinant = (first * columns[..., 0]).sum(-1)
    return columns / determinant[..., None, None]


def heights(inverse_cell: Tensor) -> Tensor:
    """Distances (S, 3) between opposite faces, from the inverse of a complete cell."""
    return 1.0 / torch.linalg.vector_norm(inverse_cell, dim=-2)


def compact_cells(cell: Tensor, pbc: Tensor, candidates: Tensor) -> Tensor:
    """The most compact cells of lattices, as Minkowski reduces them.

    Static shapes, does not sync on CUDA. `_ROUNDS` vectors of each are made shorter at most, by
    that sum of others which gains most; `mdgraph.system.compaction` goes on to the end.

    Args:
        cell: (S, 3, 3) float64, A, complete; see `complete_cell`.
        pbc: (S, 3) bool.
        candidates: (27, 3) float64, `NEIGHBORS` on the device.

    Returns:
        (S, 3, 3) float64, A.
    """
    axes = torch.arange(3, device=cell.device)
    others = pbc[:, :, None] & pbc[:, None] & (axes[:, None] != axes)
    nearest = candidates * others[:, :, None]
    reduction = torch.eye(3, dtype=torch.float64, device=cell.device).expand_as(cell)
    for _ in range(_ROUNDS):
        rows = reduction @ cell
        products = rows @ rows.transpose(1, 2)
        squares = products.diagonal(dim1=1, dim2=2)
        shares = torch.round(products / squares[:, None]) * others
        changes = torch.cat([nearest, shares[:, :, None], torch.diag_embed(shares)], dim=2)
        lengths = (rows[:, :, None] - changes @ rows[:, None]).square().sum(-1)
        gain, place = (lengths / squares[:, :, None]).flatten(1).min(1)
        change = changes.flatten(1, 2).gather(1, place[:, None, None].expand(-1, 1, 3))
        is_shorter = gain < 1.0 - 1e-9
        own = is_shorter[:, None] & (axes == (place // changes.shape[2])[:, None])
        reduction = reduction - own[:, :, None] * (change @ reduction)
        if not (cell.is_cuda or is_tracing() or is_shorter.any()):
            break
    return reduction @ cell


def translations(offsets: Tensor, vectors: Tensor) -> Tensor:
    """Lattice translations (S, images, 3) A from integers (images, 3) and vectors (S, 3, 3) A."""
    return offsets.to(vectors.dtype) @ vectors


def minimum_images(
    vectors: Tensor, cell: Tensor, inverse_cell: Tensor, pbc: Tensor, candidates: Tensor | None
) -> Tensor:
    """Vectors to nearest images.

    Args:
        vectors: (S, K, 3) A.
        cell: (S, 3, 3) A, complete; see `complete_cell`.
        inverse_cell: (S, 3, 3) 1/A.
        pbc: (S, 3) bool.
        candidates: (C, 3) images tried around the rounded one, `NEIGHBORS` for any cell; None
            for cells with right angles, where rounding alone is exact.

    Returns:
        (S, K, 3) A.
    """
    near = vectors + rounded_images(vectors, inverse_cell, pbc) @ cell
    if candidates is None:
        return near
    steps = translations(candidates, periodic_vectors(cell, pbc))
    images = near[:, :, None] + steps[:, None]
    nearest = images.square().sum(-1).argmin(-1)
    return images.gather(2, nearest[..., None, None].expand(-1, -1, 1, 3))[:, :, 0]


def rounded_images(vectors: Tensor, inverse_cell: Tensor, pbc: Tensor) -> Tensor:
    """Whole lattice vectors (S, K, 3) that bring scaled coordinates to within one half."""
    whole = torch.round(vectors @ inverse_cell)
    return torch.where(pbc[:, None], -whole, 0.0)


def fractional_coordinates(
    positions: Tensor, inverse_cell: Tensor, pbc: Tensor, system: Tensor
) -> tuple[Tensor, Tensor]:
    """Coordinates in the completed cell, wrapped where periodic; does not sync.

    Args:
        positions: (N, 3) A.
        inverse_cell: (S, 3, 3) 1/A.
        pbc: (S, 3) bool.
        system: (N,) int64, system of each atom.

    Returns:
        Coordinates (N, 3), in [0, 1] where periodic, and the integers (N, 3) that wrapping
        subtracted.
    """
    fractional = (positions[:, None] @ inverse_cell[system])[:, 0]
    whole = torch.where(pbc[system], fractional.floor(), 0.0)
    return fractional - whole, whole


def _normalized(vectors: Tensor) -> Tensor:
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / torch.where(length > 0, length, 1.0)
