"""Edge features from pair vectors: radial functions, windows and moments, differentiable twice.

Of pairs that are held once, and exponentials as radial functions, CUDA computes all of it and its
derivatives in a few kernels, which hold nothing of a slot in memory; all else runs in torch.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from mdgraph.gpu.launch import asked, has_kernels
from mdgraph.models.ops.messages import to_pairs, to_slots
from mdgraph.models.radial import ExponentialNormal, cosine_cutoff
from mdgraph.models.tensors import directions
from mdgraph.neighbors.pairs import WIDTHS, Pairs


@dataclass(frozen=True)
class Distances:
    """Functions of some distances, in the network's type.

    Attributes:
        radial: (..., K), phi_k(d).
        window: (...), cutoff function c(d); exactly 0 from the cutoff on.
    """

    radial: Tensor
    window: Tensor

    def windowed(self) -> Tensor:
        """(..., K + 1), c [phi ; 1]."""
        one = torch.ones_like(self.window)[..., None]
        return torch.cat([self.radial, one], dim=-1) * self.window[..., None]


@dataclass(frozen=True)
class Neighborhood:
    """Everything about an atom's surroundings that all layers share.

    Attributes:
        distances: of the slots of each block; of every pair once where those are known.
        moments: (N, 9, E, K + 1), sums over the neighbors of each element, see `Embedding`.
        pairs: the list they came from.
        kinds: (N,) int64, number of each atom's element among those at hand.
        self_radial: (K,), phi_k(0) of the self interaction, or None without one.
        charge_factor: (N, 1, 1), 1 + q/10, or None where the charge does not scale products.
    """

    distances: tuple[Distances, ...]
    moments: Tensor
    pairs: Pairs
    kinds: Tensor
    self_radial: Tensor | None
    charge_factor: Tensor | None


@dataclass(frozen=True)
class Geometry:
    """How a network looks at its pairs.

    Attributes:
        basis: radial functions phi_k(d).
        lower, upper: A, cutoffs of the window.
        sign: of unit vectors.
        directions: (13, 9), see `direction_coefficients`; its type is the network's.
    """

    basis: nn.Module
    lower: float
    upper: float
    sign: float
    directions: Tensor

    def seen(
        self, pairs: Pairs, kinds: Tensor, elements: int
    ) -> tuple[tuple[Distances, ...], Tensor]:
        """Functions of distances, of each block or of pairs, and moments; differentiable twice.

        Args:
            pairs: the list.
            kinds: (N,), element of each atom.
            elements: E.

        Returns:
            Of the slots of each block, or of every pair once where the list knows those; and
            M (N, 9, E, K + 1) of each atom, the sums over its neighbors of element s of
            Y_c(r) c(d) [phi_k(d) ; 1].
        """
        if pairs.undirected is None:
            return self._of_slots(pairs, kinds, elements)
        (vectors,) = pairs.vectors
        if has_kernels(vectors) and isinstance(self.basis, ExponentialNormal):
            radial, window, moments = _EdgeGeometry.apply(vectors, self, pairs, kinds, elements)
        else:
            radial, window, moments = self.of_pairs(vectors, pairs, kinds, elements)
        return (Distances(radial, window),), moments

    def of_pairs(
        self, vectors: Tensor, pairs: Pairs, kinds: Tensor, elements: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Radial functions (P, K), window (P,) and moments in torch."""
        assert pairs.undirected is not None
        lengths = torch.linalg.vector_norm(vectors, dim=-1)
        # Both directions are as long; a gradient that both receive is gathered, not added.
        length = 0.5 * to_pairs(lengths, pairs)
        # Padding lies beyond the cutoff: at 0 the second derivative of a sinc is NaN.
        length = length.masked_fill(~pairs.undirected.valid, 2.0 * self.upper)
        one = self._distances(length)
        radial = to_slots(one.windowed(), pairs)
        angular = self._angular(vectors, lengths)
        moments = _moments(pairs.index, radial, angular, kinds, elements)
        return one.radial, one.window, moments

    def _of_slots(
        self, pairs: Pairs, kinds: Tensor, elements: int
    ) -> tuple[tuple[Distances, ...], Tensor]:
        distances, total = [], None
        for block in pairs.blocks:
            lengths = torch.linalg.vector_norm(block.vectors, dim=-1)
            one = self._distances(lengths)
            angular = self._angular(block.vectors, lengths)
            part = _moments(block.index, one.windowed(), angular, kinds, elements)
            total = part if total is None else total + part
            distances.append(one)
        assert total is not None
        return tuple(distances), total

    def _distances(self, distance: Tensor) -> Distances:
        window = cosine_cutoff(distance, self.lower, self.upper)
        return Distances(self.basis(distance), window.to(self.directions.dtype))

    def _angular(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        unit = self.sign * vectors / lengths[..., None]
        return directions(self.directions, unit.to(self.directions.dtype))


def _moments(
    index: Tensor, radial: Tensor, angular: Tensor, kinds: Tensor, elements: int
) -> Tensor:
    """M (N, 9, E, K + 1) of slots (N, B) with c [phi ; 1] (N, B, K + 1) and Y (N, B, 9)."""
    kind = kinds.index_select(0, index.flatten()).view_as(index)
    of_kind = (kind[..., None] == torch.arange(elements, device=kind.device)).to(angular.dtype)
    each = (angular[..., None] * of_kind[:, :, None]).flatten(2)
    return (each.transpose(1, 2) @ radial).view(len(index), sum(WIDTHS), elements, -1)


class _EdgeGeometry(torch.autograd.Function):
    """`Geometry.of_pairs` in kernels.

    A gradient of moments falls to the slot whose term it is, where torch shares it out to both
    slots of a pair; forces and virials are the same.
    """

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, *frame: Any) -> tuple[Tensor, ...]:
        ctx.save_for_backward(vectors)
        ctx.frame = frame
        return _launched(*frame).values(vectors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (vectors,) = ctx.saved_tensors
        slope = _SeenSlope.apply(vectors, *gradients, *ctx.frame)
        return slope, *(None,) * len(ctx.frame)


class _SeenSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, *more: Any) -> Tensor:
        ctx.save_for_backward(vectors, *more[:3])
        ctx.frame = more[3:]
        return _launched(*ctx.frame).adjoint(vectors, more[:3])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        vectors, *held = ctx.saved_tensors

        def curved() -> Tensor:
            geometry, *frame = ctx.frame
            with torch.enable_grad():
                moved = vectors.detach().requires_grad_()
                values = geometry.of_pairs(moved, *frame)
                (slope,) = torch.autograd.grad(values, moved, held, create_graph=True)
            # No training asks for it, so it is what torch derives.
            return torch.autograd.grad(slope, moved, gradients)[0]

        along = _launched(*ctx.frame).values(vectors, gradients[0])
        return *asked(ctx, curved), *along, *(None,) * len(ctx.frame)


def _launched(geometry: Geometry, pairs: Pairs, kinds: Tensor, elements: int) -> Any:
    from mdgraph.models.kernels.geometry import Surroundings

    assert isinstance(geometry.basis, ExponentialNormal)
    basis, limits = geometry.basis, (geometry.lower, geometry.upper)
    return Surroundings(pairs, kinds, elements, basis.means, basis.betas, *limits, geometry.sign)
