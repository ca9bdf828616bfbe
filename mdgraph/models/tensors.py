"""3x3 matrices as irreducible components 1 + 3 + 5, and their differentiable products.

The derivatives of <G, A B> by A and by B are products too, G B^T and A^T G. Transposing flips
the sign of three components. Autograd saves only A and B.

A matrix X = a 1 + [u]x + S is stored as its nine coordinates in an orthonormal basis
(Frobenius product) that keeps the three parts apart: the squared norm of a part is the sum
of its squares, and a linear map of channels acts on each part alone.
"""

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from mdgraph.gpu.launch import needed_gradients, tracing


def _basis() -> Tensor:
    """The nine matrices (9, 3, 3) float64 that the components multiply, orthonormal."""
    basis = torch.zeros(9, 3, 3, dtype=torch.float64)
    basis[0].fill_diagonal_(math.sqrt(1.0 / 3.0))
    for number, (row, column) in enumerate(((2, 1), (0, 2), (1, 0))):
        basis[1 + number, row, column] = math.sqrt(0.5)
        basis[1 + number, column, row] = -math.sqrt(0.5)
    for number, (row, column) in ((4, (0, 1)), (5, (1, 2)), (7, (0, 2))):
        basis[number, row, column] = basis[number, column, row] = math.sqrt(0.5)
    # Divided in float64: torch's default dtype would round the roots.
    basis[6].diagonal().copy_(torch.tensor([-1.0, -1.0, 2.0])).div_(math.sqrt(6.0))
    basis[8].diagonal().copy_(torch.tensor([1.0, -1.0, 0.0])).mul_(math.sqrt(0.5))
    return basis


BASIS: Final = _basis()
TRACE: Final = math.sqrt(3.0)
"""Component of the unit matrix; the component c of part I is the scalar c / TRACE."""


def product_coefficients() -> Tensor:
    """C (9, 9, 9) with (X Y)_m = sum_pq C[m, p, q] X_p Y_q, exact in float64."""
    products = torch.einsum("pij,qjk->pqik", BASIS, BASIS)
    return torch.einsum("mik,pqik->mpq", BASIS, products)


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


def direction_coefficients() -> Tensor:
    """(13, 9) float64: maps [1, r, r r^T] to the components of 1 + [r]x + (r r^T - 1/3)."""
    levi_civita = torch.zeros(3, 3, 3, dtype=torch.float64)
    for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        levi_civita[i, j, k], levi_civita[i, k, j] = 1.0, -1.0
    coefficients = torch.zeros(13, 9, dtype=torch.float64)
    coefficients[0, 0] = TRACE
    # ([r]x)_jk = -sum_i epsilon_ijk r_i
    coefficients[1:4] = -torch.einsum("ijk,mjk->im", levi_civita, BASIS)
    coefficients[4:, 4:] = BASIS[4:].flatten(1).T
    return coefficients


def directions(coefficients: Tensor, unit: Tensor) -> Tensor:
    """Components (..., 9) of 1 + [r]x + (r r^T - 1/3) for a unit vector r (..., 3)."""
    square = (unit[..., :, None] * unit[..., None, :]).flatten(-2)
    one = torch.ones_like(unit[..., :1])
    return torch.cat([one, unit, square], dim=-1) @ coefficients


@dataclass(frozen=True)
class Product:
    """factor (A B + B A) if symmetric, else factor A B, of matrices as components.

    Attributes:
        factor: of the product.
        symmetric: adds B A.
        left_transposed, right_transposed: transpose A or B first.
    """

    factor: float
    symmetric: bool
    left_transposed: bool = False
    right_transposed: bool = False

    def __call__(self, left: Tensor, right: Tensor) -> Tensor:
        """(N, 9, F) twice to (N, 9, F), channel by channel; derivatives of any order."""
        if tracing():
            return self.values(left, right)
        result: Tensor = _TensorProduct.apply(left, right, self)
        return result

    def values(self, left: Tensor, right: Tensor) -> Tensor:
        """The product without autograd."""
        return bilinear(_coefficients(self, left.dtype, left.device), left, right)

    def for_left(self, gradient: Tensor, left: Tensor, right: Tensor) -> Tensor:
        """Gradient by A: G B^T, plus B^T G if symmetric; transposed if A is."""
        back = replace(self, left_transposed=False, right_transposed=not self.right_transposed)
        if not self.left_transposed:
            return back(gradient, right)
        if self.symmetric:
            return replace(back, left_transposed=True, right_transposed=self.right_transposed)(
                gradient, right
            )
        product = replace(back, left_transposed=self.right_transposed, right_transposed=True)
        return product(right, gradient)

    def for_right(self, gradient: Tensor, left: Tensor, right: Tensor) -> Tensor:
        """Gradient by B: A^T G, plus G A^T if symmetric; transposed if B is."""
        back = replace(self, left_transposed=not self.left_transposed, right_transposed=False)
        if not self.right_transposed:
            return back(left, gradient)
        if self.symmetric:
            return replace(back, left_transposed=self.left_transposed, right_transposed=True)(
                left, gradient
            )
        product = replace(back, left_transposed=True, right_transposed=self.left_transposed)
        return product(gradient, left)


class _TensorProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, product: Product) -> Tensor:
        ctx.save_for_backward(left, right)
        ctx.product = product
        return product.values(left, right)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        product: Product = ctx.product
        (left, right), gradient = ctx.saved_tensors, gradients[0]
        return (
            *needed_gradients(
                ctx,
                lambda: product.for_left(gradient, left, right),
                lambda: product.for_right(gradient, left, right),
            ),
            None,
        )


@cache  # never freed, because CUDA graphs read it
def _coefficients(product: Product, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(9, 81), see `bilinear`; computed by numpy, so that a trace records a constant."""
    flip = np.ones(9)
    flip[1:4] = -1.0  # transposing flips the antisymmetric part
    values = product.factor * product_coefficients().numpy()
    if product.symmetric:
        values = values + values.transpose(0, 2, 1)
    if product.left_transposed:
        values = values * flip[:, None]
    if product.right_transposed:
        values = values * flip
    return torch.tensor(values.reshape(9, 81), dtype=dtype, device=device)
