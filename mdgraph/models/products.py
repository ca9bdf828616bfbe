"""Products of 3x3 matrices as their components, closed under differentiation.

The derivatives of <G, A B> by A and by B are products too, G B^T and A^T G, and a transposed
matrix is its components with three signs turned. Nothing but A and B is kept.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mdgraph.models.tensors import bilinear, product_coefficients
from mdgraph.neighbors.dispatch import asked, tracing


@dataclass(frozen=True)
class Product:
    """factor (A B + B A) where symmetric, else factor A B, of matrices as their components.

    Attributes:
        factor: of the product.
        symmetric: see above.
        left_transposed, right_transposed: whether A and B are transposed first.
    """

    factor: float
    symmetric: bool
    left_transposed: bool = False
    right_transposed: bool = False

    def __call__(self, left: Tensor, right: Tensor) -> Tensor:
        """(N, 9, F) twice to (N, 9, F), channel by channel; any derivative."""
        if tracing():
            return self.values(left, right)
        result: Tensor = _Product.apply(left, right, self)
        return result

    def values(self, left: Tensor, right: Tensor) -> Tensor:
        """The same, for those who differentiate it themselves."""
        return bilinear(_coefficients(self, left.dtype, left.device), left, right)

    def for_left(self, gradient: Tensor, left: Tensor, right: Tensor) -> Tensor:
        """The gradient of A: G B^T, and B^T G where symmetric, transposed where A is."""
        back = replace(self, left_transposed=False, right_transposed=not self.right_transposed)
        if not self.left_transposed:
            return back(gradient, right)
        if self.symmetric:
            return replace(back, left_transposed=True, right_transposed=self.right_transposed)(
                gradient, right
            )
        turned = replace(back, left_transposed=self.right_transposed, right_transposed=True)
        return turned(right, gradient)

    def for_right(self, gradient: Tensor, left: Tensor, right: Tensor) -> Tensor:
        """The gradient of B: A^T G, and G A^T where symmetric, transposed where B is."""
        back = replace(self, left_transposed=not self.left_transposed, right_transposed=False)
        if not self.right_transposed:
            return back(left, gradient)
        if self.symmetric:
            return replace(back, left_transposed=self.left_transposed, right_transposed=True)(
                left, gradient
            )
        turned = replace(back, left_transposed=True, right_transposed=self.left_transposed)
        return turned(gradient, left)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, product: Product) -> Tensor:
        ctx.save_for_backward(left, right)
        ctx.product = product
        return product.values(left, right)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        product: Product = ctx.product
        (left, right), gradient = ctx.saved_tensors, gradients[0]
        found = asked(
            ctx,
            lambda: product.for_left(gradient, left, right),
            lambda: product.for_right(gradient, left, right),
        )
        return *found, None


@cache  # never let go of: a graph reads it where it lies
def _coefficients(product: Product, kind: torch.dtype, device: torch.device) -> Tensor:
    """(9, 81), as `bilinear` takes them; to a trace a constant, and not how it is made."""
    flip = np.ones(9)
    flip[1:4] = -1.0  # a transposed matrix differs from it in its antisymmetric part
    found = product.factor * product_coefficients().numpy()
    if product.symmetric:
        found = found + found.transpose(0, 2, 1)
    if product.left_transposed:
        found = found * flip[:, None]
    if product.right_transposed:
        found = found * flip
    return torch.tensor(found.reshape(9, 81), dtype=kind, device=device)
