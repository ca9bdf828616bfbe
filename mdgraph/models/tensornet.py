"""TensorNet (DOI 10.48550/arXiv.2306.06482): Cartesian tensor features of atoms.

An atom carries F channels of a 3x3 matrix X = I + A + S, stored as components (9, F).
`Embedding` makes X from species and geometry, each `Interaction` refines it by messages
and matrix products, and the readout takes the invariants of the last X.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mdgraph.models.activations import ACTIVATIONS
from mdgraph.models.configuration import TensorNetConfig
from mdgraph.models.potential import Atoms
from mdgraph.models.radial import cosine_cutoff, radial_basis
from mdgraph.models.tensors import (
    TRACE,
    bilinear,
    direction_coefficients,
    directions,
    normalized,
    product_coefficients,
    squared_norms,
)
from mdgraph.neighbors.pairs import WIDTHS, Pairs, message


@dataclass(frozen=True)
class Edges:
    """Geometry of one block of B slots, in the network's type.

    Attributes:
        index: (N, B) int32, neighbor of each slot.
        radial: (N, B, K), phi_k(d).
        window: (N, B), cutoff function; exactly 0 on empty slots and beyond the cutoff.
        angular: (N, B, 9), components of 1 + [r]x + (r r^T - 1/3) for the unit vector r.
    """

    index: Tensor
    radial: Tensor
    window: Tensor
    angular: Tensor


@dataclass(frozen=True)
class Neighborhood:
    """Everything about an atom's surroundings that all layers share.

    Attributes:
        edges: the slots, in blocks.
        pairs: the list they came from.
        kinds: (N,) int64, number of each atom's element among those at hand.
        self_radial: (K,), phi_k(0) of the self interaction, or None without one.
        charge_factor: (N, 1, 1), 1 + q/10, or None where the charge does not scale products.
    """

    edges: tuple[Edges, ...]
    pairs: Pairs
    kinds: Tensor
    self_radial: Tensor | None
    charge_factor: Tensor | None


class PartMixing(nn.Module):
    """Mixes channels of I, A and S by a matrix each, without bias."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(channels, channels, bias=False) for _ in WIDTHS)

    def forward(self, features: Tensor) -> Tensor:
        """(N, 9, F) to (N, 9, F)."""
        parts = zip(self.parts, features.split(WIDTHS, dim=1), strict=True)
        return torch.cat([linear(part) for linear, part in parts], dim=1)


class Embedding(nn.Module):
    """X_i = sum_j c(d) Z_ij (w^I 1 + w^A [r]x + w^S (r r^T - 1/3)), then mixed and gated.

    w(d) = D [phi(d) ; 1] and Z_ij = a(z_i) + b(z_j) depend on the pair by distance and
    species alone, so the sum is taken over radial and angular moments of each species s,
    M_is = sum_{j of s} c(d) Y(r) [phi(d) ; 1]^T, and X_i = sum_s (a_i + b_s) D M_is:
    the same numbers, and nothing of width F on an edge.
    """

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__()
        channels = config.channels
        self.activation = ACTIVATIONS[config.activation]
        self.species = nn.Embedding(len(config.species), channels)
        self.atom = nn.Linear(channels, channels)
        self.neighbor = nn.Linear(channels, channels, bias=False)
        self.distance = nn.Linear(config.radial_basis.number, 3 * channels)
        self.norm = nn.LayerNorm(channels)
        self.gate = nn.Sequential(
            nn.Linear(channels, 2 * channels), nn.Linear(2 * channels, 3 * channels)
        )
        self.mixing = PartMixing(channels)

    def forward(self, rows: Tensor, around: Neighborhood) -> Tensor:
        """Table rows (E,) of the elements at hand to features (N, 9, F)."""
        species = self.species.weight.index_select(0, rows)
        of_atom = self.atom(species).index_select(0, around.kinds)
        pair = of_atom[:, None] + self.neighbor(species)
        features = self._contracted(self._moments(len(rows), around), pair)
        if around.self_radial is not None:
            weight = self.distance(around.self_radial).unflatten(-1, (3, -1))[0]
            own = of_atom + self.neighbor(species).index_select(0, around.kinds)
            scalar = features[:, :1] + TRACE * (weight * own)[:, None]
            features = torch.cat([scalar, features[:, 1:]], dim=1)
        gate = self.norm(features.square().sum(1))
        for linear in self.gate:
            gate = self.activation(linear(gate))
        return self.mixing(features) * _per_component(gate.unflatten(-1, (3, -1)))

    def _moments(self, elements: int, around: Neighborhood) -> Tensor:
        """M (N, E, 9, K + 1)."""
        number = torch.arange(elements, device=around.kinds.device)
        total = None
        for edges in around.edges:
            kind = around.kinds.index_select(0, edges.index.flatten()).view_as(edges.index)
            of_kind = (kind[..., None] == number).to(edges.angular.dtype)
            angular = (of_kind[..., None] * edges.angular[:, :, None]).flatten(2)
            radial = torch.cat([edges.radial, torch.ones_like(edges.window)[..., None]], dim=-1)
            part = angular.transpose(1, 2) @ (radial * edges.window[..., None])
            total = part if total is None else total + part
        assert total is not None
        return total.unflatten(1, (elements, -1))

    def _contracted(self, moments: Tensor, pair: Tensor) -> Tensor:
        """M (N, E, 9, K + 1) and Z (N, E, F) to X (N, 9, F)."""
        table = torch.cat([self.distance.weight, self.distance.bias[:, None]], dim=1)
        tables = table.unflatten(0, (len(WIDTHS), -1))
        parts = zip(moments.split(WIDTHS, dim=2), tables, strict=True)
        contracted = torch.cat([part @ weights.T for part, weights in parts], dim=2)
        return (contracted * pair[:, :, None]).sum(1)


class EdgeNetwork(nn.Module):
    """Weights g_ij of a message: three layers on the radial basis, times the window."""

    def __init__(self, config: TensorNetConfig, inputs: int) -> None:
        super().__init__()
        channels = config.channels
        self.activation = ACTIVATIONS[config.activation]
        self.linears = nn.ModuleList(
            [
                nn.Linear(inputs, channels),
                nn.Linear(channels, 2 * channels),
                nn.Linear(2 * channels, 3 * channels),
            ]
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """(..., inputs) to (..., 3, F), without the window."""
        for linear in self.linears:
            inputs = self.activation(linear(inputs))
        return inputs.unflatten(-1, (3, -1))


class Interaction(nn.Module):
    """X <- X + dX + dX^2 with dX from the products of Y and its message M.

    X is normalised first. O(3): YM + MY; SO(3): twice the product in one order.
    """

    product: Tensor
    square: Tensor

    def __init__(self, config: TensorNetConfig, edge_inputs: int = 0) -> None:
        super().__init__()
        self.edge_network = EdgeNetwork(config, config.radial_basis.number + edge_inputs)
        self.before = PartMixing(config.channels)
        self.after = PartMixing(config.channels)
        self._scaled = config.group == "O(3)"
        square = product_coefficients()
        product = square + square.transpose(1, 2) if config.group == "O(3)" else 2.0 * square
        self.register_buffer("square", square.flatten(1), persistent=False)
        self.register_buffer("product", product.flatten(1), persistent=False)

    def forward(self, features: Tensor, around: Neighborhood) -> Tensor:
        """(N, 9, F) to (N, 9, F)."""
        weights = [
            self.edge_network(edges.radial) * edges.window[..., None, None]
            for edges in around.edges
        ]
        own = None
        if around.self_radial is not None:
            own = self.edge_network(around.self_radial)[None]
        return self.updated(features, weights, own, around)

    def updated(
        self,
        features: Tensor,
        weights: list[Tensor],
        own: Tensor | None,
        around: Neighborhood,
    ) -> Tensor:
        """The layer given its message weights (N, B, 3, F) a block and, or None, (N, 3, F)."""
        features = normalized(features)
        mixed = self.before(features)
        summed = message(weights, mixed, around.pairs)
        if own is not None:
            summed = summed + _per_component(own) * mixed
        product = bilinear(self.product, mixed, summed)
        if self._scaled and around.charge_factor is not None:
            product = product * around.charge_factor
        change = self.after(normalized(product))
        square = bilinear(self.square, change, change)
        if around.charge_factor is not None:
            square = square * around.charge_factor
        return features + change + square


class TensorNet(nn.Module):
    """Features of every atom from species and geometry."""

    directions: Tensor

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__()
        self.config = config
        self.basis = radial_basis(config.radial_basis, config.cutoff_lower, config.cutoff)
        self.register_buffer("directions", direction_coefficients(), persistent=False)
        self.embedding = Embedding(config)
        self.layers = nn.ModuleList(self._layer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(3 * config.channels)
        self.linear = nn.Linear(3 * config.channels, config.channels)

    def _layer(self, config: TensorNetConfig) -> Interaction:
        return Interaction(config)

    def forward(self, rows: Tensor, atoms: Atoms, pairs: Pairs) -> Tensor:
        """Table rows (E,) of the elements at hand to invariants (N, F) for the readout."""
        around = self.neighborhood(atoms, pairs)
        features = self.embedding(rows, around)
        for layer in self.layers:
            features = layer(features, around)
        return self.invariants(features)

    def invariants(self, features: Tensor) -> Tensor:
        """(N, 9, F) to (N, F)."""
        x = self.linear(self.norm(torch.cat(squared_norms(features), dim=-1)))
        return ACTIVATIONS[self.config.activation](x) if self.config.readout_activation else x

    def neighborhood(self, atoms: Atoms, pairs: Pairs) -> Neighborhood:
        """Radial functions, windows and directions of all slots."""
        config = self.config
        kind = self.linear.weight.dtype
        sign = 1.0 if config.edge_direction == "to_neighbor" else -1.0
        edges = []
        for block in pairs.blocks:
            distance = torch.linalg.vector_norm(block.vectors, dim=-1)
            window = cosine_cutoff(distance, config.cutoff_lower, config.cutoff)
            unit = (sign * block.vectors / distance[..., None]).to(kind)
            radial = self.basis(distance)
            edges.append(
                Edges(block.index, radial, window.to(kind), directions(self.directions, unit))
            )
        self_radial = None
        # With a lower cutoff the window vanishes at zero distance, and the interaction with it.
        if config.self_interaction and config.cutoff_lower == 0.0:
            self_radial = self.basis(pairs.vectors[0].new_zeros(()))
        charge_factor = None
        if config.charge_factor:
            charge = atoms.grouping.spread(atoms.charge).to(kind)
            charge_factor = (1.0 + 0.1 * charge)[:, None, None]
        return Neighborhood(tuple(edges), pairs, atoms.kinds, self_radial, charge_factor)


def _per_component(parts: Tensor) -> Tensor:
    """Repeats (N, 3, F) over the components of each part to (N, 9, F)."""
    pieces = zip(parts.split(1, dim=1), WIDTHS, strict=True)
    return torch.cat([part.expand(-1, width, -1) for part, width in pieces], dim=1)
