"""TensorNet (DOI 10.48550/arXiv.2306.06482): Cartesian tensor features of atoms.

An atom carries F channels of a 3x3 matrix X = I + A + S, stored as components (9, F).
`Embedding` makes X from species and geometry, each `Interaction` refines it by messages
and matrix products, and the readout takes the invariants of the last X.
"""

import torch
from torch import Tensor, nn

from mdgraph.models.activations import ACTIVATIONS
from mdgraph.models.configuration import TensorNetConfig
from mdgraph.models.contractions import dots, weighed
from mdgraph.models.embedding import Embedding, PartMixing
from mdgraph.models.neighborhood import Distances, Edges, Neighborhood
from mdgraph.models.nonlinear import StandardizedRows, normalized
from mdgraph.models.potential import Atoms
from mdgraph.models.products import Product
from mdgraph.models.radial import cosine_cutoff, radial_basis
from mdgraph.models.tensors import direction_coefficients, directions
from mdgraph.neighbors.pairs import Pairs
from mdgraph.neighbors.sums import message
from mdgraph.neighbors.undirected import to_pairs, to_slots, undirected_message


class EdgeNetwork(nn.Module):
    """Weights g_ij of a message but for their window: three layers on the radial basis."""

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

    def __init__(self, config: TensorNetConfig, edge_inputs: int = 0) -> None:
        super().__init__()
        self.edge_network = EdgeNetwork(config, config.radial_basis.number + edge_inputs)
        self.before = PartMixing(config.channels)
        self.after = PartMixing(config.channels)
        self._scaled = config.group == "O(3)"
        self._product = Product(1.0, True) if config.group == "O(3)" else Product(2.0, False)
        self._square = Product(1.0, False)

    def forward(self, features: Tensor, around: Neighborhood) -> Tensor:
        """(N, 9, F) to (N, 9, F)."""
        weights = [
            self.edge_network(one.radial) * one.window[..., None, None] for one in around.distances
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
        product = self._product(before, summed)
        if self._scaled and around.charge_factor is not None:
            product = product * around.charge_factor
        change = self.after(normalized(product))
        square = self._square(change, change)
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
        x = self.linear(self.norm(dots(features, features).flatten(1)))
        return ACTIVATIONS[self.config.activation](x) if self.config.readout_activation else x

    def neighborhood(self, atoms: Atoms, pairs: Pairs) -> Neighborhood:
        """Radial functions, windows and directions of all slots."""
        config = self.config
        kind = self.linear.weight.dtype
        sign = 1.0 if config.edge_direction == "to_neighbor" else -1.0
        lengths = [torch.linalg.vector_norm(block.vectors, dim=-1) for block in pairs.blocks]
        angular = [
            directions(self.directions, (sign * block.vectors / length[..., None]).to(kind))
            for block, length in zip(pairs.blocks, lengths, strict=True)
        ]
        if pairs.undirected is None:
            distances = [self._distances(length) for length in lengths]
            radial = [one.windowed() for one in distances]
        else:
            # Both directions are as long; a gradient that both receive is gathered, not added.
            length = 0.5 * to_pairs(lengths[0], pairs)
            # Padding lies beyond the cutoff: at 0 the second derivative of a sinc is NaN.
            length = length.masked_fill(~pairs.undirected.valid, 2.0 * config.cutoff)
            distances = [self._distances(length)]
            radial = [to_slots(distances[0].windowed(), pairs)]
        edges = [
            Edges(block.index, *one)
            for block, *one in zip(pairs.blocks, radial, angular, strict=True)
        ]
        self_radial = None
        # With a lower cutoff the window vanishes at zero distance, and the interaction with it.
        if config.self_interaction and config.cutoff_lower == 0.0:
            self_radial = self.basis(pairs.vectors[0].new_zeros(()))
        charge_factor = None
        if config.charge_factor:
            charge = atoms.grouping.spread(atoms.charge).to(kind)
            charge_factor = (1.0 + 0.1 * charge)[:, None, None]
        return Neighborhood(
            tuple(edges), tuple(distances), pairs, atoms.kinds, self_radial, charge_factor
        )

    def _distances(self, distance: Tensor) -> Distances:
        window = cosine_cutoff(distance, self.config.cutoff_lower, self.config.cutoff)
        return Distances(self.basis(distance), window.to(self.linear.weight.dtype))
