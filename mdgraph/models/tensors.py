"""3x3 matrices as irreducible components: 1 (trace) + 3 (antisymmetric) + 5 (symmetric).

A matrix is X = a 1 + [u]x + S. It is stored as nine numbers (a, u, s), with s the
coordinates of S in an orthonormal basis of the symmetric traceless matrices, so a channel
is never nine redundant matrix elements and linear maps of one kind stay apart.
"""

import math
from typing import Final

import torch
from torch import Tensor

from mdgraph.neighbors.pairs import KINDS


def _basis() -> Tensor:
    """The nine matrices (9, 3, 3) float64 that the components multiply."""
    basis = torch.zeros(9, 3, 3, dtype=torch.float64)
    basis[0] = torch.eye(3)
    for number, (row, column) in enumerate(((2, 1), (0, 2), (1, 0))):
        basis[1 + number, row, column] = 1.0
        basis[1 + number, column, row] = -1.0
    for number, (row, column) in ((4, (0, 1)), (5, (1, 2)), (7, (0, 2))):
        basis[number, row, column] = basis[number, column, row] = math.sqrt(0.5)
    basis[6] = torch.diag(torch.tensor([-1.0, -1.0, 2.0])) / math.sqrt(6.0)
    basis[8] = torch.diag(torch.tensor([1.0, -1.0, 0.0])) * math.sqrt(0.5)
    return basis


BASIS: Final = _basis()
SQUARED_NORMS: Final = BASIS.square().sum((1, 2))
"""|B_m|^2: 3 for the trace, 2 for the antisymmetric part, 1 for the rest."""


def product_coefficients() -> Tensor:
    """C (9, 9, 9) with (X Y)_m = sum_pq C[m, p, q] X_p Y_q, exact in float64."""
    products = torch.einsum("pij,qjk->pqik", BASIS, BASIS)
    return torch.einsum("mik,pqik->mpq", BASIS, products) / SQUARED_NORMS[:, None, None]


def bilinear(coefficients: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """sum_pq C[m, p, q] L_p R_q channel by channel.

    Args:
        coefficients: (9, 81), the last two indices flattened.
        left: (N, 9, F).
        right: (N, 9, F).

    Returns:
        (N, 9, F).
    """
    outer = (left[:, :, None] * right[:, None]).flatten(1, 2)
    return coefficients @ outer


def directions(unit: Tensor) -> tuple[Tensor, Tensor]:
    """Vector and symmetric traceless components of a direction.

    Args:
        unit: (..., 3).

    Returns:
        (..., 3), the vector u of [u]x, and (..., 5), the traceless part of u u^T.
    """
    x, y, z = unit.unbind(-1)
    half = math.sqrt(0.5)
    tensor = torch.stack(
        [
            math.sqrt(2.0) * x * y,
            math.sqrt(2.0) * y * z,
            (2.0 * z * z - x * x - y * y) / math.sqrt(6.0),
            math.sqrt(2.0) * x * z,
            half * (x * x - y * y),
        ],
        dim=-1,
    )
    return unit, tensor


def squared_norms(features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Squared Frobenius norms (N, F) of the three parts of (N, 9, F)."""
    scalar, vector, tensor = (features[:, kind] for kind in KINDS)
    return 3.0 * scalar.square().sum(1), 2.0 * vector.square().sum(1), tensor.square().sum(1)


def normalized(features: Tensor) -> Tensor:
    """X / (|X|^2 + 1), channel by channel."""
    scalar, vector, tensor = squared_norms(features)
    return features / (scalar + vector + tensor + 1.0)[:, None]
