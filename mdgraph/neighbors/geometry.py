"""Cells of any shape and periodicity, as static-shape tensor operations without host reads."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Lattice:
    """What a search needs of the cells.

    Attributes:
        vectors: (S, 3, 3) A, cell vectors; zero where not periodic.
        inverse: (S, 3, 3) 1/A, inverse of the complete cells.
        reach: (S, 3) range of the list over the distance between opposite faces; 0 where
            not periodic.
    """

    vectors: Tensor
    inverse: Tensor
    reach: Tensor

    @classmethod
    def of(cls, cell: Tensor, pbc: Tensor, list_range: float) -> "Lattice":
        """From cells (S, 3, 3), pbc (S, 3) and a range in A; does not sync."""
        inverse_cell = inverse(complete_cell(cell, pbc))
        reach = torch.where(pbc, list_range / heights(inverse_cell), 0.0)
        return cls(periodic_vectors(cell, pbc), inverse_cell, reach)


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


def translations(offsets: Tensor, vectors: Tensor) -> Tensor:
    """Lattice translations (S, images, 3) A of whole numbers (images, 3) by (S, 3, 3)."""
    return offsets.to(vectors.dtype) @ vectors


def fractional_coordinates(
    positions: Tensor, inverse_cell: Tensor, pbc: Tensor, system: Tensor
) -> tuple[Tensor, Tensor]:
    """Coordinates (N, 3) in the complete cell, wrapped where periodic, and what came off.

    Args:
        positions: (N, 3) A.
        inverse_cell: (S, 3, 3) 1/A.
        pbc: (S, 3) bool.
        system: (N,) int64, system of each atom.

    Returns:
        Coordinates in [0, 1] where periodic, and the whole numbers (N, 3) taken off.
    """
    fractional = (positions[:, None] @ inverse_cell[system])[:, 0]
    whole = torch.where(pbc[system], fractional.floor(), 0.0)
    return fractional - whole, whole


def _normalized(vectors: Tensor) -> Tensor:
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / torch.where(length > 0, length, 1.0)
