"""Cells of any shape and periodicity, as static-shape tensor operations without host reads."""

import torch
from torch import Tensor


def periodic_vectors(cell: Tensor, pbc: Tensor) -> Tensor:
    """Cell (S, 3, 3) with the vectors along directions that are not periodic set to zero."""
    return torch.where(pbc[..., None], cell, 0.0)


def complete_cell(cell: Tensor, pbc: Tensor) -> Tensor:
    """Fills directions that are not periodic with unit vectors normal to all others.

    Fractional coordinates in the result are lattice coordinates along periodic directions
    and plain distances (A) along the rest, whatever the dummy vectors of a molecule or a
    slab hold.

    Args:
        cell: (S, 3, 3) A.
        pbc: (S, 3) bool.

    Returns:
        (S, 3, 3) of full rank.
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
    # One periodic direction: two normals from the Cartesian axis least along it.
    direction = _normalized(vectors.sum(-2))
    least = direction.abs().argmin(-1, keepdim=True)
    axis = (torch.arange(3, device=cell.device) == least).to(cell.dtype)
    along = (axis * direction).sum(-1, keepdim=True)
    one = _normalized(axis - along * direction)
    two = torch.linalg.cross(direction, one)
    missing_before = (~pbc).cumsum(-1) - (~pbc).to(torch.int64)
    pair = torch.where(missing_before[..., None] == 0, one[..., None, :], two[..., None, :])
    identity = torch.eye(3, dtype=cell.dtype, device=cell.device).expand_as(vectors)
    periodic = pbc.sum(-1)[..., None, None]
    filler = torch.where(periodic == 2, normals, torch.where(periodic == 1, pair, identity))
    return torch.where(pbc[..., None], vectors, filler)


def inverse(matrices: Tensor) -> Tensor:
    """Inverse of (S, 3, 3) by cross products; `torch.linalg.inv` reads the device."""
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


def _normalized(vectors: Tensor) -> Tensor:
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / torch.where(length > 0, length, 1.0)
