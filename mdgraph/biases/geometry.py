"""Values and gradients of collective variables, of plain tensors; static shapes, nothing syncs.

All tensors are float64 with the systems S first. Gradients are those of the values by the vectors
v between points, or by the positions x of atoms; a value f has the strain derivative
sum v (x) df/dv, as strains carry all positions and images along.
"""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

_TINY: Final = 1e-12
"""A or A^2; shorter lengths have no direction, and their gradients are 0."""

_SQUARINGS: Final = 26
"""Of the matrix of a superposition; eigenvalues that differ by 1e-6 of the largest part."""


def together(
    positions: Tensor, before: Tensor, first: Tensor, images: Callable[[Tensor], Tensor]
) -> Tensor:
    """Whole lattice vectors (S, M, 3) that bring the atoms of groups together.

    Each atom goes to the image that is nearest to the atom before it.

    Args:
        positions: (S, M, 3) A, of the atoms of all groups in turn.
        before: (M,) place of the atom before; of the first of a group its own.
        first: (M,) place of the first atom of the group.
        images: gives whole lattice vectors of vectors; see `rounded_images` of neighbors.
    """
    # Sums of whole numbers are exact in any order.
    turns = images(positions - positions[:, before]).cumsum(1)
    return turns - turns[:, first]


def distances(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Lengths r = |v|.

    Args:
        vectors: (S, n, 1, 3) A.

    Returns:
        Values (S, n) and gradients (S, n, 1, 3).
    """
    length = torch.linalg.vector_norm(vectors, dim=-1)
    gradients = vectors / length.clamp(min=_TINY)[..., None]
    return length[..., 0], gradients


def angles(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """The angle between v_1 and v_2, which point from the middle to the ends.

    With n = v_1 x v_2, df/dv_1 = v_1 x n / (v_1^2 |n|) and df/dv_2 = n x v_2 / (v_2^2 |n|).

    Args:
        vectors: (S, n, 2, 3) A.

    Returns:
        Values (S, n) rad and gradients (S, n, 2, 3) rad/A.
    """
    first, second = vectors.unbind(2)
    normal = torch.linalg.cross(first, second)
    size = torch.linalg.vector_norm(normal, dim=-1)
    values = torch.atan2(size, (first * second).sum(-1))
    unit = normal / size.clamp(min=_TINY)[..., None]
    one = torch.linalg.cross(first, unit) / _squared(first)
    other = torch.linalg.cross(unit, second) / _squared(second)
    return values, torch.stack([one, other], 2)


def dihedrals(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """The torsion angle of v_1, v_2 and v_3, which lead from each point to the next.

    f = atan2(|v_2| v_1 . n, m . n)   with m = v_1 x v_2 and n = v_2 x v_3

    df/dv_1 = |v_2| m / m^2,  df/dv_3 = |v_2| n / n^2, and df/dv_2 follows from the invariance to
    rotations, -(v_1 . v_2 df/dv_1 + v_3 . v_2 df/dv_3) / v_2^2.

    Args:
        vectors: (S, n, 3, 3) A.

    Returns:
        Values (S, n) rad from -pi to pi and gradients (S, n, 3, 3) rad/A.
    """
    first, middle, last = vectors.unbind(2)
    m = torch.linalg.cross(first, middle)
    n = torch.linalg.cross(middle, last)
    length = torch.linalg.vector_norm(middle, dim=-1, keepdim=True)
    values = torch.atan2(length[..., 0] * (first * n).sum(-1), (m * n).sum(-1))
    one = length * m / _squared(m)
    three = length * n / _squared(n)
    along = (first * middle).sum(-1, keepdim=True) * one
    along = along + (last * middle).sum(-1, keepdim=True) * three
    return values, torch.stack([one, -along / _squared(middle), three], 2)


def _squared(vectors: Tensor) -> Tensor:
    return vectors.square().sum(-1, keepdim=True).clamp(min=_TINY**2)


def projections(vectors: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
    """Components v . e along unit vectors.

    Args:
        vectors: (S, n, 1, 3) A.
        directions: (n, 1, 3).

    Returns:
        Values (S, n) A and gradients (S, n, 1, 3).
    """
    return (vectors * directions).sum((-2, -1)), directions.expand_as(vectors)


def radius_of_gyration(positions: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """R = sqrt(sum w |x - c|^2), c = sum w x.

    Args:
        positions: (S, m, 3) A, of images that are together.
        weights: (S, m), shares of the mass; 0 of places without an atom.

    Returns:
        Values (S,) A, gradients (S, m, 3) and strain derivatives (S, 3, 3) A.
    """
    weights = weights[..., None]
    apart = positions - (weights * positions).sum(1, keepdim=True)
    values = (weights * apart.square()).sum((1, 2)).sqrt()
    gradients = weights * apart / values.clamp(min=_TINY)[:, None, None]
    return values, gradients, strains(gradients, apart)


def rmsd(positions: Tensor, weights: Tensor, reference: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The root mean square distance to a reference after optimal superposition.

    The rotation is that of the quaternion q of the largest eigenvalue of Horn's matrix (DOI
    10.1364/JOSAA.4.000629). Squaring the matrix, after a shift that makes the eigenvalue the
    largest in size, leads to q (x) q, in which the rotation is linear. At the optimum the rotation
    does not enter the gradient, w (x - R y) / f.

    Args:
        positions: (S, m, 3) A, of images that are together.
        weights: (S, m), which add up to 1; 0 of places without an atom.
        reference: (S, m, 3) A, whose weighted mean is 0.

    Returns:
        Values (S,) A, gradients (S, m, 3) and strain derivatives (S, 3, 3) A.
    """
    weights = weights[..., None]
    apart = positions - (weights * positions).sum(1, keepdim=True)
    rotated = reference @ _rotation(reference.transpose(1, 2) @ (weights * apart)).transpose(1, 2)
    difference = apart - rotated
    values = (weights * difference.square()).sum((1, 2)).sqrt()
    near = values < 1e-7  # rounding alone
    inverse = torch.where(near, 0.0, 1.0 / torch.where(near, 1.0, values))
    gradients = weights * difference * inverse[:, None, None]
    return values, gradients, strains(gradients, apart)


def _rotation(correlation: Tensor) -> Tensor:
    """The rotation (S, 3, 3) R that makes sum x . R y largest, from sum y (x) x (S, 3, 3)."""
    (xx, xy, xz), (yx, yy, yz), (zx, zy, zz) = (row.unbind(-1) for row in correlation.unbind(-2))
    rows = [
        [xx + yy + zz, yz - zy, zx - xz, xy - yx],
        [yz - zy, xx - yy - zz, xy + yx, zx + xz],
        [zx - xz, xy + yx, yy - xx - zz, yz + zy],
        [xy - yx, zx + xz, yz + zy, zz - xx - yy],
    ]
    matrix = torch.stack([torch.stack(row, -1) for row in rows], -2)
    shift = torch.linalg.vector_norm(matrix, dim=(-2, -1), keepdim=True)
    matrix = matrix + shift * torch.eye(4, dtype=matrix.dtype, device=matrix.device)
    for _ in range(_SQUARINGS):
        matrix = matrix / matrix.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]
        matrix = matrix @ matrix
    q = matrix / matrix.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]
    rows = [
        [
            q[:, 0, 0] + q[:, 1, 1] - q[:, 2, 2] - q[:, 3, 3],
            2.0 * (q[:, 1, 2] - q[:, 0, 3]),
            2.0 * (q[:, 1, 3] + q[:, 0, 2]),
        ],
        [
            2.0 * (q[:, 1, 2] + q[:, 0, 3]),
            q[:, 0, 0] - q[:, 1, 1] + q[:, 2, 2] - q[:, 3, 3],
            2.0 * (q[:, 2, 3] - q[:, 0, 1]),
        ],
        [
            2.0 * (q[:, 1, 3] - q[:, 0, 2]),
            2.0 * (q[:, 2, 3] + q[:, 0, 1]),
            q[:, 0, 0] - q[:, 1, 1] - q[:, 2, 2] + q[:, 3, 3],
        ],
    ]
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def coordination_number(
    vectors: Tensor, counts: Tensor, r0: float, exponent: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The sum of 1 / (1 + (r / r0)^n) over pairs.

    Args:
        vectors: (S, a, b, 3) A, from the atoms of the first group to those of the second.
        counts: (S, a, b) bool, pairs of two different atoms.
        r0: A.
        exponent: n.

    Returns:
        Values (S,), gradients by the positions of the first group (S, a, 3) and of the second
        (S, b, 3) 1/A, and strain derivatives (S, 3, 3).
    """
    squared = vectors.square().sum(-1)
    reduced = torch.where(counts, squared, 1.0) / r0**2
    power = reduced ** (0.5 * exponent)
    pairs = torch.where(counts, 1.0 / (1.0 + power), 0.0)
    slope = -exponent * power * pairs.square() / (reduced * r0**2)  # by r, over r
    slope = torch.where(counts, slope, 0.0)
    gradients = slope[..., None] * vectors
    strain = strains(gradients.flatten(1, 2), vectors.flatten(1, 2))
    return pairs.sum((1, 2)), -gradients.sum(2), gradients.sum(1), strain


def strains(gradients: Tensor, vectors: Tensor) -> Tensor:
    """The strain derivative (S, 3, 3), v (x) df/dv summed over vectors (S, K, 3)."""
    return (vectors[..., :, None] * gradients[..., None, :]).sum(1)
