"""Edge features from pair vectors: radial functions, windows and moments, differentiable twice.

If the list stores each pair once and the radial functions are exponentials, a few CUDA kernels
compute everything and its derivatives and store nothing for a slot; else torch computes it.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from mdgraph.gpu.launch import has_kernels, needed_gradients
from mdgraph.models.ops.messages import to_pairs, to_slots
from mdgraph.models.radial import ExponentialNormal, cosine_cutoff
from mdgraph.models.tensors import directions
from mdgraph.neighbors.pairs import WIDTHS, Pairs


@dataclass(frozen=True)
class Distances:
    """Radial functions and cutoff function of some distances, in the dtype of the network.

    Attributes:
        radial: (..., K), phi_k(d).
        window: (...), cutoff function c(d); exactly 0 from the cutoff on.
    """

    radial: Tensor
    window: Tensor

    def windowed(self) -> Tensor:
        """(..., K + 1), c [phi ; 1]."""
        ones = torch.ones_like(self.window)[..., None]
        return torch.cat([self.radial, ones], dim=-1) * self.window[..., None]


@dataclass(frozen=True)
class EdgeFeatures:
    """Edge features that all layers share.

    Attributes:
        distances: functions of the distances in each block of slots; a single entry, with each
            pair once, if the list numbers its undirected pairs.
        moments: (N, 9, E, K + 1), sums over the neighbors of each element, see `Embedding`.
        pairs: the neighbor list.
        kinds: (N,) int64, index of each atom's element among the elements present.
        self_radial: (K,), phi_k(0) for the self interaction, or None without one.
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
    """How a network turns pair vectors into edge features.

    Attributes:
        basis: radial functions phi_k(d).
        lower, upper: A, cutoffs of the window.
        sign: factor of the unit vectors, 1 or -1.
        directions: (13, 9), see `direction_coefficients`; its dtype is the network's.
    """

    basis: nn.Module
    lower: float
    upper: float
    sign: float
    directions: Tensor

    def compute(
        self, pairs: Pairs, kinds: Tensor, elements: int
    ) -> tuple[tuple[Distances, ...], Tensor]:
        """Functions of the distances, and moments; differentiable twice. Does not sync.

        Args:
            pairs: the neighbor list.
            kinds: (N,) int64, index of each atom's element.
            elements: E, number of elements.

        Returns:
            Functions of the distances, see `EdgeFeatures.distances`; and moments
            M (N, 9, E, K + 1), for each atom and element s the sum over neighbors of that
            element of Y_c(r) c(d) [phi_k(d) ; 1].
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
        """Radial functions (P, K), window (P,) and moments, by torch."""
        assert pairs.undirected is not None
        lengths = torch.linalg.vector_norm(vectors, dim=-1)
        # The mean of both directions, whose backward pass gathers instead of adding atomically.
        length = 0.5 * to_pairs(lengths, pairs)
        # Padding lies beyond the cutoff: at 0 the second derivative of a sinc is NaN.
        length = length.masked_fill(~pairs.undirected.valid, 2.0 * self.upper)
        distances = self._distances(length)
        radial = to_slots(distances.windowed(), pairs)
        angular = self._angular(vectors, lengths)
        moments = _moments(pairs.index, radial, angular, kinds, elements)
        return distances.radial, distances.window, moments

    def _of_slots(
        self, pairs: Pairs, kinds: Tensor, elements: int
    ) -> tuple[tuple[Distances, ...], Tensor]:
        every, total = [], None
        for block in pairs.blocks:
            lengths = torch.linalg.vector_norm(block.vectors, dim=-1)
            distances = self._distances(lengths)
            angular = self._angular(block.vectors, lengths)
            part = _moments(block.index, distances.windowed(), angular, kinds, elements)
            total = part if total is None else total + part
            every.append(distances)
        assert total is not None
        return tuple(every), total

    def _distances(self, distance: Tensor) -> Distances:
        window = cosine_cutoff(distance, self.lower, self.upper)
        return Distances(self.basis(distance), window.to(self.directions.dtype))

    def _angular(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        unit = self.sign * vectors / lengths[..., None]
        return directions(self.directions, unit.to(self.directions.dtype))


def _moments(
    index: Tensor, radial: Tensor, angular: Tensor, kinds: Tensor, elements: int
) -> Tensor:
    """M (N, 9, E, K + 1) from c [phi ; 1] (N, B, K + 1) and Y (N, B, 9) of slots (N, B)."""
    element = kinds.index_select(0, index.flatten()).view_as(index)
    one_hot = element[..., None] == torch.arange(elements, device=element.device)
    by_element = (angular[..., None] * one_hot.to(angular.dtype)[:, :, None]).flatten(2)
    return (by_element.transpose(1, 2) @ radial).view(len(index), sum(WIDTHS), elements, -1)


class _EdgeGeometry(torch.autograd.Function):
    """`Geometry.of_pairs` by kernels.

    The gradient of a moment goes to the slot whose term it is, while torch splits it between
    both slots of a pair; forces and virials are the same.
    """

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, *frame: Any) -> tuple[Tensor, ...]:
        ctx.save_for_backward(vectors)
        ctx.frame = frame
        return _kernels(*frame).values(vectors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (vectors,) = ctx.saved_tensors
        slope = _EdgeGeometrySlope.apply(vectors, *gradients, *ctx.frame)
        return slope, *(None,) * len(ctx.frame)


class _EdgeGeometrySlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, *more: Any) -> Tensor:
        ctx.save_for_backward(vectors, *more[:3])
        ctx.frame = more[3:]
        return _kernels(*ctx.frame).adjoint(vectors, more[:3])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        vectors, *upstream = ctx.saved_tensors

        def by_vectors() -> Tensor:
            geometry, *frame = ctx.frame
            with torch.enable_grad():
                leaf = vectors.detach().requires_grad_()
                values = geometry.of_pairs(leaf, *frame)
                (slope,) = torch.autograd.grad(values, leaf, upstream, create_graph=True)
            # No training needs this derivative, so there is no kernel for it.
            return torch.autograd.grad(slope, leaf, gradients)[0]

        by_upstream = _kernels(*ctx.frame).values(vectors, gradients[0])
        return *needed_gradients(ctx, by_vectors), *by_upstream, *(None,) * len(ctx.frame)


def _kernels(geometry: Geometry, pairs: Pairs, kinds: Tensor, elements: int) -> Any:
    from mdgraph.models.kernels.geometry import EdgeFeatureKernels

    assert isinstance(geometry.basis, ExponentialNormal)
    basis, limits = geometry.basis, (geometry.lower, geometry.upper)
    return EdgeFeatureKernels(
        pairs, kinds, elements, basis.means, basis.betas, *limits, geometry.sign
    )
