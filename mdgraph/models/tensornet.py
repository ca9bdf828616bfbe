"""TensorNet (DOI 10.48550/arXiv.2306.06482): Cartesian tensor features of atoms.

An atom carries F channels of a 3x3 matrix X = I + A + S, stored as components (9, F).
`Embedding` makes X from species and geometry, each `Interaction` refines it by messages
and matrix products, and the readout takes the invariants of the last X.
"""

from typing import Final

import torch
from torch import Tensor, nn

from mdgraph.models.activations import activation_of
from mdgraph.models.configuration import TensorNetConfig
from mdgraph.models.contractions import squares, weighed
from mdgraph.models.dense import activated
from mdgraph.models.edges import EdgeNetwork
from mdgraph.models.embedding import Embedding, PartMixing
from mdgraph.models.interactions import normalized_product, updated
from mdgraph.models.neighborhood import Neighborhood
from mdgraph.models.nonlinear import StandardizedRows, normalized
from mdgraph.models.potential import Atoms
from mdgraph.models.products import Product
from mdgraph.models.radial import radial_basis
from mdgraph.models.surroundings import Geometry
from mdgraph.models.tensors import direction_coefficients
from mdgraph.neighbors.pairs import Pairs
from mdgraph.neighbors.sums import message
from mdgraph.neighbors.undirected import undirected_message

_ROUNDED_THIRD: Final = 3.0 * 0.3333333432674408
"""The float32 number next to 1/3, over 1/3."""


class Interaction(nn.Module):
    """X <- X + dX + dX^2 with dX from the products of Y and its message M.

    X is normalised first. O(3): YM + MY; SO(3): twice the product in one order.
    """

    def __init__(self, config: TensorNetConfig, edge_inputs: int = 0) -> None:
        super().__init__()
        self.edge_network = EdgeNetwork(config, config.radial_basis.number + edge_inputs)
        self.before = PartMixing(config.channels)
        self.after = PartMixing(config.channels)
        self._scaled = config.group == "O(3)"
        self._product = Product(1.0, True) if config.group == "O(3)" else Product(2.0, False)

    def forward(self, features: Tensor, around: Neighborhood) -> Tensor:
        """(N, 9, F) to (N, 9, F)."""
        weights = [self.edge_network(one.radial, one.window) for one in around.distances]
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
        """The layer given its message weights and, or None, those of itself (N, 3, F).

        The former are (N, B, 3, F) a block, or (P, 3, F) of pairs.
        """
        features = normalized(features)
        before = self.before(features)
        if around.pairs.undirected is None:
            summed = message(weights, before, around.pairs)
        else:
            summed = undirected_message(weights[0], before, around.pairs)
        if own is not None:
            summed = summed + weighed(before, own.expand(len(before), -1, -1))
        scaled = around.charge_factor if self._scaled else None
        product = normalized_product(before, summed, self._product, scaled)
        return updated(features, self.after(product), around.charge_factor)


class TensorNet(nn.Module):
    """Features of every atom from species and geometry."""

    directions: Tensor
    norm_factors: Tensor

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__()
        self.config = config
        self.basis = radial_basis(config.radial_basis, config.cutoff_lower, config.cutoff)
        self.register_buffer("directions", direction_coefficients(), persistent=False)
        self.embedding = Embedding(config)
        self.layers = nn.ModuleList(self._layer(config) for _ in range(config.layers))
        if config.rounded_third:
            factors = torch.tensor([[_ROUNDED_THIRD], [1.0], [1.0]], dtype=torch.float64)
            self.register_buffer("norm_factors", factors, persistent=False)
        self.norm = StandardizedRows(3 * config.channels)
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
        norms = squares(features)
        # In float32 the factor of I rounds to one.
        if self.config.rounded_third and norms.dtype == torch.float64:
            norms = norms * self.norm_factors
        x = self.norm(norms.flatten(1))
        if not self.config.readout_activation:
            result: Tensor = self.linear(x)
            return result
        return activated(x, self.linear, activation_of(self.config))

    def neighborhood(self, atoms: Atoms, pairs: Pairs) -> Neighborhood:
        """Radial functions, windows and moments."""
        config = self.config
        sign = 1.0 if config.edge_direction == "to_neighbor" else -1.0
        limits = (config.cutoff_lower, config.cutoff)
        geometry = Geometry(self.basis, *limits, sign, self.directions)
        distances, moments = geometry.seen(pairs, atoms.kinds, len(atoms.elements))
        self_radial = None
        # With a lower cutoff the window vanishes at zero distance, and the interaction with it.
        if config.self_interaction and config.cutoff_lower == 0.0:
            self_radial = self.basis(pairs.vectors[0].new_zeros(()))
        charge_factor = None
        if config.charge_factor:
            charge = atoms.grouping.spread(atoms.charge).to(self.directions.dtype)
            charge_factor = (1.0 + 0.1 * charge)[:, None, None]
        return Neighborhood(distances, moments, pairs, atoms.kinds, self_radial, charge_factor)
