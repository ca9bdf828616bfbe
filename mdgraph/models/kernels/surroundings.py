"""Launches of the kernels of geometry on torch's tensors; nothing here knows of gradients or syncs.

Vectors are (N, slots, 3) of a list that knows its pairs, kinds (N,) the element of each atom.
"""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from mdgraph.models.kernels.moments import moments_kernel, pairs_kernel, vectors_adjoint_kernel
from mdgraph.neighbors.launching import launching_on
from mdgraph.neighbors.pairs import Pairs


@dataclass(frozen=True)
class Surroundings:
    """What the kernels take besides vectors.

    Attributes:
        pairs: the list.
        kinds: (N,) int64.
        elements: how many there are.
        means, betas: (K,), of the basis, in the network's type.
        lower, upper: A, cutoffs.
        sign: of unit vectors.
    """

    pairs: Pairs
    kinds: Tensor
    elements: int
    means: Tensor
    betas: Tensor
    lower: float
    upper: float
    sign: float

    def values(self, vectors: Tensor, change: Tensor | None = None) -> tuple[Tensor, ...]:
        """Radial functions (P, K), window (P,) and moments (N, 9, E, K + 1).

        With a change of the vectors their derivatives along it.
        """
        vectors = vectors.contiguous()
        along = vectors if change is None else change.contiguous()
        held, number = self.pairs.undirected, len(self.means)
        assert held is not None
        radial = self.means.new_empty(len(held.one), number)
        window = self.means.new_empty(len(held.one))
        moments = self.means.new_empty(len(vectors), 9, self.elements, number + 1)
        with launching_on(vectors.device):
            pairs_kernel[(len(held.one),)](
                vectors,
                along,
                held.one,
                held.other,
                held.valid,
                self.means,
                self.betas,
                radial,
                window,
                **self._options(),
                TANGENT=change is not None,
                num_warps=1,
            )
            moments_kernel[(len(vectors), self.elements)](
                vectors,
                along,
                self.pairs.index,
                self.pairs.count,
                self.kinds,
                self.means,
                self.betas,
                moments,
                vectors.shape[1],
                SIGN=self.sign,
                E=self.elements,
                **self._options(),
                TANGENT=change is not None,
                num_warps=1,
            )
        return radial, window, moments

    def adjoint(self, vectors: Tensor, gradients: tuple[Tensor, ...]) -> Tensor:
        """From the gradients of the three to those of the vectors."""
        vectors = vectors.contiguous()
        held = self.pairs.undirected
        assert held is not None
        result = torch.empty_like(vectors)
        with launching_on(vectors.device):
            vectors_adjoint_kernel[(vectors.shape[0] * vectors.shape[1],)](
                vectors,
                self.pairs.index,
                self.pairs.count,
                held.number,
                self.kinds,
                self.means,
                self.betas,
                *(gradient.contiguous() for gradient in gradients),
                result,
                vectors.shape[1],
                SIGN=self.sign,
                E=self.elements,
                **self._options(),
                num_warps=1,
            )
        return result

    def _options(self) -> dict[str, float]:
        number = len(self.means)
        return {
            "LOWER": self.lower,
            "UPPER": self.upper,
            "K": number,
            "BK": triton.next_power_of_2(number + 1),
        }
